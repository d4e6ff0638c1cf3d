"""Runs that commands and assets share: experiments, and methods of the benchmark.

What belongs here: training named changes with seeds; planted news, worded data; a
method with a seed, on windows of a data set or of the paper; the files that all of them leave, so
that callers find each other's trainings; the judge that settings name. What does not: which
changes, worlds and methods there are, scoring and pairing (``compevo_core.paper``), options and
partitions, where a training runs (the caller passes it in).

The rows of a benchmark are one file. A writer holds a lock and replaces only the rows of the same
method, seed and budget, so that parallel runs lose nothing and a failed run can be repeated by
itself. Each run has a file of forecasts. A method of agents keeps its training as a run of the
deployment, which is resumed where it was stopped.
"""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import polars as pl

from compevo_core.baselines import SharedFits
from compevo_core.config.run import RunConfig
from compevo_core.data.build import build_windows
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, SourceAbsent
from compevo_core.evaluation.result_rows import hash_without_seed, replace_own_rows, write_config
from compevo_core.evaluation.scopes import Scope, select_test_scopes, write_forecasts
from compevo_core.evaluation.scoring import read_seeds
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper import method_table
from compevo_core.paper.agent_systems import PRESET
from compevo_core.paper.changes import ABLATION, Experiment, NamedChange
from compevo_core.paper.declared import Budget, require_known
from compevo_core.paper.lud import EndpointJudge
from compevo_core.paper.paper_windows import PAPER_SETS, describe_set, label_windows, parse_table
from compevo_core.paper.planted_news import TEXTS, read_worded_data
from compevo_core.paper.run_traces import write_traces
from compevo_core.paper.trials import Trial, list_trials_of_runs, score_experiment
from compevo_core.runtime.files import hash_text
from compevo_core.runtime.usage import Steps
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.endpoints import open_judge
from compevo_pipeline.config.settings import Layout, Settings
from compevo_pipeline.launchers.worker import TrainJob, describe_round
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.storage.code_versions import fits_folder, read_commit, stages_folder
from compevo_pipeline.storage.news_store import StoredArticles
from compevo_pipeline.storage.runs import find_current_run, make_run_name
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import find_encoder, read_news, write_news
from compevo_pipeline.work.ingest import ingest_dataset
from compevo_pipeline.work.methods import plan_preset
from compevo_pipeline.work.source_coverage import NEWS
from compevo_pipeline.work.stored_windows import read_windows

if TYPE_CHECKING:
    from compevo_core.paper.control import ControlPlan, TextPlan

log = logging.getLogger(__name__)
_LABEL_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRun:
    """What to run of an experiment on a data set."""

    experiment: Experiment
    changes: Sequence[NamedChange]  # its changes to run, each once
    dataset: str  # name of the data set, whose windows are built
    base: RunConfig  # settings of the full method
    seeds: Sequence[int]  # seeds that each change is trained with
    # Finished runs of the full method, for an experiment that trains nothing; empty: the current
    # run of the data set.
    runs: Sequence[Path] = ()
    every: int = 1  # score every n-th origin
    scopes: int | None = 1  # how many of the data set's test scopes to score, in order; None: all
    budget: str = ""  # budget that the rows name; empty for the preset's own
    resume: bool = True  # False repeats finished trainings
    shard_backbone: bool = False  # whether several processes split the backbone


def run_experiment(
    deployment: Deployment,
    plan: ExperimentRun,
    *,
    train: Callable[[Sequence[TrainJob]], object],
    log: logging.Logger,
    results: Path | None = None,
) -> tuple[Path, pl.DataFrame, pl.DataFrame]:
    """Train what has to be trained, score, pair and write; return the file, its rows and the tests.

    ``train`` runs trainings to their end; it is called once, or never if nothing is trained.
    ConfigError if every change is the full method itself under these settings, or a finished run
    has another system; DataError if windows are not built, or a finished run is needed and missing.
    """
    layout = deployment.layout
    windows = read_windows(layout, plan.dataset)

    if plan.experiment.trains:
        to_test = not plan.experiment.scores_later
        news = write_news(deployment, plan.base.encoder, windows, log=log, to_test=to_test)
        trials = _train_changes(deployment, plan, windows, news, train, log)
        pool = None if news is None else NewsPool.read(news)
    else:
        runs = list(plan.runs) or [find_current_run(layout, plan.dataset)]
        configs = read_seeds(runs)
        if (system := configs[0].population.system) != plan.experiment.system:
            raise ConfigError(
                f"{runs[0]} is a run of {system}, and {plan.experiment.name} changes runs of "
                f"{plan.experiment.system}: name finished ones with --run"
            )
        pool = read_news(deployment, find_encoder(runs[0]), windows.views(), log=log)
        trials = list_trials_of_runs(
            plan.changes, list(zip(runs, configs, strict=True)), windows, pool
        )

    # Scored only after all are trained: if a change fails, no partial table is left.
    return score_experiment(
        plan.experiment,
        trials,
        pool,
        results or layout.results,
        commit=read_commit(),
        log=log,
        every=plan.every,
        scopes=plan.scopes,
        budget=plan.budget,
        # Changes share members, so the refits of one change serve another.
        fit=SharedFits(fits_folder(layout), log),
    )


