"""The page of forecasts: tables and charts of each day, style inside, so that nothing is fetched.

What belongs here: what the page shows of a day, its charts, rendering the page or a single chart,
the note on the kind of data. What does not: the contents of tables (``report.tomorrow``), drawing
(``report.charts``), markup (``templates``), the page of experiments (``paper.report.page``).

Every value is escaped, and no template may mark one as safe: news titles, logics and judges' names
are untrusted text. A value that a template names and the view lacks is an error, not empty text.
"""

import functools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined

from compevo_core.data.arrays import FloatArray
from compevo_core.data.datasets import DATASETS
from compevo_core.evaluation.issued_scores import PERSISTENCE
from compevo_core.forecast import explain
from compevo_core.forecast.issued import METHOD, PRIOR, PUBLISHED, IssuedForecast
from compevo_core.report import charts, tomorrow
from compevo_core.report.tables import format_percent, join_items, method_name, shorten_hash

# Readers must learn whether the data is real before they see any number.
BANNERS = {
    "sample": "Sample data: synthetic, in the publishers' formats; only exchange rates are real. "
    "Errors on this page show that the system works, not how well it forecasts the world.",
    "archive": "Archive data: real files as their publishers or the published benchmarks ship "
    "them.",
    "live": "Live data: fetched from the publishers.",
}
FORECAST_PAGE, RESEARCH_PAGE = "forecast.html", "research.html"  # files, in one folder


def render_forecasts(
    days: Sequence[tomorrow.ForecastDay],
    *,
    mode: str,
    generated_at: datetime,
    is_published: bool = False,
) -> str:
    """Return the page of the newest forecasts as HTML, without any script.

    ``mode`` is the kind of data: sample, archive or live; ``generated_at`` the moment that the page
    names as its own, with zone. A published page is in the folder of the sealed records, and says
    how to check them.
    """
    frame = frame_page(mode, generated_at)
    own = [name for day in days if (name := day.issued.facts["dataset"]) not in DATASETS]
    if own and len(own) == len(days):
        frame |= {"banner": "Data: your own files.", "banner_class": "real", "is_own": True}
    elif own:
        frame["banner"] = f"{frame['banner']} Your own files: {', '.join(own)}."
    newest_first = sorted(days, key=lambda day: day.issued.origin, reverse=True)
    shown = [view_day(day) for day in newest_first]
    template = template_environment().get_template(FORECAST_PAGE)
    return template.render(days=shown, is_published=is_published, **frame)


def render_chart(chart: charts.Chart) -> str:
    """Return a single chart as an SVG, in the colours of a light page."""
    return str(template_environment().get_template("chart.html").module.show_chart(chart))  # type: ignore[attr-defined]


def frame_page(mode: str, generated_at: datetime) -> dict[str, object]:
    """Return what every page has: the note on the kind of data, and the moment."""
    return {
        "title": "forecast",
        "banner": BANNERS.get(mode, f"Data mode: {mode}."),
        # Real exchange rates are among the sample's synthetic series: its pages always warn.
        "banner_class": "synthetic" if mode == "sample" else "real",
        "is_own": False,
        "made": f"{generated_at.astimezone(UTC):%d %b %Y, %H:%M UTC}",
        "dark_colours": charts.DARK_COLOURS,
    }


@functools.cache
def template_environment() -> Environment:
    """Return the environment over ``report/templates``."""
    return Environment(
        loader=PackageLoader("compevo_core.report"),
        # For every template and every file ending: a missed one is a hole.
        autoescape=True,
        # The default would silently render a misspelled name as empty text.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


_BANDS = ((explain.BAND_95, 0.10, "95 % band"), (explain.BAND_80, 0.20, "80 % band"))
_DOTTED, _DASHED = "2 3", "6 4"
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    PERSISTENCE: {"colour": charts.GOLD, "dash": _DOTTED},
    PUBLISHED: {"colour": charts.method_colour(PUBLISHED), "dash": _DASHED},
    METHOD: {"colour": charts.ACCENT, "width": 2.4},
}
"""Methods in charts of errors, the upper ones last, and how their lines look."""


