"""``make demo``: run a job in this process, show its progress, and end with the results.

What belongs here: the command line around one run. What does not: what the job does (``jobs``),
how progress looks (``loggers``). The run is stored in ``DAGSTER_HOME`` like any other, so the UI
shows it afterwards. Heavy modules are imported inside the functions, so that ``compevo --help``
answers at once.
"""

import logging
import os
import sys
import time
import uuid
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compevo_core.durations import format_duration
from compevo_core.errors import CompEvoError
from compevo_core.storage_errors import translate_storage_errors

if TYPE_CHECKING:
    import dagster as dg

    from compevo_pipeline.settings import Layout, Settings
    from compevo_pipeline.sources.common.base import Mode

log = logging.getLogger(__name__)


class Job(StrEnum):
    """The jobs of the project."""

    DEMO = "demo"
    FULL = "full"
    REFRESH = "refresh"


class Dataset(StrEnum):
    """The data sets a population can be trained for."""

    ELECTRICITY = "electricity"
    ELECTRICITY_OPERATIONAL = "electricity-operational"
    EXCHANGE = "exchange"
    BITCOIN = "bitcoin"
    TRAFFIC = "traffic"


def demo(
    job: Annotated[Job, typer.Option(help="Job to run.")] = Job.DEMO,
    dataset: Annotated[
        Dataset, typer.Option(help="Data set to train and score; refresh has none.")
    ] = Dataset.ELECTRICITY,
    day: Annotated[
        str, typer.Option(help="Day that refresh forecasts, such as 2026-03-31; else tomorrow.")
    ] = "",
) -> None:
    """Run everything end to end on the sample data (what `make demo` runs), or another job."""
    from compevo_core.process_memory import peak_memory_gigabytes
    from compevo_pipeline.definitions import build_defs
    from compevo_pipeline.settings import Settings, disable_progress_bars, ensure_dagster_home
    from compevo_pipeline.sources.common.base import Mode

    _silence_warnings()
    disable_progress_bars()
    ensure_dagster_home()
    settings = Settings.from_environment()

    started = time.monotonic()
    failures = run_job(build_defs(settings), job.value, dataset.value, day)
    seconds = time.monotonic() - started

    typer.echo(
        f"\n{job.value} ran for {format_duration(seconds)} and used up to "
        f"{peak_memory_gigabytes(include_children=True):.1f} GB of memory."
    )
    if failures:
        typer.echo("\n".join(["It failed:", *failures]))
        typer.echo(
            "Correct the cause and run it again: finished steps stay, training resumes from "
            "its last checkpoint."
        )
        raise typer.Exit(1)

    # The demo runs on sample data whatever the deployment's mode is.
    mode = Mode.SAMPLE if job is Job.DEMO else settings.mode
    if job is Job.DEMO:
        show_tomorrow(settings, dataset.value)
    show_results(settings.layout(mode), mode)


def run_job(defs: "dg.Definitions", name: str, dataset: str, day: str = "") -> list[str]:
    """Run a job in this process.

    Args:
        defs: the code location.
        name: the job.
        dataset: which one to train and score; the refresh is that of operational demand.
        day: which one the refresh forecasts; empty for tomorrow on the market's clock.

    Returns:
        A line for each step that failed.
    """
    import dagster as dg

    from compevo_pipeline.jobs import job_name, run_config
    from compevo_pipeline.launchers.dead_runs import hold_run_lock, sweep_meanwhile
    from compevo_pipeline.partitions import target_days

    # The refresh is that of operational demand, whose day is given or tomorrow.
    has_own = name in (Job.DEMO, Job.FULL)
    job = defs.resolve_job_def(job_name(name, dataset) if has_own else name)
    # The view needs all names at the start, to know how much is left.
    steps = [node.name for node in job.nodes]
    loggers: dict[str, Any] = {"loggers": {"progress": {"config": {"steps": steps}}}}

    run_id = str(uuid.uuid4())
    with dg.DagsterInstance.get() as instance:
        # Dagster runs a job in this process without asking the job's executor, which would do it.
        hold_run_lock(instance, run_id)
        with sweep_meanwhile(instance):
            result = job.execute_in_process(
                run_config=run_config(name, dataset) | loggers,
                partition_key=None if has_own else day or target_days.get_last_partition_key(),
                instance=instance,
                run_id=run_id,
                # A failed step must not hide those that failed with it.
                raise_on_error=False,
            )

        if result.success:
            return []
        failed = result.filter_events(lambda event: event.is_step_failure)
        return [f"  {event.step_key}: {describe_failure(event)}" for event in failed]


