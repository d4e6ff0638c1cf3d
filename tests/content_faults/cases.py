"""Faults of content: files in a publisher's own format that say what cannot be so.

What belongs here: one line a fault, with what must become of it. What does not: publishers
(``worlds``), the check (``test_content_faults``). Faults of form are in ``tests/fuzz``.
"""

import json
from dataclasses import dataclass
from datetime import date, timedelta

from tests.content_faults import worlds
from tests.content_faults.worlds import (
    ANSWERS,
    BITCOIN,
    DAY,
    EXCHANGE,
    HISTDEMAND,
    NEWS,
    PRICES,
    QUARTER,
    RATES,
    REPORTS,
    RUN,
    TRAFFIC,
    WEATHER,
    World,
    gal_file,
    histdemand_file,
    page_file,
    price_file,
    price_of,
    rates_file,
    run_file,
    station_file,
    usual,
)
from tests.support import nemweb
from tests.support.nemweb import HALF_HOUR

BEYOND = "its name promises rows"
BOUNDS = "outside the bounds of"
WAITS = "known value(s) would change"
LEVEL = "times the level of the days before"
ORDER = "below a lower quantile of the same issue"
A_DAY = timedelta(days=1)
AN_HOUR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        world: the publisher.
        role: which of its files is damaged.
        name: what is wrong.
        content: the damaged bytes.
        says: what the ledger's note says; :data:`WAITS` where a second fetch may confirm it.
        changed: known values that the file may change at once, as few revisions may.
    """

    world: World
    role: str
    name: str
    content: bytes
    says: str
    changed: int = 0


def _list(world, role, faults):
    """Return the faults of one file; of a file made by a builder the content alone counts."""
    return [
        Fault(
            world=world,
            role=role,
            name=name,
            content=made if isinstance(made, bytes) else made[1],
            says=says,
        )
        for name, (made, says) in faults.items()
    ]


def _scaled(factor, **kwargs):
    return price_file(days=4, level=lambda step: factor * usual(step), **kwargs)


def _dates_swapped():
    return price_file(days=4)[1].replace(b"2026/07/02", b"2026/02/07")


def _without_a_day():
    rows = price_file(days=4)[1].split(b"\r\n")
    return b"\r\n".join(row for row in rows if b"2026/07/02" not in row)


_WHOLE = price_file(days=4)[1]
_CUT = price_file(days=1, level=lambda step: 8500.0 if step < 6 else usual(step))[1]
_PRICES = [
    *_list(
        PRICES,
        "NSW1",
        {
            "another region": (price_file("QLD1", days=4), BEYOND),
            "a year ago": (price_file(month=date(2025, 7, 1)), BEYOND),
            "next month": (price_file(month=date(2026, 8, 1)), BEYOND),
            "an hour early": (price_file(days=4, shift=-AN_HOUR), BEYOND),
            "day and month swapped": (_dates_swapped(), "comes"),
            "a day is missing": (_without_a_day(), "comes"),
            "every row twice": (_WHOLE + _WHOLE.partition(b"\n")[2], "is a duplicate"),
            "zeros": (_scaled(0), BOUNDS),
            "tenfold": (_scaled(10), BOUNDS),
            "one half-hour of -1 MW": (
                price_file(days=4, level=lambda step: -1 if step < 6 else usual(step)),
                f"{BOUNDS} demand_mw in NSW1",
            ),
            "prices of another currency unit": (price_file(days=4, price=-80500), BOUNDS),
            "doubled": (_scaled(1.7), WAITS),
            "an hour late": (price_file(days=4, level=lambda step: usual(step - 12)), WAITS),
        },
    ),
    *_list(
        PRICES,
        "TAS1",
        {
            "tenfold": (
                price_file("TAS1", days=4, level=lambda step: 10 * usual(step)),
                f"{BOUNDS} demand_mw in TAS1",
            )
        },
    ),
    Fault(
        world=PRICES,
        role="NSW1",
        name="cut at its first day, one value revised",
        content=_CUT,
        says=WAITS,
        changed=1,
    ),
]

_NEXT = DAY + 41 * HALF_HOUR


def _report(end, value=8000.0, **kwargs):
    """Return the zip of the next half-hour, whose report holds another time."""
    name = nemweb.actual(_NEXT)[0]
    inner = nemweb.actual(end, value, **kwargs)[1]
    return nemweb.pack((name.replace(".zip", ".CSV"), _read_only(inner)))


def _read_only(packed):
    ((_, content),) = worlds.unzip_all(packed)
    return content.decode()


def _edit(packed, old, new):
    ((name, content),) = worlds.unzip_all(packed)
    text = content.decode()
    assert old in text
    return nemweb.pack((name, text.replace(old, new)))


_GOOD = nemweb.actual(_NEXT)[1]
_ACTUALS = _list(
    REPORTS,
    "actual",
    {
        "another half-hour": (_report(DAY + 2 * HALF_HOUR, 1234.0), BEYOND),
        "the next half-hour": (_report(_NEXT + HALF_HOUR), BEYOND),
        "zeros": (_report(_NEXT, 0.0), BOUNDS),
        "tenfold": (_report(_NEXT, 80000.0), BOUNDS),
        "Tasmania tenfold": (_edit(_GOOD, ",1600.6", ",16006.0"), f"{BOUNDS} demand_mw in TAS1"),
        "New South Wales -1 MW": (_edit(_GOOD, ",8000.0", ",-1"), f"{BOUNDS} demand_mw in NSW1"),
        "an unknown region": (_edit(_GOOD, "TAS1", "WEM1"), "REGIONID is 'WEM1'"),
        "a region left out": (_edit(_GOOD, "D,OPERATIONAL_DEMAND,ACTUAL,3,TAS1", "C,"), "line"),
        "a forecast": (nemweb.forecast(DAY.replace(hour=18))[1], "FORECAST"),
    },
)

_AT = DAY.replace(hour=18)


def _issue(at=_AT, **kwargs):
    """Return the zip of the issue of six o'clock, which holds another one."""
    name = nemweb.forecast(_AT)[0]
    return nemweb.pack((name.replace(".zip", ".CSV"), _read_only(nemweb.forecast(at, **kwargs)[1])))


