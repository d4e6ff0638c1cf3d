"""``compevo evaluate``."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from compevo_pipeline.cli.arguments import NewsFolder, RunPath, Split, Subset, WindowsFolder
from compevo_pipeline.cli.report import render_headline

log = logging.getLogger(__name__)


def evaluate(
    run: RunPath,
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

    Writes result rows and paired tests; forecasts and panels are written into the run folder.
    """
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.scopes import select_scopes
    from compevo_core.evaluation.score_files import write_population_scores
    from compevo_core.evaluation.scoring import load_population, score_with_baselines
    from compevo_core.experiments.ablation import FULL_METHOD
    from compevo_core.experiments.controls import prepare_windows
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.provenance import read_commit

    pool = NewsPool.read(news)
    population = load_population(run, pool)
    name = variant or FULL_METHOD
    window_set = prepare_windows(WindowSet.read(windows), name, population.config.run.seed)

    # The same call as the evaluation assets make: equal rows, cell by cell.
    scores = score_with_baselines(
        population,
        select_scopes(window_set, split=split, subset=subset, every=every),
        train=window_set.split("train"),
        val=window_set.split("val"),
        news=pool,
        experiment=experiment,
        commit=read_commit(),
        log=log,
        method=name,
        seeds=seeds,
    )
    write_population_scores(
        scores,
        population.config,
        results,
        RunFolder(run),
        rows_name=experiment,
        paired_name=f"paired-{experiment}",
    )

    typer.echo(render_headline(results))
