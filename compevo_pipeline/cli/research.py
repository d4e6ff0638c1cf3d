"""Commands of the paper's tables: ``benchmark pair folds lud audit-news params``.

What belongs here: options, which runs and folders a name means, what is printed. What does not:
training and scoring (``work.experiments``, ``work.benchmark_runs``, ``compevo_core.paper``), the
tables themselves (``cli.results``).
"""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from compevo_core.errors import ConfigError
from compevo_core.runtime.usage import format_duration
from compevo_pipeline.cli import arguments
from compevo_pipeline.cli.results import find_evaluated_runs, render_scores

if TYPE_CHECKING:
    from compevo_core.config.run import RunConfig
    from compevo_core.paper.lud_judges import Judge

log = logging.getLogger(__name__)


def benchmark(
    dataset: arguments.BuiltDataset,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods to run, separated by commas: names, a family (numeric, "
            "news-aware, agents), zero-shot:PATH, or all."
        ),
    ] = "all",
    budget: Annotated[
        str, typer.Option(help="Budget of a fit: quick, small, standard or tuned.")
    ] = "standard",
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of seeds (default: 5, or 3 for language models)."),
    ] = None,
    every: arguments.Every = 1,
    scopes: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of test sets to score, in the data set's order (default: all)."
        ),
    ] = None,
    results: arguments.OptionalResults = None,
) -> None:
    """Fit the methods of the paper's comparison and score them on the test windows.

    Rows go to benchmark-DATASET.csv, where they replace the rows of the same method, seed and
    budget: you can run a single method again.
    """
    from compevo_core.paper.method import find_budget
    from compevo_core.paper.method_table import select_methods
    from compevo_core.report.rows import read_result_file
    from compevo_pipeline.work.benchmark_runs import BenchmarkData

    # Before hours of fitting: a later name may be misspelt.
    selected = select_methods(arguments.split_names(methods))
    allowed = find_budget(budget)
    typer.echo(f"Budget {allowed.name}: {allowed.meaning}")

    deployment = arguments.open_deployment()
    data = BenchmarkData.read(deployment, dataset, every=every, scopes=scopes, results=results)

    # Written seed by seed: what was fitted before an interruption is kept.
    for method in selected:
        if not data.can_run(method):
            typer.echo(f"{method.name}: left out, it cannot forecast these windows")
            continue
        inputs = data.prepare(deployment, method, allowed)
        for seed in allowed.choose_seeds(method.seeds)[:seeds]:
            data.run(
                method,
                inputs,
                seed,
                on_fitted=lambda name, seed, seconds: typer.echo(
                    f"{name}, seed {seed}: fitted in {format_duration(seconds)}"
                ),
            )

    if data.rows.exists():
        typer.echo(render_scores(read_result_file(data.rows)))
        typer.echo(f"\nRows by series: {data.rows}")
        typer.echo(f"Show them: compevo table main --results {data.rows.parent}")


def pair(
    dataset: Annotated[str, typer.Argument(help="Name of a data set that was benchmarked.")],
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            help="Evaluated run of the full method; repeat for runs that differ only by seed "
            "(default: the data set's current run, or the benchmark's if it has none).",
        ),
    ] = None,
    results: arguments.OptionalResults = None,
) -> None:
    """Pair the population with every method of the benchmark, window by window.

    Trains nothing: it reads the stored forecasts of `compevo evaluate` and `compevo benchmark`.
    The tests go to paired-benchmark-DATASET.csv, and `compevo table main` shows them.
    """
    from compevo_core.evaluation.comparison import pair_stored
    from compevo_core.evaluation.scopes import select_test_scopes
    from compevo_core.evaluation.scoring import COMPEVO, read_seeds
    from compevo_core.runtime.files import write_atomically
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.storage.runs import find_current_run, has_current_run
    from compevo_pipeline.work.stored_windows import read_windows

    deployment = arguments.open_deployment()
    layout = deployment.layout
    name = deployment.registry[dataset].name
    selected = runs or ([find_current_run(layout, name)] if has_current_run(layout, name) else [])
    # Seeds of one method alone: a mean over two configurations would be the error of neither.
    if selected:
        read_seeds(selected)

    tests = pair_stored(
        select_test_scopes(read_windows(layout, name)),
        [RunFolder(run).predictions_file for run in selected],
        layout.forecasts / f"benchmark-{name}",
        COMPEVO,
    )
    path = (results or layout.results) / f"paired-benchmark-{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, tests.write_csv)
    typer.echo(f"{tests.height} pairs: {path}")


def folds(
    windows: arguments.WindowsFolder,
    news: arguments.NewsFolder,
    out: Annotated[
        Path, typer.Option(help="Folder for the run folders fold_0, fold_1, ... and for folds.csv.")
    ],
    preset: arguments.Preset = "default",
    changes: arguments.Changes = None,
    restart: arguments.Restart = False,
) -> None:
    """Cross-validate a configuration: train on each of the five folds within the train split.

    Prints the errors of population and prior on every fold's validation windows, their mean and
    their standard deviation, as CSV.
    """
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.paper.folds import train_folds
    from compevo_pipeline.launchers.worker import describe_round
    from compevo_pipeline.storage.code_versions import read_commit

    rows = train_folds(
        arguments.resolve_config(preset, changes),
        WindowSet.read(windows),
        NewsPool.read(news),
        out,
        resume=not restart,
        # To standard error: standard output holds the table alone.
        on_round=lambda fold, record: typer.echo(
            f"fold {fold}: {describe_round(record)}", err=True
        ),
        commit=read_commit(),
    )
    typer.echo(rows.write_csv(), nl=False)