def view_day(day: tomorrow.ForecastDay) -> Mapping[str, Any]:
    """Return what the page shows of the newest forecast of a data set."""
    issued = day.issued
    charted = issued.entities[: tomorrow.MOST_CHARTS]
    return {
        "dataset": issued.facts["dataset"],
        "day": tomorrow.name_span(issued),
        "is_day": issued.is_day,
        "is_ahead": datetime.fromisoformat(issued.facts["issued_at"]) <= issued.origin,
        "known": [
            ("known until", _show_moment(issued, issued.facts["information_until"])),
            ("issued", _show_moment(issued, issued.facts["issued_at"])),
            ("by", str(issued.facts["method"])),
            ("times in", str(issued.zone.tzname(None))),
            ("data", explain.describe_span(issued)),
        ],
        "table": tomorrow.day_table(issued),
        "effects": explain.list_effects(issued),
        "series": [
            {
                "entity": entity,
                "axis": issued.unit,
                "chart": chart_series(day, entity),
                "parts": tomorrow.part_table(parts),
                "members": parts.parts,
                "zone": issued.zone,
            }
            for entity, parts in ((entity, explain.explain(issued, entity)) for entity in charted)
        ],
        "n_not_charted": len(issued.entities) - len(charted),
        "legend": list_legend(day),
        "before": tomorrow.before_table(day),
        "recent": view_recent(day.scores),
        "weights": tomorrow.weight_table(day),
        "methods": tomorrow.method_table(day),
        "operator": view_operator(day.by_step, tomorrow.name_members(day.issued)),
        "record": [
            *(
                ("supersedes the issue of", _show_moment(issued, earlier.facts["issued_at"]))
                for earlier in day.earlier
            ),
            ("newest article", _show_moment(issued, issued.facts["newest_candidate"])),
            ("forecast", shorten_hash(issued.hash)),
            ("model", shorten_hash(issued.facts["artifact_hash"])),
            ("commit", shorten_hash(issued.facts["commit"])),
            ("head of the chain of issues", day.head or "none"),
        ],
    }


def _show_moment(issued: IssuedForecast, moment: str | None) -> str:
    if moment is None:
        return "none"
    return f"{datetime.fromisoformat(moment).astimezone(issued.zone):%d %b %Y, %H:%M}"


def view_recent(scores: pl.DataFrame) -> Mapping[str, Any] | None:
    """Return how good the last days were, in shares and as a chart; None if none was scored."""
    recent = tomorrow.select_recent(scores)
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
        tomorrow.NAMES,
        step=timedelta(days=1),
        decimals=explain.choose_decimals(ours["mae"].to_list()),
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
        charts.TimeLine(
            name=names.get(method, method_name(method)),
            times=part["start"].to_list(),
            values=part["mae"].to_list(),
            **look,
        )
        for method, look in _LOOKS.items()
        if not (part := errors.filter(method=method)).is_empty()
    ]
    return {"chart": charts.draw_chart(lines, label, **scale), "legend": lines}


