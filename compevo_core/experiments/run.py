"""Score the changes of an experiment and pair each with its reference.

What belongs here: from finished runs to rows and paired tests, the same for the command and the
asset. What does not: training (whoever calls), what a change is (``experiments.sweeps``).
"""

import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from compevo_core.agents.logic_grammar import TOPICS
from compevo_core.config import RunConfig
from compevo_core.data.files import write_atomically
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA, compare_with_reference
from compevo_core.evaluation.configs import write_config
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.evaluation.scopes import select_test_scopes
from compevo_core.evaluation.scoring import PopulationScores, load_population, score_population
from compevo_core.evaluation.seeds import collect_seeds
from compevo_core.experiments.perturbations import Relevance
from compevo_core.experiments.sweeps import (
    Experiment,
    change_windows,
    configure_change,
    name_rows,
)
from compevo_core.lm.encoder import load_encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change under one seed.

    Attributes:
        change: its name.
        config: its settings, with the seed.
        windows: what it was trained on and is scored on.
        run: its run folder; of the full method where the experiment trains nothing.
    """

    change: str
    config: RunConfig
    windows: WindowSet
    run: Path


def list_trials_of_runs(
    experiment: Experiment,
    runs: Sequence[tuple[Path, RunConfig]],
    windows: WindowSet,
    news: NewsPool,
    changes: Sequence[str],
) -> list[Trial]:
    """Return the trials of an experiment that trains nothing: every run under every change."""
    relevance = None
    # Only changed news looks at articles; embedding the topics takes a moment.
    if experiment.windows:
        relevance = Relevance(news, load_encoder(news.encoder_name).encode(TOPICS))
    return [
        Trial(
            change=change,
            config=configure_change(config, experiment, change),
            windows=change_windows(windows, experiment, change, relevance),
            run=run,
        )
        for change in changes
        for run, config in runs
    ]


def score_trials(
    name: str,
    experiment: Experiment,
    trials: Sequence[Trial],
    news: NewsPool,
    *,
    commit: str,
    log: logging.Logger,
    every: int = 1,
    scopes: int | None = None,
    budget: str = "",
) -> list[PopulationScores]:
    """Score finished trials, one population in memory at a time.

    Args:
        name: name of the experiment.
        experiment: what it is.
        trials: what to score; their runs are sealed.
        news: every article that a window names.
        commit: commit of the code, for the rows.
        log: gets progress lines.
        every: score every n-th origin.
        scopes: how many of the data set's test scopes; None: all.
        budget: name of what each training could spend, for the rows; empty for the preset's own.
    """
    made = []
    for trial in trials:
        log.info(f"scoring {trial.change}, seed {trial.config.run.seed}")
        forecaster = load_population(trial.run, news)
        # What is changed after training is changed here; a trained change is in the run.
        if not experiment.trains and not experiment.windows:
            forecaster.reweigh(trial.config)
        scored = score_population(
            forecaster,
            select_test_scopes(trial.windows, every)[:scopes],
            train=trial.windows.split("train"),
            experiment=name_rows(name),
            commit=commit,
            log=log,
            method=trial.change,
            parts=False,
        )
        # A row of a short training must not pass for one of a full one.
        if budget:
            scored = replace(scored, rows=scored.rows.with_columns(budget=pl.lit(budget)))
        made.append(scored)
        del forecaster
        gc.collect()  # the next backbone is loaded into the memory of this one
    return made


def write_experiment(
    results: Path,
    name: str,
    experiment: Experiment,
    dataset: str,
    trials: Sequence[Trial],
    scores: Sequence[PopulationScores],
) -> tuple[Path, pl.DataFrame, pl.DataFrame]:
    """Write rows, paired tests with the reference and configurations.

    Returns:
        The file of rows, the rows, the paired tests.
    """
    # Rows before pairs: a table without its tests is readable, tests without rows are not.
    rows = pl.concat([scored.rows for scored in scores])
    path = results / f"{name_rows(name)}-{dataset}.csv"
    write_rows(path, rows)
    for trial in trials:
        write_config(results, trial.config)

    # Changed news leaves ids and truths as they were, so windows pair. Written without any pair
    # too: those of an earlier run would stand below other rows.
    tests = [
        test
        for scope, forecasts in collect_seeds(scores)
        for test in compare_with_reference(scope, forecasts, experiment.reference)
    ]
    paired = pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")
    write_atomically(results / f"paired-{name_rows(name)}-{dataset}.csv", paired.write_csv)
    return path, rows, paired
