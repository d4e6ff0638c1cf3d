"""PRICE_AND_DEMAND months: spellings, five-minute rows, and bad cells by line."""

from datetime import UTC, datetime

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo import parse_tables
from tests.support.sources import raw

HEADER = "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE"
NAME = "PRICE_AND_DEMAND_202001_VIC1.csv"


def rows(*cells, quote="", region="VIC1"):
    return [
        f"{region},{quote}{stamp}{quote},{demand},{price},TRADE" for stamp, demand, price in cells
    ]


def parse(lines, *, end="\n", header=HEADER, **options):
    content = "".join(line + end for line in [header, *lines])
    return validate_series(
        parse_tables.parse_price(raw(NAME, content, "aemo_price_and_demand"), **options)
    )


def demand(frame):
    return frame.filter(pl.col("variable") == "demand_mw").sort("start_utc")


HALF_HOURS = [("2020/01/01 00:30:00", "5000.1", "-20"), ("2020/01/01 01:00:00", "4900", "31.25")]


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("seconds", [True, False])
def test_an_interval_end_in_nem_time_becomes_its_start_in_utc_in_every_spelling(
    quote, end, seconds
):
    cells = [(stamp if seconds else stamp[:-3], *rest) for stamp, *rest in HALF_HOURS]
    frame = parse(rows(*cells, quote=quote), end=end)
    found = demand(frame)
    assert found["start_utc"].to_list() == [
        datetime(2019, 12, 31, 14, 0, tzinfo=UTC), datetime(2019, 12, 31, 14, 30, tzinfo=UTC)
    ]  # fmt: skip
    assert found["value"].to_list() == [5000.1, 4900.0]
    prices = frame.filter(pl.col("series_id") == "AEMO/RRP/VIC1")
    assert prices["value"].to_list() == [-20.0, 31.25]
    assert prices["unit"].unique().to_list() == ["AUD/MWh"]


def five_minutes(count, first_minute=5):
    return [
        (f"2021/10/01 {minute // 60:02d}:{minute % 60:02d}:00", str(100 + index), str(index))
        for index, minute in enumerate(range(first_minute, first_minute + 5 * count, 5))
    ]


def test_six_five_minute_rows_become_the_half_hour_that_ends_with_the_last():
    found = demand(parse(rows(*five_minutes(12))))
    assert found["start_utc"].to_list() == [
        datetime(2021, 9, 30, 14, 0, tzinfo=UTC), datetime(2021, 9, 30, 14, 30, tzinfo=UTC)
    ]  # fmt: skip
    assert found["value"].to_list() == [pytest.approx(102.5), pytest.approx(108.5)]


def test_a_half_hour_with_five_of_six_parts_at_the_end_of_a_growing_month_is_nulled_and_flagged():
    found = demand(parse(rows(*five_minutes(11))))
    assert found["value"].to_list() == [pytest.approx(102.5), None]
    assert found["flag"].to_list() == ["observed", "nulled:incomplete-half-hour"]


def test_a_missing_five_minute_row_is_an_error_unless_gaps_are_tolerated():
    cells = five_minutes(12)
    del cells[3]
    with pytest.raises(
        SchemaDrift, match=r"line 5: SETTLEMENTDATE 2021-10-01 00:25:00 of VIC1 .* tolerate_gaps"
    ):
        parse(rows(*cells))
    assert demand(parse(rows(*cells), tolerate_gaps=True))["value"].to_list() == [
        None,
        pytest.approx(108.5),
    ]
