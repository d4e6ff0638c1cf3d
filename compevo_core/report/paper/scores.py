"""Numbers of the paper's tables: the printed figures, and own scores beside them.

What belongs here: looking up what ``published.csv`` holds and what can be checked of it without the
paper's data; own mean and spread over seeds, win rate, skill, reductions. What does not: cells and
tables (``report.paper.tables``), tests by window (``evaluation.comparison``).

A figure is kept as printed, with the power of ten that its table prints beside the metric.
"""

import csv
import functools
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

import polars as pl

from compevo_core.evaluation.comparison import BUDGET_ORDER
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.scopes import TEST_SUBSETS
from compevo_core.report.rows import (
    drop_agents,
    list_scopes,
    rank_budgets,
    select_pooled,
    select_scope,
)
from compevo_core.report.wording import NAIVE

#: Labels of the paper's tables.
MAIN = "tab:comparison_results"
AGENTS = "tab:simple_avg_results"
PARAMETERS = "tab:baseline_configuration_main"
BACKBONES = "tab:model_generalization_summary"
VARIANTS = "tab:ablation"
EFFICIENCY = "tab:efficiency_comparison_main"
LAMBDA_PG = "tab:lambda_sensitivity"
TAU = "tab:tau_impact_data"
JUDGE_FIGURES = "tab:judge_robustness"
GAIN_FIGURES = "tab:lud_error_correlation"

DATASETS = ("electricity", "exchange", "traffic", "bitcoin")
"""The paper's data sets, in the order of its tables."""

METRICS = ("mae", "mse", "rmse", "mape_pct")
"""The paper's metrics."""

MEASURES = ("seconds_per_window", "train_seconds", "peak_memory_gb", "trainable_parameters")
"""Columns of cost; empty for methods whose cost was not measured."""

ROUNDING = 0.05
"""Share by which a printed MSE may differ from the square of its RMSE: both have three digits."""

RATIO_BOUNDS = (0.01, 100.0)
"""Error ratios are clipped to these, as fev's leaderboard does."""

_THINNED = re.compile(r"-every-\d+$")


class Published(NamedTuple):
    """One printed figure."""

    printed: str  # its digits, as in the table
    spread: str  # printed deviation over runs; empty where there is none
    scale: float  # power of ten that the table prints beside the metric

    @property
    def value(self) -> float:
        """The figure without its power of ten."""
        return float(self.printed) * self.scale

    @property
    def text(self) -> str:
        """The figure in the unit of the series, with its spread."""
        # 35.0e-6 with its one digit is 0.000035: more digits would claim what was not printed.
        shift = round(math.log10(self.scale))
        decimals = max(len(self.printed.partition(".")[2]) - shift, 0)
        figures = (self.printed, self.spread)
        return " ± ".join(f"{float(x) * 10.0**shift:,.{decimals}f}" for x in figures if x)


@functools.cache
def read_published() -> dict[tuple[str, str, str, str], Published]:
    """Return every figure by (label of the table, data set, subject, metric)."""
    file = resources.files("compevo_core.report.paper") / "published.csv"
    return {
        (row["label"], row["dataset"], row["subject"], row["metric"]): Published(
            row["value"], row["spread"], float(row["scale"])
        )
        for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    }


def find_published(label: str, dataset: str, subject: str, metric: str) -> Published | None:
    """Return one figure; None where the paper prints none."""
    return read_published().get((label, dataset, subject, metric))


def list_subjects(label: str) -> list[str]:
    """Return the subjects of a table (methods, variants, settings) in its order."""
    return list(dict.fromkeys(key[2] for key in read_published() if key[0] == label))


def implied_level(dataset: str) -> float:
    """Return the mean size of the series that CompEvo's MAE and MAPE imply together.

    MAPE weighs small values more, so the level is rough; it tells megawatts from scaled values.
    """
    mae, mape = (read_published()[MAIN, dataset, "compevo", key] for key in ("mae", "mape_pct"))
    return mae.value / (mape.value / 100)


def list_contradictions(label: str, dataset: str) -> list[str]:
    """Return sentences on figures of a data set in one table that cannot all be right."""
    sentences = []
    for subject in list_subjects(label):
        mse, rmse = (find_published(label, dataset, subject, key) for key in ("mse", "rmse"))
        # Digits agree to their last; what is further off is no rounding.
        if mse and rmse and abs((ratio := mse.value / rmse.value**2) - 1) > ROUNDING:
            sentences.append(
                f"{dataset}, {subject}: the printed MSE is {ratio:.2g} times the square of the "
                "printed RMSE."
            )
    return sentences


class Score(NamedTuple):
    """One method on one set of windows."""

    mean: Mapping[str, float]  # mean over seeds by column
    spread: Mapping[str, float]  # standard deviation over seeds by column; absent with one seed
    seeds: int  # number of seeds
    n_windows: int  # windows scored
    unit: str  # unit of MAE and RMSE
    by_entity: Mapping[str, float]  # MAE by series, mean over seeds
    budget: str = ""  # what a fit could spend; empty where that changes nothing


