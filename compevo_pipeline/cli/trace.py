"""``compevo trace``."""

from pathlib import Path
from typing import Annotated

import typer

from compevo_pipeline.cli.arguments import RunPath


def trace(
    run: RunPath,
    dataset: Annotated[str, typer.Option(help="Data set that the run was trained on.")],
    method: Annotated[
        str, typer.Option(help="What its rows are called; left out: the run's system of agents.")
    ] = "",
    budget: Annotated[
        str, typer.Option(help="Budget of the benchmark that it was trained under, if any.")
    ] = "",
    results: Annotated[Path, typer.Option(help="Folder of result rows (CSV).")] = Path("results"),
) -> None:
    """Keep how a run trained and what its agents became as rows.

    Writes into RESULTS/traces-DATASET.csv and logics-DATASET.csv, in the place of the rows of the
    same method, budget and seed; the report draws them. `compevo benchmark` does it by itself for
    systems of agents.
    """
    from compevo_core.training.artifact import read_config
    from compevo_pipeline.traced_runs import trace_run

    config = read_config(run)
    for path in trace_run(
        results,
        run,
        config,
        dataset=dataset,
        method=method or config.population.system,
        budget=budget,
    ):
        typer.echo(path)
