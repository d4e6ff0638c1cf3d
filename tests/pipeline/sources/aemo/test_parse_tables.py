"""C/I/D reports of HISTDEMAND and MMSDM: framing, footer, bad records."""

from datetime import UTC, datetime

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.aemo import parse_tables
from compevo_pipeline.sources.common.nem import REGIONS
from tests.support.sources import raw

HEAD = (
    "C,NEMP.WORLD,LFCST_HISTDEMAND,AEMO,PUBLIC,2019/01/02,02:00:01,0000000302837680,,"
    "0000000302837679"
)
INDEX = "I,DEMAND,HISTORIC,1,REGIONID,SETTLEMENTDATE,PERIODID,DEMAND"
NAME = "PUBLIC_HISTDEMAND_20190101_0000000302837680.csv"


def day(date="2019/01/01"):
    return [
        f'D,DEMAND,HISTORIC,1,{region},"{date} 00:00:00",{period},{1000 * index + period}'
        for index, region in enumerate(REGIONS)
        for period in range(1, 49)
    ]


def report(records, *, head=HEAD, index=INDEX, count=None):
    lines = [head, index, *records]
    lines.append(f'C,"END OF REPORT",{len(lines) + 1 if count is None else count}')
    return "".join(line + "\n" for line in lines)


def parse(content, **options):
    return validate_series(
        parse_tables.parse_histdemand(raw(NAME, content, "aemo_histdemand"), **options)
    )


def test_a_footer_that_counts_other_lines_means_the_file_is_cut():
    with pytest.raises(
        SchemaDrift,
        match=rf"{NAME}, line 242: the footer counts 243 lines, the file has 242; fetch",
    ):
        parse(report(day()[:-1], count=243))


def test_a_footer_with_a_number_of_thousands_of_digits_is_refused_by_name():
    with pytest.raises(SchemaDrift, match=rf"{NAME}, line 243: no END OF REPORT"):
        parse(report(day(), count="9" * 5000))


def test_of_days_that_are_read_together_the_one_at_fault_is_named():
    whole, cut = (
        raw(f"PUBLIC_HISTDEMAND_{number}.csv", report(records), "aemo_histdemand")
        for number, records in enumerate([day(), day()[:-1]])
    )
    # The same day in two files is no duplicate: precedence decides later.
    assert parse_tables.parse_histdemand(whole, whole).height == 480
    with pytest.raises(SchemaDrift, match=rf"^{cut.name}, line 241: VIC1 .* has 47 periods"):
        parse_tables.parse_histdemand(whole, cut)


def test_missing_periods_are_named_with_region_and_day_unless_tolerated():
    with pytest.raises(
        SchemaDrift, match=r"VIC1 on 2019-01-01 has 47 periods, not 48.*tolerate_gaps"
    ):
        parse(report(day()[:-1]))
    assert parse(report(day()[:-1]), tolerate_gaps=True).height == 239


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ('D,DEMAND,HISTORIC,1,NSW1,"2019/01/02 00:00:00",49,7515', r"line 243: PERIODID is 49"),
        ('D,DEMAND,HISTORIC,1,NSW1,"2019/01/02 00:00:00",1.5,7515', r"line 243: PERIODID is 1\.5"),
        ('D,DEMAND,HISTORIC,1,NSW2,"2019/01/02 00:00:00",1,7515', r"line 243: REGIONID is 'NSW2'"),
        ("I,DEMAND,FORECAST,1,REGIONID", r"line 243: expected a D record"),
    ],
)
def test_a_bad_record_is_named_with_file_and_line(record, match):
    with pytest.raises(SchemaDrift, match=f"{NAME}, {match}"):
        parse(report([*day(), record]))


def test_a_changed_index_record_is_named():
    with pytest.raises(SchemaDrift, match="line 2: no column DEMAND in the I record"):
        parse(
            report(
                day(),
                index=INDEX.replace(",DEMAND\n", "").replace("PERIODID,DEMAND", "PERIODID,LOAD"),
            )
        )
    with pytest.raises(SchemaDrift, match=r"line 2: expected the I record of DEMAND,HISTORIC"):
        parse(report(day(), index=INDEX.replace("HISTORIC", "FORECAST")))
    with pytest.raises(SchemaDrift, match="line 1: not a C record"):
        parse("REGION,SETTLEMENTDATE\nNSW1,2019\n")


