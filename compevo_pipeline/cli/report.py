"""``compevo table`` and ``compevo report``: result rows as Markdown and as a page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_pipeline.cli.arguments import ResultsFolder

if TYPE_CHECKING:
    from compevo_core.report.inputs import ReportInputs


def table(results: ResultsFolder = Path("results")) -> None:
    """Print the result tables as Markdown."""
    typer.echo(render_headline(results))


def report(
    results: ResultsFolder,
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders to show.")] = None,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    mode: Annotated[
        str, typer.Option(help="What the data is: sample, archive or live.")
    ] = "sample",
) -> None:
    """Write the static report page."""
    from compevo_core.report.page import write_report

    typer.echo(write_report(_read_inputs(results, runs or [], mode), out))


def render_headline(results: Path) -> str:
    """Return the result tables of a folder of rows, as Markdown."""
    from compevo_core.report.markdown import format_results

    return format_results(_read_inputs(results, [], "archive"))


def _read_inputs(results: Path, runs: Sequence[Path], mode: str) -> "ReportInputs":
    from compevo_core.report.inputs import read_inputs

    return read_inputs(results, runs, mode=mode, generated_at=datetime.now(UTC))
