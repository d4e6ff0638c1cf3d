"""The group ``compevo paper``: its experiments, tables and pages, on folders of runs and rows.

What belongs here: options, which runs and folders a name means, what is printed. What does not:
training and scoring (``paper.runs``, ``compevo_core.paper``), pages and tables
(``compevo_core.paper.report``).
"""

import json
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from compevo_core.errors import ConfigError
from compevo_core.runtime.usage import format_duration
from compevo_pipeline.cli import arguments
from compevo_pipeline.cli.results import (
    EvaluatedRuns,
    find_evaluated_run,
    render_scores,
    score_runs,
)

if TYPE_CHECKING:
    import click

    from compevo_core.config.run import RunConfig
    from compevo_core.paper.lud import Judge
    from compevo_core.paper.report.inputs import ReportInputs

BuiltDataset = Annotated[str, typer.Argument(help="Name of a data set whose windows are built.")]
Preset = Annotated[str, typer.Option(help=f"{arguments.PRESETS}.")]
log = logging.getLogger(__name__)

# Table of an experiment, by the first word of its name, if it is not ``sensitivity``.
TABLES = {
    "layers": "backbones",
    "news": "perturbation",
    "ablation": "ablation",
    "parts": "ablation",
}
_PAPER = "paper"
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds.")]


def _choose(what: str) -> Any:  # noqa: ANN401 - typer's own
    return typer.Option(help=f"{what}, separated by commas (default: all).")


class _ByName(TyperGroup):
    """A group that takes ``NAME DATASET`` for ``paper NAME DATASET``."""

    def resolve_command(
        self, ctx: "click.Context", args: list[str]
    ) -> "tuple[str | None, click.Command | None, list[str]]":
        """Return the command that the first word names, or the command ``paper``."""
        if args[0] in self.commands or args[0].startswith("-"):
            return super().resolve_command(ctx, args)

        from compevo_core.paper.changes import EXPERIMENTS

        if args[0] not in EXPERIMENTS:
            others = [name for name in self.commands if name != _PAPER]
            known = ", ".join([*EXPERIMENTS, *others])
            raise ConfigError(f"no experiment {args[0]!r}; known: {known}")
        return super().resolve_command(ctx, [_PAPER, *args])


experiments = typer.Typer(
    cls=_ByName,
    no_args_is_help=True,
    help="Run one of the paper's experiments (`compevo paper experiment NAME DATASET`), the "
    "control experiment, or one that reads text.",
)


