"""A day's forecast in a line for each series: mean, band, peak, change, what was published.

What belongs here: these numbers, from the sealed record. What does not: tables and pictures of them
(the command line, ``report``), the record (``compevo_core.forecast.issued``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import floor, log10

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.forecast.issued import METHOD, PUBLISHED, IssuedForecast

BAND_80 = (0.1, 0.9)
BAND_95 = (0.025, 0.975)
"""Quantiles that bound what 80 and 95 % of the truths are expected to lie between."""

_DIGITS = 4  # of the largest number of a column


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
