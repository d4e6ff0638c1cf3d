"""``compevo evaluate``."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_pipeline.cli.arguments import Split, Subset
from compevo_pipeline.cli.evaluated_runs import (
    EvaluatedRuns,
    find_evaluated_runs,
    render_scores,
)
from compevo_pipeline.cli.report import render_headline

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger(__name__)


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="The name of a data set, for its current run on its own windows; or folders of "
            "training runs that differ by seed alone, with --windows and --news."
        ),
    ],
    windows: Annotated[
        Path | None, typer.Option(help="Folder of windows, as the windows asset writes it.")
    ] = None,
    news: Annotated[Path | None, typer.Option(help="Folder of news and embeddings.")] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Folder that rows, paired tests and configuration are written to: `results`, or "
            "that of the deployment for a data set's name."
        ),
    ] = None,
    experiment: Annotated[
        str,
        typer.Option(help="Name of the experiment and of its files: `main`, or the data set's."),
    ] = "",
    variant: Annotated[
        str,
        typer.Option(
            help="Variant or control that the run was trained as; names its rows, and gives "
            "swapped-news the windows it was trained on."
        ),
    ] = "",
    split: Split = "test",
    subset: Subset = "",
    every: Annotated[int, typer.Option(min=1, help="Score every n-th origin.")] = 1,
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds of the baselines that draw random numbers.")
    ] = 5,
) -> None:
    """Score a trained population and every baseline that can forecast the chosen windows.

    Runs that differ by seed alone are scored as one method: tables show the mean over seeds, and
    paired tests take the mean error of each window. Writes result rows and paired tests; forecasts
    and panels are written into each run folder.
    """
    found = find_evaluated_runs(runs, windows, news, results, experiment)
    rows = _score(found, variant=variant, split=split, subset=subset, every=every, seeds=seeds)

    if found.dataset:
        typer.echo(render_scores(rows))
        typer.echo(f"\nRows by series, and paired tests: {found.results}")
    else:
        typer.echo(render_headline(found.results))


def _score(
    found: EvaluatedRuns, *, variant: str, split: str, subset: str, every: int, seeds: int
) -> "pl.DataFrame":
    """Score runs and baselines; write rows, paired tests, forecasts and panels."""
    import polars as pl

    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.baseline_scores import score_baselines
    from compevo_core.evaluation.scopes import select_scopes
    from compevo_core.evaluation.score_files import write_run_forecasts, write_tables
    from compevo_core.evaluation.seeds import read_seeds, score_seeds
    from compevo_core.experiments.ablation import FULL_METHOD
    from compevo_core.experiments.controls import prepare_windows
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.provenance import read_commit

    experiment = found.experiment
    configs = read_seeds(found.runs)
    commit = read_commit()
    pool = NewsPool.read(found.news)
    name = variant or FULL_METHOD
    window_set = prepare_windows(WindowSet.read(found.windows), name)
    scopes = select_scopes(window_set, split=split, subset=subset, every=every)
    train = window_set.split("train")

    # The same calls as the evaluation assets make: equal rows, cell by cell.
    val = window_set.split("val")
    baselines = score_baselines(
        train, scopes, val=val, experiment=experiment, seeds=seeds, commit=commit
    )
    scored = score_seeds(
        found.runs,
        scopes,
        train=train,
        news=pool,
        experiment=experiment,
        commit=commit,
        log=log,
        method=name,
        baseline_forecasts=baselines.forecasts,
    )

    rows = pl.concat([scored.rows, baselines.rows])
    write_tables(
        rows, scored.paired_tests, configs, found.results, experiment, f"paired-{experiment}"
    )
    for run, scores in zip(found.runs, scored.by_run, strict=True):
        write_run_forecasts(scores, RunFolder(run))
    return rows
