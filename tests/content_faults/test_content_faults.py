"""Each fault of content is refused or waits, nothing known is lost, and the file is asked again.

What belongs here: one line a fault, with what must become of it, and the check. What does not:
publishers (``worlds``). Faults of form are in ``tests/fuzz``.
"""

import contextlib
from dataclasses import dataclass
from datetime import date, timedelta

import polars as pl
import pytest

from compevo_core.errors import SourceError
from compevo_pipeline.defs.asset_checks import judge_known_values
from compevo_pipeline.sources.common.ledger import EntryState
from tests.content_faults import worlds
from tests.content_faults.worlds import RATES, RUN, rates_file, run_file, station_file, wave
from tests.support import nemweb
from tests.support.nemweb import HALF_HOUR, price_file, unzip_all, usual

BEYOND = "its name"
BOUNDS = "bounds of"
WAITS = "would change"
LEVEL = "times the level"
A_DAY = timedelta(days=1)
_WHOLE = price_file(days=4)[1]
_WITHOUT_A_DAY = b"\r\n".join(row for row in _WHOLE.split(b"\r\n") if b"2026/07/02" not in row)
_CUT = price_file(days=1, level=lambda step: 8500.0 if step < 6 else usual(step))
_NEXT = worlds.DAY + 41 * HALF_HOUR
_AT = worlds.DAY.replace(hour=18)
_SOLAR_AT = worlds.DAY.replace(hour=16) + A_DAY  # with past days next to it
_TODAY, _YESTERDAY = date(2026, 7, 18), date(2026, 7, 17)
_STAMP = worlds.QUARTER + timedelta(minutes=30)


@dataclass(frozen=True)
class Fault:
    """The damaged bytes of a publisher's file, and what the ledger's note says of them.

    It is :data:`WAITS` if a second fetch may confirm them; so many known values may change at once.
    """

    world: worlds.World
    role: str
    name: str
    content: bytes
    says: str
    changed: int = 0


def _price(level, region="NSW1"):
    return price_file(region, days=4, level=level)


def _put(made, place):
    """Return the zip of a report, which holds another one."""
    ((_, content),) = unzip_all(made[1])
    return nemweb.pack((place[0].replace(".zip", ".CSV"), content))


def _actual(*given):
    return _put(nemweb.actual(*given), nemweb.actual(_NEXT))


def _issue(at=_AT, **kwargs):
    return _put(nemweb.forecast(at, **kwargs), nemweb.forecast(_AT))


def _solar(at=_SOLAR_AT, factor=1.0):
    return _put(nemweb.rooftop(at, factor=factor), nemweb.rooftop(_SOLAR_AT))


def _edit(packed, old, new):
    ((name, content),) = unzip_all(packed)
    assert old in content.decode()
    return nemweb.pack((name, content.decode().replace(old, new)))


_GOOD = nemweb.actual(_NEXT)[1]

