"""What an issued forecast says of each series: a summary of the day, and the parts it adds up from.

What belongs here: these numbers, read from the sealed record: mean, band, peak, change and what was
published; weights, priors, corrections and levels. What does not: making the record
(``compevo_core.forecast.issued``), tables and pages of it (the command line, ``report``).

No model is run. A forecast is the sum over agents of weight * (prior + correction + level): the
prior is the numeric forecast that the agent starts from, the correction is what it adds after
reading numbers and news, the level is its mean known error. The parts say how the number came
about. They do not say what caused it: an article that was read need not have changed anything.

Shapes: H horizon.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import floor, log10
from typing import Any

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError
from compevo_core.forecast.issued import AGENT, BASE, METHOD, PUBLISHED, IssuedForecast

BAND_80 = (0.1, 0.9)
BAND_95 = (0.025, 0.975)
"""Quantiles that bound what 80 and 95 % of the truths are expected to lie between."""

_DIGITS = 4  # of the largest number of a column


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArticle:
    """An article that an agent read; title and domain are untrusted text."""

    article_id: str
    title: str
    domain: str
    available_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPart:
    """What one agent adds to a series' forecast; arrays are (H,), the logic untrusted text."""

    agent: int
    logic: str
    weights: FloatArray
    prior: FloatArray  # the forecast that it corrects
    correction: FloatArray  # what it adds to that
    level: FloatArray  # its mean known error, which is added last
    articles: Sequence[ReadArticle]  # what it read, best match first

    @property
    def forecast(self) -> FloatArray:
        """The agent's own forecast, (H,)."""
        return self.prior + self.correction + self.level

    @property
    def contribution(self) -> FloatArray:
        """What it adds to the population's forecast, (H,): weight times its own."""
        return self.weights * self.forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The forecast of one series and what it adds up from; all arrays are (H,) in ``unit``."""

    entity: str
    unit: str
    facts: Mapping[str, Any]  # of the whole record
    starts: Sequence[datetime]  # of each step, UTC
    forecast: FloatArray
    published: FloatArray | None  # what somebody else published
    inputs: FloatArray  # the values before the origin, NaN where nobody had measured them
    parts: Sequence[AgentPart]  # their contributions sum to ``forecast``

    def weigh(self, name: str) -> FloatArray:
        """Return the weighted sum over agents of ``prior``, ``correction`` or ``level``, (H,)."""
        total: FloatArray = np.sum([part.weights * getattr(part, name) for part in self.parts], 0)
        return total

    def share(self, name: str) -> float:
        """Return the mean size of ``correction`` or ``level`` in percent of the mean forecast."""
        size = float(np.abs(self.forecast).mean())
        return 100 * float(np.abs(self.weigh(name)).mean()) / size if size else 0.0


def explain(issued: IssuedForecast, entity: str) -> Explanation:
    """Return what the forecast of a series adds up from.

    Raises:
        DataError: the record has no such series.
    """
    facts = issued.facts
    by_entity = {str(one["entity"]): one for one in facts["series"]}
    if entity not in by_entity:
        raise DataError(
            f"the forecast of {facts['dataset']} has no series {entity!r}; it has "
            f"{', '.join(by_entity)}"
        )

    series = by_entity[entity]
    points = issued.select_points(entity)
    parts = []
    for agent, weights in enumerate(series["step_weights"]):
        own, prior = points[f"{AGENT}{agent}"], points[f"{BASE}{agent}"]
        level = np.array(series["levels"][agent])
        articles = {name: facts["articles"][name] for name in series["chosen_news"][agent]}
        part = AgentPart(
            agent=agent,
            logic=str(facts["logics"][agent]),
            weights=np.array(weights),
            prior=prior,
            # What is left of its forecast: so the parts add up whatever the model does inside.
            correction=own - level - prior,
            level=level,
            articles=[
                ReadArticle(
                    article_id=name,
                    title=article["title"],
                    domain=article["domain"],
                    available_at=datetime.fromisoformat(article["available_at"]),
                )
                for name, article in articles.items()
            ],
        )
        parts.append(part)
    inputs = [np.nan if value is None else value for value in series["inputs"]]
    return Explanation(
        entity=entity,
        unit=issued.unit,
        facts=facts,
        starts=issued.starts,
        forecast=points[METHOD],
        published=points.get(PUBLISHED),
        inputs=np.array(inputs),
        parts=parts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySummary:
    """The forecast of one series on one day, in its unit; means over the day."""

    entity: str
    mean: float
    low: float | None  # of the 80 % band; None where the record has no quantiles
    high: float | None
    peak: float
    peak_at: datetime  # start of its step, on the market's clock
    change_pct: float | None  # against yesterday's measured steps; None without any, or of zero
    published: float | None  # the forecast that somebody else published


def summarise_day(issued: IssuedForecast) -> list[DaySummary]:
    """Return the summary of every series, in the order of the record."""
    starts = issued.starts
    inputs = {str(one["entity"]): one.get("inputs", []) for one in issued.facts["series"]}

    summaries = []
    for entity in issued.entities:
        points = issued.select_points(entity)
        values = points[METHOD]
        band = select_band(issued, entity, BAND_80)
        published = points.get(PUBLISHED)
        highest = int(values.argmax())
        summaries.append(
            DaySummary(
                entity=entity,
                mean=float(values.mean()),
                low=None if band is None else float(band[0].mean()),
                high=None if band is None else float(band[1].mean()),
                peak=float(values[highest]),
                peak_at=starts[highest].astimezone(issued.zone),
                change_pct=_compare(values, inputs[entity]),
                published=None if published is None else float(published.mean()),
            )
        )
    return summaries


def select_band(
    issued: IssuedForecast, entity: str, band: tuple[float, float]
) -> tuple[FloatArray, FloatArray] | None:
    """Return both bounds (H,) of a band of the population; None where the record has none."""
    bounds = [issued.select_points(entity, quantile).get(METHOD) for quantile in band]
    low, high = bounds
    return None if low is None or high is None else (low, high)


def format_start(issued: IssuedForecast, moment: datetime) -> str:
    """Return when a step of a forecast starts: the time of the day, or the date of longer steps."""
    first, second = issued.starts[:2]
    local = moment.astimezone(issued.zone)
    return f"{local:%d %b}" if second - first >= timedelta(days=1) else f"{local:%H:%M}"


def choose_decimals(values: Sequence[float]) -> int:
    """Return how many decimals a column needs for its largest value to have four digits."""
    largest = max((abs(value) for value in values), default=0.0)
    return 0 if largest == 0 else max(0, _DIGITS - 1 - floor(log10(largest)))


def _compare(values: FloatArray, inputs: Sequence[float | None]) -> float | None:
    """Return the change in percent over the steps of yesterday that had been measured."""
    known = [step for step, value in enumerate(inputs) if value is not None]
    if not known:
        return None

    # The same steps of both days: an afternoon is no match for a whole day.
    before = float(np.mean([inputs[step] for step in known]))
    return None if before == 0 else 100 * (float(values[known].mean()) - before) / abs(before)
