"""Commands about runs and what they leave: ``evaluate publish clean``.

What belongs here: the run that a data set's name means, and what is written and printed. What does
not: scoring (``compevo_core.evaluation``), the page (``compevo_core.report``).
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compevo_pipeline.cli import arguments

if TYPE_CHECKING:
    import polars as pl

    from compevo_core.data.window import WindowSet


def publish(
    folder: Annotated[Path, typer.Argument(help="Folder of the site, such as a git work tree.")],
) -> None:
    """Write the sealed forecasts, scores and a page as a static site.

    It holds their chains of hashes, too. Anyone with the site can check with `compevo verify
    --folder FOLDER/issued` that it is intact; its history, for example as a git branch, shows when
    each forecast was made.
    """
    from compevo_pipeline.work.results import publish_site

    chains = publish_site(arguments.open_deployment(), folder)
    for dataset, chain in chains.items():
        typer.echo(f"{dataset}: {len(chain.lines)} issued forecasts, head {chain.head}")
    typer.echo(f"Page: {folder / 'index.html'}")


log = logging.getLogger(__name__)

PROBE_ENCODER = "packaged:minilm"  # encoder of the headlines if no run names one
ERRORS = (
    ("mae", "MAE"),
    ("rmse", "RMSE"),
    ("wape_pct", "WAPE %"),
    ("mape_pct", "MAPE %"),
    ("mase", "MASE"),
)
"""Columns of result rows in the small table, and their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRuns:
    """What to score, and where to write."""

    runs: list[Path]
    windows: Path
    news: Path | None  # None if no run reads any
    results: Path
    experiment: str


def find_evaluated_run(
    dataset: str, results: Path | None, experiment: str = "", *, probe: bool | None = None
) -> EvaluatedRuns:
    """Return the current run of a data set, its windows and news.

    Without ``probe`` a run is needed; False takes the current one if there is one, True none.
    """
    from compevo_pipeline.storage.runs import find_current_run, has_current_run
    from compevo_pipeline.work.embedded_news import find_encoder, write_news
    from compevo_pipeline.work.stored_windows import read_windows

    deployment = arguments.open_deployment()
    layout = deployment.layout
    name = deployment.registry[dataset].name
    is_needed = probe is None or (not probe and has_current_run(layout, name))
    current = [find_current_run(layout, name)] if is_needed else []
    encoder = find_encoder(current[0]) if current else PROBE_ENCODER
    window_set = read_windows(layout, name)
    return EvaluatedRuns(
        runs=current,
        windows=layout.windows(name),
        # Windows may have been cut again since the run was trained.
        news=write_news(deployment, encoder, window_set, log=log),
        results=results or layout.results,
        experiment=experiment or f"evaluate-{name}",
    )


def render_scores(rows: "pl.DataFrame") -> str:
    """Return pooled errors by method, least first, a table per test set: the mean over seeds."""
    import polars as pl

    from compevo_core.evaluation.result_rows import POOLED
    from compevo_core.report.tables import scope_name, tabulate

    def show(column: str, row: Mapping[str, Any]) -> str:
        value = row[column]
        return "none" if value is None else value if column == "method" else f"{value:.4g}"

    pooled = rows.filter(pl.col("entity") == POOLED)
    tables = []
    for (subset,), of_subset in pooled.partition_by(
        "subset", as_dict=True, maintain_order=True
    ).items():
        dataset, split, unit = of_subset.select("dataset", "split", "unit").row(0)
        means = of_subset.group_by("method", maintain_order=True).agg(
            pl.col("n_windows").first(), *(pl.col(name).mean() for name, _ in ERRORS)
        )
        name = scope_name(dataset, subset) if subset else f"{dataset}, {split}"
        cells = {title: partial(show, key) for key, title in (("method", ""), *ERRORS)}
        table = tabulate(means.sort("mae").to_dicts(), cells)
        caption = f"{name}: {means['n_windows'][0]:,} windows; MAE and RMSE in {unit}"
        tables.append(f"{caption}\n\n{table.to_text()}")
    return "\n\n".join(tables)