_SOLAR_AT = DAY.replace(hour=16) + A_DAY  # days that are over stand beside it


def _solar(at=_SOLAR_AT, factor=1.0):
    name = nemweb.rooftop(_SOLAR_AT)[0]
    return nemweb.pack(
        (name.replace(".zip", ".CSV"), _read_only(nemweb.rooftop(at, factor=factor)[1]))
    )


_FORECASTS = [
    *_list(
        REPORTS,
        "forecast",
        {
            "zeros": (_issue(value=0.0, spread=0.0), BOUNDS),
            "tenfold": (_issue(value=81000.0), BOUNDS),
            "Tasmania tenfold": (
                _edit(_issue(), ",1680.0,1620.0,1560.0", ",16800,16200,15600"),
                f"{BOUNDS} published in TAS1",
            ),
            "a third": (_issue(value=2600.0), LEVEL),
            "swapped quantiles": (_issue(spread=-300.0), ORDER),
            "tomorrow's issue": (_issue(_AT + A_DAY), BEYOND),
        },
    ),
    *_list(
        REPORTS,
        "rooftop",
        {
            "kilowatts": (_solar(factor=1000.0), BOUNDS),
            "another sign": (_solar(factor=-1.0), BOUNDS),
            "zeros": (_solar(factor=0.0), LEVEL),
            "tomorrow's issue": (_solar(_SOLAR_AT + A_DAY), BEYOND),
        },
    ),
]

_TODAY = date(2026, 7, 18)
_HISTDEMAND = [
    *_list(
        HISTDEMAND,
        "new",
        {
            "another day": (histdemand_file(date(2026, 7, 17)), BEYOND),
            "zeros": (histdemand_file(_TODAY, lambda _: 0.0), BOUNDS),
            "tenfold": (histdemand_file(_TODAY, lambda step: 10 * usual(step)), BOUNDS),
            "a region twice": (
                histdemand_file(_TODAY, regions=("NSW1", "NSW1", "QLD1")),
                "is a duplicate",
            ),
        },
    ),
    *_list(
        HISTDEMAND,
        "again",
        {"a third more": (histdemand_file(date(2026, 7, 17), lambda s: 1.3 * usual(s)), WAITS)},
    ),
]