def run_control_on(
    deployment: Deployment,
    dataset: str,
    plan: "ControlPlan",
    *,
    log: logging.Logger,
    results: Path | None = None,
) -> tuple[Path, pl.DataFrame]:
    """Plant news on windows, train every arm, write rows; return their file and them.

    ConfigError for a series that the data set lacks; DataError if its windows are not built.
    """
    from compevo_core.paper.control import run_control, write_control  # torch, only to train

    layout = deployment.layout
    windows = read_windows(layout, dataset)
    encoder = load_encoder(plan.config.news.encoder)
    rows, rounds = run_control(windows, encoder, plan, layout.control(dataset), log)
    path, _ = write_control(results or layout.results, dataset, plan, rows, rounds)
    return path, rows


def run_specialists_on(
    deployment: Deployment,
    dataset: str,
    cells: Sequence["ControlPlan"],
    *,
    log: logging.Logger,
    results: Path | None = None,
) -> Path:
    """Run the worlds of the experiment on specialists; return the file of rows.

    Rows are written after every world; arms with rows of the same settings are left out.
    """
    from compevo_core.paper.control import leave_out_scored

    path = (results or deployment.layout.results) / f"specialists-{dataset}.csv"
    left = [plan for cell in cells if (plan := leave_out_scored(cell, path))]
    log.info(f"{len(cells) - len(left)} of {len(cells)} worlds have rows already")
    steps = Steps([plan.config.population.agents for plan in left], log.info)
    for plan in left:
        steps.begin(f"{plan.world} world, {plan.config.population.agents} agents")
        run_control_on(deployment, dataset, plan, log=log, results=results)
    return path


def run_text_on(
    deployment: Deployment,
    name: str,
    plan: "TextPlan",
    *,
    log: logging.Logger,
    results: Path | None = None,
) -> tuple[Path, pl.DataFrame]:
    """Read worded data of the deployment's archive, train every arm, and write the rows.

    ConfigError without such data or without an archive; DataError if windows that they need are not
    built; SourceAbsent if the archive does not hold them.
    """
    from compevo_core.paper.control import run_text, write_text  # torch, only to train

    archive = deployment.settings.archive
    require_known("worded data", [name], TEXTS)
    if archive is None:
        raise ConfigError("worded data are read from an archive: set COMPEVO_ARCHIVE")

    layout, dataset = deployment.layout, TEXTS[name]
    windows = read_windows(layout, dataset) if dataset else None
    encoder = load_encoder(plan.config.news.encoder)
    data = read_worded_data(name, archive, encoder, windows)
    rows = run_text(data, encoder, plan, layout.text(name), log)
    return write_text(results or layout.results, data, plan, rows), rows


def read_endpoint_judge(settings: Settings | None = None) -> EndpointJudge:
    """Return the judge behind the endpoint that a deployment, or the environment, names."""
    settings = settings or Settings.from_environment()
    transport = open_judge("a judge behind an endpoint", settings)
    return EndpointJudge(model=settings.judge_model, transport=transport)


