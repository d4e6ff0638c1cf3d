"""AEMO's files: precedence, C/I/D reports, operational demand, and what is refused."""

import json
import logging
import shutil
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.aemo import parse_operational, parse_tables
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.aemo.names import ACTUAL_REPORT, FORECAST_REPORT, ROOFTOP_REPORT
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.nem import REGIONS
from tests.fuzz.seeds import FILES
from tests.support import nemweb
from tests.support.nemweb import pack
from tests.support.sources import clock, raw

COLLECTED = (
    "datetime,load_act\n2016-01-01 00:00:00,1.0\n2016-01-01 00:30:00,2.0\n2016-01-01 01:00:00,3.0\n"
)
COLLECTION = raw("sa.csv", COLLECTED, "aemo_totaldemand_half_hourly")
PRICE = "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE\nSA1,2016/01/01 00:30:00,2.04,5,TRADE\n"
MADE = datetime(2026, 7, 18, 17, 1, 4)  # noqa: DTZ001 - NEM time, the instant of CREATED
DISPATCH = "PUBLIC_DVD_DISPATCHREGIONSUM_201912010000.CSV"
DISPATCH_INDEX = "I,DISPATCH,REGIONSUM,4,SETTLEMENTDATE,RUNNO,REGIONID,INTERVENTION,TOTALDEMAND,NEW"
HEADER = "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE"
MONTH = "PRICE_AND_DEMAND_202001_VIC1.csv"
HALF_HOURS = [("2020/01/01 00:30:00", "5000.1", "-20"), ("2020/01/01 01:00:00", "4900", "31.25")]
CREATED = datetime(2026, 7, 18, 7, 1, 4, tzinfo=UTC)
ACTUAL_NAME = f"{ACTUAL_REPORT}_202607190030_20260719003001.CSV"
FORECAST_NAME = f"{FORECAST_REPORT}_202607181730_20260718170104.CSV"
ROOFTOP_NAME = f"{ROOFTOP_REPORT}_20260718170000_0000000528134281.CSV"
DOCUMENT_NAME = "2026-02-19.json"
START = datetime(2026, 2, 18, 14, 0, tzinfo=UTC)


def test_aemos_file_wins_over_a_collection():
    raws = [COLLECTION, raw("p.csv", PRICE, "aemo_price_and_demand")]
    frame = aemo.parse_all(raws)

    assert frame.equals(aemo.parse_all(raws[::-1]))
    demand = frame.filter(variable="demand_mw").sort("start_utc")
    assert demand["value"].to_list() == [1.0, 2.04, 3.0]
    assert demand["start_utc"][0] == datetime(2015, 12, 31, 13, 30, tzinfo=UTC)
    assert frame.filter(variable="price_aud_per_mwh").height == 1


def test_a_value_wins_over_a_null():
    index = "I,DISPATCH,REGIONSUM,4,SETTLEMENTDATE,REGIONID,INTERVENTION,TOTALDEMAND"
    partial = report(["D,DISPATCH,REGIONSUM,4,2016/01/01 00:05:00,SA1,0,9"], index)
    raws = [raw("PUBLIC_DVD_DISPATCHREGIONSUM.CSV", partial, "aemo_mmsdm"), COLLECTION]

    assert aemo.parse_all(raws)["value"].to_list() == [1.0, 2.0, 3.0]


def test_day_comes_before_month_when_collected():
    content = "DATETIME,TOTALDEMAND,REGIONID\r\n1/2/2010 0:30,8038,NSW1\r\n"
    frame = aemo.parse_all([raw("nsw.csv", content, "aemo_totaldemand_half_hourly")])
    assert frame["start_utc"].to_list() == [datetime(2010, 1, 31, 14, 0, tzinfo=UTC)]


def test_an_unset_archive_is_named():
    with pytest.raises(SourceAbsent, match="COMPEVO_ARCHIVE"):
        list(aemo.read_files(Mode.ARCHIVE, None, clock=clock))
    assert aemo.parse_all([]).height == 0


