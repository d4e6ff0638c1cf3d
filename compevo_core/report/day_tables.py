"""The tables of an issued forecast: by series, by agent, and how earlier forecasts did.

What belongs here: which numbers stand in them and their wording. What does not: the numbers
themselves (``compevo_core.day_summary``, ``compevo_core.explain``), markup (``templates``).
"""

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.day_summary import (
    BAND_80,
    choose_decimals,
    format_start,
    select_band,
    summarise_day,
)
from compevo_core.explain import Explanation
from compevo_core.issued import BASE, METHOD, PUBLISHED, IssuedForecast
from compevo_core.report.forecast_days import SKILL_DAYS, ForecastDay, measure_day
from compevo_core.report.tables import Table
from compevo_core.report.wording import MISSING, method_name

_Scored = tuple[IssuedForecast, str, FloatArray]
"""A forecast, one of its series, and what was measured."""


def day_table(issued: IssuedForecast) -> Table:
    """Return a row for each series: mean, band, peak, change, what was published."""
    days = summarise_day(issued)
    decimals = choose_decimals([day.peak for day in days])

    def show(value: float | None) -> str:
        return MISSING if value is None else f"{value:,.{decimals}f}"

    rows = [
        (
            day.entity,
            show(day.mean),
            MISSING if day.low is None else f"{show(day.low)} to {show(day.high)}",
            f"{show(day.peak)} at {format_start(issued, day.peak_at)}",
            MISSING if day.change_pct is None else f"{day.change_pct:+.1f} %",
            show(day.published),
        )
        for day in days
    ]
    unit = issued.unit
    return Table(
        header=(
            "series",
            f"mean, {unit}",
            f"80 % band, {unit}",
            f"peak, {unit}",
            "against yesterday",
            f"published, {unit}",
        ),
        rows=rows,
        caption=f"{issued.origin:%A %d %B %Y}: means over the day, and its highest step",
        notes=[_describe_change(issued)],
    )


def _describe_change(issued: IssuedForecast) -> str:
    until = datetime.fromisoformat(issued.facts["information_until"]).astimezone(issued.zone)
    text = "The band is the mean of its lower and upper bounds."
    if until < issued.origin:
        text += f" The change against yesterday is over its steps up to {until:%H:%M}."
    return text


def part_table(why: Explanation) -> Table:
    """Return a row for each agent: weight, prior, correction, level, what it adds; and the sum."""
    decimals = choose_decimals([float(np.abs(why.forecast).max())])
    rows = [
        (
            f"agent {part.agent}",
            f"{100 * float(part.weights.mean()):.1f} %",
            _mean(part.prior, decimals),
            _mean(part.correction, decimals, "+"),
            _mean(part.level, decimals, "+"),
            _mean(part.contribution, decimals),
        )
        for part in why.parts
    ]
    rows.append(
        (
            "weighted sum",
            "",
            _mean(why.weigh("prior"), decimals),
            _mean(why.weigh("correction"), decimals, "+"),
            _mean(why.weigh("level"), decimals, "+"),
            _mean(why.forecast, decimals),
        )
    )
    return Table(
        header=("", "weight", "prior", "correction", "level", f"adds, {why.unit}"),
        rows=rows,
        caption=f"What the mean of {why.entity} adds up from",
        highlighted_rows=frozenset({len(rows) - 1}),
        notes=[
            f"Corrections move the forecast by {why.share('correction'):.2f} % of its size on "
            f"average over the day, levels by {why.share('level'):.2f} %."
        ],
    )


def _mean(values: FloatArray, decimals: int, sign: str = "") -> str:
    return f"{float(values.mean()):{sign},.{decimals}f}"


def before_table(day: ForecastDay) -> Table | None:
    """Return how the forecast of the day before did by series; None where nothing is known."""
    before = day.before
    if before is None:
        return None

    rows = [
        (entity, *_score_series(before, entity, truth))
        for entity in before.entities
        if (truth := day.find_truth(before, entity)) is not None
    ]
    if not rows:
        return None
    return Table(
        header=(
            "series",
            f"mean error, {before.unit}",
            f"MAE, {before.unit}",
            f"MAE of the published, {before.unit}",
            "measured inside the 80 % band",
        ),
        rows=rows,
        caption=f"{before.origin:%A %d %B %Y}: the forecast against what was measured",
    )


