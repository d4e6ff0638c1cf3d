"""The command line ``compevo``: its commands in groups.

What belongs here: the list of commands, and how an error of this project ends one. What does not:
what a command does. Commands import heavy modules, so that ``compevo --help`` answers at once.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from compevo_core import __version__
from compevo_core.errors import CompEvoError
from compevo_core.runtime.files import translate_storage_errors
from compevo_pipeline.cli.arguments import DocumentedCommand
from compevo_pipeline.cli.data import accept, backfill, backup, init, rebuild, restore, sources
from compevo_pipeline.cli.forecast import explain, forecast, refit, verify
from compevo_pipeline.cli.refresh import refresh
from compevo_pipeline.cli.results import clean, evaluate, publish
from compevo_pipeline.cli.training import fit
from compevo_pipeline.config.settings import disable_progress_bars
from compevo_pipeline.paper.commands import paper
from compevo_pipeline.paper.demo import demo

PANELS = {
    "Forecast": (fit, forecast, explain, verify, publish, refit, evaluate),
    "Data": (init, refresh, sources, backfill, accept, rebuild),
    "Housekeeping": (clean, backup, restore, demo),
}
"""The commands, in the groups that ``compevo --help`` shows."""

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="News-driven forecasts by competing, evolving language-model agents.",
)
for panel, commands in PANELS.items():
    for command in commands:
        app.command(cls=DocumentedCommand, rich_help_panel=panel)(command)
app.add_typer(paper, name="paper", rich_help_panel="Research")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"compevo {__version__}")
        raise typer.Exit


@app.callback()
def _read_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    disable_progress_bars()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error of this project ends as one line and exit code 1, of usage as 2."""
    try:
        # Errors of arguments are click's to show; those of this project are one line below.
        with translate_storage_errors():
            app(args=arguments, standalone_mode=True)
    except CompEvoError as error:
        typer.echo(f"compevo: {error}", err=True)
        raise SystemExit(1) from error


def run() -> None:
    """Run a command, and leave without duckdb's warnings at shutdown."""
    try:
        main()
    except SystemExit as stop:
        sys.stdout.flush()
        os._exit(int(stop.code or 0))  # everything is closed


if __name__ == "__main__":
    run()