def _wave(hour):
    return 0.05 + 0.04 * worlds.math.sin(hour / 4)


_TRAFFIC = [
    *_list(
        TRAFFIC,
        "new",
        {
            "last month": (station_file(9), BEYOND),
            "another district": (station_file(10, district=7), "district 7, not 4"),
            "a day of the month before": (station_file(10, shift=-24), BEYOND),
        },
    ),
    *_list(
        TRAFFIC,
        "again",
        {
            "percent": (station_file(9, occupancy=lambda hour: 100 * _wave(hour)), WAITS),
            "an hour late": (station_file(9, occupancy=lambda hour: _wave(hour - 1)), WAITS),
        },
    ),
]

_EXCHANGE = [
    *_list(
        EXCHANGE,
        "new",
        {
            "other days": (rates_file(date(2026, 7, 7), start=date(2025, 7, 7)), BEYOND),
            "upside down": (
                rates_file(date(2026, 7, 7), rates={k: 1 / v for k, v in RATES.items()}),
                BOUNDS,
            ),
            "pounds for Australian dollars": (
                rates_file(date(2026, 7, 7), rates=RATES | {"AUD": 0.8}),
                BOUNDS,
            ),
            "rates per dollar": (rates_file(date(2026, 7, 7), base="USD"), "a rate per USD"),
            "every day twice": (rates_file(date(2026, 7, 7), repeat=2), "is a duplicate"),
        },
    ),
    *_list(
        EXCHANGE,
        "again",
        {"another currency, as near": (rates_file(rates=RATES | {"AUD": 1.5, "CAD": 1.6}), WAITS)},
    ),
]

_BITCOIN = [
    *_list(
        BITCOIN,
        "price",
        {
            "zeros": (page_file("price", lambda _: 0), BOUNDS),
            "cents": (page_file("price", lambda n: 100 * price_of(n)), BOUNDS),
            "a day late": (page_file("price", lambda n: price_of(n - 1)), WAITS),
        },
    ),
    *_list(
        BITCOIN,
        "transactions",
        {
            "prices": (page_file("transactions", price_of), WAITS),
            "zeros": (page_file("transactions", lambda _: 0), BOUNDS),
        },
    ),
]

_WEATHER = _list(
    WEATHER,
    "run",
    {
        "yesterday's run": (run_file(RUN, first=RUN - A_DAY), BEYOND),
        "tomorrow's run": (run_file(RUN, first=RUN + A_DAY), BEYOND),
        "kelvin": (run_file(RUN, temperature_2m=(1.0, 273.15)), BOUNDS),
        "fahrenheit": (run_file(RUN, units={"temperature_2m": "°F"}), "is in '°F'"),
        "places in another order": (run_file(RUN, reverse=True), "degrees are not near"),
        "wind of another sign": (run_file(RUN, wind_speed_10m=(-1.0, 0.0)), BOUNDS),
        "no sun": (run_file(RUN, shortwave_radiation=(0.0, 0.0)), LEVEL),
        "radiation in joules": (run_file(RUN, shortwave_radiation=(3600.0, 0.0)), BOUNDS),
    },
)

_STAMP = QUARTER + timedelta(minutes=30)
_NEWS = [
    *_list(
        NEWS,
        "GAL",
        {
            "last week's pages": (gal_file(_STAMP, published=_STAMP - 7 * A_DAY), BEYOND),
            "next week's pages": (gal_file(_STAMP, published=_STAMP + 7 * A_DAY), BEYOND),
        },
    ),
    *_list(
        ANSWERS,
        "answer",
        {
            "another day": (worlds.answer_file(seen=QUARTER - 5 * A_DAY), BEYOND),
            "tomorrow": (worlds.answer_file(seen=QUARTER + A_DAY), BEYOND),
            "no article": (json.dumps({"articles": []}).encode(), "EmptyNewsAnswer"),
        },
    ),
]

FAULTS = [
    *_PRICES,
    *_ACTUALS,
    *_FORECASTS,
    *_HISTDEMAND,
    *_TRAFFIC,
    *_EXCHANGE,
    *_BITCOIN,
    *_WEATHER,
    *_NEWS,
]
