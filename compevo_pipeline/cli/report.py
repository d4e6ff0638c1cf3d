"""``compevo table`` and ``compevo report``: result rows as Markdown and as a page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_pipeline.cli.arguments import ResultsFolder, require_folder

if TYPE_CHECKING:
    from compevo_core.report.inputs import ReportInputs


def table(
    name: Annotated[
        str,
        typer.Argument(
            help="main, agents, ablation, backbones, efficiency, sensitivity, perturbation or lud; "
            "left out: the tables of all methods by data set."
        ),
    ] = "",
    results: Annotated[Path, typer.Option(help="Folder of result rows (CSV).")] = Path("results"),
) -> None:
    """Print a table of the paper with own rows beside the published figures, as Markdown."""
    if not name:
        typer.echo(render_headline(results))
        return

    from compevo_core.report.paper.tables import format_paper_tables

    typer.echo(format_paper_tables(name, _read_inputs(results, [], "archive")))


def report(
    results: ResultsFolder,
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders to show.")] = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    mode: Annotated[
        str, typer.Option(help="What the data is: sample, archive or live.")
    ] = "sample",
    forecasts: Annotated[
        Path | None, typer.Option(help="Folder of issued forecasts, by data set.")
    ] = None,
    windows: Annotated[
        Path, typer.Option(help="Folder of windows, by data set: the truth of forecasts.")
    ] = Path("windows"),
    scored: Annotated[
        Path | None, typer.Option(help="Folder of scores of issued forecasts, by data set.")
    ] = None,
) -> None:
    """Write the report page."""
    from dataclasses import replace

    from compevo_core.report.forecast_days import read_days
    from compevo_core.report.page import write_report

    inputs = _read_inputs(results, runs or [], mode)
    if forecasts is not None:
        inputs = replace(inputs, days=read_days(forecasts, windows, scored))
    typer.echo(write_report(inputs, out))


def render_headline(results: Path) -> str:
    """Return the result tables of a folder of rows, as Markdown."""
    from compevo_core.report.markdown import format_results

    return format_results(_read_inputs(results, [], "archive"))


def _read_inputs(results: Path, runs: Sequence[Path], mode: str) -> "ReportInputs":
    from compevo_core.report.inputs import read_inputs

    require_folder(results)
    return read_inputs(results, runs, mode=mode, generated_at=datetime.now(UTC))
