"""The section "Tomorrow": what was issued last, what it was made of, how earlier forecasts did.

What belongs here: what the section shows of each data set: facts, tables, what agents read. What
does not: the numbers (``compevo_core.forecast``), charts (``report.day_charts``), markup
(``templates/tomorrow.html``). Logics and news are untrusted text, which the templates escape.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.evaluation.issued_scores import measure_skill
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast.day_summary import (
    BAND_80,
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
from compevo_core.report.tables import Table, tabulate
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
    facts = issued.facts

    def show(moment: str | None) -> str:
        if moment is None:
            return "none"
        return f"{datetime.fromisoformat(moment).astimezone(issued.zone):%d %b %Y, %H:%M}"

    return [
        ("times are in", str(issued.zone.tzname(None))),
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
        "agents": parts.parts,
        "zone": zone,
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
    return tabulate(
        days,
        {
            "series": lambda day: day.entity,
            f"mean, {unit}": lambda day: _show(day.mean, decimals),
            f"80 % band, {unit}": lambda day: (
                MISSING
                if day.low is None
                else f"{_show(day.low, decimals)} to {_show(day.high, decimals)}"
            ),
            f"peak, {unit}": lambda day: (
                f"{_show(day.peak, decimals)} at {format_start(issued, day.peak_at)}"
            ),
            "against yesterday": lambda day: (
                MISSING if day.change_pct is None else f"{day.change_pct:+.1f} %"
            ),
            f"published, {unit}": lambda day: _show(day.published, decimals),
        },
        caption=f"{issued.origin:%A %d %B %Y}: means over the day, and its highest step",
        notes=[note],
    )


def part_table(parts: Explanation) -> Table:
    """Return a row for each agent: weight, prior, correction, level, what it adds; and the sum."""
    decimals = choose_decimals([float(np.abs(parts.forecast).max())])
    lines: list[tuple[Any, ...]] = [
        (
            f"agent {part.agent}",
            f"{100 * float(part.weights.mean()):.1f} %",
            *(part.prior, part.correction, part.level, part.contribution),
        )
        for part in parts.parts
    ]
    sums = [parts.weigh(name) for name in ("prior", "correction", "level")]
    lines.append(("weighted sum", "", *sums, parts.forecast))
    signs = ("", "+", "+", "")
    rows = [
        [name, weight, *(_show(v.mean(), decimals, s) for v, s in zip(values, signs, strict=True))]
        for name, weight, *values in lines
    ]
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
    if before is None:
        return None
    truths = {entity: day.find_truth(before, entity) for entity in before.entities}
    rows = [_score(before, entity, y) for entity, y in truths.items() if y is not None]
    if not rows:
        return None
    return Table(
        header=(
            *("series", f"mean error, {before.unit}", f"MAE, {before.unit}"),
            *(f"MAE of the published, {before.unit}", "measured inside the 80 % band"),
        ),
        rows=rows,
        caption=f"{before.origin:%A %d %B %Y}: the forecast against what was measured",
    )


def _score(issued: IssuedForecast, entity: str, truth: FloatArray) -> list[str]:
    points, band = issued.select_points(entity), select_band(issued, entity, BAND_80)
    errors = {name: points[name] - truth for name in (METHOD, PUBLISHED) if name in points}
    maes = {name: float(np.nanmean(np.abs(error))) for name, error in errors.items()}
    decimals = choose_decimals([maes[METHOD]])
    inside = MISSING
    if band is not None:
        is_inside = ((band[0] <= truth) & (truth <= band[1]))[np.isfinite(truth)]
        inside = f"{100 * float(is_inside.mean()):.0f} %"
    return [
        entity,
        _show(float(np.nanmean(errors[METHOD])), decimals, "+"),
        *(_show(maes.get(name), decimals) for name in (METHOD, PUBLISHED)),
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
    return tabulate(
        pooled.iter_rows(named=True),
        {
            "reference": lambda row: method_name(row["reference"]),
            f"its MAE, {unit}": lambda row: _show(row["reference_mae"], decimals),
            f"MAE of CompEvo, {unit}": lambda row: _show(row["mae"], decimals),
            "gain of CompEvo": lambda row: (
                f"{100 * row['skill']:+.1f} %" if row["reference_mae"] else MISSING
            ),
            "days": lambda row: str(row["n_days"]),
        },
        caption=f"Issued forecasts of the {SKILL_DAYS} days to {last:%d %b %Y}",
        notes=[note],
    )


def _show(value: float | None, decimals: int, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign},.{decimals}f}"