def test_a_missing_product_costs_itself(tmp_path, caplog):
    folder = tmp_path / "aemo_price_and_demand"
    folder.mkdir()
    (folder / "PRICE_AND_DEMAND_202001_NSW1.csv").write_text("x", encoding="utf-8")
    raws = list(aemo.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock))

    assert [raw.name for raw in raws] == ["PRICE_AND_DEMAND_202001_NSW1.csv"]
    (said,) = [record.message for record in caplog.records]
    assert "aemo_histdemand/PUBLIC_HISTDEMAND_*" in said


def day(date="2019/01/01"):
    return [
        f'D,DEMAND,HISTORIC,1,{region},"{date} 00:00:00",{period},{1000 * index + period}'
        for index, region in enumerate(REGIONS)
        for period in range(1, 49)
    ]


def report(records, index="I,DEMAND,HISTORIC,1,REGIONID,SETTLEMENTDATE,PERIODID,DEMAND"):
    return nemweb.report("LFCST_HISTDEMAND", index, records, MADE)


def test_the_day_at_fault_is_named():
    whole, cut = (
        raw(f"PUBLIC_HISTDEMAND_{number}.csv", report(records), "aemo_histdemand")
        for number, records in enumerate([day(), day()[:-1]])
    )
    # The same day in two files is no duplicate: precedence decides later.
    assert parse_tables.parse_histdemand(whole, whole).height == 480
    with pytest.raises(SchemaDrift, match=rf"^{cut.name}, line 241: VIC1.* 47.*tolerate_gaps"):
        parse_tables.parse_histdemand(whole, cut)
    tolerated = parse_tables.parse_histdemand(cut, tolerate_gaps=True)
    assert validate_series(tolerated).height == 239


def test_doubled_dispatch_rows_count_once():
    ends = ((k, f"D,DISPATCH,REGIONSUM,4,2019/12/01 00:{5 * k + 5:02d}:00") for k in range(6))
    lines = [f"{end},1,NSW1,{run},{600 + k}," for k, end in ends for run in (0, 1)]
    # A sample of a file, with the count of the whole one.
    content = report(lines, DISPATCH_INDEX).replace(f",{len(lines) + 3}\r\n", ",53733\r\n")

    found = validate_series(parse_tables.parse_mmsdm(raw(DISPATCH, content, "aemo_mmsdm")))

    assert found["value"].to_list() == [pytest.approx(602.5)]
    assert found["start_utc"].to_list() == [datetime(2019, 11, 30, 14, 0, tzinfo=UTC)]
    assert found["series_id"].to_list() == ["AEMO/TOTALDEMAND/NSW1"]


def test_trading_rows_are_half_hours_already():
    index = "I,TRADING,REGIONSUM,4,SETTLEMENTDATE,RUNNO,REGIONID,PERIODID,TOTALDEMAND"
    content = report(["D,TRADING,REGIONSUM,4,2019/12/03 17:00:00,1,NSW1,34,8402.62"], index=index)
    name = "PUBLIC_DVD_TRADINGREGIONSUM_201912010000.CSV"
    found = parse_tables.parse_mmsdm(raw(name, content, "aemo_mmsdm"))
    row = (datetime(2019, 12, 3, 6, 30, tzinfo=UTC), 8402.62)
    assert found.select("start_utc", "value").rows() == [row]


def rows(*cells, quote="", region="VIC1"):
    return [f"{region},{quote}{at}{quote},{demand},{price},TRADE" for at, demand, price in cells]


def parse_month(lines, *, end="\n", **options):
    file = raw(MONTH, "".join(line + end for line in [HEADER, *lines]), "aemo_price_and_demand")
    return validate_series(parse_tables.parse_price(file, **options))


