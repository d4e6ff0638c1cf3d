"""``compevo refresh``: run a job in this process, and end with the results.

What belongs here: the command line around one run. What does not: what the job does
(``defs.jobs``), how progress looks (``defs.loggers``). The run is stored in ``DAGSTER_HOME`` like
any other, so the UI shows it afterwards. Heavy modules are imported inside the functions, so that
``compevo --help`` answers at once.
"""

import contextlib
import logging
import time
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compevo_core.errors import SourceTransient, StorageError
from compevo_core.runtime.usage import format_duration
from compevo_pipeline.cli import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from compevo_core.forecast.issued import IssuedForecast
    from compevo_pipeline.config.settings import Layout, Settings
    from compevo_pipeline.work.deployment import Deployment

log = logging.getLogger(__name__)


def refresh(
    dataset: Annotated[str, typer.Argument(help="Data set, built-in or your own.")] = (
        "electricity-operational"
    ),
    day: Annotated[
        str,
        typer.Option(
            help="Day to forecast: YYYY-MM-DD, today or tomorrow (default: tomorrow for "
            "operational demand, or today for other data)."
        ),
    ] = "",
) -> None:
    """Read new data, forecast a day, score past days, write the pages.

    Trains nothing. The schedules run the same job.
    """
    from compevo_pipeline.cli.forecast import read_day
    from compevo_pipeline.defs.jobs import choose_day
    from compevo_pipeline.work.deployment import Deployment, utc_now

    deployment = arguments.open_deployment()
    for name in deployment.registry.find_blocks(dataset) or [dataset]:
        declared = deployment.registry[name]
        asked = read_day(day, declared.spec.to_market(utc_now()))
        chosen = asked.isoformat() if asked else choose_day(declared, utc_now())
        settings = run("refresh", name, chosen)
        # Windows that begin at any hour have no day to show.
        if chosen:
            show_forecast(Deployment(settings=settings), name, date.fromisoformat(chosen))
        show_paths(deployment.layout)


def run(
    name: str, dataset: str, day: str = "", build: "Callable[[Settings], Any] | None" = None
) -> "Settings":
    """Run a job in this process and say how it went; return the settings.

    ``build`` wires the code location of the job; the product's unless given.
    """
    from compevo_core.runtime.usage import peak_memory_gigabytes
    from compevo_pipeline.config.settings import Settings, ensure_dagster_home
    from compevo_pipeline.defs.jobs import hide_notices, run_job
    from compevo_pipeline.work.alerts import Alert, tell
    from compevo_pipeline.work.deployment import Deployment, utc_now

    hide_notices()
    ensure_dagster_home()
    # Its import wires the graph, about which Dagster gives notices.
    from compevo_pipeline.definitions import build_defs

    settings = Settings.from_environment()
    declared = Deployment(settings=settings).registry[dataset]  # a wrong name ends here
    family, block = (declared.family, dataset) if declared.family else (dataset, "")

    started = time.monotonic()
    try:
        failures = run_job((build or build_defs)(settings), name, family, day, block)
    except StorageError as error:
        # No sensor runs that could report it. The command itself prints the error.
        silent = logging.Logger(__name__)
        silent.addHandler(logging.NullHandler())
        # Alerts that a destination does not take are sent by the next call.
        with contextlib.suppress(SourceTransient):
            tell(settings, [Alert(fault="records", text=str(error))], utc_now().date(), silent)
        raise
    seconds = time.monotonic() - started

    typer.echo(
        f"\n{name} of {dataset} ran for {format_duration(seconds)} and used up to "
        f"{peak_memory_gigabytes(include_children=True):.1f} GB of memory."
    )
    if failures:
        typer.echo("\n".join(["It failed:", *failures]))
        typer.echo(
            "Correct the cause and run it again: finished steps stay, training resumes from "
            "its last checkpoint."
        )
        raise typer.Exit(1)
    return settings


def show_forecast(deployment: "Deployment", dataset: str, day: date | None) -> "IssuedForecast":
    """Print and return the forecast of a day, which is issued unless it was before.

    ``day`` is None for the newest one.
    """
    from compevo_core.forecast.explain import list_effects
    from compevo_pipeline.cli.forecast import list_news_effects, render_forecast
    from compevo_pipeline.defs.command_events import report_forecast
    from compevo_pipeline.sources.common.base import describe_data
    from compevo_pipeline.work.next_day import forecast_day

    day_forecast = forecast_day(deployment, dataset, day, None, log=log)
    report_forecast(deployment, dataset, day_forecast)
    issued = day_forecast.forecast
    typer.echo("")
    # For example that another model issued this day before, and its forecast stays.
    for note in day_forecast.notes:
        typer.echo(f"Note: {note}")
    typer.echo(render_forecast(issued, describe_data(deployment.data_mode, dataset)))
    effects = list_news_effects(issued)
    if effects:
        typer.echo("\n".join(["", "What the news changes:", *effects[:3]]))
    # The series that news moves most comes first.
    series = next((effect.entity for effect in list_effects(issued)), issued.entities[0])
    typer.echo(f"\nWhy: compevo explain {issued.origin:%Y-%m-%d} {series} {dataset}")
    return issued


def show_paths(layout: "Layout") -> None:
    """Print where the two pages and the rows are."""
    from compevo_core.report.forecast_page import FORECAST_PAGE, RESEARCH_PAGE

    typer.echo(f"\nForecast:    {layout.report / FORECAST_PAGE}")
    typer.echo(f"Research:    {layout.report / RESEARCH_PAGE}")
    typer.echo(f"Result rows: {layout.results}")
