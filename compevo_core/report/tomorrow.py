"""The section "Tomorrow": what was issued last, what it was made of, how earlier ones did.

What belongs here: what the section shows for each data set, as plain data. What does not: tables
(``report.day_tables``), charts (``report.day_charts``), markup (``templates/tomorrow.html``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from compevo_core.explain import AgentPart, explain
from compevo_core.issued import IssuedForecast
from compevo_core.report.day_charts import chart_series
from compevo_core.report.day_pictures import MOST_SERIES, plot_day
from compevo_core.report.day_tables import before_table, day_table, part_table, skill_table
from compevo_core.report.figures import Picture, Plot, make_picture
from compevo_core.report.forecast_days import ForecastDay
from compevo_core.report.tables import Table
from compevo_core.report.wording import shorten_hash

MOST_CHARTS = 12
"""Series of a data set that are charted, the first ones of the record; tables hold all."""


@dataclass(frozen=True, kw_only=True)
class AgentReading:
    """What one agent read, all of it untrusted text: its logic, and (date, domain, title)."""

    agent: int
    logic: str
    articles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True)
class SeriesView:
    """One series: its chart, the parts of its forecast, what the agents read."""

    entity: str
    axis: str
    label: str
    figure: Mapping[str, Any]
    parts: Table
    readings: Sequence[AgentReading]


@dataclass(frozen=True, kw_only=True)
class DayView:
    """What the section shows of one data set."""

    dataset: str
    day: str
    standing: str
    facts: Sequence[tuple[str, str]]
    table: Table
    series: Sequence[SeriesView]
    n_not_charted: int
    picture: Picture
    before: Table | None
    skill: Table | None


def show_day(day: ForecastDay) -> DayView:
    """Return what the page shows of the newest forecast of a data set."""
    issued = day.issued
    charted = issued.entities[:MOST_CHARTS]
    plot = Plot(
        plot_day(day),
        alt=f"Line plots of the first {min(MOST_SERIES, len(issued.entities))} series of "
        f"{issued.facts['dataset']}: the day before as measured, the forecast with its bands, "
        "each agent, and the published forecast; the table above holds the numbers.",
    )
    return DayView(
        dataset=str(issued.facts["dataset"]),
        day=f"{issued.origin:%A %d %B %Y}",
        standing=_describe_standing(issued),
        facts=_list_facts(day),
        table=day_table(issued),
        series=[_show_series(day, entity) for entity in charted],
        n_not_charted=len(issued.entities) - len(charted),
        picture=make_picture([plot], caption=f"{issued.origin:%d %B %Y}"),
        before=before_table(day),
        skill=skill_table(day),
    )


def _describe_standing(issued: IssuedForecast) -> str:
    """Say whether the day was still to come when the forecast was issued."""
    if datetime.fromisoformat(issued.facts["issued_at"]) <= issued.origin:
        return "Issued before the day began, and sealed."
    return "Filled in after the day began, from what was known at the time below, and sealed."


def _list_facts(day: ForecastDay) -> list[tuple[str, str]]:
    facts, zone = day.issued.facts, day.issued.zone

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


def _show_series(day: ForecastDay, entity: str) -> SeriesView:
    why = explain(day.issued, entity)
    zone = day.issued.zone

    def list_articles(part: AgentPart) -> list[tuple[str, str, str]]:
        return [
            (f"{one.available_at.astimezone(zone):%d %b, %H:%M}", one.domain, one.title)
            for one in part.articles
        ]

    return SeriesView(
        entity=entity,
        axis=f"{why.unit}, by start of the interval in {zone.tzname(None)}",
        label=f"Chart of {entity} in {why.unit}, yesterday and {day.issued.origin:%d %B %Y}: "
        "what was measured, the forecast with its bands, each agent and the published forecast. "
        "The table above holds the numbers.",
        figure=chart_series(day, entity),
        parts=part_table(why),
        readings=[
            AgentReading(agent=part.agent, logic=part.logic, articles=list_articles(part))
            for part in why.parts
        ],
    )
