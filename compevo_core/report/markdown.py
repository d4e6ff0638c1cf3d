"""The result table of README.md, made from committed rows between two markers.

What belongs here: headline tables and verdict lines as Markdown, writing them between the markers, comparing.
What does not: any other part of the README.
Run it as ``python -m compevo_core.report.markdown [README.md] [results]``; with ``--check`` it only compares.
"""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from compevo_core.errors import DataError
from compevo_core.report import result_tables
from compevo_core.report.inputs import ReportInputs, read_inputs
from compevo_core.report.rows import ABLATION, pooled, scopes
from compevo_core.report.tables import Table, to_markdown
from compevo_core.report.verdict import one_line, verdicts

START = "<!-- results: made by `make readme` from results/*.csv -->"
END = "<!-- end of results -->"
NO_ROWS = "*No committed result rows yet.*"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def headline_markdown(inputs: ReportInputs) -> str:
    """Headline and ablation tables with their verdict lines, as Markdown."""
    if pooled(inputs.rows).is_empty():
        return NO_ROWS
    text = []
    for dataset, subset in scopes(pooled(inputs.rows)):
        table = result_tables.headline(inputs.rows, dataset, subset)
        name = table.caption.removesuffix(": pooled errors")
        lines = [
            one_line(verdict) for verdict in verdicts(inputs) if verdict.scope.startswith(name)
        ]
        text.append(_block(table, "\n\n".join(lines)))
    datasets = (
        inputs.rows.filter(inputs.rows["experiment"] == ABLATION)
        .get_column("dataset")
        .unique(maintain_order=True)
    )
    return "\n\n".join(
        text + [_block(result_tables.ablation(inputs.rows, dataset), "") for dataset in datasets]
    )


def _block(table: Table, verdict: str) -> str:
    return "\n\n".join(
        part for part in (f"**{table.caption}**", to_markdown(table), verdict) if part
    )


def with_table(readme: str, table: str, markers: tuple[str, str] = (START, END)) -> str:
    """The README's text with what stands between the markers replaced; ``DataError`` if a marker is missing."""
    before, start, rest = readme.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not start or not end:
        raise DataError(
            f"README.md: the line {markers[0]!r} or {markers[1]!r} is missing; put both back around the "
            "table"
        )
    return f"{before}{start}\n{table}\n{end}{after}"


def updated(readme: Path, results: Path, runs: Sequence[Path] = ()) -> str:
    """What README.md should say, given the committed rows."""
    inputs = read_inputs(results, runs, mode="archive", generated_at=EPOCH)
    return with_table(readme.read_text(encoding="utf-8"), headline_markdown(inputs))


def main(arguments: Sequence[str]) -> int:
    """Write the README again, or with ``--check`` return 1 if it is out of date."""
    named = [Path(one) for one in arguments if one != "--check"]
    readme = named[0] if named else Path("README.md")
    results = named[1] if len(named) > 1 else Path("results")
    text = updated(readme, results)
    if "--check" in arguments:
        same = text == readme.read_text(encoding="utf-8")
        message = "agrees with results/" if same else "is out of date: run `make readme`"
        sys.stdout.write(f"{readme} {message}\n")
        return 0 if same else 1
    readme.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
