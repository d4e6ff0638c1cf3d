"""``make demo`` and ``compevo refresh``: run a job in this process, and end with the results.

What belongs here: the command line around one run. What does not: what the job does
(``defs.jobs``), how progress looks (``defs.loggers``). The run is stored in ``DAGSTER_HOME`` like
any other, so the UI shows it afterwards. Heavy modules are imported inside the functions, so that
``compevo --help`` answers at once.
"""

import contextlib
import logging
import time
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from compevo_core.errors import SourceTransient, StorageError
from compevo_core.runtime.usage import format_duration
from compevo_pipeline.cli import arguments

if TYPE_CHECKING:
    from compevo_core.forecast.issued import IssuedForecast
    from compevo_pipeline.config.settings import Layout, Settings
    from compevo_pipeline.sources.common.base import Mode
    from compevo_pipeline.work.deployment import Deployment

log = logging.getLogger(__name__)


Job = Literal["demo", "full"]
Dataset = Literal["electricity", "electricity-operational", "exchange", "bitcoin", "traffic"]


def demo(
    dataset: Annotated[
        Dataset, typer.Argument(help="Data set to train and score.")
    ] = "electricity",
    job: Annotated[Job, typer.Option(help="Job to run.")] = "demo",
) -> None:
    """Run everything end to end on the sample data (what `make demo` runs), or another job."""
    from compevo_core.data.datasets import DATASETS
    from compevo_pipeline.sources.common.base import Mode
    from compevo_pipeline.work.deployment import Deployment, utc_now
    from compevo_pipeline.work.results import write_site

    settings = run(job, dataset)
    # The demo runs on sample data whatever the deployment's mode is.
    mode = Mode.SAMPLE if job == "demo" else settings.mode
    if job == "demo" and DATASETS[dataset].align_to_market_day:
        # Of the day after the sample data; the report then shows it.
        deployment = Deployment(settings=settings, mode=Mode.SAMPLE)
        issued = show_forecast(deployment, dataset, None)
        write_site(deployment, utc_now(), has_research=False)  # the job has written it
        if found := describe_findings(deployment.layout, dataset, issued):
            typer.echo("\n".join(["", *found]))
            show_paths(deployment.layout)
            return
    show_results(settings.layout(mode), mode, dataset)


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
    """Read new data, forecast a day, score the days before it, write the report.

    Trains nothing. The schedules run the same job.
    """
    from compevo_pipeline.cli.forecast import read_day
    from compevo_pipeline.defs.jobs import choose_day
    from compevo_pipeline.work.deployment import Deployment, utc_now

    deployment = arguments.open_deployment()
    spec = deployment.registry[dataset].spec
    asked = read_day(day, utc_now() + spec.market_offset)
    chosen = asked.isoformat() if asked else choose_day(spec, utc_now())
    settings = run("refresh", dataset, chosen)
    # Windows that begin at any hour have no day to show.
    if chosen:
        show_forecast(Deployment(settings=settings), dataset, date.fromisoformat(chosen))
    show_paths(deployment.layout)


def run(name: str, dataset: str, day: str = "") -> "Settings":
    """Run a job in this process and say how it went; return the settings."""
    from compevo_core.runtime.usage import peak_memory_gigabytes
    from compevo_pipeline.config.settings import (
        Settings,
        disable_progress_bars,
        ensure_dagster_home,
    )
    from compevo_pipeline.defs.jobs import hide_notices, run_job
    from compevo_pipeline.work.deployment import Deployment

    hide_notices()
    disable_progress_bars()
    ensure_dagster_home()
    # Its import wires the graph, and Dagster gives notices about that.
    from compevo_pipeline.definitions import build_defs

    settings = Settings.from_environment()
    Deployment(settings=settings).registry[dataset]  # a wrong name ends here

    started = time.monotonic()
    try:
        failures = run_job(build_defs(settings), name, dataset, day)
    except StorageError as error:
        _tell_of_records(settings, error)
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


def _tell_of_records(settings: "Settings", error: StorageError) -> None:
    """Tell that Dagster's records cannot be written: no sensor runs that could tell it."""
    from compevo_pipeline.work.alerts import Alert, tell
    from compevo_pipeline.work.deployment import utc_now

    silent = logging.Logger(__name__)  # the command itself prints the error
    silent.addHandler(logging.NullHandler())
    # What a destination does not take is sent by the next call.
    with contextlib.suppress(SourceTransient):
        tell(settings, [Alert(fault="records", text=str(error))], utc_now().date(), silent)


