"""Trials of an experiment: score finished runs under its changes, pair them with the reference."""

import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from compevo_core.agents.logics import TOPICS
from compevo_core.baselines import FitBaseline, fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA, compare_with_reference
from compevo_core.evaluation.result_rows import write_tables
from compevo_core.evaluation.scopes import Scope, select_scopes
from compevo_core.evaluation.scoring import collect_seeds, load_population, score_population
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.changes import CHANGES, Experiment, NamedChange
from compevo_core.paper.news_changes import OWN, Relevance


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change under one seed."""

    change: str  # its name
    config: RunConfig  # its settings, with the seed
    windows: WindowSet  # what it was trained on and is scored on
    run: Path  # its run folder; a run of the full method where the experiment trains nothing


def _select_scopes(
    experiment: Experiment, windows: WindowSet, every: int, count: int | None
) -> list[Scope]:
    """Return what is scored: scopes in order, and as many of later days where asked for."""
    chosen = select_scopes(windows, split=experiment.split, every=every)[:count]
    if not experiment.scores_later or not windows.manifest["n_by_split"].get("inference"):
        return chosen
    later = select_scopes(windows, split="inference", every=every)[:count]
    # One pass over all days: a population in daily use comes to the later ones through the others.
    days = windows.with_windows([*windows.split("test"), *windows.split("inference")])
    return [replace(scope, days=days) for scope in (*chosen, *later)]


def list_trials_of_runs(
    changes: Sequence[NamedChange],
    runs: Sequence[tuple[Path, RunConfig]],
    windows: WindowSet,
    news: NewsPool | None,
) -> list[Trial]:
    """Return the trials of an experiment that trains nothing: every run under every change."""
    relevance = None
    # Embedding the topics takes a moment, and only changed news needs it.
    if news is not None and any(change.news != OWN for change in changes):
        relevance = Relevance(news, load_encoder(news.encoder_name).encode(TOPICS))
    return [
        Trial(
            change=change.name,
            config=change.configure(config),
            windows=change.change_windows(windows, relevance),
            run=run,
        )
        for change in changes
        for run, config in runs
    ]


def score_experiment(
    experiment: Experiment,
    trials: Sequence[Trial],
    news: NewsPool | None,
    results: Path,
    *,
    commit: str,
    log: logging.Logger,
    every: int = 1,
    scopes: int | None = None,
    budget: str = "",
    fit: FitBaseline = fit_baseline,
) -> tuple[Path, pl.DataFrame, pl.DataFrame]:
    """Score finished trials of a data set; write rows, paired tests and configurations.

    Every ``every``-th origin of the first ``scopes`` scopes of its split (None: all) is scored.
    ``budget`` names the training's in the rows; empty for the preset's own. ``fit`` refits priors,
    and shares fits where it keeps them. Returns the file of rows, the rows, and the paired tests
    with the reference.
    """
    # One population in memory at a time.
    scores = []
    for trial in trials:
        log.info(f"scoring {trial.change}, seed {trial.config.run.seed}")
        forecaster = load_population(trial.run, news, fit=fit)
        # A trained change is in the run and changed news in the windows; other weights are not.
        if not experiment.trains and CHANGES[trial.change].kind == "sweep":
            forecaster.reweigh(trial.config)
        scored = score_population(
            forecaster,
            _select_scopes(experiment, trial.windows, every, scopes),
            train=trial.windows.split("train"),
            experiment=experiment.rows_name,
            commit=commit,
            log=log,
            method=trial.change,
            # What members do alone, and alike, is known without another training.
            parts=not forecaster.logics and trial.change == experiment.reference,
        )
        # A row of a short training must not pass for one of a full one.
        if budget:
            scored = replace(scored, rows=scored.rows.with_columns(budget=pl.lit(budget)))
        scores.append(scored)
        del forecaster
        gc.collect()  # the next backbone is loaded into the memory of this one

    # Changed news leaves ids and truths as they were, so windows pair. Written without any pair as
    # well: otherwise the tests of an earlier run would belong to other rows.
    seeds: dict[str, list[int]] = {}
    for trial, scored in zip(trials, scores, strict=True):
        # Parts of a change, such as its members, have its seed.
        for method in scored.predictions[0][1]:
            seeds.setdefault(method, []).append(trial.config.run.seed)
    tests = [
        test
        for scope, forecasts in collect_seeds(scores)
        for test in compare_with_reference(scope, forecasts, experiment.reference, seeds)
    ]
    paired = pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")
    rows = pl.concat([scored.rows for scored in scores])
    name = f"{experiment.rows_name}-{trials[0].windows.dataset}"
    configs = [trial.config for trial in trials]
    return write_tables(rows, paired, configs, results, name, f"paired-{name}"), rows, paired