def demand(frame):
    return frame.filter(pl.col("variable") == "demand_mw").sort("start_utc")


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("seconds", [True, False])
def test_an_interval_end_becomes_its_start_in_utc(quote, end, seconds):
    cells = [(stamp if seconds else stamp[:-3], *rest) for stamp, *rest in HALF_HOURS]
    frame = parse_month(rows(*cells, quote=quote), end=end)
    found = demand(frame)

    starts = [datetime(2019, 12, 31, 14, minute, tzinfo=UTC) for minute in (0, 30)]
    assert found["start_utc"].to_list() == starts
    assert found["value"].to_list() == [5000.1, 4900.0]
    prices = frame.filter(pl.col("series_id") == "AEMO/RRP/VIC1")
    assert prices["value"].to_list() == [-20.0, 31.25]
    assert prices["unit"].unique().to_list() == ["AUD/MWh"]


def five_minutes(count):
    return [
        (f"2021/10/01 {minute // 60:02d}:{minute % 60:02d}:00", str(100 + index), str(index))
        for index, minute in enumerate(range(5, 5 + 5 * count, 5))
    ]


@pytest.mark.parametrize(
    ("count", "last"),
    [(12, (pytest.approx(108.5), "observed")), (11, (None, "nulled:incomplete-half-hour"))],
)
def test_six_rows_become_a_half_hour(count, last):
    found = demand(parse_month(rows(*five_minutes(count))))
    starts = [datetime(2021, 9, 30, 14, minute, tzinfo=UTC) for minute in (0, 30)]
    assert found["start_utc"].to_list() == starts
    assert found.select("value", "flag").rows() == [(pytest.approx(102.5), "observed"), last]


def test_a_missing_row_is_an_error():
    cells = five_minutes(12)
    del cells[3]
    with pytest.raises(SchemaDrift, match=r"line 5: .*00:25:00.*tolerate_gaps"):
        parse_month(rows(*cells))
    found = demand(parse_month(rows(*cells), tolerate_gaps=True))
    assert found["value"].to_list() == [None, pytest.approx(108.5)]


def actual(*rows):
    """Rows are the end of an interval, its demand, and when the row was changed."""
    records = [
        f'D,OPERATIONAL_DEMAND,ACTUAL,3,NSW1,"{end}",{value},50,5,"{changed}"'
        for end, value, changed in rows
    ]
    return nemweb.report("ACTUAL_OPERATIONAL_DEMAND_HH", nemweb.ACTUAL_INDEX, records, MADE)


def forecast(*rows, created=MADE):
    """Rows are the end of an interval and its three quantiles."""
    # LOAD_DATE and LASTCHANGED are before the file was made: no one could read them then.
    records = [
        f'D,OPERATIONAL_DEMAND,FORECAST,1,NSW1,"{end}","2026/07/18 17:00:00",{poe10},{poe50},'
        f'{poe90},"2026/07/18 17:00:40"'
        for end, poe10, poe50, poe90 in rows
    ]
    name = "FORECAST_OPERATIONAL_DEMAND_HH"
    return nemweb.report(name, nemweb.FORECAST_INDEX, records, created)


def rooftop(end, median):
    record = (
        f'D,ROOFTOP,FORECAST,1,"2026/07/18 17:00:00",NSW1,"{end}",99.9,{median},1,2,'
        '"2026/07/18 16:51:58"'
    )
    return nemweb.report("ROOFTOP_PV_FORECAST", nemweb.ROOFTOP_INDEX, [record], MADE)


def wrap(name, content):
    return raw(name, content, "aemo_operational_demand")


def test_a_reissued_value_is_the_last():
    late = ("2026/07/19 00:30:00", 8300, "2026/07/19 00:35:00")
    early = ("2026/07/19 00:30:00", 8239, "2026/07/19 00:30:01")
    last = ("AEMO/OPERATIONAL_DEMAND/NSW1", datetime(2026, 7, 18, 14, 0, tzinfo=UTC), 8300.0)
    for rows in ([late, early], [early, late]):
        found = parse_operational.parse_operational(wrap(ACTUAL_NAME, actual(*rows)))
        assert found.select("series_id", "start_utc", "value").rows() == [last]


