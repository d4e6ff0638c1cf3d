"""``compevo sources``."""

from typing import Annotated

import typer

LONGEST_SOURCE = 44
SHOWN_FILES = 20


def sources(
    months: Annotated[int, typer.Option(help="How many months to show.", min=1, max=120)] = 6,
    dataset: Annotated[
        str, typer.Option(help="Only what begins with this: a data set, news, or a publisher.")
    ] = "",
) -> None:
    """Show what is stored of every source by month, and which files are absent or failed."""
    from datetime import UTC, datetime

    import polars as pl

    from compevo_pipeline.cli.forecast_table import clean_text
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings
    from compevo_pipeline.source_coverage import (
        list_troubled,
        measure_coverage,
        pivot_months,
        tabulate_files,
    )

    workspace = Workspace(settings=Settings.from_environment())
    counts = measure_coverage(workspace, datetime.now(UTC).date())
    counts = counts.filter(pl.col("source").str.starts_with(dataset))
    if not counts.height:
        typer.echo(f"nothing is stored of {dataset or 'any source'} in {workspace.data_mode} mode")
        return

    table = pivot_months(counts, months)
    rows = [tuple(table.columns), *table.rows()]
    cells = [[clean_text(str(cell), LONGEST_SOURCE) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo(line.rstrip())

    files = tabulate_files(list_troubled(workspace))
    if files.height:
        typer.echo(f"\n{files.height} file(s) absent or failed, newest first:")
    for file in files.head(SHOWN_FILES).iter_rows(named=True):
        why = f": {clean_text(file['why'])}" if file["why"] else ""
        name = clean_text(file["file"])
        typer.echo(f"  {name}  {file['state']}, asked again {file['again']}{why}")
