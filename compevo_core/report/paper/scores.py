"""Own scores for the paper's tables: mean and spread over seeds, win rate, skill, reductions.

What belongs here: selecting the rows of a data set that are compared with the paper's, and
statistics over methods that can be computed from rows alone. What does not: published figures
(``report.paper.published``), cells (``report.paper.cells``), tests by window
(``evaluation.comparison``).
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import polars as pl

from compevo_core.evaluation.comparison import BUDGET_ORDER
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scopes import TEST_SUBSETS
from compevo_core.report.rows import drop_agents, list_scopes, rank_budgets, select_pooled
from compevo_core.report.wording import NAIVE

METRICS = ("mae", "mse", "rmse", "mape_pct")
"""The paper's metrics."""

MEASURES = ("seconds_per_window", "train_seconds", "peak_memory_gb", "trainable_parameters")
"""Columns of cost; empty for methods whose cost was not measured."""

RATIO_BOUNDS = (0.01, 100.0)
"""Error ratios are clipped to these, as fev's leaderboard does."""

_THINNED = re.compile(r"-every-\d+$")
_PRIOR = "compevo-prior"


class Score(NamedTuple):
    """One method on one set of windows.

    Attributes:
        mean: mean over seeds by column.
        spread: standard deviation over seeds by column; absent with one seed.
        seeds: number of seeds.
        n_windows: windows scored.
        unit: unit of MAE and RMSE.
        possibly_memorised: whether the backbone may have read about the period.
        by_entity: MAE by series, mean over seeds.
        budget: what a fit could spend; empty where that changes nothing.
    """

    mean: Mapping[str, float]
    spread: Mapping[str, float]
    seeds: int
    n_windows: int
    unit: str
    possibly_memorised: bool
    by_entity: Mapping[str, float]
    budget: str = ""


def list_test_scopes(rows: pl.DataFrame, dataset: str) -> list[str]:
    """Return the subsets of a data set's test windows that have rows, the first beside the paper's.

    Windows after training and thinned sets are left out; the latter stay where there is no other.
    """
    subsets = _list_subsets(rows, dataset)
    whole = [subset for subset in subsets if not _THINNED.search(subset)] or subsets
    order = TEST_SUBSETS.get(dataset, ())
    return sorted(whole, key=lambda name: (order.index(name) if name in order else 99, name))


def list_thinned_scopes(rows: pl.DataFrame, dataset: str) -> list[str]:
    """Return the subsets of a data set's test windows that hold some of their origins alone."""
    return sorted(subset for subset in _list_subsets(rows, dataset) if _THINNED.search(subset))


def _list_subsets(rows: pl.DataFrame, dataset: str) -> list[str]:
    scopes = list_scopes(select_pooled(rows).filter(pl.col("split") == "test"))
    return [subset for name, subset in scopes if name == dataset]


def share_budget(
    rows: pl.DataFrame, dataset: str, subset: str, methods: Sequence[str]
) -> tuple[pl.DataFrame, str]:
    """Return rows in which methods have one budget, and its name.

    It is the largest that every one of them with a budget has rows of; the rows as they are and an
    empty name where there is none. Rows of other methods stay.
    """
    is_one = pl.col("method").is_in(list(methods))
    own = rows.filter(
        is_one
        & (pl.col("dataset") == dataset)
        & (pl.col("subset") == subset)
        & (pl.col("budget").fill_null("") != "")
    )
    needed = own["method"].n_unique()
    for budget in BUDGET_ORDER:
        # One method alone shares its budget with nobody.
        if needed > 1 and own.filter(pl.col("budget") == budget)["method"].n_unique() == needed:
            return rows.filter(~is_one | (pl.col("budget") == budget)), budget
    return rows, ""


def collect_scores(rows: pl.DataFrame, dataset: str, subset: str) -> dict[str, Score]:
    """Return the scores of every method but single agents, least MAE first."""
    chosen = drop_agents(rows).filter(
        (pl.col("dataset") == dataset) & (pl.col("subset") == subset) & (pl.col("method") != _PRIOR)
    )
    scores = {
        str(method): make_score(select_settings(part))
        for (method,), part in chosen.group_by("method", maintain_order=True)
        # Without a row over all series there is nothing to compare with the paper's.
        if (part["entity"] == POOLED).any()
    }
    return dict(sorted(scores.items(), key=lambda item: item[1].mean.get("mae", math.inf)))