@experiments.command(_PAPER, cls=arguments.DocumentedCommand)
def run_paper(
    name: Annotated[
        str,
        typer.Argument(
            help="ablation, lambda-pg, lambda-div, lambda-prune, tau, beta, t-gen, agents, epochs, "
            "instruction, news, news-mael, news-mae-gpt, news-mad-rl, weather, layers or parts."
        ),
    ],
    dataset: BuiltDataset,
    only: Annotated[str, _choose("Names of changes")] = "",
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            "--run",
            help="Finished run, for experiments that train nothing (tau, news, and news-SYSTEM on "
            "runs of that system); repeat for several seeds (default: the data set's current run).",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(help="Training budget: quick, small or standard (the preset's own).")
    ] = "standard",
    preset: Preset = "default",
    changes: arguments.Changes = None,
    seeds: Seeds = 1,
    every: arguments.Every = 1,
    scopes: Annotated[
        int, typer.Option(min=1, help="Number of test sets to score, in the data set's order.")
    ] = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Run one of the paper's experiments; the word `paper` may be left out.

    Changes one setting at a time and compares each variant with the reference on the same windows.
    Rows go to experiment-NAME-DATASET.csv (ablation: ablation-DATASET.csv); `compevo paper table`
    compares them with the paper. `parts` changes four settings, and scores validation.
    """
    from compevo_core.config.run import RunConfig
    from compevo_core.paper.changes import find_experiment
    from compevo_pipeline.launchers.worker import run_jobs
    from compevo_pipeline.paper.runs import ExperimentRun, run_experiment

    # Before hours of training: a name may be misspelt.
    definition = find_experiment(name)
    selected = definition.select(split_names(only))
    base = RunConfig.preset(preset)
    base = base.with_overrides(
        _read_budget(budget, name, base) | arguments.parse_changes(changes or [])
    )

    arguments.log_progress(log)
    deployment = arguments.open_deployment()
    plan = ExperimentRun(
        experiment=definition,
        changes=selected,
        dataset=deployment.registry[dataset].name,
        base=base,
        seeds=range(seeds),
        runs=runs or [],
        every=every,
        scopes=scopes,
        budget=budget if definition.trains and budget != "standard" else "",
    )
    path, _, _ = run_experiment(
        deployment, plan, train=lambda jobs: run_jobs(jobs, log), log=log, results=results
    )
    typer.echo(f"Rows: {path}")
    table = TABLES.get(name.partition("-")[0], "sensitivity")
    typer.echo(f"Show them: compevo paper table {table} --results {path.parent}")


@experiments.command("control", cls=arguments.DocumentedCommand)
def run_control(
    dataset: BuiltDataset,
    effects: Annotated[
        str,
        typer.Option(
            help="Effects of a planted topic, in standard deviations of the error of a calendar "
            "ridge, separated by commas."
        ),
    ] = "0,0.5,1,2,4",
    world: Annotated[
        str,
        typer.Option(
            help="plain, regional (only news of the home region has an effect), many-topics "
            "(three of a hundred topics have one), events (heat waves, holidays, outages and "
            "maintenance, in articles of three lengths), niches, niches-wide (eight of forty or a "
            "hundred topics) or niches-regional (another topic in each region)."
        ),
    ] = "plain",
    arms: Annotated[
        str,
        typer.Option(
            help="What to compare: reading (who reads which news) or search (who writes new "
            "logics)."
        ),
    ] = "reading",
    only: Annotated[str, _choose("Names of arms")] = "",
    series: Annotated[str, _choose("Series to use")] = "",
    preset: Preset = "specialists",
    changes: arguments.Changes = None,
    seeds: Seeds = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Plant news with a known effect in a data set's windows, and measure how much is found.

    Rows go to control-DATASET.csv and replace rows with the same world, effect, seed and arm.
    """
    from compevo_core.paper.control import ControlPlan
    from compevo_core.paper.report.evidence_tables import (
        control_table,
        list_controls,
        list_search_tables,
    )
    from compevo_pipeline.paper.runs import run_control_on
    from compevo_pipeline.storage.code_versions import read_commit

    config = arguments.resolve_config(preset, changes)
    plan = ControlPlan(
        config=config,
        world=world,
        series=split_names(series),
        compares=arms,
        only=split_names(only),
        effects=_read_effects(effects),
        seeds=range(seeds),
        commit=read_commit(),
    )

    arguments.log_progress(log)
    path, rows = run_control_on(
        arguments.open_deployment(), dataset, plan, log=log, results=results
    )
    made = rows.to_dicts()
    tables = [*map(control_table, list_controls(made)), *list_search_tables(made)]
    typer.echo("\n\n".join(table.to_markdown() for table in tables))
    typer.echo(f"\nRows: {path}")


