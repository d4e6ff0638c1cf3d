"""The command line ``compevo``: train, folds, predict, forecast and others.

What belongs here: the list of commands, and how an error of this project ends one. What does not:
what a command does (a module of its own each). Heavy modules are imported inside the commands, so
that ``compevo --help`` answers at once.
"""

from collections.abc import Sequence

import typer

from compevo_core.errors import CompEvoError
from compevo_core.storage_errors import translate_storage_errors
from compevo_pipeline.cli.audit_news import audit_news
from compevo_pipeline.cli.backfill import backfill
from compevo_pipeline.cli.benchmark import benchmark
from compevo_pipeline.cli.clean import clean
from compevo_pipeline.cli.demo import demo
from compevo_pipeline.cli.documented_command import DocumentedCommand
from compevo_pipeline.cli.evaluate import evaluate
from compevo_pipeline.cli.experiment import experiment
from compevo_pipeline.cli.explain import explain
from compevo_pipeline.cli.export import export
from compevo_pipeline.cli.fit import fit
from compevo_pipeline.cli.folds import folds
from compevo_pipeline.cli.forecast import forecast
from compevo_pipeline.cli.init import init
from compevo_pipeline.cli.lud import lud
from compevo_pipeline.cli.pair import pair
from compevo_pipeline.cli.params import params
from compevo_pipeline.cli.predict import predict
from compevo_pipeline.cli.report import report, table
from compevo_pipeline.cli.sources import sources
from compevo_pipeline.cli.trace import trace
from compevo_pipeline.cli.train import train

COMMANDS = (
    init,
    fit,
    train,
    folds,
    predict,
    forecast,
    explain,
    evaluate,
    benchmark,
    lud,
    trace,
    pair,
    experiment,
    audit_news,
    table,
    report,
    export,
    params,
    clean,
    sources,
    backfill,
    demo,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="News-driven forecasts by a competing, evolving population of language-model agents.",
)
for command in COMMANDS:
    app.command(cls=DocumentedCommand)(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error of this project ends as one line and exit code 1, of usage as 2."""
    try:
        # Errors of arguments are click's to show; those of this project are one line below.
        with translate_storage_errors():
            app(args=arguments, standalone_mode=True)
    except CompEvoError as error:
        typer.echo(f"compevo: {error}", err=True)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
