"""One synthetic world behind the sample mode of electricity, weather and news, so that the three agree.

What belongs here: invented temperatures, events and demand of five regions, 2018 to 2026, from a fixed seed.
What does not: any publisher's format (``aemo_sample``, ``n2f_sample``, ``weather``). Nothing here is an observation.

Demand has a daily and weekly shape, a regional scale, cooling and heating load, autocorrelated noise, and the effect of
events that a news item announces the evening before: a heatwave, a storm outage, an industrial stoppage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from compevo_core.data.arrays import FloatArray
from compevo_pipeline.sources.common.nem import PERIODS_PER_DAY, REGIONS

FIRST_DAY = date(2018, 1, 1)
DAYS = 3287
SEED = 20191001
WEATHER_SPANS = ((date(2019, 9, 25), date(2021, 2, 5)), (date(2026, 2, 10), date(2026, 4, 2)))
"""Days for which the sample writes weather: those around its demand files."""

COMFORT_LOW_K = 289.0
COMFORT_HIGH_K = 297.0
HEATWAVE_WARMING_K = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Scale and climate of one synthetic region, near the real one's orders of magnitude."""

    base_mw: float
    mean_max_k: float
    season_k: float
    cooling_mw_per_k: float
    heating_mw_per_k: float


WORLD_REGIONS: dict[str, Region] = {
    "NSW1": Region(
        base_mw=7900, mean_max_k=296.0, season_k=5.5, cooling_mw_per_k=260, heating_mw_per_k=130
    ),
    "QLD1": Region(
        base_mw=6200, mean_max_k=299.5, season_k=3.5, cooling_mw_per_k=190, heating_mw_per_k=60
    ),
    "SA1": Region(
        base_mw=1350, mean_max_k=295.5, season_k=6.5, cooling_mw_per_k=75, heating_mw_per_k=28
    ),
    "TAS1": Region(
        base_mw=1100, mean_max_k=290.5, season_k=4.5, cooling_mw_per_k=6, heating_mw_per_k=22
    ),
    "VIC1": Region(
        base_mw=4900, mean_max_k=293.5, season_k=6.5, cooling_mw_per_k=210, heating_mw_per_k=75
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventKind:
    """What can happen: how often a day, in which months, and its effect as a share of demand."""

    name: str
    chance: float
    months: frozenset[int]
    effect: float


EVENT_KINDS = (
    EventKind(name="heatwave", chance=0.05, months=frozenset({11, 12, 1, 2, 3}), effect=0.07),
    EventKind(name="storm", chance=0.03, months=frozenset(range(1, 13)), effect=-0.05),
    EventKind(name="stoppage", chance=0.02, months=frozenset(range(1, 13)), effect=-0.04),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event on one day in one region; its news item appears the evening before."""

    day: date
    region: str
    kind: str


class SampleWorld:
    """The synthetic world; two instances are equal, value by value."""

    def __init__(self, seed: int = SEED) -> None:
        """Draw everything from ``seed``: (regions, days) of weather and (regions, days, 48) of demand in MW."""
        generator = np.random.default_rng(seed)
        shape = (len(REGIONS), DAYS)
        months = np.array([(FIRST_DAY + timedelta(days=d)).month for d in range(DAYS)])
        self._events = self._draw_events(generator, months)
        season = np.cos(2 * np.pi * (np.arange(DAYS) % 365.25 - 20) / 365.25)
        climate = [WORLD_REGIONS[name] for name in REGIONS]
        mean = (
            np.array([[c.mean_max_k] for c in climate])
            + np.array([[c.season_k] for c in climate]) * season
        )
        self._max_k = (
            mean
            + 2.6 * _smooth(generator.standard_normal(shape), 0.6)
            + HEATWAVE_WARMING_K * self._events[0]
        )
        self._min_k = self._max_k - 8.0 - 2.0 * np.abs(generator.standard_normal(shape))
        self._other = generator.uniform(size=(len(REGIONS), DAYS, 4))
        self._demand = self._draw_demand(generator, climate)

    @staticmethod
    def _draw_events(
        generator: np.random.Generator, months: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        drawn = generator.uniform(size=(len(EVENT_KINDS), len(REGIONS), DAYS))
        chance = np.array(
            [[[kind.chance * (month in kind.months) for month in months]] for kind in EVENT_KINDS]
        )
        return np.asarray(drawn < chance)

    def _draw_demand(self, generator: np.random.Generator, climate: Sequence[Region]) -> FloatArray:
        hours = np.arange(PERIODS_PER_DAY) / 2
        morning = np.exp(-(((hours - 8.0) / 2.0) ** 2))
        evening = np.exp(-(((hours - 18.5) / 2.4) ** 2))
        night = np.exp(-(((hours - 3.5) / 3.0) ** 2))
        shape = 0.97 + 0.08 * morning + 0.16 * evening - 0.14 * night
        weekday = np.array([(FIRST_DAY + timedelta(days=d)).weekday() for d in range(DAYS)])
        week = np.where(weekday == 6, 0.91, np.where(weekday == 5, 0.94, 1.0))
        afternoon = np.exp(-(((hours - 16.0) / 3.5) ** 2))
        chilly = 0.6 * morning + evening
        effects = np.array([kind.effect for kind in EVENT_KINDS])
        event = np.einsum("k,krd->rd", effects, self._events.astype(np.float64))
        rows = []
        for index, region in enumerate(climate):
            hot = np.maximum(self._max_k[index] - COMFORT_HIGH_K, 0.0)[:, None]
            cold = np.maximum(COMFORT_LOW_K - self._max_k[index], 0.0)[:, None]
            noise = _smooth(generator.standard_normal((1, DAYS * PERIODS_PER_DAY)), 0.97)[
                0
            ].reshape(DAYS, PERIODS_PER_DAY)
            level = region.base_mw * (
                week[:, None] * shape * (1 + event[index][:, None]) + 0.012 * noise
            )
            load = (
                region.cooling_mw_per_k * hot * afternoon + region.heating_mw_per_k * cold * chilly
            )
            rows.append(level + load)
        return np.stack(rows)

    def demand(self, region: str, day: date) -> FloatArray:
        """Demand in MW of the 48 half-hours that start on ``day`` (NEM time)."""
        return np.asarray(self._demand[REGIONS.index(region), _index(day)])

    def forecast_error(self, region: str, day: date) -> FloatArray:
        """Error in MW (48) of the synthetic day-ahead forecast: small, autocorrelated, the same on every call."""
        generator = np.random.default_rng([SEED, REGIONS.index(region), _index(day)])
        noise = _smooth(generator.standard_normal((1, PERIODS_PER_DAY)), 0.8)[0]
        return np.asarray(0.02 * WORLD_REGIONS[region].base_mw * noise)

    def events(self, day: date) -> list[Event]:
        """Events of a day, by kind and region."""
        at = _index(day)
        return [
            Event(day=day, region=region, kind=kind.name)
            for k, kind in enumerate(EVENT_KINDS)
            for r, region in enumerate(REGIONS)
            if self._events[k, r, at]
        ]

    def temperatures_k(self, region: str, day: date) -> tuple[float, float]:
        """Minimum and maximum of a day."""
        at = REGIONS.index(region), _index(day)
        return float(self._min_k[at]), float(self._max_k[at])

    def weather(self, day: date) -> Iterator[tuple[str, tuple[float, ...]]]:
        """State and its eight values in the order of the weather table."""
        at = _index(day)
        for index, region in enumerate(REGIONS):
            low, high = self.temperatures_k(region, day)
            wind, humidity, pressure, rain = self._other[index, at]
            values = (2 + 9 * wind, 30 + 60 * humidity, 1003 + 25 * pressure)
            early, late = low + 0.35 * (high - low), high - 1.2
            wet = 12 * max(0.0, float(rain) - 0.7)
            yield (
                region.removesuffix("1"),
                (low, high, *(float(value) for value in values), early, late, wet),
            )

    @staticmethod
    def weather_days() -> Iterator[date]:
        """Every day the sample writes weather for."""
        for first, last in WEATHER_SPANS:
            yield from days(first, last)


def days(first: date, last: date) -> Iterator[date]:
    """Every day from ``first`` to ``last``, both included."""
    for offset in range((last - first).days + 1):
        yield first + timedelta(days=offset)


def _index(day: date) -> int:
    at = (day - FIRST_DAY).days
    if not 0 <= at < DAYS:
        raise ValueError(f"the sample world has no day {day}; it runs {DAYS} days from {FIRST_DAY}")
    return at


def _smooth(white: FloatArray, rho: float) -> FloatArray:
    """First-order autoregression with unit variance along the last axis, by its truncated moving average."""
    length = min(white.shape[-1], int(np.ceil(np.log(1e-4) / np.log(rho))))
    kernel = np.sqrt(1 - rho**2) * rho ** np.arange(length)
    return np.stack([np.convolve(row, kernel)[: row.shape[0]] for row in white])