def test_a_forecast_is_known_from_its_creation():
    quantiles = ("2026/07/19 00:30:00", "8900", "8500.5", "8100")
    found = parse_operational.parse_published(wrap(FORECAST_NAME, forecast(quantiles)))
    start = datetime(2026, 7, 18, 14, 0, tzinfo=UTC)

    assert found.select("entity", "start_utc", "value", "available_at", "quantile").rows() == [
        ("NSW1", start, 8900.0, CREATED, 0.9),
        ("NSW1", start, 8500.5, CREATED, 0.5),
        ("NSW1", start, 8100.0, CREATED, 0.1),
    ]
    assert parse_operational.parse_operational(wrap(FORECAST_NAME, forecast())).is_empty()


def test_two_days_ahead_are_kept():
    highs = {"17:00": "3", "17:30": "", "18:00": "3"}
    rows = [(f"2026/07/20 {at}:00", high, "2", "1") for at, high in highs.items()]
    found = parse_operational.parse_published(wrap(FORECAST_NAME, forecast(*rows)))
    last = datetime(2026, 7, 20, 7, tzinfo=UTC)
    starts = [last - timedelta(minutes=30), last]

    assert sorted(set(found["start_utc"])) == starts
    assert found.filter(start_utc=starts[1])["quantile"].to_list() == [0.5, 0.1]


def test_rooftop_solar_is_a_covariate():
    file = wrap(ROOFTOP_NAME.lower(), rooftop("2026/07/19 12:30:00", "3334.102"))
    found = parse_operational.parse_step_covariates(file)
    assert found.select("entity", "name", "start_utc", "value", "available_at").rows() == [
        ("NSW1", "rooftop_pv_mw", datetime(2026, 7, 19, 2, tzinfo=UTC), 3334.102, CREATED)
    ]


def test_files_together_are_read_as_alone():
    """Keys come again in other files, each with its own time, source and line."""
    end, next_end = "2026/07/19 00:30:00", "2026/07/19 01:00:00"
    early, late = (
        wrap(f"{ACTUAL_REPORT}_{n}.CSV", actual(*rows))
        for n, rows in enumerate([[(end, 1, end)], [(next_end, 3, end), (end, 2, next_end)]])
    )
    issues = [
        wrap(f"{FORECAST_REPORT}_{n}.CSV", forecast((end, "3", "2", "1"), created=created))
        for n, created in enumerate([MADE, MADE.replace(hour=18)])
    ]
    raws = [early, *issues, late, wrap(ROOFTOP_NAME, rooftop(end, "5"))]
    for parse in (
        parse_operational.parse_operational,
        parse_operational.parse_published,
        parse_operational.parse_step_covariates,
    ):
        alone = pl.concat([parse(one) for one in raws])
        assert parse(*raws).sort(alone.columns).equals(alone.sort(alone.columns))

    bad = wrap(f"{ACTUAL_REPORT}_9.CSV", actual((end, 1, end), (next_end, 1, "never")))
    with pytest.raises(SchemaDrift, match=f"^{bad.name}, line 4: .*never"):
        parse_operational.parse_operational(early, bad)
    twice = wrap(f"{FORECAST_REPORT}_9.CSV", forecast(*[(end, "3", "2", "1")] * 2))
    with pytest.raises(SchemaDrift, match=f"^{twice.name}, line 4: "):
        parse_operational.parse_published(*issues, twice)


