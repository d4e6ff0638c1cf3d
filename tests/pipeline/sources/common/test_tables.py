"""A file holds what its name says, or it is refused and asked for again."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo import names
from compevo_pipeline.sources.common.tables import Period, check_periods, expect_month
from compevo_pipeline.sources.pems import source as pems
from tests.support.sources import raw
from tests.support.store_workers import series

FIRST = datetime(2026, 6, 30, 14, tzinfo=UTC)  # midnight of 1 July, NEM time
DAY = timedelta(days=1)
NEWER = "PUBLIC_ARCHIVE%2523DEMANDOPERATIONALACTUAL%2523FILE01%2523202607010000.CSV"
REPORT = "PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH_202607191730_20260719173007.CSV"
FORECAST = "PUBLIC_FORECAST_OPERATIONAL_DEMAND_HH_202607181730_20260718170104.CSV"


def test_a_share_may_lie_beyond():
    period = Period(first=FIRST, end=FIRST + DAY, most_beyond=0.5)

    def check(*days):
        file, starts = raw("a.csv", ""), [FIRST + day * DAY for day in days]
        frame = series(values=days, source=file.label).with_columns(start_utc=pl.Series(starts))
        check_periods(frame, [file], lambda _: [period])

    check(0, 3)
    with pytest.raises(SchemaDrift):
        check(0, 3, 4)


def nem(*moment):
    return datetime(*moment, tzinfo=ZoneInfo("Australia/Brisbane"))


@pytest.mark.parametrize(
    ("name", "first", "end"),
    [
        ("PRICE_AND_DEMAND_202607_NSW1.csv", nem(2026, 7, 1), nem(2026, 8, 1)),
        ("PUBLIC_HISTDEMAND_20190101_0000000302837680.csv", nem(2019, 1, 1), nem(2019, 1, 2)),
        ("2026-02-16.json", nem(2026, 2, 16), nem(2026, 2, 17)),
        (NEWER, nem(2026, 7, 1) - DAY, nem(2026, 8, 1) + DAY),
        (REPORT, nem(2026, 7, 19, 17), nem(2026, 7, 19, 17, 30)),
        (FORECAST, nem(2026, 7, 18, 17), nem(2026, 7, 28, 17, 30)),
        ("PUBLIC_ROOFTOP_PV_FORECAST_20260718170000_0.CSV", nem(2026, 7, 18, 16, 30), None),
    ],
)
def test_aemos_names_state_a_span(name, first, end):
    period, *others = names.read_periods(raw(name, ""))
    assert [one.column for one in others] == (["available_at"] if "FORECAST" in name else [])
    assert period.first == first
    assert end is None or period.end == end
    assert period.entity == ("NSW1" if "NSW1" in name else "")


@pytest.mark.parametrize(
    "name",
    [
        "totaldemand_nsw.csv",
        f"{names.ACTUAL_REPORT}_20260712.zip",  # a week of reports, each with a name of its own
        f"{names.ACTUAL_REPORT}_99991231.zip",
        "PRICE_AND_DEMAND_202613_NSW1.csv",
    ],
)
def test_other_names_state_nothing(name):
    assert names.read_periods(raw(name, "")) == []


def test_pems_periods_follow_the_local_clock():
    (month,) = pems.read_periods(raw("d04_text_station_hour_2026_03.txt.gz", ""))
    assert month == expect_month(2026, 3, ZoneInfo("America/Los_Angeles"))
    assert month.end - month.first == 31 * DAY - timedelta(hours=1)  # daylight saving begins
    (day,) = pems.read_periods(raw("d04_text_station_5min_2026_03_08.txt.gz", ""))
    assert day.end - day.first == timedelta(hours=23)
