"""One synthetic world, so that electricity, weather and news of the sample mode agree.

What belongs here: invented temperatures, events and demand of five regions, 2018 to 2026, from a
fixed seed. What does not: any publisher's format (``aemo``, ``news2forecast`` in this folder).
Nothing here is an observation.

Demand has a daily and weekly shape, a regional scale, cooling and heating load, autocorrelated
noise, and the effect of events that a news item announces the day before: power outages, and
industry that works more. Any change to the order of random draws changes every sample file.

Shapes: R regions, D days, P half-hours of a day (48), K event kinds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import NamedTuple

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_pipeline.sources.common.nem import PERIODS_PER_DAY, REGIONS

FIRST_DAY = date(2018, 1, 1)
DAYS = 3287
SEED = 20191001
WEATHER_SPANS = ((date(2019, 9, 25), date(2021, 2, 5)), (date(2026, 2, 10), date(2026, 4, 2)))
"""Days for which the sample writes weather: those around its demand files."""

COMFORT_LOW_K = 289.0
COMFORT_HIGH_K = 297.0

_DAYS_PER_YEAR = 365.25
_HOTTEST_DAY = 20  # of the year: late January, in the southern hemisphere


class Region(NamedTuple):
    """Scale and climate of one synthetic region, at the real one's orders of magnitude."""

    base_mw: float
    mean_max_k: float
    season_k: float
    cooling_mw_per_k: float
    heating_mw_per_k: float


WORLD_REGIONS = {
    "NSW1": Region(7900, 296.0, 5.5, 260, 130),
    "QLD1": Region(6200, 299.5, 3.5, 190, 60),
    "SA1": Region(1350, 295.5, 6.5, 75, 28),
    "TAS1": Region(1100, 290.5, 4.5, 6, 22),
    "VIC1": Region(4900, 293.5, 6.5, 210, 75),
}

EVENT_EFFECTS = {"power outages": -0.055, "industrial production": 0.055}
"""Change of demand all day, as a share of it, by the topic of the news, which a logic can name."""

EVENT_CHANCE = 0.17
"""Of each kind on one day in one region, independent of the day before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event on one day in one region; its news item appears the day before."""

    day: date
    region: str
    topic: str


