"""The tables of an issued forecast: by series, by agent, and how earlier forecasts did.

What belongs here: which numbers stand in them and their wording. What does not: the numbers
themselves (``compevo_core.day_summary``, ``compevo_core.explain``), markup (``templates``).
"""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.day_summary import (
    BAND_80,
    choose_decimals,
    format_start,
    select_band,
    summarise_day,
)
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.evaluation.skill import measure_skill
from compevo_core.explain import Explanation
from compevo_core.issued import METHOD, PUBLISHED, IssuedForecast
from compevo_core.report.forecast_days import ForecastDay
from compevo_core.report.tables import Table
from compevo_core.report.wording import MISSING, method_name

SKILL_DAYS = 28
"""Days to the last one that was scored whose errors are shown."""


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
    """Return the errors of the last days beside each reference's; None where none was scored."""
    skill = measure_skill(day.scores)
    pooled = skill.filter(entity=POOLED, span_days=SKILL_DAYS).sort("reference_mae")
    if pooled.is_empty():
        return None

    # In four digits of the largest error: references may have forecast other days.
    decimals = choose_decimals([*pooled["mae"], *pooled["reference_mae"]])
    rows = [
        (
            method_name(row["reference"]),
            f"{row['reference_mae']:,.{decimals}f}",
            f"{row['mae']:,.{decimals}f}",
            f"{100 * row['skill']:+.1f} %" if row["reference_mae"] else MISSING,
            str(row["n_days"]),
        )
        for row in pooled.iter_rows(named=True)
    ]
    last = pooled["last_day"][0]
    return Table(
        header=(
            "reference",
            f"its MAE, {day.issued.unit}",
            f"MAE of CompEvo, {day.issued.unit}",
            "gain of CompEvo",
            "days",
        ),
        rows=rows,
        caption=f"Issued forecasts of the {SKILL_DAYS} days to {last:%d %b %Y}",
        notes=[
            "Each row is over the days and series that both forecast; the best member is known "
            f"only afterwards.{_describe_coverage(day, last)}"
        ],
    )


def _describe_coverage(day: ForecastDay, last: date) -> str:
    recent = pl.col("day") > last - timedelta(days=SKILL_DAYS)
    covered = day.scores.filter(recent, method=METHOD)["coverage_80"].mean()
    if not isinstance(covered, float):
        return ""
    return f" {100 * covered:.0f} % of the measured values lie inside the 80 % band."


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
