"""Content that looks wrong: known too late for a window, an hour off, a day without news.

What belongs here: handing articles, covariates and published forecasts to the detectors
(:mod:`compevo_core.evaluation.leakage`) and wording what they find; finding days on which a series
is an hour off, and days without news. What does not: detectors, assets (``defs.asset_checks``).

A month stamped by the wrong clock is complete, in range and on the grid; only its mornings come at
another time. For each day, the mean profile of the two weeks before it is compared with the mean
profile of the two weeks after, unmoved and moved by whole hours: the clock jumped where moving
explains nearly all of the difference. In AEMO's demand from 2010 to 2026, moving explains at most
76 % of it at holidays and in heat, and 80 to 99 % for a month moved by an hour. In the store a day
of empty answers looks like a day without news.

Shapes: D days, S steps of a day, T days that have two weeks on either side.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import cast
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.evaluation.leakage import (
    Violation,
    find_unavailable_articles,
    find_unavailable_covariates,
    find_unavailable_published,
    find_unavailable_step_covariates,
)
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.work.deployment import Deployment

_SHOWN_VIOLATIONS = 3

DAYS = 14  # days on either side: whole weeks, so that weekends weigh alike
HOURS = (-2, -1, 1, 2)
MIN_GAIN = 0.8  # share of the squared difference that the best move must explain
_MIN_WHOLE_DAYS = 10
_HOUR = timedelta(hours=1)


def find_availability_violations(
    deployment: Deployment, dataset: str, views: Sequence[WindowView]
) -> list[Violation]:
    """Return everything in the views that was not available before its origin.

    The stored frames are read again: a window's own fields could not show that they are wrong.
    """
    named = {name for view in views for name in view.candidate_ids}
    violations = find_unavailable_articles(views, deployment.news_store().read_named(named))
    if not views:
        return violations

    first, end = min(view.origin_utc for view in views), max(view.end_utc for view in views)
    # Forecasts of other days than the views' can show nothing.
    of_targets = pl.col("start_utc").is_between(first, end)
    detectors = (
        (FrameKind.COVARIATES, find_unavailable_covariates, None),
        (FrameKind.PUBLISHED, find_unavailable_published, lambda rows: rows.filter(of_targets)),
        (FrameKind.STEP_COVARIATES, find_unavailable_step_covariates, None),
    )
    for kind, find, query in detectors:
        frame = deployment.series_store().read_frame(dataset, kind, query)
        violations += [] if frame is None else find(views, frame)
    return violations


def format_violations(violations: Sequence[Violation]) -> str:
    """Return the number of violations and the first few in words."""
    if not violations:
        return "no violation"

    examples = [
        f"{violation.kind} in {violation.where}: {violation.detail}"
        for violation in violations[:_SHOWN_VIOLATIONS]
    ]
    return f"{len(violations)}: " + "; ".join(examples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A day from which on a series comes earlier (negative) or later, by hours."""

    series_id: str
    day: date
    hours: int