@experiments.command("specialists", cls=arguments.DocumentedCommand)
def run_specialists(
    dataset: BuiltDataset,
    worlds: Annotated[str, _choose("Worlds to cut it to")] = "",
    effects: Annotated[str, _choose("Effects to cut it to")] = "",
    arms: Annotated[str, _choose("Arms to cut it to")] = "",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Most seeds of a world (default: five or ten).")
    ] = None,
    preset: Preset = "specialists",
    changes: arguments.Changes = None,
    results: arguments.OptionalResults = None,
) -> None:
    """Measure what agents that are read together add, in worlds that were fixed beforehand.

    Rows go to specialists-DATASET.csv after each world; rows with the same settings are not made
    again.
    """
    import polars as pl

    from compevo_core.paper.control import list_cells
    from compevo_core.paper.planted_news import SPECIALISTS_SCHEMA
    from compevo_core.paper.report.evidence_tables import format_evidence
    from compevo_pipeline.paper.runs import run_specialists_on
    from compevo_pipeline.storage.code_versions import read_commit

    cells = list_cells(
        arguments.resolve_config(preset, changes),
        worlds=split_names(worlds),
        effects=_read_effects(effects),
        seeds=seeds,
        only=split_names(arms),
        commit=read_commit(),
    )
    arguments.log_progress(log)
    path = run_specialists_on(arguments.open_deployment(), dataset, cells, log=log, results=results)
    rows = pl.read_csv(path, schema_overrides=SPECIALISTS_SCHEMA).to_dicts()
    typer.echo(f"{format_evidence('specialists', rows)}\n\nRows: {path}")