@pytest.fixture
def archive(tmp_path):
    """An archive folder of downloads: plain files, a zip, a zip of zips, in folders or not."""
    folder = tmp_path / "aemo_operational_demand"
    (folder / "ACTUAL_HH").mkdir(parents=True)
    now = ("2026/07/19 00:30:00", 8300, "2026/07/19 00:30:01")
    before = ("2026/07/18 00:30:00", 8200, "2026/07/18 00:30:01")
    older = f"{ACTUAL_REPORT}_202607180030_20260718003001"
    week = pack((f"{older}.zip", pack((f"{older}.CSV", actual(before)))))
    (folder / "ACTUAL_HH" / f"{ACTUAL_REPORT}_20260712.zip").write_bytes(week)
    (folder / f"{ACTUAL_NAME[:-4]}.zip").write_bytes(pack((ACTUAL_NAME, actual(now))))
    (folder / FORECAST_NAME).write_text(forecast(("2026/07/19 00:30:00", "3", "2", "1")))
    (folder / "index.html").write_text("<html>")

    (tmp_path / "aemo_histdemand").mkdir()
    name = "aemo_histdemand/PUBLIC_HISTDEMAND_2019010{}_0000000302837680"
    packed = pack(("PUBLIC_HISTDEMAND_20190101_0000000302837680.CSV", report(day("2019/01/01"))))
    (tmp_path / f"{name.format(1)}.zip").write_bytes(packed)
    (tmp_path / f"{name.format(2)}.csv").write_text(report(day("2019/01/02")))
    return tmp_path


def test_the_publishers_files_are_read_as_downloaded(archive, caplog):
    caplog.set_level(logging.WARNING)
    raws = list(aemo.read_files(Mode.ARCHIVE, archive=archive, clock=clock))
    series = aemo.parse_all(raws)
    demand = series.filter(series_id="AEMO/OPERATIONAL_DEMAND/NSW1")
    assert demand["value"].to_list() == [8200.0, 8300.0]
    assert series.filter(pl.col("series_id").str.contains("HISTDEMAND")).height == 2 * 5 * 48
    assert aemo.parse_published(raws).height == 3

    assert "aemo_price_and_demand" in caplog.text and "aemo_mmsdm_samples" in caplog.text
    assert next(file.url for file in raws if file.name == ACTUAL_NAME) == (
        f"file:aemo_operational_demand/{ACTUAL_NAME[:-4]}.zip!{ACTUAL_NAME}"
    )


def test_each_report_may_be_missing(archive):
    (archive / "aemo_operational_demand" / FORECAST_NAME).unlink()
    raws = list(aemo.read_operational_files(Mode.ARCHIVE, archive=archive, clock=clock))
    assert aemo.parse_published(raws).is_empty()
    assert aemo.parse_all(raws).height == 2

    shutil.rmtree(archive / "aemo_operational_demand" / "ACTUAL_HH")
    (archive / "aemo_operational_demand" / f"{ACTUAL_NAME[:-4]}.zip").unlink()
    with pytest.raises(SourceAbsent, match="aemo_operational_demand"):
        list(aemo.read_operational_files(Mode.ARCHIVE, archive=archive, clock=clock))


def make_document():
    """Return the day of the fuzz, in which every value is a hundred and its step."""
    day = json.loads((FILES / DOCUMENT_NAME).read_bytes())
    for region in day["regions"].values():
        values = region["demand"]["poe50"]
        for name, more in (("poe10", 10), ("poe90", -10), ("actual", 1)):
            region["demand"][name] = [value + more for value in values]
    return day


def test_a_day_was_published_at_seventeen():
    frame = parse_operational.parse_published(wrap(DOCUMENT_NAME, json.dumps(make_document())))
    assert frame["available_at"].unique().to_list() == [datetime(2026, 2, 18, 7, 0, tzinfo=UTC)]
    assert frame["available_at"].max() < frame["start_utc"].min()
    first = frame.filter(entity="NSW1", start_utc=START).sort("quantile")
    assert first.select("quantile", "value").rows() == [(0.1, 90.0), (0.5, 100.0), (0.9, 110.0)]


def test_a_null_actual_is_missing_and_not_zero():
    day = make_document()
    day["regions"]["VIC1"]["demand"]["actual"][3] = None
    file = wrap(DOCUMENT_NAME, json.dumps(day))
    frame = validate_series(parse_operational.parse_operational(file))
    at = {"start_utc": START + timedelta(minutes=90)}
    row = frame.filter(series_id="AEMO/OPERATIONAL_DEMAND/VIC1", **at)
    assert row.select("value", "flag").rows() == [(None, "missing")]