def list_test_scopes(rows: pl.DataFrame, dataset: str, *, is_thinned: bool = False) -> list[str]:
    """Return the subsets of a data set's test windows that have rows, the first beside the paper's.

    Windows after training and thinned sets are left out; the latter stay where there is no other.
    With ``is_thinned`` the subsets that hold some of the origins alone are returned.
    """
    scopes = list_scopes(select_pooled(rows).filter(pl.col("split") == "test"))
    subsets = sorted(subset for name, subset in scopes if name == dataset)
    thinned = [subset for subset in subsets if _THINNED.search(subset)]
    if is_thinned:
        return thinned
    order = TEST_SUBSETS.get(dataset, ())
    whole = [subset for subset in subsets if subset not in thinned] or subsets
    return sorted(whole, key=lambda name: order.index(name) if name in order else len(order))


def share_budget(
    rows: pl.DataFrame, dataset: str, subset: str, methods: Sequence[str]
) -> tuple[pl.DataFrame, str]:
    """Return rows in which methods have one budget, and its name.

    It is the largest that every one of them with a budget has rows of; the rows as they are and an
    empty name where there is none. Rows of other methods stay.
    """
    is_shared = pl.col("method").is_in(list(methods))
    has_budget = pl.col("budget").fill_null("") != ""
    own = select_scope(rows, dataset, subset).filter(is_shared & has_budget)
    needed = own["method"].n_unique()
    for budget in BUDGET_ORDER:
        # One method alone shares its budget with nobody.
        if needed > 1 and own.filter(pl.col("budget") == budget)["method"].n_unique() == needed:
            return rows.filter(~is_shared | (pl.col("budget") == budget)), budget
    return rows, ""


def collect_scores(rows: pl.DataFrame, dataset: str, subset: str) -> dict[str, Score]:
    """Return the scores of every method but single agents, least MAE first."""
    chosen = drop_agents(select_scope(rows, dataset, subset))
    scores = {
        str(method): _make_score(select_settings(part))
        for (method,), part in chosen.group_by("method", maintain_order=True)
        # Without a row over all series there is nothing to compare with the paper's.
        if method != "compevo-prior" and (part["entity"] == POOLED).any()
    }
    return dict(sorted(scores.items(), key=lambda item: item[1].mean.get("mae", math.inf)))


def _make_score(rows: pl.DataFrame) -> Score:
    """Return the score of rows that differ by seed and series alone."""
    pooled = rows.filter(pl.col("entity") == POOLED)
    # Some rows have the seconds of all windows alone.
    if not pooled["seconds_per_window"].count():
        share = pl.col("seconds") / pl.col("n_windows")
        pooled = pooled.with_columns(share.alias("seconds_per_window"))

    # What was not measured has no mean, and a single seed has no spread.
    columns = pl.col(*METRICS, *MEASURES)
    mean, spread = (
        {name: value for name, value in frame.row(0, named=True).items() if value is not None}
        for frame in (pooled.select(columns.mean()), pooled.select(columns.std()))
    )
    by_entity = rows.filter(pl.col("entity") != POOLED).group_by("entity", maintain_order=True)
    return Score(
        mean=mean,
        spread=spread,
        seeds=pooled["seed"].n_unique(),
        n_windows=int(pooled["n_windows"][0]),
        unit=str(pooled["unit"][0] or ""),
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

    settings = pl.coalesce("seedless_hash", "config_hash", pl.lit(""))
    seeds = rows.group_by(settings.alias("settings"), maintain_order=True).agg(
        pl.col("seed").n_unique()
    )
    chosen = seeds.sort("seed", descending=True, maintain_order=True)["settings"][0]
    return rows.filter(settings == chosen)


def list_tasks(scores: Mapping[str, Score]) -> dict[str, dict[str, float]]:
    """Return MAE by task and method: a task is a series, or all windows where there is one."""
    errors: dict[str, Mapping[str, float | None]]
    errors = {name: score.by_entity for name, score in scores.items()}
    # fev counts tasks, and so would one series with its own pooled row twice.
    if len({entity for values in errors.values() for entity in values}) < 2:
        errors = {name: {POOLED: score.mean.get("mae")} for name, score in scores.items()}
    return {
        task: {
            name: mae for name, values in errors.items() if (mae := values.get(task)) is not None
        }
        for task in dict.fromkeys(task for values in errors.values() for task in values)
    }


def win_rate(method: str, tasks: Mapping[str, Mapping[str, float]]) -> float | None:
    """Return the share of (task, other method) in which a method has the smaller MAE.

    A tie counts half, as in fev's leaderboard. None where it has nobody to meet.
    """
    points = [
        0.5 + 0.5 * (error > errors[method]) - 0.5 * (error < errors[method])
        for errors in tasks.values()
        if method in errors
        for other, error in errors.items()
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