DISPATCH = "PUBLIC_DVD_DISPATCHREGIONSUM_201912010000.CSV"
DISPATCH_INDEX = (
    "I,DISPATCH,REGIONSUM,4,SETTLEMENTDATE,RUNNO,REGIONID,INTERVENTION,TOTALDEMAND,NEWCOLUMN"
)


def dispatch(*records):
    content = report(
        [f"D,DISPATCH,REGIONSUM,4,{record}," for record in records],
        index=DISPATCH_INDEX,
        count=53733,
    )
    return validate_series(parse_tables.parse_mmsdm(raw(DISPATCH, content, "aemo_mmsdm")))


def stamps():
    return [f"2019/12/01 00:{minute:02d}:00" for minute in range(5, 35, 5)]


def test_dispatch_rows_doubled_by_an_intervention_count_once_and_new_columns_do_not_matter():
    rows = [f"{stamp},1,NSW1,{run},{600 + k}" for k, stamp in enumerate(stamps()) for run in (0, 1)]
    found = dispatch(*rows)
    assert found["value"].to_list() == [pytest.approx(602.5)]
    assert found["start_utc"].to_list() == [datetime(2019, 11, 30, 14, 0, tzinfo=UTC)]
    assert found["series_id"].to_list() == ["AEMO/TOTALDEMAND/NSW1"]


def test_one_dispatch_run_given_twice_is_an_error():
    with pytest.raises(SchemaDrift, match=r"line 4: .* is a duplicate"):
        dispatch(*[f"{stamps()[0]},1,NSW1,0,600"] * 2)


def test_trading_rows_are_half_hours_already():
    index = "I,TRADING,REGIONSUM,4,SETTLEMENTDATE,RUNNO,REGIONID,PERIODID,TOTALDEMAND"
    content = report(["D,TRADING,REGIONSUM,4,2019/12/03 17:00:00,1,NSW1,34,8402.62"], index=index)
    found = parse_tables.parse_mmsdm(
        raw("PUBLIC_DVD_TRADINGREGIONSUM_201912010000.CSV", content, "aemo_mmsdm")
    )
    assert found.select("start_utc", "value").rows() == [
        (datetime(2019, 12, 3, 6, 30, tzinfo=UTC), 8402.62)
    ]


HEADER = "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE"
MONTH = "PRICE_AND_DEMAND_202001_VIC1.csv"


def rows(*cells, quote="", region="VIC1"):
    return [
        f"{region},{quote}{stamp}{quote},{demand},{price},TRADE" for stamp, demand, price in cells
    ]


def parse_month(lines, *, end="\n", header=HEADER, **options):
    content = "".join(line + end for line in [header, *lines])
    return validate_series(
        parse_tables.parse_price(raw(MONTH, content, "aemo_price_and_demand"), **options)
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
    frame = parse_month(rows(*cells, quote=quote), end=end)
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
    found = demand(parse_month(rows(*five_minutes(12))))
    assert found["start_utc"].to_list() == [
        datetime(2021, 9, 30, 14, 0, tzinfo=UTC), datetime(2021, 9, 30, 14, 30, tzinfo=UTC)
    ]  # fmt: skip
    assert found["value"].to_list() == [pytest.approx(102.5), pytest.approx(108.5)]


def test_a_half_hour_with_five_of_six_parts_at_the_end_of_a_growing_month_is_nulled_and_flagged():
    found = demand(parse_month(rows(*five_minutes(11))))
    assert found["value"].to_list() == [pytest.approx(102.5), None]
    assert found["flag"].to_list() == ["observed", "nulled:incomplete-half-hour"]


def test_a_missing_five_minute_row_is_an_error_unless_gaps_are_tolerated():
    cells = five_minutes(12)
    del cells[3]
    with pytest.raises(
        SchemaDrift, match=r"line 5: SETTLEMENTDATE 2021-10-01 00:25:00 of VIC1 .* tolerate_gaps"
    ):
        parse_month(rows(*cells))
    assert demand(parse_month(rows(*cells), tolerate_gaps=True))["value"].to_list() == [
        None,
        pytest.approx(108.5),
    ]
