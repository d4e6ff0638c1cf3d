"""Result tables as Markdown, and writing them between markers in documents.

What belongs here: the full and the short tables with their summaries, replacing what stands between
two markers, comparing. What does not: any other text of those documents.

    python -m compevo_core.report.markdown README.md docs/explanation/results.md
    python -m compevo_core.report.markdown --check README.md docs/explanation/results.md
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from compevo_core.data.files import write_text
from compevo_core.errors import CompEvoError, DataError
from compevo_core.report.audit_tables import format_audit
from compevo_core.report.inputs import ReportInputs, read_inputs
from compevo_core.report.paper.tables import format_all_paper_tables
from compevo_core.report.quantile_tables import sureness_table
from compevo_core.report.result_tables import (
    agent_table,
    headline_table,
    short_table,
)
from compevo_core.report.rows import list_scopes, select_pooled
from compevo_core.report.summaries import summarize_scope
from compevo_core.report.tables import Table
from compevo_core.report.variant_tables import list_variant_tables
from compevo_core.report.wording import join_items

#: What the short tables show: operational demand as it was known when AEMO issued its own forecast,
#: and electricity, the test set published with the paper's baseline.
SHORT_SCOPES = (
    ("electricity-operational", "operational-2026-200-known-1700"),
    ("electricity", "n2f-test-100"),
)
NO_ROWS = "*No committed result rows yet.*"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Block(NamedTuple):
    """A generated part of a document: the lines around it, and what stands between them."""

    start: str
    end: str
    format_content: Callable[[ReportInputs], str]


def format_results(inputs: ReportInputs) -> str:
    """Return the tables of all scopes with their summaries, then ablations and controls."""
    if select_pooled(inputs.rows).is_empty():
        return NO_ROWS

    # Each table is followed by its own summary: a reader must not have to look for the verdict.
    parts: list[str] = []
    for dataset, subset in list_scopes(select_pooled(inputs.rows)):
        parts += _format_table(headline_table(inputs.rows, dataset, subset))
        parts += _format_agents(inputs, dataset, subset)
        sureness = sureness_table(inputs.rows, dataset, subset)
        parts += [] if sureness is None else _format_table(sureness)
        parts += _format_summaries(inputs, dataset, subset)

    # Ablation variants train under a smaller budget, so they are never in a table with the others.
    ablations = select_pooled(inputs.rows, ablation=True)
    for dataset in ablations.get_column("dataset").unique(maintain_order=True):
        for table in list_variant_tables(inputs, dataset):
            parts += _format_table(table)
    return "\n\n".join(parts)


def format_short_results(inputs: ReportInputs) -> str:
    """Return the main methods on the short scopes, each with its summary."""
    present = list_scopes(select_pooled(inputs.rows))
    parts: list[str] = []
    for dataset, subset in SHORT_SCOPES:
        if (dataset, subset) in present:
            parts += _format_table(short_table(inputs.rows, dataset, subset))
            parts += _format_summaries(inputs, dataset, subset)
    return "\n\n".join(parts) or NO_ROWS


# The markers are HTML comments, which Markdown does not show.
BLOCKS = (
    Block(
        "<!-- results: made by `make readme` from results/*.csv -->",
        "<!-- end of results -->",
        format_results,
    ),
    Block(
        "<!-- results-short: made by `make readme` -->",
        "<!-- end of results-short -->",
        format_short_results,
    ),
    Block(
        "<!-- paper-tables: made by `make readme` from results/*.csv -->",
        "<!-- end of paper-tables -->",
        format_all_paper_tables,
    ),
    Block(
        "<!-- news-audit: made by `make readme` from results/news-audit-*.csv -->",
        "<!-- end of news-audit -->",
        lambda inputs: format_audit(inputs.audit),
    ),
)


def replace_between(text: str, content: str, start: str, end: str, *, document: str) -> str:
    """Replace what stands between two marker lines.

    Args:
        text: the document.
        content: new text between the markers.
        start: the line before it.
        end: the line after it.
        document: name of the document, for the error.

    Raises:
        DataError: a marker is missing.
    """
    # Everything outside the markers is written by hand and must come through unchanged.
    before, found_start, rest = text.partition(start)
    _, found_end, after = rest.partition(end)

    if not found_start or not found_end:
        raise DataError(
            f"{document}: the line {start!r} or, below it, {end!r} is missing; put both around the "
            "place of the table"
        )
    return f"{before}{start}\n{content}\n{end}{after}"


def update_document(text: str, inputs: ReportInputs, *, document: str) -> str:
    """Write every generated block of a document again.

    Raises:
        DataError: the document has no block, or a block without its end.
    """
    # A document without any marker is a wrong path or a lost marker, and never just unchanged.
    blocks = [block for block in BLOCKS if block.start in text]
    if not blocks:
        markers = " or ".join(f"{block.start!r} ... {block.end!r}" for block in BLOCKS)
        raise DataError(f"{document}: no place for a result table; add the lines {markers}")

    for block in blocks:
        content = block.format_content(inputs)
        text = replace_between(text, content, block.start, block.end, document=document)
    return text


def find_outdated(documents: Sequence[Path], results: Path) -> list[tuple[Path, str]]:
    """Return (document, new text) of each document that does not agree with the result rows.

    Raises:
        DataError: a document has no block, or a result file is torn.
    """
    # The moment of generation is on the page only: documents must not change from day to day.
    inputs = read_inputs(results, [], mode="archive", generated_at=_EPOCH)

    outdated = []
    for document in documents:
        old = document.read_text(encoding="utf-8")
        new = update_document(old, inputs, document=str(document))
        if new != old:
            outdated.append((document, new))
    return outdated


app = typer.Typer(add_completion=False)


@app.command()
def main(
    documents: Annotated[list[Path], typer.Argument(help="Markdown files with result markers.")],
    results: Annotated[Path, typer.Option(help="Folder of result rows.")] = Path("results"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")
    ] = False,
) -> None:
    """Write the result tables of Markdown files again from the committed rows."""
    # All documents are read before one is written: an error leaves every one as it was.
    try:
        outdated = find_outdated(documents, results)
    except (CompEvoError, OSError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from error

    for document, text in outdated:
        if check:
            typer.echo(f"{document} is out of date: run `make readme`")
        else:
            write_text(document, text)
            typer.echo(f"{document} written")
    if check and outdated:
        raise typer.Exit(1)


def _format_table(table: Table) -> Iterator[str]:
    yield f"**{table.caption}**"
    yield table.to_markdown()


def _format_agents(inputs: ReportInputs, dataset: str, subset: str) -> list[str]:
    """Return the errors of single agents in one line: a table would bury that of the methods."""
    table = agent_table(inputs.rows, dataset, subset)
    if table is None:
        return []
    errors = [f"{cells[0].removesuffix(' alone')} {cells[1]}" for cells in table.rows]
    return [f"Agents alone, {table.header[1]}: {join_items(errors)}."]


def _format_summaries(inputs: ReportInputs, dataset: str, subset: str) -> list[str]:
    return [summary.to_line() for summary in summarize_scope(inputs, dataset, subset)]


if __name__ == "__main__":
    app()