# By publisher and role: what is wrong, the file or its bytes, what the note says, what may change.
_TABLE = {
    (worlds.PRICES, "NSW1"): {
        "another region": (price_file("QLD1", days=4), BEYOND),
        "a year ago": (price_file(month=date(2025, 7, 1)), BEYOND),
        "next month": (price_file(month=date(2026, 8, 1)), BEYOND),
        "an hour early": (price_file(days=4, shift=-timedelta(hours=1)), BEYOND),
        "day and month swapped": (_WHOLE.replace(b"2026/07/02", b"2026/02/07"), "comes"),
        "a day is missing": (_WITHOUT_A_DAY, "comes"),
        "zeros": (_price(lambda step: 0.0), BOUNDS),
        "tenfold": (_price(lambda step: 10 * usual(step)), BOUNDS),
        "a tenth of -1 MW": (
            _price(lambda step: -1 if step % 60 < 6 else usual(step)),
            f"{BOUNDS} demand_mw in NSW1",
        ),
        "prices of another currency unit": (price_file(days=4, price=-80500), BOUNDS),
        "doubled": (_price(lambda step: 1.7 * usual(step)), WAITS),
        "an hour late": (_price(lambda step: usual(step - 12)), WAITS),
        "cut at its first day, one value revised": (_CUT, WAITS, 1),
    },
    (worlds.PRICES, "TAS1"): {
        "tenfold": (_price(lambda step: 10 * usual(step), "TAS1"), f"{BOUNDS} demand_mw in TAS1"),
    },
    (worlds.REPORTS, "actual"): {
        "another half-hour": (_actual(worlds.DAY + 2 * HALF_HOUR, 1234.0), BEYOND),
        "the next half-hour": (_actual(_NEXT + HALF_HOUR), BEYOND),
        "zeros": (_actual(_NEXT, 0.0), BOUNDS),
        "tenfold": (_actual(_NEXT, 80000.0), BOUNDS),
        "Tasmania tenfold": (_edit(_GOOD, ",1600.6", ",16006.0"), f"{BOUNDS} demand_mw in TAS1"),
        "New South Wales -1 MW": (_edit(_GOOD, ",8000.0", ",-1"), f"{BOUNDS} demand_mw in NSW1"),
        "an unknown region": (_edit(_GOOD, "TAS1", "WEM1"), "REGIONID is 'WEM1'"),
        "a forecast": (nemweb.forecast(worlds.DAY.replace(hour=18)), "FORECAST"),
    },
    (worlds.REPORTS, "forecast"): {
        "zeros": (_issue(value=0.0, spread=0.0), BOUNDS),
        "tenfold": (_issue(value=81000.0), BOUNDS),
        "Tasmania tenfold": (
            _edit(_issue(), ",1680.0,1620.0,1560.0", ",16800,16200,15600"),
            f"{BOUNDS} published in TAS1",
        ),
        "a third": (_issue(value=2600.0), LEVEL),
        "swapped quantiles": (_issue(spread=-300.0), "lower quantile"),
        "tomorrow's issue": (_issue(_AT + A_DAY), BEYOND),
    },
    (worlds.REPORTS, "rooftop"): {
        "kilowatts": (_solar(factor=1000.0), BOUNDS),
        "another sign": (_solar(factor=-1.0), BOUNDS),
        "zeros": (_solar(factor=0.0), LEVEL),
        "tomorrow's issue": (_solar(_SOLAR_AT + A_DAY), BEYOND),
    },
    (worlds.HISTDEMAND, "new"): {
        "another day": (worlds.histdemand_file(_YESTERDAY), BEYOND),
        "zeros": (worlds.histdemand_file(_TODAY, lambda _: 0.0), BOUNDS),
        "tenfold": (worlds.histdemand_file(_TODAY, lambda step: 10 * usual(step)), BOUNDS),
    },
    (worlds.HISTDEMAND, "again"): {
        "a third more": (worlds.histdemand_file(_YESTERDAY, lambda step: 1.3 * usual(step)), WAITS),
    },
    (worlds.TRAFFIC, "new"): {
        "last month": (station_file(9), BEYOND),
        "another district": (station_file(10, district=7), "district 7, not 4"),
        "a day of the month before": (station_file(10, shift=-24), BEYOND),
    },
    (worlds.TRAFFIC, "again"): {
        "percent": (station_file(9, occupancy=lambda hour: 100 * wave(hour)), WAITS),
        "an hour late": (station_file(9, occupancy=lambda hour: wave(hour - 1)), WAITS),
    },
    (worlds.EXCHANGE, "new"): {
        "other days": (rates_file(shift=-timedelta(weeks=52)), WAITS),
        "upside down": (rates_file(rates={k: 1 / v for k, v in RATES.items()}), BOUNDS),
        "pounds for Australian dollars": (rates_file(rates=RATES | {"AUD": 0.8}), BOUNDS),
    },
    (worlds.EXCHANGE, "again"): {
        "another currency, as near": (rates_file(rates=RATES | {"AUD": 1.5, "CAD": 1.6}), WAITS),
    },
    (worlds.BITCOIN, "price"): {
        "zeros": (worlds.page_file("price", lambda _: 0), BOUNDS),
        "cents": (worlds.page_file("price", lambda n: 100 * worlds.price_of(n)), BOUNDS),
        "a day late": (worlds.page_file("price", lambda n: worlds.price_of(n - 1)), WAITS),
    },
    (worlds.BITCOIN, "transactions"): {
        "prices": (worlds.page_file("transactions", worlds.price_of), WAITS),
        "zeros": (worlds.page_file("transactions", lambda _: 0), BOUNDS),
    },
    (worlds.WEATHER, "run"): {
        "yesterday's run": (run_file(RUN, first=RUN - A_DAY), BEYOND),
        "tomorrow's run": (run_file(RUN, first=RUN + A_DAY), BEYOND),
        "kelvin": (run_file(RUN, temperature_2m=(1.0, 273.15)), BOUNDS),
        "wind of another sign": (run_file(RUN, wind_speed_10m=(-1.0, 0.0)), BOUNDS),
        "no sun": (run_file(RUN, shortwave_radiation=(0.0, 0.0)), LEVEL),
        "radiation in joules": (run_file(RUN, shortwave_radiation=(3600.0, 0.0)), BOUNDS),
    },
    (worlds.NEWS, "GAL"): {
        "last week's pages": (worlds.gal_file(_STAMP, published=_STAMP - 7 * A_DAY), BEYOND),
        "next week's pages": (worlds.gal_file(_STAMP, published=_STAMP + 7 * A_DAY), BEYOND),
    },
    (worlds.ANSWERS, "answer"): {
        "another day": (worlds.answer_file(seen=worlds.QUARTER - 5 * A_DAY), BEYOND),
        "tomorrow": (worlds.answer_file(seen=worlds.QUARTER + A_DAY), BEYOND),
    },
}


