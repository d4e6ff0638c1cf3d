"""``compevo export``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from compevo_pipeline.cli.arguments import require_folder


class Target(StrEnum):
    """Whose files are written."""

    FEV = "fev"
    GIFT_EVAL = "gift-eval"


def export(
    dataset: Annotated[str, typer.Argument(help="Name of a data set with result rows.")],
    to: Annotated[Target, typer.Option(help="fev or gift-eval.")],
    results: Annotated[Path, typer.Option(help="Folder of result rows (CSV).")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder that gets the files.")] = Path("export"),
) -> None:
    """Write result rows as files that the tools of a public benchmark read.

    fev: summaries of every method and series, for `fev.leaderboard`. gift-eval: one folder a method
    with its all_results.csv. Forecasts of the same windows are compared, not the benchmarks' own
    data sets.
    """
    from compevo_core.report.export import export_rows
    from compevo_core.report.rows import read_rows

    for path in export_rows(read_rows(require_folder(results)), to.value, dataset, out):
        typer.echo(path)
