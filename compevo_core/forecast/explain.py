"""An issued forecast by series: a summary of the day, and the parts that add up to the forecast.

What belongs here: these numbers, read from the sealed record: energy or mean, peak, their bands,
changes and what was published; weights, base forecasts, corrections. What does not: making the
record (``compevo_core.forecast.issued``), its tables and pages (the command line, ``report``).

No model is run. A forecast is the sum over its members of weight * (prior + correction + level):
the base model is the numeric forecast that an agent starts from, or all that a member without news
forecasts; the correction is what an agent adds after reading numbers and news, the level is the
bias correction, its mean known error. The parts show how the number came about, not what caused it:
an article that was read need not have changed anything.

Shapes: H horizon.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, floor, log10
from typing import Any

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.quantiles import LEVELS
from compevo_core.data.steps import DAY, MONTH, WEEK, is_calendar_step
from compevo_core.data.view import count_season_steps
from compevo_core.errors import DataError, list_some
from compevo_core.forecast.issued import BASE, MEMBER, METHOD, PUBLISHED, IssuedForecast

BAND_80 = (0.1, 0.9)
BAND_95 = (0.025, 0.975)
"""Bounds of the central 80 and 95 % of the predicted distribution."""

_DIGITS = 4  # of the largest number of a column


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArticle:
    """An article that an agent read; title and domain are untrusted text."""

    article_id: str
    title: str
    domain: str
    available_at: datetime
    change: float | None  # by which it moves the mean forecast; None in an older record


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPart:
    """What one member adds to a series' forecast; arrays are (H,), the logic untrusted text."""

    name: str  # of its method, or the number of an agent
    logic: str  # that an agent reads by
    weights: FloatArray
    prior: FloatArray  # the forecast that an agent corrects
    correction: FloatArray  # what it adds to that
    level: FloatArray  # by how much bounds, and totals that add up, move it
    articles: Sequence[ReadArticle]  # what it read, best match first

    @property
    def forecast(self) -> FloatArray:
        """The member's own forecast, (H,)."""
        return self.prior + self.correction + self.level

    @property
    def contribution(self) -> FloatArray:
        """What it adds to the forecast, (H,): weight times its own."""
        return self.weights * self.forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The forecast of one series and what it adds up from; all arrays are (H,) in ``unit``."""

    entity: str
    unit: str
    facts: Mapping[str, Any]  # of the whole record
    starts: Sequence[datetime]  # of each step, UTC
    forecast: FloatArray
    published: FloatArray | None  # another publisher's forecast
    inputs: FloatArray  # the values before the origin, NaN where not measured yet
    parts: Sequence[MemberPart]  # their contributions sum to ``forecast``

    @property
    def reads_news(self) -> bool:
        """Whether its members are agents, which read news by their logics."""
        return bool(self.facts["logics"])

    @property
    def is_single(self) -> bool:
        """Whether it is a single model: nothing is weighted, and no news is read."""
        return len(self.parts) == 1 and not self.reads_news

    @property
    def columns(self) -> Mapping[str, str]:
        """The fields of its parts that hold something, by title."""
        if self.reads_news:
            return {"base": "prior", "correction": "correction", "bias": "level"}
        has_levels = any(part.level.any() for part in self.parts)
        return {"forecast": "prior", **({"correction": "level"} if has_levels else {})}

    def weigh(self, name: str) -> FloatArray:
        """Return the weighted sum over members of ``prior``, ``correction`` or ``level``, (H,)."""
        total: FloatArray = np.sum([part.weights * getattr(part, name) for part in self.parts], 0)
        return total

    def share(self, name: str) -> float:
        """Return the mean size of ``correction`` or ``level`` in percent of the mean forecast."""
        size = float(np.abs(self.forecast).mean())
        return 100 * float(np.abs(self.weigh(name)).mean()) / size if size else 0.0


def explain(issued: IssuedForecast, entity: str) -> Explanation:
    """Return what the forecast of a series adds up from.

    DataError if the record has no such series.
    """
    facts = issued.facts
    if entity not in issued.series:
        raise DataError(
            f"the forecast of {facts['dataset']} has no series {entity!r}; it has "
            f"{', '.join(issued.series)}"
        )

    series, points = issued.series[entity], issued.select_points(entity)
    parts = []
    for number, weights in enumerate(series["step_weights"]):
        level = np.array(series["levels"][number])
        # A single model is the forecast itself, and a member without news corrects nothing.
        final = points.get(f"{MEMBER}{number}", points[METHOD])
        prior = points.get(f"{BASE}{number}", final - level)
        read = series["chosen_news"][number] if facts["logics"] else []
        part = MemberPart(
            name=str(facts["members"][number]),
            logic=str(facts["logics"][number]) if facts["logics"] else "",
            weights=np.array(weights),
            prior=prior,
            # The rest of its forecast, so that the parts always add up.
            correction=final - level - prior,
            level=level,
            articles=[
                ReadArticle(
                    article_id=name,
                    title=article["title"],
                    domain=article["domain"],
                    available_at=datetime.fromisoformat(article["available_at"]),
                    change=series.get("article_changes", {}).get(name),
                )
                for name, article in ((name, facts["articles"][name]) for name in read)
            ],
        )
        parts.append(part)
    return Explanation(
        entity=entity,
        unit=issued.unit,
        facts=facts,
        starts=issued.starts,
        forecast=points[METHOD],
        published=points.get(PUBLISHED),
        inputs=np.array(series["inputs"], dtype=np.float64),  # what is not known is None there
        parts=parts,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsEffect:
    """By how much an article moves the mean of a series: the forecast less the one without it."""

    entity: str
    size: float
    unit: str
    title: str  # untrusted text
    agents: str  # the names of those that read it

    @property
    def amount(self) -> str:
        """Its size with sign and unit."""
        return format_change(self.size, self.unit)


def format_change(change: float, unit: str) -> str:
    """Return a change with its sign, in three digits."""
    return f"{change:+,.{max(0, choose_decimals([change]) - 1)}f} {unit}"


LEAST_EFFECT = 0.01  # of the mean forecast: smaller changes are not shown
MOST_EFFECTS = 6


def list_effects(issued: IssuedForecast) -> list[NewsEffect]:
    """Return the largest effects of articles on the mean of a series, the largest share first.

    Without any in records of agents that were sealed before articles were left out one by one.
    """
    effects = []
    for entity, series in issued.series.items():
        scale = abs(float(issued.select_points(entity)[METHOD].mean()))
        for name, size in series.get("article_changes", {}).items():
            if abs(size) <= LEAST_EFFECT * scale:
                continue
            agents = zip(issued.facts["members"], series["chosen_news"], strict=True)
            effect = NewsEffect(
                entity=entity,
                size=size,
                unit=issued.unit,
                title=issued.facts["articles"][name]["title"],
                agents=", ".join(str(agent) for agent, read in agents if name in read),
            )
            effects.append((abs(size) / scale if scale else np.inf, effect))
    effects.sort(key=lambda pair: -pair[0])
    return [effect for _, effect in effects[:MOST_EFFECTS]]


POWERS = {"W": ("kWh", 1e-3), "kW": ("MWh", 1e-3), "MW": ("GWh", 1e-3), "GW": ("GWh", 1.0)}
"""By unit of power: the unit of energy, and how much of it one hour at one unit of power is."""
Band = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySummary:
    """The forecast of one series over all its steps; None for what the record lacks.

    A band of 80 % belongs to the quantity itself; it is not a mean over the bounds of the steps.
    The peak is the median of its own distribution. For noisy steps this is above the highest step
    of the forecast; if no band was sealed, the peak is that step.
    """

    entity: str
    level: float  # the energy of a power, otherwise the mean (:func:`describe_level`)
    level_band: Band | None
    peak: float
    peak_band: Band | None
    peak_at: datetime  # start of its step, on the market's clock
    # Changes from what :func:`name_comparisons` names; None if nothing was measured, or zero
    change_pct: float | None
    week_change_pct: float | None
    published: float | None  # the level in another publisher's forecast
    temperature: Band | None  # lowest and highest that was forecast, degrees Celsius


def describe_level(issued: IssuedForecast) -> tuple[str, str, float]:
    """Return the name of a forecast's level, its unit, and its size if the mean is one.

    It is the energy for a series of power, and the mean for all others.
    """
    if issued.unit not in POWERS:
        return "mean", issued.unit, 1.0
    unit, size = POWERS[issued.unit]
    return "energy", unit, size * (issued.length / timedelta(hours=1))


def summarise_day(issued: IssuedForecast) -> list[DaySummary]:
    """Return the summary of every series, in the order of the record."""
    (_, _, factor), season = describe_level(issued), count_season_steps(issued.step)
    summaries = []
    for entity, facts in issued.series.items():
        points = issued.select_points(entity)
        values, published = points[METHOD], points.get(PUBLISHED)
        level_band, peak_Q = find_band(facts, "mean"), facts["day_quantiles"].get("peak")
        highest = int(values.argmax())
        temperature, inputs = facts["temperature"], facts["inputs"]
        n_compared = min(len(issued.starts), len(inputs))
        summaries.append(
            DaySummary(
                entity=entity,
                level=factor * float(values.mean()),
                level_band=level_band and (factor * level_band[0], factor * level_band[1]),
                peak=peak_Q[LEVELS.index(0.5)] if peak_Q else float(values[highest]),
                peak_band=find_band(facts, "peak"),
                peak_at=issued.starts[highest].astimezone(issued.zone),
                # The inputs are compared whole seasons before each step.
                change_pct=_compare(values, inputs, ceil(n_compared / season) * season),
                week_change_pct=_compare(values, facts["last_week"], values.size),
                published=None if published is None else factor * float(published.mean()),
                temperature=(temperature[0], temperature[1]) if temperature else None,
            )
        )

    return summaries


def name_comparisons(issued: IssuedForecast) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return what both changes of a summary refer to, each as one word and as a phrase.

    These are yesterday and last week for steps within a day, the previous day and last week for
    days, the previous step and last year for longer steps.
    """
    week = ("week", "last week")
    if issued.step < DAY:
        return ("day", "yesterday"), week
    names = {DAY: "days", WEEK: "weeks", MONTH: "months", 3 * MONTH: "quarters"}
    steps = names.get(issued.step, "steps")
    before = ("before", f"the {len(issued.starts)} {steps} before")
    year = ("year", f"the same {steps} of last year")
    return before, week if issued.step < WEEK else year