@experiments.command("text", cls=arguments.DocumentedCommand)
def run_text(
    name: Annotated[str, typer.Argument(help="weather, demand, ireland, ireland-earlier or toy.")],
    preset: Preset = "specialists",
    changes: arguments.Changes = None,
    seeds: Seeds = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Read real text about the day that is forecast, from the archive.

    Weather has captions of the same day (perfect foresight), demand has worded forecasts, ireland
    the words of the day's news titles, ireland-earlier the words of 35 days before, and toy a sine
    whose changes of period are announced. Rows go to text-*.csv.
    """
    from compevo_core.paper.control import TextPlan
    from compevo_core.paper.report.evidence_tables import format_evidence
    from compevo_pipeline.paper.runs import run_text_on
    from compevo_pipeline.storage.code_versions import read_commit

    config = arguments.resolve_config(preset, changes)
    arguments.log_progress(log)
    plan = TextPlan(config=config, seeds=range(seeds), commit=read_commit())
    path, rows = run_text_on(arguments.open_deployment(), name, plan, log=log, results=results)
    typer.echo(f"{format_evidence('text', rows.to_dicts())}\n\nRows: {path}")


@experiments.command("context", cls=arguments.DocumentedCommand)
def run_context(
    reader: Annotated[
        str,
        typer.Option(
            help="What reads the text: none (seconds), local (the preset's backbone: hours on "
            "one core) or endpoint (COMPEVO_JUDGE_URL, COMPEVO_JUDGE_MODEL)."
        ),
    ] = "none",
    samples: Annotated[int, typer.Option(min=2, help="Answers of the reader to each task.")] = 5,
    preset: Preset = "default",
    changes: arguments.Changes = None,
    seeds: Seeds = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Forecast the public tasks of Context-is-Key, whose text gives the answer.

    Nothing is trained. Rows go to context-is-key.csv, next to the published scores.
    """
    from compevo_core.paper import context_is_key as context
    from compevo_core.paper.report.evidence_tables import format_context
    from compevo_core.runtime.files import hash_file, hash_text
    from compevo_pipeline.paper.runs import read_endpoint_judge
    from compevo_pipeline.storage.code_versions import read_commit

    if reader not in ("none", "local", "endpoint"):
        raise ConfigError(f"--reader {reader!r} is not one of none, local, endpoint")
    arguments.log_progress(log)
    config = arguments.resolve_config(preset, changes).backbone
    deployment = arguments.open_deployment()
    archive, layout = deployment.settings.archive, deployment.layout
    if archive is None:
        raise ConfigError("the tasks are read from an archive: set COMPEVO_ARCHIVE")

    tasks = context.read_tasks(archive)
    facts = {"data_hash": hash_file(archive / context.FILE), "commit": read_commit()}
    write, model, rows = None, "", []
    for seed in range(seeds):
        if reader == "local":
            from compevo_core.lm.backbone import load_backbone

            model = config.name_or_path
            write = context.write_by_backbone(load_backbone(config), seed)
        elif reader == "endpoint":
            judge = read_endpoint_judge()
            model, write = judge.name, context.write_by_endpoint(judge.transport, judge.model)
        if write:
            answers = layout.text("context") / f"{hash_text(model)[:8]}-seed-{seed}.json"
            write = context.keep_answers(write, answers)
        made = context.run_context(
            tasks, write, model=model, samples=samples, seed=seed, facts=facts, log=log
        )
        path = context.write_context(results or layout.results, made)
        rows += made.to_dicts()
    typer.echo(f"{format_context(rows)}\n\nRows: {path}")


def _read_effects(effects: str) -> list[float]:
    try:
        return [float(effect) for effect in split_names(effects)]
    except ValueError:
        raise ConfigError(f"--effects {effects} is not a list of numbers: write 0,1,2") from None


def _read_budget(name: str, experiment: str, preset: "RunConfig") -> dict[str, int]:
    from compevo_core.paper.agent_systems import spend
    from compevo_core.paper.declared import find_budget

    budget = find_budget(name)
    if name == "standard":
        return {}
    if name not in ("quick", "small"):
        raise ConfigError(
            f"--budget {name} is for methods that are tuned: name quick, small or standard"
        )
    # A fixed number of updates would leave each number of passes the same training.
    if experiment == "epochs":
        raise ConfigError("epochs changes the training budget itself: name --budget standard")
    return spend(budget, preset)


def split_names(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


_WINDOWS = typer.Option(help="Folder of windows, as the windows asset writes it.")
_NEWS = typer.Option(help="Folder of news and embeddings.")
WindowsFolder = Annotated[Path, _WINDOWS]
NewsFolder = Annotated[Path, _NEWS]
OptionalWindows = Annotated[Path | None, _WINDOWS]
OptionalNews = Annotated[Path | None, _NEWS]
RunPath = Annotated[Path, typer.Argument(help="Folder of a training run.")]
Results = Annotated[Path, typer.Option(help="Folder of result rows (CSV).")]
ShardBackbone = Annotated[
    bool,
    typer.Option(
        "--shard-backbone",
        help="Under torchrun, split the layers of the backbone over the processes, for a backbone "
        "that does not fit on one device.",
    ),
]


def train(
    windows: WindowsFolder,
    news: NewsFolder,
    out: Annotated[
        Path, typer.Option(help="Run folder; an unfinished run with the same settings is resumed.")
    ],
    preset: Preset = "default",
    changes: arguments.Changes = None,
    variant: Annotated[
        str,
        typer.Option(
            help="Train a variant of the ablation, a control or another system of agents instead "
            "of the full method, for example no-grpo, no-news or mael."
        ),
    ] = "",
    validation: Annotated[
        Literal["split", "last-fold"],
        typer.Option(help="Windows that choose the round: the val split or train's last fold."),
    ] = "split",
    restart: arguments.Restart = False,
    shard_backbone: ShardBackbone = False,
) -> None:
    """Train a preset on the train split; validation chooses the round of agents.

    Under torchrun the processes share the agents, and only the first one prints.
    """
    from compevo_core import NewsPool, WindowSet
    from compevo_core.paper.changes import FULL_METHOD, find_variant
    from compevo_core.paper.trials import build_folds
    from compevo_core.runtime.distributed import process_group
    from compevo_core.training.trainer import train as train_population
    from compevo_pipeline.config.endpoints import read_selector
    from compevo_pipeline.config.settings import process_rank
    from compevo_pipeline.launchers.worker import describe_round

    change = find_variant(variant or FULL_METHOD)
    config = change.configure(arguments.resolve_config(preset, changes))
    window_set = change.change_windows(WindowSet.read(windows))
    train_windows, val_windows = window_set.split("train"), window_set.split("val")
    if validation == "last-fold":
        train_windows, val_windows = build_folds(window_set)[-1]
    rank, processes, local_rank = process_rank()

    with process_group(rank, processes, local_rank):
        summary = train_population(
            config,
            train_windows,
            val_windows,
            NewsPool.read(news),
            out,
            resume=not restart,
            on_round=lambda record: arguments.show_progress(describe_round(record)),
            shard_backbone=shard_backbone,
            selector=read_selector(config),
        )

    # The processes of torchrun share one terminal.
    if rank == 0:
        arguments.show_progress("")
        typer.echo(json.dumps(summary, indent=1, sort_keys=True))


def folds(
    windows: WindowsFolder,
    news: NewsFolder,
    out: Annotated[
        Path, typer.Option(help="Folder for the run folders fold_0, fold_1, ... of the folds.")
    ],
    preset: Preset = "default",
    changes: arguments.Changes = None,
    restart: arguments.Restart = False,
    results: Results = Path("results"),
) -> None:
    """Cross-validate a configuration: train on each of the five folds within the train split.

    Prints the errors of population and prior on every fold's validation windows, their mean and
    their standard deviation. Rows go to folds-DATASET.csv.
    """
    from compevo_core import NewsPool, WindowSet
    from compevo_core.paper.report.paper_tables import build_fold_table
    from compevo_core.paper.trials import train_folds
    from compevo_pipeline.launchers.worker import describe_round
    from compevo_pipeline.storage.code_versions import read_commit

    rows = train_folds(
        arguments.resolve_config(preset, changes),
        WindowSet.read(windows),
        NewsPool.read(news),
        out,
        results,
        resume=not restart,
        # To standard error: standard output holds only the table.
        on_round=lambda fold, record: typer.echo(
            f"fold {fold}: {describe_round(record)}", err=True
        ),
        commit=read_commit(),
    )
    typer.echo(build_fold_table(rows).to_titled_markdown())


def predict(
    run: RunPath,
    windows: WindowsFolder,
    news: NewsFolder,
    out: Annotated[Path, typer.Option(help="Parquet file to write: a row per window and step.")],
    split: arguments.Split = "inference",
    subset: arguments.Subset = "",
    shard_backbone: ShardBackbone = False,
) -> None:
    """Forecast the chosen windows with a trained population, without updating it.

    Under torchrun every process reads the same windows; only the first one writes and prints.
    """
    import polars as pl

    from compevo_core import CompEvoForecaster, NewsPool, WindowSet
    from compevo_core.data.steps import shift
    from compevo_core.lm.backbone import load_backbone
    from compevo_core.runtime.distributed import process_group
    from compevo_core.runtime.files import write_atomically
    from compevo_core.training.ensemble import read_config
    from compevo_pipeline.config.settings import process_rank

    # Views, not windows: a forecaster is never handed the truth.
    window_set = WindowSet.read(windows)
    views = (window_set.subset(subset) if subset else window_set.split(split)).views()
    if not views:
        raise ConfigError(
            f"{windows}: no window in {subset or split}; name another --split or --subset"
        )
    rank, processes, local_rank = process_rank()

    with process_group(rank, processes, local_rank):
        backbone = load_backbone(read_config(run).backbone, shard=True) if shard_backbone else None
        forecaster = CompEvoForecaster.load(run, NewsPool.read(news), backbone=backbone)
        forecast_NH = forecaster.predict(views)
    if rank != 0:
        return

    rows = [
        {
            "window_id": view.window_id,
            "entity": view.entity,
            "start_utc": shift(view.origin_utc, step, view.step),
            "step": step,
            "value": float(value),
            "unit": view.unit,
        }
        for view, values in zip(views, forecast_NH, strict=True)
        for step, value in enumerate(values)
    ]
    write_atomically(out, pl.DataFrame(rows).write_parquet)
    typer.echo(f"{len(views)} windows, {len(rows)} values: {out}")


def evaluate(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of training runs that differ only by seed.")
    ],
    windows: WindowsFolder,
    news: NewsFolder,
    results: Results = Path("results"),
    experiment: Annotated[
        str, typer.Option(help="Name of the experiment and of its files.")
    ] = "main",
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
    seeds: arguments.BaselineSeeds = 5,
) -> None:
    """Score trained runs in folders, and every baseline that can forecast the windows.

    Runs that differ only by seed are scored as one method: tables show the mean over seeds, and
    paired tests take the mean error of each window. Writes result rows and paired tests; forecasts
    and panels are written into each run folder.
    """
    from compevo_core.paper.changes import FULL_METHOD, find_variant

    chosen = EvaluatedRuns(
        runs=runs, windows=windows, news=news, results=results, experiment=experiment
    )
    method = variant or FULL_METHOD
    change = find_variant(method).change_windows
    score_runs(chosen, method, split, subset, every, seeds, change)
    typer.echo(render_headline(results))


def benchmark(
    dataset: BuiltDataset,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods to run, separated by commas: names, a family (numeric, "
            "news-aware, agents), zero-shot:PATH, or all."
        ),
    ] = "all",
    budget: Annotated[
        str, typer.Option(help="Budget of a fit: quick, short, small, standard or tuned.")
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
    budget.
    """
    from compevo_core.paper.declared import find_budget
    from compevo_core.paper.method_table import select_methods
    from compevo_core.paper.report.inputs import read_result_file
    from compevo_pipeline.paper.runs import BenchmarkData

    # Before hours of fitting: a later name may be misspelt.
    selected = select_methods(split_names(methods))
    allowed = find_budget(budget)
    typer.echo(f"Budget {allowed.name}: {allowed.meaning}")

    deployment = arguments.open_deployment()
    data = BenchmarkData.read(deployment, dataset, every=every, scopes=scopes, results=results)

    # Written seed by seed, so that an interruption keeps the earlier fits.
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
        typer.echo(f"Show them: compevo paper table main --results {data.rows.parent}")


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
    method: Annotated[
        str, typer.Option(help="Method that all others are paired with, by its stored forecasts.")
    ] = "compevo",
    every: arguments.Every = 1,
    results: arguments.OptionalResults = None,
) -> None:
    """Pair the population, or another method, with every method of the benchmark.

    Trains nothing: it reads the stored forecasts of `compevo evaluate` and `compevo paper
    benchmark`. The tests replace earlier ones of the pair in paired-benchmark-DATASET.csv, and
    `compevo paper table main` shows them.
    """
    import polars as pl

    from compevo_core.evaluation.result_rows import replace_own_rows
    from compevo_core.evaluation.scopes import select_test_scopes
    from compevo_core.evaluation.scoring import COMPEVO, read_seeds
    from compevo_core.paper.paper_windows import PAPER_SETS
    from compevo_core.paper.trials import pair_stored
    from compevo_core.training.run_folder import RunFolder
    from compevo_pipeline.storage.runs import find_current_run, has_current_run
    from compevo_pipeline.work.stored_windows import read_windows

    deployment = arguments.open_deployment()
    layout = deployment.layout
    name = dataset if dataset in PAPER_SETS else deployment.registry[dataset].name
    stored = layout.forecasts / f"benchmark-{name}"
    selected = runs or ([find_current_run(layout, name)] if has_current_run(layout, name) else [])
    files = [RunFolder(run).predictions_file for run in selected]
    if method != COMPEVO:
        files = sorted(stored.glob(f"{method}-seed*.parquet"))
    elif selected:
        # Seeds of only one method: a mean over two configurations would be the error of neither.
        read_seeds(selected)

    scopes = select_test_scopes(read_windows(layout, name), every)
    tests = pair_stored(scopes, files, stored, method)
    path = (results or layout.results) / f"paired-benchmark-{name}.csv"
    # If no seed or budget is common, the value is null, not an empty text.
    unknown = pl.col("seeds", "budget").replace("", None)
    key = ["dataset", "subset", "method_a", "method_b"]
    replace_own_rows(path, tests, key, arrange=lambda rows: rows.with_columns(unknown))
    typer.echo(f"{tests.height} pairs: {path}")


def lud(
    run: RunPath,
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
    windows: OptionalWindows = None,
    news: OptionalNews = None,
    results: Results = Path("results"),
) -> None:
    """Measure how much the logics of a run changed (Logic Update Degree).

    With --windows and --news it also measures the gain, on validation windows.

    Writes lud.json and lud.csv into the run folder, and rows for `compevo paper table lud` if a
    data set is named.
    """
    from compevo_core import CompEvoForecaster, NewsPool, WindowSet
    from compevo_core.lm.encoder import load_encoder
    from compevo_core.paper.lud import LocalJudge, SlotJudge, measure_lud, write_lud_rows
    from compevo_core.training.ensemble import read_config
    from compevo_pipeline.paper.runs import read_endpoint_judge

    if (windows is None) != (news is None):
        raise ConfigError("gains on validation windows need both --windows and --news")
    # The backbone and the encoder of the run itself judge unless others are named.
    trained = read_config(run)
    asked = judge or ["local"]
    if "slots" in asked and trained.evolution.form != "slots":
        raise ConfigError(
            f"--judge slots reads logics with slots, and this run's are {trained.evolution.form}; "
            "use local or endpoint"
        )
    build: dict[str, Callable[[], Judge]] = {
        "local": lambda: LocalJudge(trained.backbone),
        "slots": SlotJudge,
        "endpoint": read_endpoint_judge,
    }
    if unknown := sorted(set(asked) - set(build)):
        raise ConfigError(f"--judge {unknown[0]!r} is not one of {', '.join(build)}")
    score = None
    if windows is not None and news is not None:
        forecaster = CompEvoForecaster.load(run, NewsPool.read(news))
        score = partial(forecaster.score_logics, windows=WindowSet.read(windows).split("val"))
    chosen = load_encoder(encoder or trained.news.encoder)
    judges = [build[name]() for name in asked]
    summary = measure_lud(run, judges, chosen, pairs=pairs, score=score)
    if dataset:
        write_lud_rows(results, summary, dataset)
    typer.echo(json.dumps(summary, indent=1))


def audit_news(
    target: Annotated[
        str,
        typer.Argument(
            help="Name of a data set, for its current run, or for the probe if it has no run. With "
            "--windows and --news: folder of a run."
        ),
    ],
    windows: OptionalWindows = None,
    news: OptionalNews = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Ask the numeric audit (seconds), which reads words, and no trained run.",
        ),
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Results folder (default: the one in the deployment, or `results` for folders of "
            "runs)."
        ),
    ] = None,
    every: arguments.Every = 1,
) -> None:
    """Test whether news improves the forecast.

    Compares a window's own news with no news, news of another day and irrelevant news, on the
    validation and the test split. The probe reads the days before, and reports its power. Rows go
    to news-audit-DATASET.csv; `compevo paper report` shows them.
    """
    from compevo_core import CompEvoForecaster, NewsPool, WindowSet
    from compevo_core.paper.news_audit import audit_probe, audit_run, write_audit
    from compevo_core.paper.report.evidence_tables import format_evidence
    from compevo_pipeline.storage.code_versions import read_commit

    if windows is not None and news is not None:
        target_runs = EvaluatedRuns(
            runs=[] if probe else [Path(target)],
            windows=windows,
            news=news,
            results=results or Path("results"),
            experiment="",
        )
    elif Path(target).is_dir() or windows is not None or news is not None:
        raise ConfigError(
            "folders of runs need --windows and --news; a data set's name needs neither"
        )
    else:
        target_runs = find_evaluated_run(target, results, probe=probe)
    window_set = WindowSet.read(target_runs.windows)
    if target_runs.news is None:
        raise ConfigError("the trained model reads no news, so that none can be audited: --probe")
    pool = NewsPool.read(target_runs.news)
    if not len(pool):
        raise ConfigError(f"{window_set.dataset} has no articles, so there is no news to audit")
    commit = read_commit()
    if not target_runs.runs:
        if every > 1:
            raise ConfigError("the probe reads all days: --every N is for the audit of a run")
        rows = audit_probe(window_set, pool, commit=commit)
    else:
        forecaster = CompEvoForecaster.load(target_runs.runs[0], pool)
        rows = audit_run(window_set, pool, forecaster, commit=commit, log=log, every=every)

    typer.echo(f"Rows: {write_audit(target_runs.results, rows)}\n")
    typer.echo(format_evidence("audit", rows.to_dicts()))


def params(
    backbone: Annotated[str, typer.Option(help="Architecture to count for.")] = "llama-3.1-8b",
    agents: Annotated[int, typer.Option(min=1, help="Number of agents.")] = 10,
    rank: Annotated[int, typer.Option(min=1, help="Adapter rank.")] = 16,
) -> None:
    """Print trainable parameters by method and part, as JSON."""
    from compevo_core.paper.agent_systems import build_parameter_report

    typer.echo(json.dumps(build_parameter_report(backbone, agents=agents, rank=rank), indent=1))


def trace(
    run: RunPath,
    dataset: Annotated[str, typer.Argument(help="Data set that the run was trained on.")],
    method: Annotated[
        str,
        typer.Option(help="Method name in the rows (default: the system of agents of the run)."),
    ] = "",
    budget: Annotated[
        str, typer.Option(help="Budget of the benchmark that the run was trained under, if any.")
    ] = "",
    results: Results = Path("results"),
) -> None:
    """Export a run's training history and final agents as CSV rows.

    Writes into RESULTS/traces-DATASET.csv and logics-DATASET.csv, replacing the rows of the same
    method, budget and seed. `compevo paper benchmark` does this for systems of agents.
    """
    from compevo_core.training.ensemble import read_config
    from compevo_pipeline.paper.runs import trace_run

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


def table(
    name: Annotated[
        str,
        typer.Argument(
            help="main, agents, ablation, backbones, efficiency, sensitivity, perturbation or lud "
            "(default: the tables of all methods by data set)."
        ),
    ] = "",
    results: Results = Path("results"),
) -> None:
    """Print a table of the paper with our rows next to the published figures, as Markdown."""
    if not name:
        typer.echo(render_headline(results))
        return

    from compevo_core.paper.report.paper_tables import format_paper_tables

    typer.echo(format_paper_tables(name, _read_inputs(results, [], "archive")))


def report(
    results: Annotated[Path, typer.Argument(help="Folder of result rows (CSV).")],
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
    from compevo_core.paper.report.page import render_research
    from compevo_core.report.forecast_page import FORECAST_PAGE, RESEARCH_PAGE, render_forecasts
    from compevo_core.report.tomorrow import read_days
    from compevo_core.runtime.files import write_text

    inputs = _read_inputs(results, runs or [], mode)
    days = [] if forecasts is None else read_days(forecasts, windows, scored)
    write_text(out / RESEARCH_PAGE, render_research(inputs))
    page = render_forecasts(days, mode=mode, generated_at=inputs.generated_at)
    typer.echo(write_text(out / FORECAST_PAGE, page))


def render_headline(results: Path) -> str:
    """Return the result tables of a folder of rows, as Markdown."""
    from compevo_core.paper.report.markdown import format_results

    return format_results(_read_inputs(results, [], "archive"))


def _read_inputs(results: Path, runs: Sequence[Path], mode: str) -> "ReportInputs":
    from compevo_core.paper.report.inputs import read_inputs

    # An empty result would look like a finished one.
    if not results.is_dir():
        raise ConfigError(f"no folder {results}: name one that holds result rows")
    return read_inputs(results, runs, mode=mode, generated_at=datetime.now(UTC))


paper = typer.Typer(
    no_args_is_help=True, help="Rivals, experiments, tables and pages of the paper."
)
runs_and_scores = (train, folds, predict, evaluate, benchmark, pair)
what_they_show = (lud, trace, audit_news, table, report, params)
for command in runs_and_scores + what_they_show:
    paper.command(cls=arguments.DocumentedCommand)(command)
paper.add_typer(experiments, name="experiment")
