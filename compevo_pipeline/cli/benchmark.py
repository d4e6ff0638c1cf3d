"""``compevo benchmark``."""

from pathlib import Path
from typing import Annotated

import typer

from compevo_core.durations import format_duration
from compevo_pipeline.cli.evaluated_runs import render_scores


def benchmark(
    dataset: Annotated[str, typer.Option(help="Name of a data set whose windows are built.")],
    methods: Annotated[
        str,
        typer.Option(
            help="Methods to run, separated by commas: names, a family (numeric, "
            "news-aware, agents), zero-shot:PATH, or all."
        ),
    ] = "all",
    budget: Annotated[
        str, typer.Option(help="What a fit may spend: quick, small, standard or tuned.")
    ] = "standard",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="At most this many seeds; else five, three for language models."),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Score every n-th origin.")] = 1,
    scopes: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many of the data set's test sets to score, in order; else all."
        ),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of result rows; else that of the deployment.")
    ] = None,
) -> None:
    """Fit methods of the paper's comparison and score them on the test windows.

    Rows go into benchmark-DATASET.csv, where they replace those of the same method, seed and
    budget: a method can be run again alone.
    """
    from compevo_core.baselines.shared_fits import SharedFits
    from compevo_core.benchmark.budgets import find_budget
    from compevo_core.benchmark.table import select_methods
    from compevo_core.report.rows import read_result_file
    from compevo_pipeline.assets.definition import fits_folder
    from compevo_pipeline.benchmark_runs import BenchmarkData
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings

    # Before hours of fitting: a later name may be misspelt.
    chosen = select_methods([name.strip() for name in methods.split(",") if name.strip()])
    allowed = find_budget(budget)
    typer.echo(f"Budget {allowed.name}: {allowed.meaning}")

    workspace = Workspace(settings=Settings.from_environment())
    data = BenchmarkData.read(
        workspace,
        dataset,
        every=every,
        scopes=scopes,
        results=results,
        fit=SharedFits(fits_folder(workspace.layout)),
    )

    # Written seed by seed: what was fitted before an interruption is kept.
    for method in chosen:
        if not data.can_run(method):
            typer.echo(f"{method.name}: left out, it cannot forecast these windows")
            continue
        inputs = data.prepare(workspace, method, allowed)
        for seed in allowed.choose_seeds(method.seeds)[:seeds]:
            data.run(method, inputs, seed, on_fitted=_report_fit)

    if data.rows.exists():
        typer.echo(render_scores(read_result_file(data.rows)))
        typer.echo(f"\nRows by series: {data.rows}")
        typer.echo(f"Show them: compevo table main --results {data.rows.parent}")


def _report_fit(name: str, seed: int, seconds: float) -> None:
    typer.echo(f"{name}, seed {seed}: fitted in {format_duration(seconds)}")