def lud(
    run: arguments.RunPath,
    dataset: Annotated[
        str,
        typer.Argument(help="Data set of the run; its rows also go to RESULTS/lud-DATASET.csv."),
    ] = "",
    judge: Annotated[
        list[str] | None,
        typer.Option(help="local, slots or endpoint (COMPEVO_JUDGE_URL); repeat for several."),
    ] = None,
    pairs: Annotated[
        int, typer.Option(min=1, help="Updates of an agent that a judge rates, evenly spaced.")
    ] = 8,
    encoder: Annotated[
        str, typer.Option(help="Encoder of the logics (default: the run's own).")
    ] = "",
    results: arguments.Results = Path("results"),
) -> None:
    """Measure how much the logics of a run changed (Logic Update Degree).

    Writes lud.json and lud.csv into the run folder, and rows for `compevo table lud` where a data
    set is named.
    """
    from compevo_core.lm.encoder import load_encoder
    from compevo_core.paper.lud import measure_lud, write_lud_rows
    from compevo_core.training.artifact import read_config

    # The backbone and the encoder of the run itself judge unless others are named.
    trained = read_config(run)
    judges = _build_judges(judge or ["local"], trained)
    summary = measure_lud(run, judges, load_encoder(encoder or trained.news.encoder), pairs=pairs)
    if dataset:
        write_lud_rows(results, summary, dataset)
    typer.echo(json.dumps(summary, indent=1))


def _build_judges(names: Sequence[str], config: "RunConfig") -> "list[Judge]":
    from compevo_core.paper.lud_judges import LocalJudge, SlotJudge
    from compevo_pipeline.config.endpoints import read_endpoint_judge

    if "slots" in names and config.evolution.form != "slots":
        raise ConfigError(
            f"--judge slots reads logics with slots, and this run's are {config.evolution.form}; "
            "use local or endpoint"
        )
    build: dict[str, Callable[[], Judge]] = {
        "local": lambda: LocalJudge(config.backbone),
        "slots": SlotJudge,
        "endpoint": read_endpoint_judge,
    }
    unknown = sorted(set(names) - set(build))
    if unknown:
        raise ConfigError(f"--judge {unknown[0]!r} is not one of {', '.join(build)}")
    return [build[name]() for name in names]


def audit_news(
    target: Annotated[
        str,
        typer.Argument(
            help="Name of a data set, for its current run, or for the probe if it has no run. With "
            "--windows and --news: folder of a run."
        ),
    ],
    windows: arguments.OptionalWindows = None,
    news: arguments.OptionalNews = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Use a linear probe (a few minutes) instead of a trained run."
        ),
    ] = False,
    results: arguments.ResultsOfRuns = None,
    every: arguments.Every = 1,
) -> None:
    """Test whether news improves the forecast.

    Compares a window's own news with no news, news of another day and irrelevant news, on the
    validation and the test split. The probe also runs on train, and reports its statistical power.
    Rows go to news-audit-DATASET.csv; `compevo report` shows them.
    """
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.window import WindowSet
    from compevo_core.evaluation.scoring import load_population
    from compevo_core.paper.news_audit import audit_probe, audit_run, write_audit
    from compevo_core.report.evidence_tables import format_audit
    from compevo_pipeline.storage.code_versions import read_commit

    target_runs = find_evaluated_runs([Path(target)], windows, news, results, probe=probe)
    window_set = WindowSet.read(target_runs.windows)
    if target_runs.news is None:
        raise ConfigError("the trained model reads no news, so that none can be audited: --probe")
    pool = NewsPool.read(target_runs.news)
    commit = read_commit()
    if not target_runs.runs:
        rows = audit_probe(window_set, pool, commit=commit, every=every)
    else:
        forecaster = load_population(target_runs.runs[0], pool)
        rows = audit_run(window_set, pool, forecaster, commit=commit, log=log, every=every)

    typer.echo(f"Rows: {write_audit(target_runs.results, rows)}\n")
    typer.echo(format_audit(rows.to_dicts()))


def params(
    backbone: Annotated[str, typer.Option(help="Architecture to count for.")] = "llama-3.1-8b",
    agents: Annotated[int, typer.Option(min=1, help="Number of agents.")] = 10,
    rank: Annotated[int, typer.Option(min=1, help="Adapter rank.")] = 16,
) -> None:
    """Print trainable parameters by method and part, as JSON."""
    from compevo_core.paper.agent_systems import build_parameter_report

    typer.echo(json.dumps(build_parameter_report(backbone, agents=agents, rank=rank), indent=1))
