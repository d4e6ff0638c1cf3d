"""``compevo demo``, which ``make demo`` runs: everything end to end, and its findings.

What belongs here: the command line around a run of a job that trains and scores, and one of its
research. What does not: what the jobs do (``defs.jobs``, ``paper.definitions``), running one
(``cli.refresh``).
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from compevo_pipeline.cli.refresh import run, show_forecast, show_paths

if TYPE_CHECKING:
    from compevo_core.forecast.issued import IssuedForecast
    from compevo_pipeline.config.settings import Layout
    from compevo_pipeline.sources.common.base import Mode

Dataset = Literal["electricity", "electricity-operational", "exchange", "bitcoin", "traffic"]


def demo(
    dataset: Annotated[
        Dataset, typer.Argument(help="Data set to train and score.")
    ] = "electricity",
    job: Annotated[Literal["demo", "full"], typer.Option(help="Job to run.")] = "demo",
) -> None:
    """Run everything end to end on sample data, or another job.

    `make demo` runs it.
    """
    from compevo_core.data.datasets import DATASETS
    from compevo_pipeline.sources.common.base import Mode
    from compevo_pipeline.work.deployment import Deployment
    from compevo_pipeline.work.results import write_forecasts

    settings = run(job, dataset)
    # Dagster's notices are hidden by now.
    from compevo_pipeline.paper.assets import write_research
    from compevo_pipeline.paper.definitions import build_defs

    run(f"{job}_research", dataset, build=build_defs)
    # The demo runs on sample data in a deployment of any mode.
    mode = Mode.SAMPLE if job == "demo" else settings.mode
    deployment = Deployment(settings=settings, mode=mode)
    write_research(deployment)  # the job's page had no research yet
    if job == "demo" and DATASETS[dataset].align_to_market_day:
        # Of the day after the sample data; the report then shows it.
        issued = show_forecast(deployment, dataset, None)
        write_forecasts(deployment)
        if found := describe_findings(deployment.layout, dataset, issued):
            typer.echo("\n".join(["", *found]))
            show_paths(deployment.layout)
        else:
            show_results(deployment.layout, mode, dataset)
        typer.echo("Dagster UI:  make ui\nCommands:    source .venv/bin/activate; compevo --help")
        return
    show_results(settings.layout(mode), mode, dataset)


def describe_findings(layout: "Layout", dataset: str, issued: "IssuedForecast") -> list[str]:
    """Return what agents look for, what was planted, and errors; nothing without planted events."""
    from compevo_core.agents.logics import find_topics
    from compevo_core.evaluation.scopes import ALL_DAYS, EVENT_DAYS
    from compevo_core.paper.report.inputs import read_inputs
    from compevo_core.paper.report.result_tables import describe_errors
    from compevo_core.report.tables import clean_text, join_items
    from compevo_pipeline.cli.forecast import wrap
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
    verdict = "all of it was found" if found == planted else f"found: {join_items(found) or 'none'}"
    return [
        *wrap(f"Of logics drawn by chance, the agents kept: {'; '.join(looked_for)}."),
        *wrap(f"Planted in this invented world: {join_items(planted)}; {verdict}."),
        *(line for name, text in errors.items() for line in wrap(f"{name}: {text}.")),
        *wrap("One round of the paper's own rewriting is in the research page's ablation."),
    ]


def show_results(layout: "Layout", mode: "Mode", dataset: str) -> None:
    """Print the errors on the first test set of a data set, and where everything is."""
    from compevo_core.paper.report.inputs import list_scopes, read_inputs, select_pooled
    from compevo_core.paper.report.result_tables import short_table
    from compevo_pipeline.sources.common.base import Mode

    inputs = read_inputs(layout.results, [], mode=mode.value, generated_at=datetime.now(UTC))
    scopes = [scope for scope in list_scopes(select_pooled(inputs.rows)) if scope[0] == dataset]
    for scope in scopes[:1]:
        table = short_table(inputs.rows, *scope)
        typer.echo(f"\nErrors: {table.caption}")
        typer.echo(table.to_text())
    if mode is Mode.SAMPLE:
        typer.echo("Synthetic data (rates excepted): this shows that everything works, no more.")
    show_paths(layout)