def make_score(rows: pl.DataFrame) -> Score:
    """Return the score of rows that differ by seed and series alone."""
    pooled = rows.filter(pl.col("entity") == POOLED)
    mean: dict[str, float] = {}
    spread: dict[str, float] = {}
    # What was not measured has no mean, and a single seed has no spread.
    for name in (*METRICS, *MEASURES):
        values = pooled[name].drop_nulls()
        if len(values):
            mean[name] = float(values.mean())  # type: ignore[arg-type]
        if len(values) > 1:
            spread[name] = float(values.std())  # type: ignore[arg-type]

    # Some rows have the seconds of all windows alone.
    if "seconds_per_window" not in mean and pooled["seconds"].count():
        share = pooled["seconds"] / pooled["n_windows"]
        mean["seconds_per_window"] = float(share.mean())  # type: ignore[arg-type]

    by_entity = rows.filter(pl.col("entity") != POOLED).group_by("entity", maintain_order=True)
    return Score(
        mean=mean,
        spread=spread,
        seeds=pooled["seed"].n_unique(),
        n_windows=int(pooled["n_windows"][0]),
        unit=str(pooled["unit"][0] or ""),
        possibly_memorised=bool(pooled["possibly_memorised"].any()),
        by_entity=dict(by_entity.agg(pl.col("mae").mean()).iter_rows()),
        budget=str(pooled["budget"][0] or ""),
    )


def select_settings(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of one configuration: not refitted, of most seeds; never by its error."""
    # A choice by error would be a choice on the test split.
    plain = rows.filter(~pl.col("refit").fill_null(value=False))
    rows = plain if plain.height else rows
    # Rows of a smaller budget stand in only where there are no others.
    rows = rows.filter(rank_budgets() == rank_budgets().min())

    named = rows.with_columns(
        pl.col("seedless_hash").fill_null(pl.col("config_hash").fill_null("")).alias("settings")
    )
    seeds = named.group_by("settings", maintain_order=True).agg(pl.col("seed").n_unique())
    chosen = seeds.sort("seed", descending=True, maintain_order=True)["settings"][0]
    return named.filter(pl.col("settings") == chosen).drop("settings")


def list_tasks(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Return MAE by task and method: a task is a series, or all windows where there is one."""
    entities = dict.fromkeys(entity for score in scores.values() for entity in score.by_entity)
    # fev counts tasks, and so would one series with its own pooled row twice.
    if len(entities) < 2:
        return {
            POOLED: {
                name: score.mean["mae"] for name, score in scores.items() if "mae" in score.mean
            }
        }
    return {
        entity: {
            name: score.by_entity[entity]
            for name, score in scores.items()
            if score.by_entity.get(entity) is not None
        }
        for entity in entities
    }


def win_rate(method: str, tasks: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return the share of (task, other method) in which a method has the smaller MAE.

    A tie counts half, as in fev's leaderboard. None where it has nobody to meet.
    """
    points = [
        0.5 + 0.5 * (errors[other] > errors[method]) - 0.5 * (errors[other] < errors[method])
        for errors in tasks.values()
        if method in errors
        for other in errors
        if other != method
    ]
    return sum(points) / len(points) if points else None


def skill_score(
    method: str, tasks: Mapping[str, Mapping[str, float]], baseline: str = NAIVE
) -> float | None:
    """Return one minus the geometric mean of a method's MAE over the baseline's, by task.

    None where a task that has the method lacks the baseline, or there is no such task.
    """
    shared = [errors for errors in tasks.values() if method in errors]
    if not shared or any(not errors.get(baseline) for errors in shared):
        return None
    # One task with hardly any error would decide the mean of all.
    low, high = RATIO_BOUNDS
    ratios = [min(max(errors[method] / errors[baseline], low), high) for errors in shared]
    return 1 - math.exp(sum(map(math.log, ratios)) / len(ratios))


def macro_reduction(pairs: Sequence[tuple[float, float] | None]) -> float | None:
    """Return the mean over data sets of the relative reduction of an error (paper 5.2).

    Args:
        pairs: for each data set, the method's error and the rival's; None where one is missing.

    Returns:
        a share; None where a data set is missing, since a mean over others is another figure.
    """
    known = [pair for pair in pairs if pair is not None]
    # The paper averages four data sets; of three it would be another figure under the same name.
    if not known or len(known) < len(pairs):
        return None
    return sum(1 - own / rival for own, rival in known) / len(known)