class SampleWorld:
    """The synthetic world; two instances are equal, value by value."""

    def __init__(self) -> None:
        """Draw events (K, R, D), weather (R, D) and demand (R, D, P) in MW."""
        generator = np.random.default_rng(SEED)
        shape = (len(REGIONS), DAYS)
        climate = [WORLD_REGIONS[name] for name in REGIONS]

        self._events_KRD = generator.uniform(size=(len(EVENT_EFFECTS), *shape)) < EVENT_CHANCE

        # Maximum temperatures: a yearly cosine and autocorrelated weather.
        phase = 2 * np.pi * (np.arange(DAYS) % _DAYS_PER_YEAR - _HOTTEST_DAY) / _DAYS_PER_YEAR
        mean_max = np.array([[region.mean_max_k] for region in climate])
        season = np.array([[region.season_k] for region in climate]) * np.cos(phase)
        weather = 2.6 * _smooth(generator.standard_normal(shape), 0.6)
        self._max_k_RD = mean_max + season + weather

        # Nights are at least eight degrees cooler.
        self._min_k_RD = self._max_k_RD - 8.0 - 2.0 * np.abs(generator.standard_normal(shape))
        self._other_RD4 = generator.uniform(size=(*shape, 4))
        self._demand_RDP = self._draw_demand(generator, climate)

    def _draw_demand(self, generator: np.random.Generator, climate: Sequence[Region]) -> FloatArray:
        """Draw demand (R, D, P) in MW for the temperatures and events already drawn."""
        hours = np.arange(PERIODS_PER_DAY) / 2
        morning = np.exp(-(((hours - 8.0) / 2.0) ** 2))
        afternoon = np.exp(-(((hours - 16.0) / 3.5) ** 2))
        evening = np.exp(-(((hours - 18.5) / 2.4) ** 2))
        night = np.exp(-(((hours - 3.5) / 3.0) ** 2))
        day_shape = 0.97 + 0.08 * morning + 0.16 * evening - 0.14 * night

        # Sundays are quieter than Saturdays, and both than weekdays.
        weekday = np.array([(FIRST_DAY + timedelta(days=d)).weekday() for d in range(DAYS)])
        week_shape = np.where(weekday == 6, 0.91, np.where(weekday == 5, 0.94, 1.0))

        effects = np.array([*EVENT_EFFECTS.values()])
        event_RD = np.einsum("k,krd->rd", effects, self._events_KRD.astype(np.float64))

        demand = []
        for index, region in enumerate(climate):
            hot_k = np.maximum(self._max_k_RD[index] - COMFORT_HIGH_K, 0.0)[:, None]
            cold_k = np.maximum(COMFORT_LOW_K - self._max_k_RD[index], 0.0)[:, None]

            # The noise runs through midnight: it is drawn for all half-hours at once.
            noise = _smooth(generator.standard_normal((1, DAYS * PERIODS_PER_DAY)), 0.97)[0]
            noise = noise.reshape(DAYS, PERIODS_PER_DAY)

            share = week_shape[:, None] * day_shape * (1 + event_RD[index][:, None])
            level = region.base_mw * (share + 0.012 * noise)
            cooling = region.cooling_mw_per_k * hot_k * afternoon
            heating = region.heating_mw_per_k * cold_k * (0.6 * morning + evening)
            demand.append(level + (cooling + heating))

        return np.stack(demand)

    def demand(self, region: str, day: date) -> FloatArray:
        """Return the demand in MW of the 48 half-hours that start on ``day`` (NEM time)."""
        return np.asarray(self._demand_RDP[REGIONS.index(region), _index_of(day)])

    def forecast_error(self, region: str, day: date) -> FloatArray:
        """Return the error in MW (48) of the synthetic day-ahead forecast; equal on every call."""
        # Seeded by region and day: the error does not depend on which days were asked for before.
        generator = np.random.default_rng([SEED, REGIONS.index(region), _index_of(day)])
        noise = _smooth(generator.standard_normal((1, PERIODS_PER_DAY)), 0.8)[0]
        return np.asarray(0.02 * WORLD_REGIONS[region].base_mw * noise)

    def events(self, day: date) -> list[Event]:
        """Return the events of a day, by kind and region."""
        at = _index_of(day)
        return [
            Event(day=day, region=region, topic=topic)
            for k, topic in enumerate(EVENT_EFFECTS)
            for r, region in enumerate(REGIONS)
            if self._events_KRD[k, r, at]
        ]

    def weather(self, day: date) -> Iterator[tuple[str, tuple[float, ...]]]:
        """Yield state and its eight values, in the order of the published weather table."""
        at = _index_of(day)
        for index, region in enumerate(REGIONS):
            min_k, max_k = float(self._min_k_RD[index, at]), float(self._max_k_RD[index, at])
            wind, humidity, pressure, rain = self._other_RD4[index, at]

            measured = (2 + 9 * wind, 30 + 60 * humidity, 1003 + 25 * pressure)
            morning_k = min_k + 0.35 * (max_k - min_k)
            afternoon_k = max_k - 1.2
            rain_mm = 12 * max(0.0, float(rain) - 0.7)
            values = (min_k, max_k, *map(float, measured), morning_k, afternoon_k, rain_mm)
            yield region.removesuffix("1"), values


def days_between(first: date, last: date) -> Iterator[date]:
    """Yield every day from ``first`` to ``last``, both included."""
    for offset in range((last - first).days + 1):
        yield first + timedelta(days=offset)


def _index_of(day: date) -> int:
    index = (day - FIRST_DAY).days
    if not 0 <= index < DAYS:
        raise ValueError(f"the sample world has no day {day}; it runs {DAYS} days from {FIRST_DAY}")

    return index


def _smooth(white: FloatArray, rho: float) -> FloatArray:
    """Make white noise a first-order autoregression of unit variance along the last axis.

    The moving average that represents it is cut where its weights fall below 1e-4.
    """
    length = min(white.shape[-1], int(np.ceil(np.log(1e-4) / np.log(rho))))
    kernel = np.sqrt(1 - rho**2) * rho ** np.arange(length)
    return np.stack([np.convolve(row, kernel)[: row.shape[0]] for row in white])
