"""Commands about runs and their rows: ``evaluate table report trace clean``.

What belongs here: which runs a name or folders mean, and what is written and printed. What does
not: scoring (``compevo_core.evaluation``), the page and the tables (``compevo_core.report``).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_core.errors import ConfigError
from compevo_pipeline.cli import arguments

if TYPE_CHECKING:
    import polars as pl

    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.scopes import Scope, SeedForecasts
    from compevo_core.evaluation.scoring import PopulationScores
    from compevo_core.report.inputs import ReportInputs


def table(
    name: Annotated[
        str,
        typer.Argument(
            help="main, agents, ablation, backbones, efficiency, sensitivity, perturbation or lud "
            "(default: the tables of all methods by data set)."
        ),
    ] = "",
    results: arguments.Results = Path("results"),
) -> None:
    """Print a table of the paper with our rows beside the published figures, as Markdown."""
    if not name:
        typer.echo(render_headline(results))
        return

    from compevo_core.report.paper.tables import format_paper_tables

    typer.echo(format_paper_tables(name, _read_inputs(results, [], "archive")))


def report(
    results: arguments.ResultsFolder,
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders to show.")] = None,
    out: Annotated[Path, typer.Option(help="Folder to write the two pages to.")] = Path("report"),
    mode: Annotated[
        str, typer.Option(help="What the data is: sample, archive or live.")
    ] = "sample",
    forecasts: Annotated[
        Path | None, typer.Option(help="Folder of issued forecasts, by data set.")
    ] = None,
    windows: Annotated[
        Path, typer.Option(help="Folder of windows, by data set, for the true values.")
    ] = Path("windows"),
    scored: Annotated[
        Path | None, typer.Option(help="Folder of scores of issued forecasts, by data set.")
    ] = None,
) -> None:
    """Write the page of forecasts and the page of experiments."""
    from dataclasses import replace

    from compevo_core.report.inputs import read_days
    from compevo_core.report.page import write_report

    inputs = _read_inputs(results, runs or [], mode)
    if forecasts is not None:
        inputs = replace(inputs, days=read_days(forecasts, windows, scored))
    typer.echo(write_report(inputs, out))


def publish(
    folder: Annotated[Path, typer.Argument(help="Folder of the site, such as a git work tree.")],
) -> None:
    """Write the sealed forecasts, their chains of hashes, scores and a page as a static site.

    Whoever has the site can check with `compevo verify --folder FOLDER/issued` that it is intact;
    its history, for example as a git branch, shows when each forecast was made.
    """
    from compevo_pipeline.work.deployment import utc_now
    from compevo_pipeline.work.results import publish_site

    chains = publish_site(arguments.open_deployment(), folder, utc_now())
    for dataset, chain in chains.items():
        typer.echo(f"{dataset}: {len(chain.lines)} issued forecasts, head {chain.head}")
    typer.echo(f"Page: {folder / 'index.html'}")


def render_headline(results: Path) -> str:
    """Return the result tables of a folder of rows, as Markdown."""
    from compevo_core.report.markdown import format_results

    return format_results(_read_inputs(results, [], "archive"))


def _read_inputs(results: Path, runs: Sequence[Path], mode: str) -> "ReportInputs":
    from compevo_core.report.inputs import read_inputs

    arguments.require_folder(results)
    return read_inputs(results, runs, mode=mode, generated_at=datetime.now(UTC))


log = logging.getLogger(__name__)

PROBE_ENCODER = "packaged:minilm"  # encoder of the headlines where no run names one
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
    """What to score, and where to write; ``dataset`` is empty where folders were given."""

    runs: list[Path]
    windows: Path
    news: Path | None  # None where no run reads any
    results: Path
    experiment: str
    dataset: str


def find_evaluated_runs(
    runs: list[Path],
    windows: Path | None,
    news: Path | None,
    results: Path | None,
    experiment: str = "",
    *,
    probe: bool | None = None,
) -> EvaluatedRuns:
    """Return the folders of a data set's name, or those that were given.

    Without ``probe`` a run is needed; False takes the current one if there is one, True none.
    """
    from compevo_pipeline.storage.runs import find_current_run, has_current_run
    from compevo_pipeline.work.embedded_news import find_encoder, write_news
    from compevo_pipeline.work.stored_windows import read_windows

    if windows is not None and news is not None:
        return EvaluatedRuns(
            runs=[] if probe else runs,
            windows=windows,
            news=news,
            results=results or Path("results"),
            experiment=experiment or "main",
            dataset="",
        )
    if len(runs) > 1 or runs[0].is_dir() or windows is not None or news is not None:
        raise ConfigError(
            "folders of runs need --windows and --news; a data set's name alone needs neither"
        )

    deployment = arguments.open_deployment()
    layout = deployment.layout
    dataset = deployment.registry[str(runs[0])].name
    is_needed = probe is None or (not probe and has_current_run(layout, dataset))
    current = [find_current_run(layout, dataset)] if is_needed else []
    encoder = find_encoder(current[0]) if current else PROBE_ENCODER
    window_set = read_windows(layout, dataset)
    return EvaluatedRuns(
        runs=current,
        windows=layout.windows(dataset),
        # Windows may have been cut anew since the run was trained.
        news=write_news(deployment, encoder, window_set, log=log),
        results=results or layout.results,
        experiment=experiment or f"evaluate-{dataset}",
        dataset=dataset,
    )


def render_scores(rows: "pl.DataFrame") -> str:
    """Return pooled errors by method, least first, a table a test set: the mean over seeds."""
    import polars as pl

    from compevo_core.evaluation.result_rows import POOLED
    from compevo_core.report.tables import scope_name

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
        lines = [
            f"{name}: {means['n_windows'][0]:,} windows; MAE and RMSE in {unit}",
            "",
            f"{'':28}" + "".join(f"{title:>12}" for _, title in ERRORS),
        ]
        for row in means.sort("mae").iter_rows(named=True):
            cells = ["none" if row[error] is None else f"{row[error]:.4g}" for error, _ in ERRORS]
            lines.append(f"{row['method']:28}" + "".join(f"{cell:>12}" for cell in cells))
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Name of a data set (its current run and its own windows), or folders of training "
            "runs that differ only by seed, with --windows and --news."
        ),
    ],
    windows: arguments.OptionalWindows = None,
    news: arguments.OptionalNews = None,
    results: arguments.ResultsOfRuns = None,
    experiment: Annotated[
        str,
        typer.Option(
            help="Name of the experiment and of its files (default: main, or evaluate-DATASET for "
            "the name of a data set)."
        ),
    ] = "",
    variant: Annotated[
        str,
        typer.Option(
            help="Variant or control that the run was trained as: it names the rows, and "
            "swapped-news also changes the windows."
        ),
    ] = "",
    split: arguments.Split = "test",
    subset: arguments.Subset = "",
    every: arguments.Every = 1,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds for baselines that use random numbers.")
    ] = 5,
) -> None:
    """Score a trained population and every baseline that can forecast the chosen windows.

    Runs that differ by seed alone are scored as one method: tables show the mean over seeds, and
    paired tests take the mean error of each window. Writes result rows and paired tests; forecasts
    and panels are written into each run folder.
    """
    import polars as pl

    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.baseline_scores import score_baselines
    from compevo_core.evaluation.scopes import select_scopes
    from compevo_core.evaluation.score_files import write_run_forecasts, write_tables
    from compevo_core.evaluation.scoring import compare_seeds, read_seeds
    from compevo_core.paper.changes import FULL_METHOD, find_variant
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.storage.code_versions import read_commit

    on_step = arguments.log_progress(log)
    on_step("reading windows and news")
    chosen = find_evaluated_runs(runs, windows, news, results, experiment)
    experiment = chosen.experiment
    configs = read_seeds(chosen.runs)
    method = variant or FULL_METHOD
    window_set = find_variant(method).change_windows(WindowSet.read(chosen.windows))
    scopes = select_scopes(window_set, split=split, subset=subset, every=every)
    train = window_set.split("train")

    # The same calls as the evaluation assets make: equal rows, cell by cell.
    baselines = score_baselines(
        train,
        scopes,
        val=window_set.split("val"),
        experiment=experiment,
        seeds=seeds,
        commit=read_commit(),
        on_step=on_step,
    )
    by_run, method = _score_runs(chosen, method, scopes, train, baselines.forecasts)

    arguments.show_progress("", err=True)
    rows = pl.concat([*(scores.rows for scores in by_run), baselines.rows])
    paired_tests = compare_seeds(by_run, baselines.forecasts, method)
    write_tables(rows, paired_tests, configs, chosen.results, experiment, f"paired-{experiment}")
    for run, scores in zip(chosen.runs, by_run, strict=True):
        write_run_forecasts(scores, RunFolder(run))

    _show_scores(chosen, rows)


def _score_runs(
    chosen: EvaluatedRuns,
    method: str,
    scopes: Sequence["Scope"],
    train: "WindowSet",
    baseline_forecasts: Sequence["SeedForecasts"],
) -> "tuple[list[PopulationScores], str]":
    """Score each run as one seed of a method; return also what their rows are called."""
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.evaluation.scoring import load_population, name_rows, score_population
    from compevo_core.paper.changes import FULL_METHOD
    from compevo_pipeline.storage.code_versions import read_commit

    pool = None if chosen.news is None else NewsPool.read(chosen.news)
    by_run = []
    for run in chosen.runs:
        log.info(f"forecasting with {run.name}")
        population = load_population(run, pool)  # one in memory at a time
        reads_news = bool(population.logics)
        method = method if reads_news else name_rows(population)
        scores = score_population(
            population,
            scopes,
            train=train,
            experiment=chosen.experiment,
            commit=read_commit(),
            log=log,
            method=method,
            baseline_forecasts=baseline_forecasts,
            news=pool if reads_news else None,
            parts=method == FULL_METHOD,
        )
        by_run.append(scores)
    return by_run, method


def _show_scores(chosen: EvaluatedRuns, rows: "pl.DataFrame") -> None:
    if chosen.dataset:
        typer.echo(render_scores(rows))
        typer.echo(f"\n{_advise(chosen.runs[0], chosen.dataset)}")
        typer.echo(f"\nRows by series, and paired tests: {chosen.results}")
    else:
        typer.echo(render_headline(chosen.results))


def _advise(run: Path, dataset: str) -> str:
    """Return which method to use: what validation chose, never what the scored windows say."""
    from compevo_core.training.artifact import read_model_manifest

    choice = read_model_manifest(run).get("choice")
    if choice is None:
        return f"Which method to use: compevo fit {dataset} --method auto lets validation choose"
    return f"Use {choice['method']}, which validation chose; {choice['sentence']}"


def trace(
    run: arguments.RunPath,
    dataset: Annotated[str, typer.Argument(help="Data set that the run was trained on.")],
    method: Annotated[
        str,
        typer.Option(help="Method name in the rows (default: the system of agents of the run)."),
    ] = "",
    budget: Annotated[
        str, typer.Option(help="Budget of the benchmark that the run was trained under, if any.")
    ] = "",
    results: arguments.Results = Path("results"),
) -> None:
    """Export a run's training history and final agents as CSV rows.

    Writes into RESULTS/traces-DATASET.csv and logics-DATASET.csv, in the place of the rows of the
    same method, budget and seed; the report draws them. `compevo benchmark` does it by itself for
    systems of agents.
    """
    from compevo_core.training.artifact import read_config
    from compevo_pipeline.work.benchmark_runs import trace_run

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


def clean(
    keep: Annotated[int, typer.Option(min=1, help="Finished runs to keep per name.")] = 3,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be deleted; delete nothing.")
    ] = False,
) -> None:
    """Delete old runs, unused fits, leftovers, Dagster's old records; pack old raw files."""
    from compevo_pipeline.config.settings import Settings, ensure_dagster_home
    from compevo_pipeline.defs.assets.report import clean_dagster, shorten
    from compevo_pipeline.storage.runs import clean as clean_folders

    ensure_dagster_home()
    settings = Settings.from_environment()
    layout = settings.layout(settings.mode)
    now = datetime.now(UTC)
    removed = clean_folders(layout, now, keep=keep, dry=dry_run) + clean_dagster(now, dry=dry_run)

    for old in removed:
        typer.echo(f"{shorten(old.path, layout.root)}: {old.size / 2**20:.1f} MB, {old.reason}")
    size = sum(old.size for old in removed) / 2**20
    typer.echo(f"{len(removed)} {'to remove' if dry_run else 'removed'}, {size:.1f} MB")