def describe_findings(layout: "Layout", dataset: str, issued: "IssuedForecast") -> list[str]:
    """Return what agents look for, what was planted, and errors on all days and on event days.

    Nothing where the sample world announces no events.
    """
    from compevo_core.agents.logics import find_topics
    from compevo_core.evaluation.scopes import ALL_DAYS, EVENT_DAYS
    from compevo_core.report.inputs import read_inputs
    from compevo_core.report.summaries import describe_errors
    from compevo_core.report.tables import join_items
    from compevo_pipeline.cli.forecast import clean_text, wrap
    from compevo_pipeline.sources.common.base import Mode, read_planted

    inputs = read_inputs(layout.results, [], mode=Mode.SAMPLE.value, generated_at=datetime.now(UTC))
    errors = {
        "All test days": describe_errors(inputs, dataset, ALL_DAYS),
        "Those with an event": describe_errors(inputs, dataset, EVENT_DAYS),
    }
    if not all(errors.values()):
        return []

    # Agents without weight are left out: what they look for moves no forecast.
    weights = [entry["weights"] for entry in issued.facts["series"]]
    logics = [
        (agent, logic)
        for agent, logic in enumerate(issued.facts["logics"])
        if any(of_series[agent] for of_series in weights)
    ]
    looked_for = [
        f"agent {agent}: {join_items(find_topics(logic)) or clean_text(logic, 60).rstrip('.')}"
        for agent, logic in logics
    ]
    named = {topic for _, logic in logics for topic in find_topics(logic)}
    planted = sorted({topic for _, _, topic in read_planted()})
    found = [topic for topic in planted if topic in named]
    verdict = f"found: {join_items(found) or 'none'}"
    if found == planted:
        verdict = "all of it was found"
    return [
        *wrap(f"Of logics drawn by chance, the agents kept: {'; '.join(looked_for)}."),
        *wrap(f"Planted in this invented world: {join_items(planted)}; {verdict}."),
        *(line for name, text in errors.items() for line in wrap(f"{name}: {text}.")),
        *wrap("One round of the paper's own rewriting is in the research page's ablation."),
    ]


def show_forecast(deployment: "Deployment", dataset: str, day: date | None) -> "IssuedForecast":
    """Print and return the forecast of a day, which is issued where it was not.

    ``day`` is None for the newest one.
    """
    from compevo_core.forecast.explain import list_effects
    from compevo_pipeline.cli.forecast import list_news_effects, render_forecast
    from compevo_pipeline.sources.common.base import describe_data
    from compevo_pipeline.work.deployment import utc_now
    from compevo_pipeline.work.next_day import forecast_day

    day_forecast = forecast_day(deployment, dataset, day, None, clock=utc_now, log=log)
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


def show_results(layout: "Layout", mode: "Mode", dataset: str) -> None:
    """Print the errors on the first test set of a data set, and where everything is."""
    from compevo_core.report.inputs import read_inputs
    from compevo_core.report.result_tables import short_table
    from compevo_core.report.rows import list_scopes, select_pooled
    from compevo_pipeline.cli.forecast import render_columns
    from compevo_pipeline.sources.common.base import Mode

    inputs = read_inputs(layout.results, [], mode=mode.value, generated_at=datetime.now(UTC))
    scopes = [scope for scope in list_scopes(select_pooled(inputs.rows)) if scope[0] == dataset]
    for scope in scopes[:1]:
        table = short_table(inputs.rows, *scope)
        typer.echo(f"\nErrors: {table.caption}")
        columns = zip(*table.rows, strict=True)
        lines = render_columns(dict(zip(table.header, columns, strict=True)))
        typer.echo("\n".join(lines))
    if mode is Mode.SAMPLE:
        typer.echo("Synthetic data (rates excepted): this shows that everything works, no more.")
    show_paths(layout)


def show_paths(layout: "Layout") -> None:
    """Print where the two pages and the rows are."""
    from compevo_core.report.page import FORECAST_PAGE, RESEARCH_PAGE

    typer.echo(f"\nForecast:    {layout.report / FORECAST_PAGE}")
    typer.echo(f"Research:    {layout.report / RESEARCH_PAGE}")
    typer.echo(f"Result rows: {layout.results}")
