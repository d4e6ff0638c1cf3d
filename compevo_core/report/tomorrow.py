"""The forecast of a day as a forecaster reads it: tables, charts, errors of late, weights, record.

What belongs here: what the page and Dagster show of an issued forecast and of the days before it,
and how it compares with the publisher's own forecast. What does not: the numbers
(``compevo_core.forecast``, ``evaluation.issued_scores``), drawing (``report.charts``), markup
(``templates/forecast.html``), colours (``report.figures``).

Logics and news are untrusted text, which the templates escape. Everything comes from issued
forecasts and scored rows, so it is the same for every method and every grid.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.evaluation.issued_scores import PERSISTENCE, select_standing
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast.explain import (
    BAND_80,
    BAND_95,
    Band,
    DaySummary,
    Explanation,
    choose_decimals,
    describe_level,
    explain,
    format_start,
    list_effects,
    list_parts,
    name_comparisons,
    select_band,
    summarise_day,
)
from compevo_core.forecast.issued import (
    EQUAL,
    MEMBER,
    METHOD,
    PRIOR,
    PUBLISHED,
    IssuedForecast,
)
from compevo_core.report.charts import Chart, TimeLine, draw_chart
from compevo_core.report.days import ForecastDay
from compevo_core.report.figures import ACCENT, GOLD, INK, agent_colour, method_colour
from compevo_core.report.tables import (
    MISSING,
    Table,
    format_percent,
    join_items,
    method_name,
    shorten_hash,
    tabulate,
)

MOST_CHARTS = 12
"""Series of a data set that are charted, the first ones of the record; tables hold all."""

RECENT_DAYS = 28  # days to the last one that was scored whose errors are shown

_BANDS = ((BAND_95, 0.10, "95 % band"), (BAND_80, 0.20, "80 % band"))
_DOTTED, _DASHED = "2 3", "6 4"
_NAMES = {
    METHOD: "forecast",
    EQUAL: "members with equal weights",
    PRIOR: "best model without agents",
    PUBLISHED: "published forecast",
}
_SHORT_NAMES = _NAMES | {PUBLISHED: "published"}
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    PERSISTENCE: {"colour": GOLD, "dash": _DOTTED},
    PUBLISHED: {"colour": method_colour(PUBLISHED), "dash": _DASHED},
    METHOD: {"colour": ACCENT, "width": 2.4},
}
"""Methods in charts of errors, the upper ones last, and how their lines look."""


def view_day(day: ForecastDay) -> Mapping[str, Any]:
    """Return what the page shows of the newest forecast of a data set."""
    issued = day.issued
    charted = issued.entities[:MOST_CHARTS]
    return {
        "dataset": issued.facts["dataset"],
        "day": name_span(issued),
        "is_day": issued.is_day,
        "is_ahead": datetime.fromisoformat(issued.facts["issued_at"]) <= issued.origin,
        "known": [
            ("known until", _show_moment(issued, issued.facts["information_until"])),
            ("issued", _show_moment(issued, issued.facts["issued_at"])),
            ("by", str(issued.facts["method"])),
            ("times in", str(issued.zone.tzname(None))),
        ],
        "table": day_table(issued),
        "effects": list_effects(issued),
        "series": [
            {
                "entity": entity,
                "axis": issued.unit,
                "chart": chart_series(day, entity),
                "parts": part_table(parts),
                "members": parts.parts,
                "zone": issued.zone,
            }
            for entity, parts in ((entity, explain(issued, entity)) for entity in charted)
        ],
        "n_not_charted": len(issued.entities) - len(charted),
        "legend": list_legend(day),
        "before": before_table(day),
        "recent": view_recent(day.scores),
        "weights": weight_table(day),
        "methods": method_table(day),
        "operator": view_operator(day.by_step, _name_members(day.issued)),
        "record": [
            *(
                ("supersedes the issue of", _show_moment(issued, earlier.facts["issued_at"]))
                for earlier in day.earlier
            ),
            ("newest article", _show_moment(issued, issued.facts.get("newest_candidate"))),
            ("forecast", shorten_hash(issued.hash)),
            ("model", shorten_hash(issued.facts["artifact_hash"])),
            ("commit", shorten_hash(issued.facts["commit"])),
            ("head of the chain of issues", day.head or "none"),
        ],
    }


def name_span(issued: IssuedForecast) -> str:
    """Return the day that is forecast, or the first and the last one."""
    if issued.is_day:
        return f"{issued.origin:%A %d %B %Y}"
    last = issued.starts[-1].astimezone(issued.zone)
    return f"{issued.origin:%d %B %Y} to {last:%d %B %Y}"


def _show_moment(issued: IssuedForecast, moment: str | None) -> str:
    if moment is None:
        return "none"
    return f"{datetime.fromisoformat(moment).astimezone(issued.zone):%d %b %Y, %H:%M}"


def day_table(issued: IssuedForecast) -> Table:
    """Return a row for each series: energy or mean, peak, their bands, changes, publications.

    A column is there where any series has such a thing.
    """
    days, level = summarise_day(issued), describe_level(issued)
    sizes = choose_decimals([day.level for day in days])
    peaks = choose_decimals([day.peak for day in days])
    until = datetime.fromisoformat(issued.facts["information_until"]).astimezone(issued.zone)
    (_, near), (_, far) = name_comparisons(issued)

    cells: dict[str, Callable[[DaySummary], str]] = {
        "series": lambda day: day.entity,
        f"{level.name}, {level.unit}": lambda day: _show(day.level, sizes),
        f"80 % band of the {level.name}": lambda day: _show_band(day.level_band, sizes),
        f"peak, {issued.unit}": lambda day: _show(day.peak, peaks),
        "at": lambda day: format_start(issued, day.peak_at),
        "80 % band of the peak": lambda day: _show_band(day.peak_band, peaks),
        f"against {near}": lambda day: _show_change(day.change_pct),
        f"against {far}": lambda day: _show_change(day.week_change_pct),
        f"published, {level.unit}": lambda day: _show(day.published, sizes),
        "temperature": lambda day: _show_band(day.temperature, 0, " °C"),
    }

    shown = {name: cell for name, cell in cells.items() if {cell(day) for day in days} != {MISSING}}
    notes = []
    if any(day.change_pct is not None for day in days) and until < issued.origin:
        notes = [f"The change from {near} is over its steps up to {until:%H:%M}."]
    return tabulate(days, shown, caption="By series", notes=notes)


def _show_band(band: Band | None, decimals: int, unit: str = "") -> str:
    return MISSING if band is None else " to ".join(_show(v, decimals) for v in band) + unit


def _show_change(percent: float | None) -> str:
    return MISSING if percent is None else f"{percent:+z.1f} %"


def _name_members(issued: IssuedForecast) -> dict[str, str]:
    """Return the names of a forecast's members by method."""
    return {f"{MEMBER}{i}": str(name) for i, name in enumerate(issued.facts["members"])}


