"""Result tables as Markdown, and writing them between markers in documents.

What belongs here: the full tables with their summaries, the short one, replacing the text
between two markers, comparing. What does not: any other text of those documents.

    python -m compevo_core.paper.report.markdown README.md
    python -m compevo_core.paper.report.markdown --check README.md
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from compevo_core.errors import CompEvoError, DataError
from compevo_core.paper.report import paper_tables, result_tables
from compevo_core.paper.report.evidence_tables import (
    format_context,
    format_control,
    format_evidence,
    format_worth,
)
from compevo_core.paper.report.inputs import ReportInputs, list_scopes, read_inputs, select_pooled
from compevo_core.report.tables import Table
from compevo_core.runtime.files import write_text

#: What the short table shows: operational demand as known when AEMO issues its forecast.
SHORT_SCOPE = ("electricity-operational", "operational-2026-200-known-1700")
_COUNTED = ("Windows", "Points", "Masked", "Not in MAPE")
NO_ROWS = "*No committed result rows yet.*"
#: Only the page shows the moment of generation: documents must not change from day to day.
UNDATED = datetime(1970, 1, 1, tzinfo=UTC)


class Block(NamedTuple):
    """A generated part of a document: the lines around it, and the text between them."""

    start: str
    end: str
    format_content: Callable[[ReportInputs], str]


def format_results(inputs: ReportInputs, *, is_compact: bool = False) -> str:
    """Return the tables of all scopes with their summaries, then ablations and controls.

    With ``is_compact``, counts that all rows of a table share are in a sentence, not in columns.
    """
    if select_pooled(inputs.rows).is_empty():
        return NO_ROWS

    show = _format_compactly if is_compact else Table.to_titled_markdown
    # Each table is followed by its own summary: a reader must not have to search for the verdict.
    parts: list[str] = [paper_tables.NOTES["quantiles"]] if is_compact else []
    for dataset, subset in list_scopes(select_pooled(inputs.rows)):
        parts.append(show(result_tables.headline_table(inputs.rows, dataset, subset)))
        # In one line: a table of single agents would bury the methods table.
        if (agents := result_tables.agent_table(inputs.rows, dataset, subset)) is not None:
            names = (row[0].removeprefix("Agent ") for row in agents.rows)
            errors = (f"{name}: {row[1]}" for name, row in zip(names, agents.rows, strict=True))
            parts.append(f"Each agent by itself, {agents.header[1]}: {', '.join(errors)}.")
        for result in result_tables.summarize_scope(inputs, dataset, subset):
            name = f"CompEvo ({result.configuration}): " if result.configuration else ""
            parts.append(f"{name}{result.summary}")
        quantiles = result_tables.quantile_table(inputs.rows, dataset, subset)
        parts += [] if quantiles is None else [show(quantiles)]

    # Ablation variants train with a smaller budget, so they never share a table with the others.
    ablations = select_pooled(inputs.rows, ablation=True)
    for dataset in ablations.get_column("dataset").unique(maintain_order=True):
        parts += map(show, result_tables.list_variant_tables(inputs, dataset))
    return "\n\n".join(parts)


def format_short_results(inputs: ReportInputs) -> str:
    """Return the table of the main methods on the short scope."""
    if SHORT_SCOPE not in list_scopes(select_pooled(inputs.rows)):
        return NO_ROWS
    return result_tables.short_table(inputs.rows, *SHORT_SCOPE).to_titled_markdown()


_FROM_ROWS = "filled in from results/*.csv when the site is built"
_CONTENTS: tuple[tuple[str, str, Callable[[ReportInputs], str]], ...] = (
    ("results", _FROM_ROWS, lambda inputs: format_results(inputs, is_compact=True)),
    ("results-short", "made by `make readme`", format_short_results),
    ("news-worth", "made by `make readme`", lambda i: format_worth(i.specialists, i.text, i.audit)),
    ("paper-sets-short", "made by `make readme`", paper_tables.format_short_sets),
    ("paper-tables", _FROM_ROWS, paper_tables.format_all_paper_tables),
    ("paper-sets", _FROM_ROWS, paper_tables.format_paper_sets),
    ("news-audit", _FROM_ROWS, lambda inputs: format_evidence("audit", inputs.audit)),
    ("control", _FROM_ROWS, lambda inputs: format_control(inputs.control, inputs.control_rounds)),
    ("specialists", _FROM_ROWS, lambda i: format_evidence("specialists", i.specialists)),
    ("text", _FROM_ROWS, lambda inputs: format_evidence("text", inputs.text)),
    ("context", _FROM_ROWS, lambda inputs: format_context(inputs.context)),
)
# The markers are HTML comments, which Markdown does not show.
BLOCKS = tuple(
    Block(f"<!-- {name}: {origin} -->", f"<!-- end of {name} -->", format_content)
    for name, origin, format_content in _CONTENTS
)


def replace_between(text: str, content: str, start: str, end: str, *, document: str) -> str:
    """Replace the text between two marker lines; DataError names a document without a marker."""
    # Everything outside the markers is written by hand and must not change.
    before, found_start, rest = text.partition(start)
    _, found_end, after = rest.partition(end)

    if not found_start or not found_end:
        raise DataError(
            f"{document}: the line {start!r} or, below it, {end!r} is missing; put both around the "
            "place of the table"
        )
    return f"{before}{start}\n{content}\n{end}{after}"


def update_document(text: str, inputs: ReportInputs, *, document: str) -> str:
    """Write every block of a document again; DataError if it has none, or one without its end."""
    # A document without any marker means a wrong path or a lost marker; it is never just unchanged.
    blocks = [block for block in BLOCKS if block.start in text]
    if not blocks:
        markers = " or ".join(f"{block.start!r} ... {block.end!r}" for block in BLOCKS)
        raise DataError(f"{document}: no place for a result table; add the lines {markers}")

    for block in blocks:
        content = block.format_content(inputs)
        text = replace_between(text, content, block.start, block.end, document=document)
    return text


def find_outdated(documents: Sequence[Path], results: Path) -> list[tuple[Path, str]]:
    """Return (document, new text) where they differ; DataError for a lost mark or torn rows."""
    inputs = read_inputs(results, [], mode="archive", generated_at=UNDATED)

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
    # All documents are read before one is written: after an error all are as before.
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


def _format_compactly(table: Table) -> str:
    """Return caption and table, with the counts that all rows share in a sentence."""
    shared = {
        place: f"{table.rows[0][place]} {title[0].lower()}{title[1:]}"
        for place, title in enumerate(table.header)
        if title in _COUNTED and len({row[place] for row in table.rows}) == 1
    }
    counts = f"{', '.join(shared.values())}." if shared else ""
    notes = " ".join(filter(None, [counts, *table.notes]))
    # Text and best cells are left of the counts.
    header, *rows = (
        [cell for place, cell in enumerate(line) if place not in shared]
        for line in (table.header, *table.rows)
    )
    compact = replace(table, header=header, rows=rows, notes=[notes] if notes else [])
    return compact.to_titled_markdown()


if __name__ == "__main__":
    app()
