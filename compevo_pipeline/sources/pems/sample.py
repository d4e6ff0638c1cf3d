"""Synthetic PeMS station-hour months in the clearinghouse's own format, for the sample mode.

What belongs here: making the bytes. What does not: reading them (``pems`` does, with the parser of the real files).
Three invented stations, January to March 2016: commuter peaks on weekdays, flat weekends, a slow drift and noise from
a seeded generator, a few imputed and a few blank hours, and no row for the hour that daylight saving skips.
"""

import gzip
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np

STATIONS = (400001, 400045, 401234)
MONTHS = ((2016, 1), (2016, 2), (2016, 3))
_SEED = 862
_SKIPPED = datetime(2016, 3, 13, 2)
_LANES = 4


def station_hour_months() -> Iterator[tuple[str, bytes]]:
    """Yield name and gzipped bytes of each month, the same on every call."""
    generator = np.random.default_rng(_SEED)
    for year, month in MONTHS:
        lines = [
            _line(hour, station, index, generator)
            for hour in _hours(year, month)
            for index, station in enumerate(STATIONS)
        ]
        content = ("\n".join(lines) + "\n").encode()
        yield f"d04_text_station_hour_{year}_{month:02d}.txt.gz", gzip.compress(content, mtime=0)


def _hours(year: int, month: int) -> Iterator[datetime]:
    hour = datetime(year, month, 1)
    while hour.month == month:
        if hour != _SKIPPED:
            yield hour
        hour += timedelta(hours=1)


def _line(hour: datetime, station: int, index: int, generator: np.random.Generator) -> str:
    occupancy = _occupancy(hour, index, generator)
    draw = generator.random()
    percent = 0 if draw < 0.01 else int(generator.integers(60, 101))
    blank = draw > 0.998
    speed = 67.0 - 90.0 * occupancy
    flow = round(occupancy * 30_000)
    total = ("", "", "") if blank else (f"{flow}", f"{occupancy:.4f}", f"{speed:.1f}")
    lane = (f"{flow // _LANES}", f"{occupancy:.4f}", f"{speed:.1f}")
    cells = [
        *(
            hour.strftime("%m/%d/%Y %H:%M:%S"),
            str(station),
            "4",
            "101",
            "NS"[index % 2],
            "ML",
            ".415",
        ),
        *(str(_LANES * 120), str(percent), *total, *("0",) * 6),
        *(lane * _LANES),
        *("",) * 3 * (8 - _LANES),
    ]
    return ",".join(cells)


def _occupancy(hour: datetime, index: int, generator: np.random.Generator) -> float:
    clock = hour.hour + 0.5
    workday = hour.weekday() < 5
    morning = np.exp(-(((clock - 8.0 - 0.3 * index) / 1.3) ** 2)) * (0.16 if workday else 0.01)
    evening = np.exp(-(((clock - 17.3) / 1.8) ** 2)) * (0.09 if workday else 0.02)
    midday = 0.045 * np.exp(-(((clock - 13.0) / 4.5) ** 2))
    drift = 1.0 + 0.1 * np.sin(hour.timetuple().tm_yday / 14.0 + index)
    noise = generator.normal(1.0, 0.08)
    return float(np.clip((0.005 + morning + evening + midday) * drift * noise, 0.0, 1.0))