def skill_table(day: ForecastDay) -> Table | None:
    """Return the errors of issued forecasts by method; None where no truth of theirs is known.

    Every method is scored on the same series and days.
    """
    scored = [
        (one, entity, truth)
        for one in day.past
        for entity in one.entities
        if (truth := day.find_truth(one, entity)) is not None
    ]
    if not scored:
        return None

    errors = _measure_errors(day, scored)
    decimals = choose_decimals(list(errors.values()))
    own = errors[METHOD]
    rows = [
        (
            method_name(method),
            f"{error:,.{decimals}f}",
            "" if method == METHOD else f"{100 * (1 - own / error):+.1f} %" if error else MISSING,
        )
        for method, error in sorted(errors.items(), key=lambda item: item[1])
    ]
    days = sorted({one.origin for one, _, _ in scored})
    return Table(
        header=("method", f"MAE, {day.issued.unit}", "gain of CompEvo over it"),
        rows=rows,
        caption=f"Issued forecasts of {days[0]:%d %b} to {days[-1]:%d %b %Y}",
        highlighted_rows=frozenset(
            i for i, row in enumerate(rows) if row[0] == method_name(METHOD)
        ),
        notes=[
            f"{len(days)} of the last {SKILL_DAYS} days have an issued forecast that knew as much "
            f"and a truth, {len(scored)} days of single series.{_describe_coverage(scored)}"
        ],
    )


def _measure_errors(day: ForecastDay, scored: Sequence[_Scored]) -> dict[str, float]:
    """Return the mean absolute error of every method that forecast all of these series and days."""
    errors: dict[str, list[float]] = {}
    for issued, entity, truth in scored:
        points = dict(issued.select_points(entity))
        before = day.truth.get((entity, issued.origin - measure_day(issued)))
        if before is not None:
            points["persistence"] = before
        for method, values in points.items():
            # The base of an agent is no forecast of its own here: it stands in the parts.
            if not method.startswith(BASE):
                errors.setdefault(method, []).append(float(np.nanmean(np.abs(values - truth))))
    return {
        method: float(np.mean(found))
        for method, found in errors.items()
        if len(found) == len(scored)
    }


def _describe_coverage(scored: Sequence[_Scored]) -> str:
    inside = [
        _find_inside(band, truth)
        for issued, entity, truth in scored
        if (band := select_band(issued, entity, BAND_80)) is not None
    ]
    if not inside:
        return ""
    share = float(np.concatenate(inside).mean())
    return f" {100 * share:.0f} % of the measured values lie inside the 80 % band."


def _score_series(issued: IssuedForecast, entity: str, truth: FloatArray) -> tuple[str, ...]:
    points = issued.select_points(entity)
    error = points[METHOD] - truth
    mae = float(np.nanmean(np.abs(error)))
    decimals = choose_decimals([mae])

    published = points.get(PUBLISHED)
    other = None if published is None else float(np.nanmean(np.abs(published - truth)))
    band = select_band(issued, entity, BAND_80)
    return (
        f"{float(np.nanmean(error)):+,.{decimals}f}",
        f"{mae:,.{decimals}f}",
        MISSING if other is None else f"{other:,.{decimals}f}",
        MISSING if band is None else f"{100 * float(_find_inside(band, truth).mean()):.0f} %",
    )


def _find_inside(band: tuple[FloatArray, FloatArray], truth: FloatArray) -> FloatArray:
    """Return 1 for each measured value inside a band and 0 for each outside."""
    low, high = band
    is_known = np.isfinite(truth)
    inside = (low[is_known] <= truth[is_known]) & (truth[is_known] <= high[is_known])
    return inside.astype(np.float64)