def find_jumps(frame: pl.DataFrame, step: timedelta, zones: Sequence[str] = ()) -> list[Jump]:
    """Return the jumps of the daily profile in every series.

    ``frame`` follows ``SERIES_SCHEMA``. Days of fewer than 24 steps have no profile; near a change
    of the clocks of ``zones`` a jump is none.
    """
    if step > _HOUR or _HOUR % step:
        return []

    jumps: list[Jump] = []
    held = frame.filter(pl.col("value").is_not_null())
    for key, part in held.partition_by("series_id", "variable", as_dict=True).items():
        first, values_DS = _fold_into_days(part, step)
        noon = datetime(first.year, first.month, first.day, 12, tzinfo=UTC)
        noons = [noon + timedelta(days=number) for number in range(len(values_DS))]
        changes: list[int] = []  # days on which a clock differs from the day before
        for zone in zones:
            offsets = [noon.astimezone(ZoneInfo(zone)).utcoffset() for noon in noons]
            changes += [at for at in range(1, len(noons)) if offsets[at] != offsets[at - 1]]
        for at, hours in _scan(values_DS, _HOUR // step):
            if all(abs(at - change) > DAYS for change in changes):
                day = first + timedelta(days=at)
                jumps.append(Jump(series_id=str(key[0]), day=day, hours=hours))
    return jumps


def _fold_into_days(part: pl.DataFrame, step: timedelta) -> tuple[date, FloatArray]:
    """Return the first UTC day of a series, and its values by day (D, S), NaN where none is."""
    seconds = pl.col("start_utc").dt.epoch("s")
    rows = part.select(
        (seconds // 86_400).alias("day"),
        (seconds % 86_400 // int(step.total_seconds())).alias("step"),
        "value",
    )
    first = int(cast(int, rows["day"].min()))
    days = int(cast(int, rows["day"].max())) - first + 1

    values_DS = np.full((days, timedelta(days=1) // step), np.nan)
    values_DS[rows["day"].to_numpy() - first, rows["step"].to_numpy()] = rows["value"].to_numpy()
    return date(1970, 1, 1) + timedelta(days=first), values_DS


def _scan(values_DS: FloatArray, steps_an_hour: int) -> list[tuple[int, int]]:
    """Return the days of a jump, as numbers from the first, with its hours."""
    if len(values_DS) < 2 * DAYS:
        return []

    # A day with a gap has no profile; sums over days come from one running sum.
    is_whole_D1 = np.isfinite(values_DS.sum(axis=1, keepdims=True))
    sums_DS = _accumulate(np.where(is_whole_D1, values_DS, 0.0))
    counts_D1 = _accumulate(is_whole_D1.astype(np.float64))
    old_TS, n_old_T1 = (sums[DAYS:-DAYS] - sums[: -2 * DAYS] for sums in (sums_DS, counts_D1))
    new_TS, n_new_T1 = (sums[2 * DAYS :] - sums[DAYS:-DAYS] for sums in (sums_DS, counts_D1))
    old_TS, new_TS = _standardise(old_TS, n_old_T1), _standardise(new_TS, n_new_T1)

    moved_TH = np.stack(
        [((np.roll(old_TS, h * steps_an_hour, axis=1) - new_TS) ** 2).mean(axis=1) for h in HOURS],
        axis=1,
    )
    unmoved_T = ((old_TS - new_TS) ** 2).mean(axis=1)
    gain_T = 1 - moved_TH.min(axis=1) / np.maximum(unmoved_T, 1e-9)
    is_measured_T = np.minimum(n_old_T1, n_new_T1)[:, 0] >= _MIN_WHOLE_DAYS
    jumps_T = np.flatnonzero(is_measured_T & (gain_T >= MIN_GAIN))

    # The days around a jump show it too: report the clearest of them.
    clearest: list[tuple[int, int]] = []
    for at in sorted(jumps_T, key=lambda t: -gain_T[t]):
        if all(abs(at + DAYS - other) > DAYS for other, _ in clearest):
            clearest.append((int(at) + DAYS, HOURS[int(moved_TH[at].argmin())]))
    return sorted(clearest)


def _accumulate(values: FloatArray) -> FloatArray:
    """Return the running sum over days, from nothing on: D + 1 rows."""
    sums: FloatArray = np.concatenate([np.zeros((1, values.shape[1])), values.cumsum(axis=0)])
    return sums


def _standardise(sums_TS: FloatArray, counts_T1: FloatArray) -> FloatArray:
    means_TS = sums_TS / np.maximum(counts_T1, 1)
    centred_TS = means_TS - means_TS.mean(axis=1, keepdims=True)
    spread_T1 = centred_TS.std(axis=1, keepdims=True)
    standard: FloatArray = centred_TS / np.where(spread_T1 > 0, spread_T1, 1.0)
    return standard


MIN_USUAL_ARTICLES = 10  # median of days with any, from which a publisher writes every day
LONGEST_LOSS_DAYS = 7  # A longer stretch without news was not collected


def find_days_without_news(days: pl.DataFrame) -> list[str]:
    """Return publisher and day of each loss, oldest first; ``days`` as ``NewsStore.count_days``."""
    days = days.rename({"group": "publisher"}).sort("publisher", "day")
    usual = pl.col("articles").median().over("publisher")
    lost = pl.col("day").diff().over("publisher").dt.total_days() - 1
    gaps = days.with_columns(lost.alias("lost")).filter(
        (usual >= MIN_USUAL_ARTICLES) & pl.col("lost").is_between(1, LONGEST_LOSS_DAYS)
    )
    return [
        f"{publisher} {day - timedelta(days=back)}"
        for publisher, day, lost in gaps.select("publisher", "day", "lost").iter_rows()
        for back in range(lost, 0, -1)
    ]