def _train_changes(
    deployment: Deployment,
    plan: ExperimentRun,
    windows: WindowSet,
    news: Path | None,
    train: Callable[[Sequence[TrainJob]], object],
    log: logging.Logger,
) -> list[Trial]:
    layout = deployment.layout
    # A change that differs only after the supervised stage starts at the end of a shared one.
    stages = stages_folder(layout, f"{plan.experiment.name}-{plan.dataset}")
    if not plan.resume:
        shutil.rmtree(stages, ignore_errors=True)

    trials: list[Trial] = []
    jobs: dict[str, TrainJob] = {}
    for change in plan.changes:
        # Changes of other experiments are values of a setting, including the reference.
        if plan.experiment.name == ABLATION and change.changes_nothing(plan.base):
            log.warning(
                f"{change.name} is left out: what it switches off is off already; switch it on "
                "with --set, or name the preset paper"
            )
            continue
        changed = change.change_windows(windows)
        folder = layout.windows(plan.dataset)
        if changed is not windows:
            folder = layout.windows(f"{plan.dataset}-{change.name}")
            changed.write(folder)

        for seed in plan.seeds:
            config = change.configure(plan.base.with_overrides({"run.seed": seed}))
            # Equal settings and windows are one training, even for different experiments.
            digits = hash_text(f"{hash_without_seed(config)} {changed.training_hash}")
            label = f"experiment-{plan.dataset}-{digits[:_LABEL_DIGITS]}"
            name = make_run_name(label, config, changed)
            # The model of the data set is the full method, if it has exactly these settings.
            model = make_run_name(plan_preset(config, plan.dataset).label, config, changed)
            if plan.resume and RunFolder(layout.run(model)).is_finished:
                name = model
            else:
                jobs[name] = TrainJob(
                    config=config.to_dict(),
                    windows=str(folder),
                    news=str(news or ""),
                    out=str(layout.run(name)),
                    resume=plan.resume,
                    fits=str(fits_folder(layout)),
                    stages=str(stages),
                    shard_backbone=plan.shard_backbone,
                )
            run = layout.run(name)
            log.info(f"{change.name}, seed {seed}: {run}")
            trials.append(Trial(change=change.name, config=config, windows=changed, run=run))

    if not trials:
        raise ConfigError(
            f"experiment {ABLATION}: every change named is the full method under these settings; "
            "name others"
        )
    if jobs:
        train(list(jobs.values()))
    # An interrupted experiment finds its stages; after the last training none is needed.
    shutil.rmtree(stages, ignore_errors=True)
    return trials


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkData:
    """The data that all methods of a data set run on."""

    windows: WindowSet  # all windows
    scopes: list[Scope]  # the test windows, by subset
    layout: Layout  # folders of the deployment
    rows: Path  # the file of result rows
    fit: SharedFits  # fits the numeric priors of agents, once for all systems

    @classmethod
    def read(
        cls,
        deployment: Deployment,
        dataset: str,
        *,
        every: int = 1,
        scopes: int | None = None,
        results: Path | None = None,
    ) -> Self:
        """Read the windows of a data set, or cut the windows that the paper published.

        Every n-th origin of the first ``scopes`` test scopes is scored; None: of all.
        """
        layout = deployment.layout
        folder = results or layout.results
        if dataset in PAPER_SETS:
            windows = cut_paper_windows(deployment, dataset, folder)
        else:
            windows = read_windows(layout, deployment.registry[dataset].name)
        return cls(
            windows=windows,
            scopes=select_test_scopes(windows, every)[:scopes],
            layout=layout,
            rows=folder / f"benchmark-{dataset}.csv",
            fit=deployment.shared_fits(),
        )

    def can_run(self, method: method_table.Method) -> bool:
        """Return whether a method can forecast any of the scopes."""
        return any(method.is_applicable(scope.windows) for scope in self.scopes)

    def prepare(
        self, deployment: Deployment, method: method_table.Method, budget: Budget
    ) -> method_table.FitInputs:
        """Return the inputs that every seed of a method is fitted with."""
        news: NewsPool | None = None
        if method.reads_news:
            # Not the deployment's preset: methods get the same inputs in every deployment.
            encoder = RunConfig.preset(PRESET).news.encoder
            news = read_news(deployment, encoder, self.windows.views(), log=log)
        return method_table.prepare_inputs(
            method, self.windows.split("train"), self.windows.split("val"), budget, news=news
        )

    def run(
        self,
        method: method_table.Method,
        inputs: method_table.FitInputs,
        seed: int,
        *,
        on_fitted: Callable[[str, int, float], None] | None = None,
    ) -> pl.DataFrame:
        """Fit and score a method with one seed, store its forecasts; return its rows, in place."""
        inputs = replace(inputs, seed=seed)
        run = self.find_run(method, inputs)
        if run is not None:
            plan = method_table.TrainingPlan(
                folder=run,
                fit=self.fit,
                on_round=lambda record: log.info("%s: %s", method.name, describe_round(record)),
            )
            inputs = replace(inputs, training=plan)
        scores = method_table.score_seed(
            method, inputs, self.scopes, commit=read_commit(), on_fitted=on_fitted
        )

        folder = self.layout.forecasts / self.rows.stem
        write_forecasts(
            folder / f"{_name_run(method, inputs)}.parquet",
            list(zip(self.scopes, scores.forecasts, strict=True)),
            # Rows of other test sets stay, since only some may have been scored this time.
            keeps_others=True,
        )
        if method.configure is not None:
            config = method.configure(inputs)
            # Rows name a configuration only by its hash.
            write_config(self.rows.parent, config)
            if run is not None:
                trace_run(
                    self.rows.parent,
                    run,
                    config,
                    # The name of the set: two sets of the paper are cut from one data set.
                    dataset=self.rows.stem.removeprefix("benchmark-"),
                    method=method.name,
                    budget=inputs.budget.name,
                )
        replace_rows(self.rows, scores.rows)
        return scores.rows

    def find_run(self, method: method_table.Method, inputs: method_table.FitInputs) -> Path | None:
        """Return the run folder of a method's training; None for a method that leaves none."""
        if method.configure is None or not method.leaves_run:
            return None
        label = f"{self.rows.stem}-{_name_run(method, inputs)}"
        return self.layout.run(make_run_name(label, method.configure(inputs), self.windows))