def evaluate(
    dataset: Annotated[str, typer.Argument(help="Name of a data set with a trained run.")],
    results: arguments.OptionalResults = None,
    experiment: Annotated[
        str, typer.Option(help="Name of the experiment and its files (default: evaluate-DATASET).")
    ] = "",
    split: arguments.Split = "test",
    subset: arguments.Subset = "",
    every: arguments.Every = 1,
    seeds: arguments.BaselineSeeds = 5,
) -> None:
    """Score a data set's trained run and all baselines.

    Writes result rows and paired tests; forecasts and panels are written into the run folder.
    """
    from compevo_core.evaluation.scoring import COMPEVO
    from compevo_core.training.ensemble import read_model_manifest

    arguments.log_progress(log)
    chosen = find_evaluated_run(dataset, results, experiment)
    typer.echo(render_scores(score_runs(chosen, COMPEVO, split, subset, every, seeds)))
    # Validation's choice, never a choice by the scored windows.
    choice = read_model_manifest(chosen.runs[0]).get("choice")
    advice = f"Which method to use: compevo fit {dataset} --method auto lets validation choose"
    if choice is not None:
        advice = f"Use {choice['method']}, which validation chose; {choice['sentence']}"
    typer.echo(f"\n{advice}")
    typer.echo(f"\nRows by series, and paired tests: {chosen.results}")


def score_runs(
    chosen: EvaluatedRuns,
    method: str,
    split: str,
    subset: str,
    every: int,
    seeds: int,
    change_windows: "Callable[[WindowSet], WindowSet]" = lambda windows: windows,
) -> "pl.DataFrame":
    """Score runs of one method and all baselines, and write rows and tests; return the rows.

    ``change_windows`` returns the windows that the method reads instead; all else is as in the
    options of ``compevo evaluate``.
    """
    import polars as pl

    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.baseline_scores import score_baselines
    from compevo_core.evaluation.result_rows import write_tables
    from compevo_core.evaluation.scopes import select_scopes
    from compevo_core.evaluation.scoring import (
        COMPEVO,
        compare_seeds,
        name_rows,
        read_seeds,
        score_population,
        write_run_forecasts,
    )
    from compevo_core.forecast.forecaster import CompEvoForecaster
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.storage.code_versions import read_commit

    arguments.log_progress(log)("reading windows and news")
    experiment, commit = chosen.experiment, read_commit()
    configs = read_seeds(chosen.runs)
    windows = change_windows(WindowSet.read(chosen.windows))
    scopes = select_scopes(windows, split=split, subset=subset, every=every)
    train = windows.split("train")
    news = None if chosen.news is None else NewsPool.read(chosen.news)

    # The same calls as the evaluation assets make: equal rows, cell by cell.
    baselines = score_baselines(
        train,
        scopes,
        val=windows.split("val"),
        experiment=experiment,
        seeds=seeds,
        commit=commit,
        on_step=log.info,
    )
    by_run = []
    for run in chosen.runs:
        log.info(f"forecasting with {run.name}")
        population = CompEvoForecaster.load(run, news)  # one in memory at a time
        reads_news = bool(population.logics)
        row_name = method if reads_news else name_rows(population)
        scores = score_population(
            population,
            scopes,
            train=train,
            experiment=experiment,
            commit=commit,
            log=log,
            method=row_name,
            baseline_forecasts=baselines.forecasts,
            news=news if reads_news else None,
            parts=row_name == COMPEVO,
        )
        by_run.append(scores)

    arguments.show_progress("", err=True)
    rows = pl.concat([*(scores.rows for scores in by_run), baselines.rows])
    paired_tests = compare_seeds(by_run, baselines.forecasts, row_name)
    write_tables(rows, paired_tests, configs, chosen.results, experiment, f"paired-{experiment}")
    for run, scores in zip(chosen.runs, by_run, strict=True):
        write_run_forecasts(scores, RunFolder(run))
    return rows


def clean(
    keep: Annotated[int, typer.Option(min=1, help="Finished runs to keep per name.")] = 3,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted; delete nothing.")
    ] = False,
) -> None:
    """Delete old runs, fits, leftovers and records.

    Fits that nothing uses; Dagster's old records; raw files of months that are over.
    """
    from compevo_pipeline.config.settings import ensure_dagster_home
    from compevo_pipeline.defs.assets.report import clean_dagster, shorten
    from compevo_pipeline.storage.runs import clean as clean_folders

    ensure_dagster_home()
    deployment = arguments.open_deployment()
    layout, now = deployment.layout, deployment.clock()
    removed = clean_folders(layout, now, keep=keep, dry=dry_run) + clean_dagster(now, dry=dry_run)

    for old in removed:
        typer.echo(f"{shorten(old.path, layout.root)}: {old.size / 2**20:.1f} MB, {old.reason}")
    size = sum(old.size for old in removed) / 2**20
    typer.echo(f"{len(removed)} {'to remove' if dry_run else 'removed'}, {size:.1f} MB")
