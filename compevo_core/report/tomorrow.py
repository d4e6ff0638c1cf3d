"""The section "Tomorrow": what was issued last, what it was made of, how earlier forecasts did.

What belongs here: what the section shows of each data set: facts, tables, what agents read. What
does not: the numbers (``compevo_core.forecast``), charts (``report.day_charts``), markup
(``templates/tomorrow.html``). Logics and news are untrusted text, which the templates escape.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.evaluation.issued_scores import measure_skill
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast.day_summary import (
    BAND_80,
    DaySummary,
    choose_decimals,
    format_start,
    select_band,
    summarise_day,
)
from compevo_core.forecast.explain import Explanation, explain
from compevo_core.forecast.issued import METHOD, PUBLISHED, IssuedForecast
from compevo_core.report.day_charts import MOST_SERIES, chart_series, plot_day
from compevo_core.report.figures import Picture, Plot
from compevo_core.report.inputs import ForecastDay
from compevo_core.report.tables import Table
from compevo_core.report.wording import MISSING, method_name, shorten_hash

MOST_CHARTS = 12
"""Series of a data set that are charted, the first ones of the record; tables hold all."""

SKILL_DAYS = 28
"""Days to the last one that was scored whose errors are shown."""


def view_day(day: ForecastDay) -> Mapping[str, Any]:
    """Return what the page shows of the newest forecast of a data set."""
    issued = day.issued
    charted = issued.entities[:MOST_CHARTS]
    was_ahead = datetime.fromisoformat(issued.facts["issued_at"]) <= issued.origin
    alt = (
        f"Line plots of the first {min(MOST_SERIES, len(issued.entities))} series of "
        f"{issued.facts['dataset']}: the day before as measured, the forecast with its bands, "
        "each agent, and the published forecast; the table above holds the numbers."
    )
    return {
        "dataset": issued.facts["dataset"],
        "day": f"{issued.origin:%A %d %B %Y}",
        "is_ahead": was_ahead,
        "facts": _list_facts(issued),
        "table": day_table(issued),
        "series": [_view_series(day, entity) for entity in charted],
        "n_not_charted": len(issued.entities) - len(charted),
        "picture": Picture([Plot(plot_day(day), alt)], caption=f"{issued.origin:%d %B %Y}"),
        "before": before_table(day),
        "skill": skill_table(day),
    }


def _list_facts(issued: IssuedForecast) -> list[tuple[str, str]]:
    facts, zone = issued.facts, issued.zone

    def show(moment: str | None) -> str:
        if moment is None:
            return "none"
        return f"{datetime.fromisoformat(moment).astimezone(zone):%d %b %Y, %H:%M}"

    return [
        ("times are in", str(zone.tzname(None))),
        ("values known until", show(facts["information_until"])),
        ("issued", show(facts["issued_at"])),
        ("newest article", show(facts.get("newest_candidate"))),
        ("model", shorten_hash(facts["artifact_hash"])),
        ("commit", shorten_hash(facts["commit"])),
    ]


def _view_series(day: ForecastDay, entity: str) -> Mapping[str, Any]:
    """Return one series: its chart, the parts of its forecast, what the agents read."""
    parts = explain(day.issued, entity)
    zone = day.issued.zone
    return {
        "entity": entity,
        "axis": f"{parts.unit}, by start of the interval in {zone.tzname(None)}",
        "label": f"Chart of {entity} in {parts.unit}, yesterday and {day.issued.origin:%d %B %Y}: "
        "what was measured, the forecast with its bands, each agent and the published forecast. "
        "The table above holds the numbers.",
        "figure": chart_series(day, entity),
        "parts": part_table(parts),
        "agents": [
            {
                "agent": part.agent,
                "logic": part.logic,
                "articles": [
                    (f"{item.available_at.astimezone(zone):%d %b, %H:%M}", item.domain, item.title)
                    for item in part.articles
                ],
            }
            for part in parts.parts
        ],
    }


def day_table(issued: IssuedForecast) -> Table:
    """Return a row for each series: mean, band, peak, change, what was published."""
    days = summarise_day(issued)
    decimals = choose_decimals([day.peak for day in days])
    until = datetime.fromisoformat(issued.facts["information_until"]).astimezone(issued.zone)
    note = "The band is the mean of its lower and upper bounds."
    if until < issued.origin:
        note += f" The change from yesterday is over its steps up to {until:%H:%M}."

    unit = issued.unit
    return Table(
        header=[
            *("series", f"mean, {unit}", f"80 % band, {unit}", f"peak, {unit}"),
            *("against yesterday", f"published, {unit}"),
        ],
        rows=[_list_cells(issued, day, decimals) for day in days],
        caption=f"{issued.origin:%A %d %B %Y}: means over the day, and its highest step",
        notes=[note],
    )


def _list_cells(issued: IssuedForecast, day: DaySummary, decimals: int) -> list[str]:
    low, high = _show(day.low, decimals), _show(day.high, decimals)
    return [
        day.entity,
        _show(day.mean, decimals),
        MISSING if day.low is None else f"{low} to {high}",
        f"{_show(day.peak, decimals)} at {format_start(issued, day.peak_at)}",
        MISSING if day.change_pct is None else f"{day.change_pct:+.1f} %",
        _show(day.published, decimals),
    ]


def part_table(parts: Explanation) -> Table:
    """Return a row for each agent: weight, prior, correction, level, what it adds; and the sum."""
    decimals = choose_decimals([float(np.abs(parts.forecast).max())])

    def list_means(prior: FloatArray, moves: Sequence[FloatArray], total: FloatArray) -> list[str]:
        changes = [_show(float(move.mean()), decimals, "+") for move in moves]
        return [
            _show(float(prior.mean()), decimals),
            *changes,
            _show(float(total.mean()), decimals),
        ]

    rows = [
        [
            f"agent {part.agent}",
            f"{100 * float(part.weights.mean()):.1f} %",
            *list_means(part.prior, (part.correction, part.level), part.contribution),
        ]
        for part in parts.parts
    ]
    moves = (parts.weigh("correction"), parts.weigh("level"))
    rows.append(["weighted sum", "", *list_means(parts.weigh("prior"), moves, parts.forecast)])
    return Table(
        header=("", "weight", "prior", "correction", "level", f"adds, {parts.unit}"),
        rows=rows,
        caption=f"Parts of the mean of {parts.entity}",
        highlighted=[len(rows) - 1],
        notes=[
            f"Corrections move the forecast by {parts.share('correction'):.2f} % of its size on "
            f"average over the day, levels by {parts.share('level'):.2f} %."
        ],
    )


def before_table(day: ForecastDay) -> Table | None:
    """Return how the forecast of the day before did by series; None where nothing is known."""
    before = day.before
    rows = [
        _score_series(before, entity, truth)
        for entity in (before.entities if before else ())
        if before is not None and (truth := day.find_truth(before, entity)) is not None
    ]
    if before is None or not rows:
        return None
    return Table(
        header=(
            *("series", f"mean error, {before.unit}", f"MAE, {before.unit}"),
            *(f"MAE of the published, {before.unit}", "measured inside the 80 % band"),
        ),
        rows=rows,
        caption=f"{before.origin:%A %d %B %Y}: the forecast against what was measured",
    )


def _score_series(issued: IssuedForecast, entity: str, truth: FloatArray) -> list[str]:
    points = issued.select_points(entity)
    error = points[METHOD] - truth
    mae = float(np.nanmean(np.abs(error)))
    decimals = choose_decimals([mae])

    published, inside = None, MISSING
    if PUBLISHED in points:
        published = float(np.nanmean(np.abs(points[PUBLISHED] - truth)))
    band = select_band(issued, entity, BAND_80)
    if band is not None:
        known = np.isfinite(truth)
        is_inside = (band[0] <= truth) & (truth <= band[1])
        inside = f"{100 * float(is_inside[known].mean()):.0f} %"
    return [
        entity,
        _show(float(np.nanmean(error)), decimals, "+"),
        _show(mae, decimals),
        _show(published, decimals),
        inside,
    ]


def skill_table(day: ForecastDay) -> Table | None:
    """Return the errors of the last days beside each reference's; None where none was scored."""
    pooled = measure_skill(day.scores).filter(entity=POOLED, span_days=SKILL_DAYS)
    pooled = pooled.sort("reference_mae")
    if pooled.is_empty():
        return None

    # In four digits of the largest error: references may have forecast other days.
    decimals = choose_decimals([*pooled["mae"], *pooled["reference_mae"]])
    last = pooled["last_day"][0]
    note = (
        "Each row is over the days and series that both forecast; the best member is known only "
        "afterwards."
    )
    recent = pl.col("day") > last - timedelta(days=SKILL_DAYS)
    covered = day.scores.filter(recent, method=METHOD)["coverage_80"].mean()
    if isinstance(covered, float):
        note += f" {100 * covered:.0f} % of the measured values lie inside the 80 % band."

    unit = day.issued.unit
    return Table(
        header=(
            "reference",
            f"its MAE, {unit}",
            f"MAE of CompEvo, {unit}",
            "gain of CompEvo",
            "days",
        ),
        rows=[
            [
                method_name(row["reference"]),
                _show(row["reference_mae"], decimals),
                _show(row["mae"], decimals),
                f"{100 * row['skill']:+.1f} %" if row["reference_mae"] else MISSING,
                str(row["n_days"]),
            ]
            for row in pooled.iter_rows(named=True)
        ],
        caption=f"Issued forecasts of the {SKILL_DAYS} days to {last:%d %b %Y}",
        notes=[note],
    )


def _show(value: float | None, decimals: int, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign},.{decimals}f}"