def find_band(facts: Mapping[str, Any], name: str) -> Band | None:
    """Return the sealed 80 % band of a day's "mean" or "peak", of one series; None without any."""
    values_Q = facts["day_quantiles"].get(name)
    if values_Q is None:
        return None
    low, high = (float(values_Q[LEVELS.index(level)]) for level in BAND_80)
    return low, high


def describe_outside(
    points: Mapping[str, FloatArray], bands: Mapping[str, tuple[FloatArray, FloatArray]]
) -> list[str]:
    """Return a sentence if points (H,) of some series are outside their 80 % bands."""
    outside = {
        name: int(((points[name] < low_H) | (points[name] > high_H)).sum())
        for name, (low_H, high_H) in bands.items()
    }
    names = [name for name, count in outside.items() if count]
    if not names:
        return []
    return [
        f"the mean of {list_some(names)} is outside its 80 % band at {sum(outside.values())} "
        "step(s): errors there are skewed, and only the mean counts the rare large ones"
    ]


def describe_span(issued: IssuedForecast) -> str:
    """Return the first and last time of the data, and if the day is in train; "" if unknown."""
    if not (data := issued.facts["data"]):
        return ""
    first, last, fitted_until = (
        datetime.fromisoformat(data[name]).astimezone(issued.zone)
        for name in ("first", "last", "fitted_until")
    )
    inside = "; the model has seen this day" if issued.origin < fitted_until else ""
    return f"{first:%d %b %Y} to {last:%d %b %Y}{inside}"