def view_operator(rows: pl.DataFrame, members: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the tables and the chart of a data set; None if it has no published forecast.

    ``members`` names them by method.

    Of forecasts with several cutoffs those that knew least are shown; the file has all.
    """
    if rows.filter(method=PUBLISHED).is_empty():
        return None
    # Before midnight comes before midnight in the order of the names, too.
    known_to = rows["known_to"].min()
    shown = rows.filter(known_to=known_to)
    return {
        "known_to": known_to,
        "months": tomorrow.month_table(shown),
        "methods": tomorrow.score_table(shown, members),
        "errors": _chart_clock(shown),
    }


def _chart_clock(rows: pl.DataFrame) -> Mapping[str, Any] | None:
    """Return the error by time of the day; None if steps are days."""
    by_time = tomorrow.pool(rows.filter(pl.col("at").str.contains(":")), "at")
    if by_time.is_empty():
        return None
    # A time of any day: charts name no date.
    errors = by_time.with_columns(start=("2000-01-01 " + pl.col("at")).str.to_datetime())
    starts, unit = errors["start"].unique().sort(), str(rows["unit"][0])
    chart = _chart_errors(
        errors,
        f"Mean absolute error in {unit} by time of the day, over all months and series.",
        tomorrow.SHORT_NAMES,
        step=starts[1] - starts[0],
        decimals=explain.choose_decimals(by_time["mae"].to_list()),
        clock="%H:%M",
        is_clock=True,
    )
    return {"unit": unit, **chart}


def chart_series(day: tomorrow.ForecastDay, entity: str) -> charts.Chart:
    """Return the chart of one series: what came before, and the day that is forecast."""
    issued = day.issued
    label = (
        f"Chart of {entity} in {issued.unit}: what was measured before, the forecast with its "
        "bands, each member and the published forecast; the table above holds the numbers."
    )
    return charts.draw_chart(
        _list_lines(day, entity),
        label,
        step=issued.step,
        decimals=explain.choose_decimals(
            [float(np.abs(issued.select_points(entity)[METHOD]).max())]
        ),
        clock="%a %H:%M" if issued.step < timedelta(days=1) else "%d %b",
        border=issued.origin.replace(tzinfo=None),
    )


def _list_lines(day: tomorrow.ForecastDay, entity: str) -> list[charts.TimeLine]:
    """Return the lines of one series, each drawn over those before it."""
    issued, before = day.issued, day.before
    points = issued.select_points(entity)

    def line(
        name: str, starts: Sequence[datetime], values: FloatArray, style: Mapping[str, Any]
    ) -> charts.TimeLine:
        times = [start.astimezone(issued.zone).replace(tzinfo=None) for start in starts]
        return charts.TimeLine(name=name, times=times, values=values.tolist(), **style)

    lines = []
    for band, opacity, name in _BANDS:
        bounds = explain.select_band(issued, entity, band)
        if bounds is not None:
            low, high = bounds
            style = {"low": low.tolist(), "colour": charts.ACCENT, "opacity": opacity, "row": 1}
            lines.append(line(name, issued.starts, high, style))
    thin = {"width": 0.9, "row": 2}
    members = {PRIOR: "without agents"} if issued.is_joint else tomorrow.name_members(issued)
    lines += [
        line(name, issued.starts, points[method], thin | {"colour": charts.agent_colour(i)})
        for i, (method, name) in reversed([*enumerate(members.items())])
        if method in points
    ]
    if before is not None and entity in before.entities:
        values = before.select_points(entity)[METHOD]
        style = {"colour": charts.ACCENT, "dash": _DOTTED}
        lines.append(line("forecast then", before.starts, values, style))

    starts, measured = day.list_measured(entity)
    if np.isfinite(measured).any():
        lines.append(line("measured", starts, measured, {"colour": charts.INK, "width": 2}))
    if PUBLISHED in points:
        style = {"colour": charts.method_colour(PUBLISHED), "dash": _DASHED}
        lines.append(line("published", issued.starts, points[PUBLISHED], style))
    style = {"colour": charts.ACCENT, "width": 2.5}
    return [*lines, line("forecast", issued.starts, points[METHOD], style)]


def list_legend(day: tomorrow.ForecastDay) -> list[charts.TimeLine]:
    """Return a line for each name that any chart of a data set has, the forecast first."""
    charted = day.issued.entities[: tomorrow.MOST_CHARTS]
    lines = [line for entity in charted for line in reversed(_list_lines(day, entity))]
    return list({line.name: line for line in reversed(lines)}.values())[::-1]
