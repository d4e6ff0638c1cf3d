"""Experiments: train named changes under seeds, score them, pair them and write their rows.

What belongs here: the runners that ``compevo paper experiment`` and the assets call, so that what
one of them trained the other finds, and the judge that settings name. What does not: which changes
and which worlds there are, scoring and pairing (``compevo_core.paper``), where a training runs (the
caller passes it in).
"""

import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from compevo_core.baselines import SharedFits
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.result_rows import hash_without_seed
from compevo_core.evaluation.scoring import read_seeds
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper import context_is_key
from compevo_core.paper.changes import ABLATION, Experiment, NamedChange
from compevo_core.paper.lud_judges import EndpointJudge
from compevo_core.paper.trials import Trial, list_trials_of_runs, score_experiment
from compevo_core.paper.worded_data import TEXTS, read_worded_data
from compevo_core.runtime.files import hash_file, hash_text
from compevo_core.runtime.usage import Steps
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.endpoints import open_judge
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.launchers.worker import TrainJob
from compevo_pipeline.storage.code_versions import fits_folder, read_commit, stages_folder
from compevo_pipeline.storage.runs import find_current_run, make_run_name
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import find_encoder, read_news, write_news
from compevo_pipeline.work.methods import plan_preset
from compevo_pipeline.work.stored_windows import read_windows

if TYPE_CHECKING:
    from compevo_core.paper.control import ControlPlan, TextPlan

_LABEL_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRun:
    """What to run of an experiment on a data set."""

    experiment: Experiment
    changes: Sequence[NamedChange]  # its changes to run, each once
    dataset: str  # name of the data set, whose windows are built
    base: RunConfig  # settings of the full method
    seeds: Sequence[int]  # seeds that each change is trained under
    # Finished runs of the full method, for an experiment that trains nothing; empty: the current
    # run of the data set.
    runs: Sequence[Path] = ()
    every: int = 1  # score every n-th origin
    scopes: int | None = 1  # how many of the data set's test scopes to score, in order; None: all
    budget: str = ""  # budget that the rows name; empty for the preset's own
    resume: bool = True  # False trains again what is there
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

    ``train`` runs trainings to their end; it is called once, or never where nothing is trained.
    ConfigError if every change is the full method itself under these settings; DataError if windows
    are not built, or there is no finished run where one is needed.
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
        pairs = list(zip(runs, read_seeds(runs), strict=True))
        pool = read_news(deployment, find_encoder(runs[0]), windows.views(), log=log)
        trials = list_trials_of_runs(plan.changes, pairs, windows, pool)

    # Scored only after all are trained: a change that fails leaves no half table.
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
        # What one change was refitted on, another may be: its members are some of the same.
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
    """Run the worlds of the experiment on specialists, one plan each; return the file of rows.

    Rows are written after every world. Arms that have rows with the same settings are left out, so
    what was stopped goes on where it was.
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
    if name not in TEXTS:
        raise ConfigError(f"no worded data {name!r}; known: {', '.join(TEXTS)}")
    if archive is None:
        raise ConfigError("worded data are read from an archive: set COMPEVO_ARCHIVE")

    layout, dataset = deployment.layout, TEXTS[name]
    windows = read_windows(layout, dataset) if dataset else None
    encoder = load_encoder(plan.config.news.encoder)
    data = read_worded_data(name, archive, encoder, windows)
    rows = run_text(data, encoder, plan, layout.text(name), log)
    return write_text(results or layout.results, data, plan, rows), rows


def run_context_on(
    deployment: Deployment,
    write: context_is_key.Write | None,
    *,
    model: str,
    samples: int,
    seed: int,
    log: logging.Logger,
    results: Path | None = None,
) -> tuple[Path, pl.DataFrame]:
    """Forecast the tasks of Context-is-Key in the deployment's archive, and write the rows.

    Answers are kept, so that a run that was stopped goes on where it was. ConfigError without an
    archive; SourceAbsent if it does not hold the tasks.
    """
    archive = deployment.settings.archive
    if archive is None:
        raise ConfigError("the tasks are read from an archive: set COMPEVO_ARCHIVE")

    tasks = context_is_key.read_tasks(archive)
    if write:
        name = f"{hash_text(model)[:_LABEL_DIGITS]}-seed-{seed}"
        write = context_is_key.keep_answers(write, deployment.layout.text("context") / name)

    facts = {"data_hash": hash_file(archive / context_is_key.FILE), "commit": read_commit()}
    rows = context_is_key.run_context(
        tasks, write, model=model, samples=samples, seed=seed, facts=facts, log=log
    )
    return context_is_key.write_context(results or deployment.layout.results, rows), rows


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
    # A change that differs after the supervised stage alone starts at the end of a shared one.
    stages = stages_folder(layout, f"{plan.experiment.name}-{plan.dataset}")
    if not plan.resume:
        shutil.rmtree(stages, ignore_errors=True)

    trials: list[Trial] = []
    jobs: dict[str, TrainJob] = {}
    for change in _drop_unchanged(plan, log):
        changed = change.change_windows(windows)
        folder = layout.windows(plan.dataset)
        if changed is not windows:
            folder = layout.windows(f"{plan.dataset}-{change.name}")
            changed.write(folder)

        for seed in plan.seeds:
            config = change.configure(plan.base.with_overrides({"run.seed": seed}))
            # Equal settings and windows are one training, whichever experiment asks for it.
            digits = hash_text(f"{hash_without_seed(config)} {changed.training_hash}")
            label = f"experiment-{plan.dataset}-{digits[:_LABEL_DIGITS]}"
            name = make_run_name(label, config, changed)
            # The model of the data set is the full method, where it has these very settings.
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

    if jobs:
        train(list(jobs.values()))
    # An interrupted experiment finds its stages; after the last training nobody needs them.
    shutil.rmtree(stages, ignore_errors=True)
    return trials


def _drop_unchanged(plan: ExperimentRun, log: logging.Logger) -> list[NamedChange]:
    """Return the changes without those that are the full method itself under these settings."""
    # Changes of other experiments are values of a setting, and the reference is one of them.
    if plan.experiment.name != ABLATION:
        return list(plan.changes)

    unchanged = [change for change in plan.changes if change.changes_nothing(plan.base)]
    for change in unchanged:
        log.warning(
            f"{change.name} is left out: what it switches off is off already; switch it on "
            "with --set, or name the preset paper"
        )
    if len(unchanged) == len(plan.changes):
        raise ConfigError(
            f"experiment {ABLATION}: every change named is the full method under these settings; "
            "name others"
        )
    return [change for change in plan.changes if change not in unchanged]
