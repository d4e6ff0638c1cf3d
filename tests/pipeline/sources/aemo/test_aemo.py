"""All AEMO products: precedence between files, collected tables, what is missing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.common.base import Mode
from tests.support.sources import clock, raw

HALF_HOUR = timedelta(minutes=30)


COLLECTED = (
    "datetime,load_act\n2016-01-01 00:00:00,1.0\n2016-01-01 00:30:00,2.0\n2016-01-01 01:00:00,3.0\n"
)
PRICE = "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE\nSA1,2016/01/01 00:30:00,2.04,5,TRADE\n"


def test_aemos_file_wins_over_a_collection_in_any_order():
    raws = [
        raw("sa.csv", COLLECTED, "aemo_totaldemand_half_hourly"),
        raw("p.csv", PRICE, "aemo_price_and_demand"),
    ]
    frame = aemo.parse_all(raws)
    assert frame.equals(aemo.parse_all(raws[::-1]))
    demand = frame.filter(variable="demand_mw").sort("start_utc")
    assert demand["value"].to_list() == [1.0, 2.04, 3.0]
    assert demand["start_utc"][0] == datetime(2015, 12, 31, 13, 30, tzinfo=UTC)
    assert frame.filter(variable="price_aud_per_mwh").height == 1


def test_a_value_wins_over_a_null_even_from_a_file_of_lower_precedence():
    index = "I,DISPATCH,REGIONSUM,4,SETTLEMENTDATE,REGIONID,INTERVENTION,TOTALDEMAND"
    partial = (
        f'C,x\n{index}\nD,DISPATCH,REGIONSUM,4,2016/01/01 00:05:00,SA1,0,9\nC,"END OF REPORT",9\n'
    )
    raws = [
        raw("PUBLIC_DVD_DISPATCHREGIONSUM.CSV", partial, "aemo_mmsdm"),
        raw("sa.csv", COLLECTED, "aemo_totaldemand_half_hourly"),
    ]
    assert aemo.parse_all(raws)["value"].to_list() == [1.0, 2.0, 3.0]


def test_one_bad_file_among_many_gives_nothing_at_all():
    sample = list(islice(aemo.read_files(Mode.SAMPLE, None, clock=clock), 4))
    torn = replace(sample[0], content=sample[0].content[:-40])
    with pytest.raises(SchemaDrift, match=torn.name):
        aemo.parse_all([*sample[1:], torn])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("datetime,load_act,x\n1,2,3\n", "line 1: the header changed"),
        ("DATETIME,TOTALDEMAND,REGIONID\n1/1/2010 0:00,8038,NSW\n", "line 2: region is 'NSW'"),
        (
            "DATETIME,TOTALDEMAND,REGIONID\n2010-01-01,8038,NSW1\n",
            "line 2: DATETIME is '2010-01-01'",
        ),
        (
            "datetime,load_act\n2016-01-01 00:00:00,1\n2016-01-01 01:00:00,1\n",
            "line 3: .*timestamps are missing",
        ),
    ],
)
def test_a_collection_that_changed_is_named(content, match):
    with pytest.raises(SchemaDrift, match=f"nsw.csv, {match}"):
        aemo.parse_all([raw("nsw.csv", content, "aemo_totaldemand_half_hourly")])


def test_day_comes_before_month_in_the_collected_stamps():
    content = "DATETIME,TOTALDEMAND,REGIONID\r\n1/2/2010 0:30,8038,NSW1\r\n"
    frame = aemo.parse_all([raw("nsw.csv", content, "aemo_totaldemand_half_hourly")])
    assert frame["start_utc"].to_list() == [datetime(2010, 1, 31, 14, 0, tzinfo=UTC)]


def test_an_archive_that_is_not_set_is_a_named_error():
    with pytest.raises(SourceAbsent, match="COMPEVO_ARCHIVE"):
        list(aemo.read_files(Mode.ARCHIVE, None, clock=clock))
    assert aemo.parse_all([]).height == 0


def test_a_missing_product_costs_itself_alone_and_is_said_once(tmp_path, caplog):
    folder = tmp_path / "aemo_price_and_demand"
    folder.mkdir()
    (folder / "PRICE_AND_DEMAND_202001_NSW1.csv").write_text("x", encoding="utf-8")
    raws = list(aemo.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock))

    assert [raw.name for raw in raws] == ["PRICE_AND_DEMAND_202001_NSW1.csv"]
    (said,) = [record.message for record in caplog.records]
    assert "aemo_histdemand/PUBLIC_HISTDEMAND_*" in said