def part_table(parts: Explanation) -> Table | None:
    """Return a row for each member (weight, base model, correction, bias correction) and the sum.

    None for a single model, whose forecast is all there is.
    """
    if parts.is_single:
        return None
    decimals = choose_decimals([float(np.abs(parts.forecast).max())])
    cells = list_parts(
        parts, lambda values: float(values.mean()), lambda value, sign: _show(value, decimals, sign)
    )
    cells[f"adds, {parts.unit}"] = cells.pop("adds")
    notes = [
        f"Corrections move the forecast by {parts.share('correction'):.2f} % of its size on "
        f"average over the day, bias corrections by {parts.share('level'):.2f} %."
    ]
    return Table(
        header=list(cells),
        rows=list(zip(*cells.values(), strict=True)),
        caption=f"Parts of the mean of {parts.entity}",
        highlighted=[len(parts.parts)],
        notes=notes if parts.reads_news else [],
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
            "series",
            f"mean error, {before.unit}",
            f"MAE, {before.unit}",
            f"MAE of the published, {before.unit}",
            "measured inside the 80 % band",
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


def select_recent(scores: pl.DataFrame) -> pl.DataFrame:
    """Return the standing rows of the last days that the issued forecasts were scored on."""
    last = scores.filter(method=METHOD)["day"].max()
    if not isinstance(last, date):
        return scores.clear()
    return select_standing(scores).filter(pl.col("day") > last - timedelta(days=RECENT_DAYS))


def view_recent(scores: pl.DataFrame) -> Mapping[str, Any] | None:
    """Return how good the last days were, in shares and as a chart; None where none was scored."""
    recent = select_recent(scores)
    if recent.is_empty():
        return None
    ours = recent.filter(method=METHOD)
    shares = {
        "of the steps": ours["coverage_80"].mean(),
        "of the days' means": ours["mean_inside_80"].mean(),
        "of the days' peaks": ours["peak_inside_80"].mean(),
    }

    by_day = recent.group_by(pl.col("day").cast(pl.Datetime).alias("start"), "method")
    errors = by_day.agg(pl.col("mae").mean()).sort("start")
    unit, last = str(ours["unit"][0]), errors["start"][-1]
    chart = _chart_errors(
        errors,
        f"Mean absolute error by day, mean over series, in {unit}; the table of methods has means.",
        _NAMES,
        step=timedelta(days=1),
        decimals=choose_decimals(ours["mae"].to_list()),
        clock="%a %d %b,",
    )
    held = [f"{format_percent(s)} {name}" for name, s in shares.items() if isinstance(s, float)]
    return {
        "caption": f"{ours['day'].n_unique()} days to {last:%d %B %Y}",
        "unit": unit,
        "held": join_items(held),
        **chart,
    }


def _chart_errors(
    errors: pl.DataFrame,
    label: str,
    names: Mapping[str, str],
    **scale: Any,  # noqa: ANN401 - of the chart
) -> Mapping[str, Any]:
    """Return the chart of the MAE by ``start`` and method, and the lines of its legend."""
    lines = [
        TimeLine(
            name=names.get(method, method_name(method)),
            times=part["start"].to_list(),
            values=part["mae"].to_list(),
            **look,
        )
        for method, look in _LOOKS.items()
        if not (part := errors.filter(method=method)).is_empty()
    ]
    return {"chart": draw_chart(lines, label, **scale), "legend": lines}


def _weigh(name: str, weight: str = "n_points") -> pl.Expr:
    """Return the mean of a column by points: a day of which half is missing counts half."""
    value, points = pl.col(name), pl.col(weight)
    known = points.filter(value.is_not_null())
    return ((value * points).sum() / known.sum()).fill_nan(None).alias(name)


def method_table(day: ForecastDay) -> Table | None:
    """Return the errors of every method over the last days; None where none was scored.

    Each row is over the days and series that both the method and the issued forecast have.
    """
    recent = select_recent(day.scores)
    if recent.is_empty():
        return None
    keys = ["is_on_time", "day", "entity"]
    ours = recent.filter(method=METHOD).select(*keys, own_mae="mae")

    measures = ("mae", "own_mae", "pinball_10_50_90", "coverage_80")
    means = (
        recent.join(ours, on=keys)
        .group_by("is_on_time", "method")
        .agg(*map(_weigh, measures), pl.col("day").n_unique())
        .sort("is_on_time", "mae", "method", descending=[True, False, False])
    )
    decimals, unit = choose_decimals(means["mae"].to_list()), day.issued.unit
    members = _name_members(day.issued)
    names = {**members, **_NAMES}
    rows = means.to_dicts()

    return tabulate(
        rows,
        {
            "method": lambda row: names.get(row["method"], method_name(row["method"])),
            f"MAE, {unit}": lambda row: _show(row["mae"], decimals),
            f"MAE of the forecast, {unit}": lambda row: _show(row["own_mae"], decimals),
            "gain of the forecast": lambda row: (
                MISSING
                if row["method"] == METHOD or not row["mae"]
                else f"{100 * (1 - row['own_mae'] / row['mae']):+z.1f} %"
            ),
            f"pinball, {unit}": lambda row: _show(row["pinball_10_50_90"], decimals + 1),
            "in the 80 % band": lambda row: (
                MISSING if row["coverage_80"] is None else f"{100 * row['coverage_80']:,.0f} %"
            ),
            "days": lambda row: str(row["day"]),
            "issued": lambda row: "on time" if row["is_on_time"] else "later",
        },
        caption="Every method on the same days",
        highlighted={i for i, row in enumerate(rows) if row["method"] == METHOD},
        notes=["Which member is the best one is known only afterwards."]
        if len(members) > 1
        else [],
    )


def weight_table(day: ForecastDay) -> Table | None:
    """Return each member's weight in each series, how it did of late, and what an agent goes by.

    None for a single model.
    """
    facts, recent = day.issued.facts, select_recent(day.scores)
    members, logics = facts["members"], facts["logics"]
    if len(members) == 1 and not logics:
        return None
    by_series = {str(entry["entity"]): entry["weights"] for entry in facts["series"]}
    errors = dict(recent.group_by("method").agg(pl.col("mae").mean()).iter_rows())
    decimals = choose_decimals(list(errors.values()))
    shown = day.issued.entities[:MOST_CHARTS]
    cells: dict[str, Callable[[int], str]] = {
        "member": lambda i: str(members[i]),
        "weight": lambda i: f"{100 * np.mean([w[i] for w in by_series.values()]):.0f} %",
    }

    if errors and not day.issued.is_joint:
        title = f"its MAE of late, {day.issued.unit}"
        cells[title] = lambda i: _show(errors.get(f"{MEMBER}{i}"), decimals)

    if len(shown) > 1:
        weights = {
            name: partial(lambda name, i: f"{100 * by_series[name][i]:.0f} %", name)
            for name in shown
        }
        cells |= weights

    if logics:
        cells["goes by"] = lambda i: logics[i] or "an empty logic"
    return tabulate(
        range(len(members)),
        cells,
        caption="Weights of the members, mean over steps",
        text_columns=(0, len(cells) - 1) if logics else (0,),
    )


def _show(value: float | None, decimals: int, sign: str = "") -> str:
    return MISSING if value is None else f"{value:{sign},.{decimals}f}"


def chart_series(day: ForecastDay, entity: str) -> Chart:
    """Return the chart of one series: what came before, and the day that is forecast."""
    issued = day.issued
    label = (
        f"Chart of {entity} in {issued.unit}: what was measured before, the forecast with its "
        "bands, each member and the published forecast; the table above holds the numbers."
    )
    return draw_chart(
        _list_lines(day, entity),
        label,
        step=issued.step,
        decimals=choose_decimals([float(np.abs(issued.select_points(entity)[METHOD]).max())]),
        clock="%a %H:%M" if issued.step < timedelta(days=1) else "%d %b",
        border=issued.origin.replace(tzinfo=None),
    )


def _list_lines(day: ForecastDay, entity: str) -> list[TimeLine]:
    """Return the lines of one series, each lying on those before it."""
    issued, before = day.issued, day.before
    points = issued.select_points(entity)

    def line(name: str, starts: Sequence[datetime], values: FloatArray, **style: Any) -> TimeLine:  # noqa: ANN401
        times = [start.astimezone(issued.zone).replace(tzinfo=None) for start in starts]
        return TimeLine(name=name, times=times, values=values.tolist(), **style)

    lines = []
    for band, opacity, name in _BANDS:
        bounds = select_band(issued, entity, band)
        if bounds is not None:
            low, high = bounds
            style = {"low": low.tolist(), "colour": ACCENT, "opacity": opacity, "row": 1}
            lines.append(line(name, issued.starts, high, **style))
    thin = {"width": 0.9, "row": 2}
    members = {PRIOR: "without agents"} if issued.is_joint else _name_members(issued)
    lines += [
        line(name, issued.starts, points[method], colour=agent_colour(i), **thin)
        for i, (method, name) in reversed([*enumerate(members.items())])
        if method in points
    ]
    if before is not None and entity in before.entities:
        values = before.select_points(entity)[METHOD]
        style = {"colour": ACCENT, "dash": _DOTTED}
        lines.append(line("forecast then", before.starts, values, **style))

    starts, measured = day.list_measured(entity)
    if np.isfinite(measured).any():
        lines.append(line("measured", starts, measured, colour=INK, width=2))
    if PUBLISHED in points:
        style = {"colour": method_colour(PUBLISHED), "dash": _DASHED}
        lines.append(line("published", issued.starts, points[PUBLISHED], **style))
    return [*lines, line("forecast", issued.starts, points[METHOD], colour=ACCENT, width=2.5)]


def list_legend(day: ForecastDay) -> list[TimeLine]:
    """Return a line for each name that any chart of a data set has, the forecast first."""
    charted = day.issued.entities[:MOST_CHARTS]
    lines = [line for entity in charted for line in reversed(_list_lines(day, entity))]
    return list({line.name: line for line in reversed(lines)}.values())[::-1]


def view_operator(rows: pl.DataFrame, members: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the tables and the chart of a data set; None if it has no published forecast.

    ``members`` names them by method.

    Of forecasts that knew to different instants those that knew least are shown; the file has all.
    """
    if rows.filter(method=PUBLISHED).is_empty():
        return None
    # Before midnight comes before midnight in the order of the names, too.
    known_to = rows["known_to"].min()
    shown = rows.filter(known_to=known_to)
    return {
        "known_to": known_to,
        "months": month_table(shown),
        "methods": score_table(shown, members),
        "errors": _chart_clock(shown),
    }


def pool(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return means over points of rows that are alike in some columns and the method."""
    return (
        rows.group_by(*by, "method")
        .agg(
            *(_weigh(name) for name in ("mae", "bias")),
            *(_weigh(name, "n_banded") for name in ("coverage_80", "width_80")),
            pl.col("n_points").sum(),
            pl.col("unit").first(),
        )
        .sort(*by, "mae", "method")
    )


def month_table(rows: pl.DataFrame) -> Table:
    """Return the published and the issued forecast, by month and series."""
    each = pool(rows, "month", "entity")
    together = pool(rows, "month").with_columns(entity=pl.lit(POOLED)).select(each.columns)
    keys = ["month", "entity"]
    sides = pl.concat([each, together])

    pairs = (
        sides.filter(method=PUBLISHED)
        .join(sides.filter(method=METHOD), on=keys, suffix="_own")
        .sort("month", pl.col("entity") == POOLED, "entity")
        .to_dicts()
    )
    decimals = choose_decimals([row["mae"] for row in pairs])
    unit = pairs[0]["unit"] if pairs else ""

    return tabulate(
        pairs,
        {
            "month": lambda row: row["month"],
            "series": lambda row: row["entity"],
            f"published: MAE, {unit}": lambda row: _show(row["mae"], decimals),
            "bias": lambda row: _show(row["bias"], decimals, "+"),
            "in its 80 % band": lambda row: format_percent(row["coverage_80"]),
            f"forecast: MAE, {unit}": lambda row: _show(row["mae_own"], decimals),
            "its bias": lambda row: _show(row["bias_own"], decimals, "+"),
            "in the forecast's band": lambda row: format_percent(row["coverage_80_own"]),
            "points": lambda row: f"{row['n_points']:,}",
        },
        caption="By month and series",
        text_columns=(0, 1),
        highlighted={i for i, row in enumerate(pairs) if row["entity"] == POOLED},
    )


def score_table(rows: pl.DataFrame, members: Mapping[str, str]) -> Table:
    """Return every method over all months and series."""
    names = {**members, **_SHORT_NAMES}
    records = pool(rows).to_dicts()
    decimals = choose_decimals([row["mae"] for row in records])
    unit = records[0]["unit"]

    return tabulate(
        records,
        {
            "method": lambda row: names.get(row["method"], method_name(row["method"])),
            f"MAE, {unit}": lambda row: _show(row["mae"], decimals),
            f"bias, {unit}": lambda row: _show(row["bias"], decimals, "+"),
            "in its 80 % band": lambda row: format_percent(row["coverage_80"]),
            f"width of the band, {unit}": lambda row: _show(row["width_80"], decimals),
            "points": lambda row: f"{row['n_points']:,}",
        },
        caption="All methods",
        highlighted={i for i, row in enumerate(records) if row["method"] == METHOD},
    )


def _chart_clock(rows: pl.DataFrame) -> Mapping[str, Any] | None:
    """Return the error by time of the day; None where steps are days."""
    by_time = pool(rows.filter(pl.col("at").str.contains(":")), "at")
    if by_time.is_empty():
        return None
    # A time of any day: charts name no date.
    errors = by_time.with_columns(start=("2000-01-01 " + pl.col("at")).str.to_datetime())
    starts, unit = errors["start"].unique().sort(), str(rows["unit"][0])
    chart = _chart_errors(
        errors,
        f"Mean absolute error in {unit} by time of the day, over all months and series.",
        _SHORT_NAMES,
        step=starts[1] - starts[0],
        decimals=choose_decimals(by_time["mae"].to_list()),
        clock="%H:%M",
        is_clock=True,
    )
    return {"unit": unit, **chart}
