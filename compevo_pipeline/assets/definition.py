"""What asset definitions share: owner, pools, how fresh an asset must be, the version of its code.

What belongs here: arguments of ``@dg.asset`` that more than one asset takes. What does not: keys
(``asset_keys``), run configuration (``assets.ingest``, ``assets.training_config``), metadata of a
materialization (``assets.metadata``).
"""

import ast
import hashlib
from datetime import timedelta
from functools import cache
from pathlib import Path

import dagster as dg

from compevo_pipeline.settings import REPOSITORY, Layout

OWNERS = ["team:forecasting"]

DUCKDB_POOL = "duckdb"
"""Assets that write the one DuckDB file; the pool's limit of one keeps two from writing at once."""
GPU_POOL = "gpu"
"""Assets that load a language model; two at once would exceed the memory of one accelerator."""

DAILY_REFRESH = dg.FreshnessPolicy.time_window(
    # The schedule starts every 24 hours and a run may take two; one missed refresh warns, a
    # second one fails.
    warn_window=timedelta(hours=26),
    fail_window=timedelta(hours=50),
)
"""For what a refresh brings every day; ``definitions`` keeps it in live mode alone.

The age of the data itself is the check ``data_age``.
"""

TRAINING_CODE = (
    *("compevo_core/agents", "compevo_core/baselines", "compevo_core/data"),
    *("compevo_core/lm", "compevo_core/online", "compevo_core/training"),
)
"""What decides a trained population; priors and their levels are a part of it."""

_VERSION_DIGITS = 12
_FITTING_CODE = ("compevo_core/baselines", "compevo_core/data")


def code_version(*sources: str, data_release: str = "") -> str:
    """Return a version of the code that decides an asset's content.

    It changes when a statement changes, and stays when a comment, a docstring or the layout of the
    code does: otherwise a corrected sentence would mark every trained model as outdated.

    Args:
        sources: modules and folders below the repository, e.g. ``compevo_core/data``.
        data_release: release of a library whose data decide as well, such as public holidays.

    Raises:
        FileNotFoundError: a source does not exist.
    """
    digest = hashlib.sha256(data_release.encode())
    for source in sources:
        # The name counts: moving a module may change what imports it.
        digest.update(source.encode())
        for path in _modules(REPOSITORY / source):
            digest.update(_statements(path).encode())

    return digest.hexdigest()[:_VERSION_DIGITS]


def fits_folder(layout: Layout) -> Path:
    """Return the folder of fitted baselines that assets share, one a version of their code."""
    return layout.fits / code_version(*_FITTING_CODE)


def stages_folder(layout: Layout, label: str) -> Path:
    """Return where supervised stages are kept until all who share them are trained.

    One a version of the code. A launch that was interrupted goes on with them.
    """
    return layout.stages / f"{label}-{code_version(*TRAINING_CODE)}"


def _modules(source: Path) -> list[Path]:
    if not source.exists():
        raise FileNotFoundError(f"{source}: a code version names it, but there is no such module")

    return sorted(source.rglob("*.py")) if source.is_dir() else [source]


@cache
def _statements(path: Path) -> str:
    """Return the syntax tree of a module without its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            # A bare string is a docstring of a module, class, function or of the name above it.
            node.body = [item for item in body if not _is_docstring(item)]  # type: ignore[attr-defined]  # statements with a body

    return ast.dump(tree)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