def describe_failure(event: "dg.DagsterEvent") -> str:
    """Return why a step failed, in one line: the innermost error."""
    failure = event.step_failure_data
    # A dg.Failure of ours says file, line and remedy itself.
    if failure.user_failure_data and failure.user_failure_data.description:
        return failure.user_failure_data.description

    error = failure.error
    while error is not None and error.cause is not None:
        error = error.cause
    return error.message.strip() if error is not None else "no error was recorded"


def show_tomorrow(settings: "Settings", dataset: str) -> None:
    """Issue and print the forecast of the day after the sample data, and put it into the report.

    A data set whose windows are not days has no such forecast.
    """
    from compevo_core.baselines.shared_fits import SharedFits
    from compevo_core.data.datasets import DATASETS
    from compevo_pipeline.assets.definition import fits_folder
    from compevo_pipeline.cli.forecast_table import describe_data, render_forecast
    from compevo_pipeline.next_day import issue_next_day
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.site import write_site
    from compevo_pipeline.sources.common.base import Mode

    if not DATASETS[dataset].align_to_market_day:
        return

    workspace = Workspace(settings=settings, mode=Mode.SAMPLE.value)
    found = issue_next_day(
        workspace,
        dataset,
        clock=lambda: datetime.now(UTC),
        log=log,
        fit=SharedFits(fits_folder(workspace.layout)),
    )
    issued = found.forecast
    typer.echo("\nTomorrow, in the sample world:\n")
    typer.echo(render_forecast(issued, describe_data(Mode.SAMPLE, dataset)))
    # For example that another model issued this day before, and its forecast stays.
    typer.echo("".join(f"\nNote: {note}" for note in found.notes))
    words = f"{issued.origin:%Y-%m-%d} {issued.entities[0]} --dataset {dataset}"
    typer.echo(f"Why it is what it is: compevo explain {words}")
    write_site(workspace, datetime.now(UTC))


def show_results(layout: "Layout", mode: "Mode") -> None:
    """Print the result tables, where the report is, and how to open the UI."""
    from compevo_core.report.inputs import read_inputs
    from compevo_core.report.markdown import format_results
    from compevo_pipeline.sources.common.base import Mode

    inputs = read_inputs(layout.results, [], mode=mode.value, generated_at=datetime.now(UTC))
    typer.echo(f"\n{format_results(inputs)}\n")

    if mode is Mode.SAMPLE:
        typer.echo(
            "The data is synthetic (exchange rates excepted): these errors show that everything "
            "works, no more."
        )
    typer.echo(f"Report:      {layout.report}")
    typer.echo(f"Result rows: {layout.results}")
    typer.echo("Dagster UI:  make ui")
    typer.echo(f"Everything else (windows, runs, news): {layout.root}")


def _silence_warnings() -> None:
    """Hide Dagster's notices about its young APIs, which a user of the demo cannot act on."""
    import dagster as dg

    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    warnings.filterwarnings("ignore", category=dg.PreviewWarning)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(demo)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the process's exit code."""
    try:
        with translate_storage_errors():
            app(args=arguments)
    except SystemExit as stop:
        return int(stop.code or 0)
    except CompEvoError as error:
        typer.echo(f"compevo: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    # Everything is closed; leaving now spares the terminal duckdb's pages of warnings at shutdown.
    os._exit(exit_code)
