"""Every table of the paper by name, and all of them as Markdown.

What belongs here: the names that ``compevo table`` knows. What does not: what a table holds (the
other modules of ``report.paper``).
"""

from collections.abc import Callable, Iterator, Mapping

from compevo_core.errors import ConfigError
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper.cells import READING
from compevo_core.report.paper.changes import (
    build_ablation,
    build_backbones,
    build_perturbation,
    build_sensitivity,
)
from compevo_core.report.paper.costs import build_efficiency, build_lud
from compevo_core.report.paper.methods import build_agents, build_main
from compevo_core.report.tables import Table

PAPER_TABLES: Mapping[str, tuple[str, Callable[[ReportInputs], list[Table]]]] = {
    "main": ("Methods", build_main),
    "agents": ("Agent systems", build_agents),
    "ablation": ("Ablation", build_ablation),
    "backbones": ("Backbones", build_backbones),
    "efficiency": ("Efficiency", build_efficiency),
    "sensitivity": ("Sensitivity", build_sensitivity),
    "perturbation": ("Perturbed news", build_perturbation),
    "lud": ("Logic updates", build_lud),
}
"""Title and builder of each table."""


def build_paper_tables(name: str, inputs: ReportInputs) -> list[Table]:
    """Return the tables of one name.

    Raises:
        ConfigError: there is no such name.
    """
    if name not in PAPER_TABLES:
        raise ConfigError(f"no table {name!r}; known: {', '.join(PAPER_TABLES)}")
    return PAPER_TABLES[name][1](inputs)


def format_paper_tables(name: str, inputs: ReportInputs) -> str:
    """Return the tables of one name as Markdown, and how to read them."""
    return "\n\n".join([*_format_tables(name, inputs), READING])


def format_all_paper_tables(inputs: ReportInputs) -> str:
    """Return how to read the tables, and every table as Markdown, under a heading each."""
    parts = [READING]
    for name, (title, _) in PAPER_TABLES.items():
        parts += [f"## {title}", *_format_tables(name, inputs)]
    return "\n\n".join(parts)


def _format_tables(name: str, inputs: ReportInputs) -> Iterator[str]:
    # Markdown has no captions, so that each is a line before its table.
    for table in build_paper_tables(name, inputs):
        yield f"**{table.caption}**"
        yield table.to_markdown() if table.rows else " ".join(table.notes)