def select_band(
    issued: IssuedForecast, entity: str, band: tuple[float, float]
) -> tuple[FloatArray, FloatArray] | None:
    """Return both bounds (H,) of a band of the forecast; None if the record has none."""
    low, high = (issued.select_points(entity, quantile).get(METHOD) for quantile in band)
    return None if low is None or high is None else (low, high)


def format_start(issued: IssuedForecast, moment: datetime) -> str:
    """Return when a step starts: the time of the day, with the date if there are several days.

    For steps of a day or more, return only the date.
    """
    local = moment.astimezone(issued.zone)
    if is_calendar_step(issued.step):
        return f"{local:%b %Y}"
    if issued.step >= DAY:
        return f"{local:%d %b}"
    return f"{local:%H:%M}" if issued.is_day else f"{local:%d %b %H:%M}"


def choose_decimals(values: Sequence[float]) -> int:
    """Return how many decimals a column needs for its largest value to have four digits."""
    largest = max((abs(value) for value in values), default=0.0)
    return 0 if largest == 0 else max(0, _DIGITS - 1 - floor(log10(largest)))


def _compare(values: FloatArray, earlier: Sequence[float | None], shift: int) -> float | None:
    """Return the change in percent from the values ``shift`` steps before, if measured.

    The earlier values end where the forecast begins.
    """
    first = len(earlier) - shift
    pairs = [
        (value, earlier[first + h]) for h, value in enumerate(values[:shift]) if first + h >= 0
    ]
    known = [(float(value), before) for value, before in pairs if before is not None]
    if not known:
        return None

    # The same steps of both days: an afternoon is not a match for a whole day.
    value, before = (float(np.mean(side)) for side in zip(*known, strict=True))
    return None if before == 0 else 100 * (value - before) / abs(before)