def cut_paper_windows(deployment: Deployment, name: str, results: Path) -> WindowSet:
    """Read the archive, cut the windows of a set of the paper and store them under its name.

    Its counts and shares of overlap become its row of ``paper-windows.csv``. SourceAbsent without
    an archive that has the table of the set; DataError if nothing of the data set is stored.
    """
    paper, archive = PAPER_SETS[name], deployment.settings.archive
    path = (archive or Path()) / "compevo_paper" / paper.file
    if archive is None or not path.is_file():
        raise SourceAbsent(f"{path} does not exist: name the folder above it in COMPEVO_ARCHIVE")
    published = parse_table(path.read_bytes(), path.name)

    dataset = paper.spec.name
    ingest_dataset(deployment, dataset, log=log)
    try:
        ingest_dataset(deployment, NEWS, log=log)
    except SourceAbsent as error:
        log.warning("windows name no article: %s", error)
    store, news = deployment.series_store(), deployment.news_store()
    cut = build_windows(
        paper.spec,
        store.read(dataset),
        covariates=store.read_frame(dataset, FrameKind.COVARIATES) if paper.has_weather else None,
        articles=StoredArticles(news, "") if news.path.exists() else None,
        published=store.read_frame(dataset, FrameKind.PUBLISHED),
        step_covariates=store.read_frame(dataset, FrameKind.STEP_COVARIATES),
    )
    windows = label_windows(paper, cut, published)
    windows.write(deployment.layout.windows(name))

    row = pl.DataFrame([describe_set(name, windows, published)])
    replace_own_rows(
        results / "paper-windows.csv", row, ("set",), arrange=lambda every: every.sort("set")
    )
    return windows


def _name_run(method: method_table.Method, inputs: method_table.FitInputs) -> str:
    budget = f"-{inputs.budget.name}" if method.has_budget else ""
    return f"{method.name}{budget}-seed{inputs.seed}"


def replace_rows(path: Path, rows: pl.DataFrame) -> None:
    """Replace rows of the same method, seed, subset and budget; no writer changes the order."""
    replace_own_rows(
        path,
        rows,
        ("experiment", "method", "dataset", "subset", "seed", "budget"),
        arrange=lambda every: every.sort("method", "budget", "seed", "subset", maintain_order=True),
    )


def trace_run(
    results: Path, run: Path, config: RunConfig, *, dataset: str, method: str, budget: str
) -> tuple[Path, Path]:
    """Write the traces of a run folder into the results; return the two files.

    Logics are embedded by the encoder of ``config``; ``budget`` is empty for a run of its own.
    DataError if there is no round, or a file of the results holds something else.
    """
    identity = {
        "dataset": dataset,
        "method": method,
        "budget": budget,
        "seed": config.run.seed,
        "commit": read_commit(),
        "config_hash": config.hash,
    }
    return write_traces(results, run, identity, load_encoder(config.news.encoder))
