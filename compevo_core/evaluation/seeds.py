"""The seeds of one method, one or several, as one method: its rows and its paired tests.

What belongs here: scoring the runs one after the other, and their forecasts side by side. What does
not: scoring one (``evaluation.scoring``), the tests themselves (``evaluation.comparison``), tables
that take the mean over seeds (``report``).

Shapes: N windows of a scope, H horizon (48).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.config import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA, compare_with_opponents
from compevo_core.evaluation.configs import hash_without_seed
from compevo_core.evaluation.scopes import Scope, SeedForecasts
from compevo_core.evaluation.scoring import (
    COMPEVO,
    PopulationScores,
    load_population,
    score_population,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedScores:
    """Scores of the runs of one method.

    Attributes:
        by_run: of each run, in the order of the runs.
        rows: result rows of all runs.
        paired_tests: of the method, whose error of a window is the mean over the runs.
    """

    by_run: list[PopulationScores]
    rows: pl.DataFrame
    paired_tests: pl.DataFrame


def read_seeds(runs: Sequence[Path]) -> list[RunConfig]:
    """Return the configurations of runs that differ by seed alone.

    Raises:
        ConfigError: two runs have other settings, or the same seed.
    """
    # torch takes seconds to import; whoever compares scores alone does not wait for it.
    from compevo_core.training.artifact import read_config

    configs = [read_config(run) for run in runs]
    require_seeds_of_one_method(configs)
    return configs


def require_seeds_of_one_method(configs: Sequence[RunConfig]) -> None:
    """Check that runs differ by seed alone.

    Raises:
        ConfigError: two runs have other settings, or the same seed.
    """
    if len({hash_without_seed(config) for config in configs}) > 1:
        raise ConfigError(
            "the runs were trained with different settings, so their rows are not seeds of one "
            "method: score each under an experiment or variant of its own"
        )
    seeds = [config.run.seed for config in configs]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"two runs have the same seed ({sorted(seeds)}): name each run once")


def score_seeds(
    runs: Sequence[Path],
    scopes: Sequence[Scope],
    *,
    train: WindowSet,
    news: NewsPool,
    experiment: str,
    commit: str,
    log: logging.Logger,
    method: str,
    baseline_forecasts: Sequence[SeedForecasts],
    fit: FitBaseline = fit_baseline,
) -> SeedScores:
    """Score the sealed populations of several runs on the same windows.

    Args:
        runs: run folders that differ by seed alone (:func:`require_seeds_of_one_method`).
        scopes: the windows to forecast, by subset.
        train: train windows, for the scale of MASE.
        news: every article that a window names.
        experiment: name of the experiment in the rows.
        commit: commit of the code, for the rows.
        log: gets progress lines with the time left.
        method: name of the method in the rows.
        baseline_forecasts: for each scope, forecasts (N, H) of every seed by baseline, to test
            against.
        fit: fits priors anew where the runs' settings say so.

    Raises:
        CheckpointMismatch: the model of a run is unfinished or was altered.
    """
    by_run = []
    for run in runs:
        # One population in memory at a time.
        by_run.append(
            score_population(
                load_population(run, news, fit=fit),
                scopes,
                train=train,
                experiment=experiment,
                commit=commit,
                log=log,
                method=method,
                baseline_forecasts=baseline_forecasts,
                news=news,
                parts=method == COMPEVO,
            )
        )
    return SeedScores(
        by_run=by_run,
        rows=pl.concat([scores.rows for scores in by_run]),
        paired_tests=compare_seeds(by_run, baseline_forecasts, method),
    )


def collect_seeds(
    scores: Sequence[PopulationScores],
) -> list[tuple[Scope, dict[str, list[FloatArray]]]]:
    """Return, for each scope, the forecasts (N, H) of every training by method."""
    collected = []
    for place, (scope, _) in enumerate(scores[0].predictions):
        by_method: dict[str, list[FloatArray]] = {}
        for scored in scores:
            for name, values_NH in scored.predictions[place][1].items():
                by_method.setdefault(name, []).append(values_NH)
        collected.append((scope, by_method))
    return collected


def compare_seeds(
    scores: Sequence[PopulationScores],
    baseline_forecasts: Sequence[SeedForecasts],
    method: str,
) -> pl.DataFrame:
    """Return the paired tests of a method with its parts and every baseline.

    Its parts are the plain mean of its agents and the prior; each agent would be too many.

    Args:
        scores: of each seed, on the same scopes.
        baseline_forecasts: for each scope, forecasts (N, H) of every seed by baseline.
        method: name of the method.

    Returns:
        One row a scope and opponent, in the columns of ``PAIRED_TEST_SCHEMA``.
    """
    tests = []
    compared = (method, f"{method}-equal", f"{method}-prior")
    for (scope, by_method), baselines in zip(
        collect_seeds(scores), baseline_forecasts, strict=True
    ):
        forecasts = {name: by_method[name] for name in compared if name in by_method}
        tests += compare_with_opponents(scope, {**forecasts, **baselines}, method)
    return pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")