def group_faults():
    """Refused faults of a file follow each other in one home; one that waits has its own."""
    groups = {}
    for (world, role), faults in _TABLE.items():
        for name, (made, says, *changed) in faults.items():
            content = made if isinstance(made, bytes) else made[1]
            group = f"{world.source} {role}{f': {name}' if says is WAITS else ''}"
            fault = Fault(world, role, name, content, says, *changed)
            groups.setdefault(group, []).append(fault)
    return groups


@pytest.mark.parametrize("faults", group_faults().values(), ids=group_faults())
def test_faults_are_refused_or_wait(faults, open_known):
    world, role = faults[0].world, faults[0].role
    home = open_known(world)
    before = world.read(home)
    name, good = world.files[role]
    for fault in faults:
        home.wait(hours=1)
        assert fault.content != good
        with contextlib.suppress(SourceError):
            world.deliver(home, [(name, fault.content)])
        entry = home.ledger.get(world.source, name)
        assert (entry.state, fault.says in entry.note) == (EntryState.FAILED, True), fault.name
        assert_all_is_known(fault, home, before)

    # Asked for again, the file without the fault is stored, and nothing waits any more.
    home.wait(hours=1)
    world.deliver(home, [(name, good)])
    assert home.ledger.get(world.source, name).state is EntryState.STORED
    assert home.workspace.series_store().read_waiting(world.dataset).is_empty()
    after = world.read(home)
    for kind, rows in before.items():
        known = rows.select(pl.exclude("fetched_at", "source"))
        kept = known.join(after[kind], on=known.columns, how="semi", nulls_equal=True)
        assert kept.height == known.height


def assert_all_is_known(fault, home, before):
    """Every row that was known is there, and none came to a series that is in doubt."""
    dataset = fault.world.dataset
    waiting = home.workspace.series_store().read_waiting(dataset)
    assert (waiting.height > 3) == (fault.says is WAITS), fault.name
    assert judge_known_values(home.workspace, dataset).passed == (fault.says is not WAITS)
    for kind, rows in fault.world.read(home).items():
        left = rows.join(before[kind], on=rows.columns, how="semi", nulls_equal=True)
        assert left.height == before[kind].height - fault.changed, fault.name
        known = before[kind]
        if waiting.height:
            rows = rows.filter(pl.col("series_id").is_in(waiting["series_id"].to_list()))
            known = known.filter(pl.col("series_id").is_in(rows["series_id"].to_list()))
        assert rows.height == known.height, fault.name


def test_few_values_out_of_bounds_are_nulled(open_known):
    home = open_known(worlds.PRICES)
    known = home.series(worlds.PRICES.dataset).filter(series_id="AEMO/TOTALDEMAND/NSW1")
    last = known["start_utc"].max()
    for days in (9, 14):
        home.wait(days=3)
        odd = price_file(days=days, level=lambda step: 100.0 if 900 <= step < 906 else usual(step))
        worlds.PRICES.deliver(home, [odd])
    assert home.ledger.get(worlds.PRICES.source, odd[0]).state is EntryState.STORED

    rows = home.series(worlds.PRICES.dataset).filter(series_id="AEMO/TOTALDEMAND/NSW1")
    odd = rows.filter(pl.col("flag") == "nulled:out-of-bounds")
    assert odd.height == 1 and odd["value"].to_list() == [None]
    later = rows.filter(pl.col("start_utc") > last)
    assert later.height > 400 and later["value"].null_count() == 1
    assert rows.join(known, on=known.columns, how="semi").height == known.height


def test_a_collapse_and_stuck_meter_are_nulled(open_known):
    prices = open_known(worlds.PRICES)
    prices.wait(hours=1)
    fallen = price_file(days=4, level=lambda step: 600.0 if 900 <= step < 906 else usual(step))
    worlds.PRICES.deliver(prices, [fallen])
    rows = prices.series("electricity").filter(series_id="AEMO/TOTALDEMAND/NSW1")
    assert rows.filter(pl.col("flag") != "observed")["flag"].to_list() == ["nulled:collapse"]

    reports = open_known(worlds.REPORTS)
    for number in range(41, 51):
        reports.wait(minutes=30)
        worlds.REPORTS.deliver(reports, [nemweb.actual(worlds.DAY + number * HALF_HOUR, 8123.0)])
    rows = reports.series("electricity-operational")
    last = rows.filter(series_id="AEMO/OPERATIONAL_DEMAND/NSW1").sort("start_utc").tail(10)
    # Five equal half-hours may be true.
    assert last["flag"].to_list() == ["observed"] * 5 + ["nulled:stuck"] * 5
