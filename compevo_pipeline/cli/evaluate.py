"""``compevo evaluate``."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from compevo_pipeline.cli.arguments import NewsFolder, Split, Subset, WindowsFolder
from compevo_pipeline.cli.report import render_headline

log = logging.getLogger(__name__)


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of training runs that differ by seed alone.")
    ],
    windows: WindowsFolder,
    news: NewsFolder,
    results: Annotated[
        Path, typer.Option(help="Folder that rows, paired tests and configuration are written to.")
    ] = Path("results"),
    experiment: Annotated[
        str, typer.Option(help="Name of the experiment; also the file's name.")
    ] = "main",
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
    import polars as pl

    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.scopes import select_scopes
    from compevo_core.evaluation.score_files import write_run_forecasts, write_tables
    from compevo_core.evaluation.scoring import score_baselines
    from compevo_core.evaluation.seeds import read_seeds, score_seeds
    from compevo_core.experiments.ablation import FULL_METHOD
    from compevo_core.experiments.controls import prepare_windows
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.provenance import read_commit

    configs = read_seeds(runs)
    commit = read_commit()
    pool = NewsPool.read(news)
    name = variant or FULL_METHOD
    window_set = prepare_windows(WindowSet.read(windows), name)
    scopes = select_scopes(window_set, split=split, subset=subset, every=every)
    train = window_set.split("train")

    # The same calls as the evaluation assets make: equal rows, cell by cell.
    val = window_set.split("val")
    baselines = score_baselines(
        train, scopes, val=val, experiment=experiment, seeds=seeds, commit=commit
    )
    scored = score_seeds(
        runs,
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
    write_tables(rows, scored.paired_tests, configs, results, experiment, f"paired-{experiment}")
    for run, scores in zip(runs, scored.by_run, strict=True):
        write_run_forecasts(scores, RunFolder(run))

    typer.echo(render_headline(results))
