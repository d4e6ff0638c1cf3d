"""Synthetic PeMS station-hour months in the clearinghouse's own format, for the sample mode.

What belongs here: making the bytes. What does not: reading them (the source's parser does, with the
parser of the real files).

Three invented stations, January to March 2016: commuter peaks on weekdays, flat weekends, a slow
drift and noise from a seeded generator, a few imputed and a few blank hours, and no row for the
hour that daylight saving skips.
"""

import gzip
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np

STATIONS = (400001, 400045, 401234)
MONTHS = ((2016, 1), (2016, 2), (2016, 3))

_SEED = 862
_SKIPPED_HOUR = datetime(2016, 3, 13, 2)  # noqa: DTZ001  # local: daylight saving starts
_LANES = 4
_LANE_COLUMNS = 8
_SAMPLES_PER_LANE = 120  # 30-second samples of an hour
_IMPUTED_SHARE = 0.01
_BLANK_SHARE = 0.002


def make_station_hour_files() -> Iterator[tuple[str, bytes]]:
    """Yield name and gzipped bytes of each month, the same on every call."""
    generator = np.random.default_rng(_SEED)
    for year, month in MONTHS:
        lines = [
            _make_line(hour, station, index, generator)
            for hour in _hours_of(year, month)
            for index, station in enumerate(STATIONS)
        ]
        content = ("\n".join(lines) + "\n").encode()

        # mtime=0: gzip would write the current time into the header otherwise.
        yield f"d04_text_station_hour_{year}_{month:02d}.txt.gz", gzip.compress(content, mtime=0)


def _hours_of(year: int, month: int) -> Iterator[datetime]:
    hour = datetime(year, month, 1)  # noqa: DTZ001  # local, as PeMS writes it
    while hour.month == month:
        if hour != _SKIPPED_HOUR:
            yield hour
        hour += timedelta(hours=1)


def _make_line(hour: datetime, station: int, index: int, generator: np.random.Generator) -> str:
    """Write one of the 42-column lines."""
    occupancy = _draw_occupancy(hour, index, generator)
    draw = generator.random()
    pct_observed = 0 if draw < _IMPUTED_SHARE else int(generator.integers(60, 101))
    is_blank = draw > 1 - _BLANK_SHARE

    flow = round(occupancy * 30_000)
    speed_mph = f"{67.0 - 90.0 * occupancy:.1f}"
    total = ("", "", "") if is_blank else (f"{flow}", f"{occupancy:.4f}", speed_mph)
    lane = (f"{flow // _LANES}", f"{occupancy:.4f}", speed_mph)

    place = (str(station), "4", "101", "NS"[index % 2], "ML", ".415")
    samples = (str(_LANES * _SAMPLES_PER_LANE), str(pct_observed))
    delays, absent = ("0",) * 6, ("",) * 3 * (_LANE_COLUMNS - _LANES)
    lanes = (*(lane * _LANES), *absent)
    return ",".join((f"{hour:%m/%d/%Y %H:%M:%S}", *place, *samples, *total, *delays, *lanes))


def _draw_occupancy(hour: datetime, index: int, generator: np.random.Generator) -> float:
    """Draw an occupancy from 0 to 1 for the hour at station number ``index``."""
    clock = hour.hour + 0.5
    is_workday = hour.weekday() < 5

    morning = np.exp(-(((clock - 8.0 - 0.3 * index) / 1.3) ** 2)) * (0.16 if is_workday else 0.01)
    evening = np.exp(-(((clock - 17.3) / 1.8) ** 2)) * (0.09 if is_workday else 0.02)
    midday = 0.045 * np.exp(-(((clock - 13.0) / 4.5) ** 2))
    drift = 1.0 + 0.1 * np.sin(hour.timetuple().tm_yday / 14.0 + index)

    noise = generator.normal(1.0, 0.08)
    return float(np.clip((0.005 + morning + evening + midday) * drift * noise, 0.0, 1.0))
