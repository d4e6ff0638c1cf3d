"""The ECB's SDMX tables and the RBA's table F11.1."""

from datetime import UTC, datetime

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.exchange import source as exchange
from tests.support.sources import clock, raw

SDMX_HEADER = "KEY,FREQ,CURRENCY,CURRENCY_DENOM,EXR_TYPE,EXR_SUFFIX,TIME_PERIOD,OBS_VALUE"
SDMX = "\n".join(
    [
        SDMX_HEADER,
        "EXR.D.AUD.EUR.SP00.A,D,AUD,EUR,SP00,A,2026-11-19,1.60",
        "EXR.D.AUD.EUR.SP00.A,D,AUD,EUR,SP00,A,2026-11-20,1.61",
        "EXR.D.USD.EUR.SP00.A,D,USD,EUR,SP00,A,2026-11-19,1.10",
        "EXR.D.USD.EUR.SP00.A,D,USD,EUR,SP00,A,2026-11-20,1.12",
    ]
)
RBA = """F11.1  EXCHANGE RATES
Title,A$1=USD,Trade-weighted Index May 1970 = 100,A$1=CNY,A$1=JPY,A$1=EUR,A$1=SGD,A$1=NZD,A$1=GBP,\
A$1=CAD,A$1=CHF
Description,"AUD/USD Exchange Rate; see notes, below.",TWI,CNY,JPY,EUR,SGD,NZD,GBP,CAD,CHF
Frequency,Daily,Daily,Daily,Daily,Daily,Daily,Daily,Daily,Daily,Daily
Type,Indicative,Indicative,Indicative
Units,USD,Index,CNY,JPY,EUR,SGD,NZD,GBP,CAD,CHF


Source,WM/Reuters,RBA
Publication date,20-Nov-2026,20-Nov-2026
Series ID,FXRUSD,FXRTWI,FXRCR,FXRJY,FXREUR,FXRSD,FXRNZD,FXRUKPS,FXRCD,FXRSF
18-Nov-2026,0.6500,61.40,4.68,97.50,0.6020,0.85,1.0760,0.5080,0.90,0.57
19-Nov-2026,,61.50,,,,,,,,
20-Nov-2026,0.6600,61.60,4.70,98.00,0.6040,0.86,1.0750,0.5100,0.91,0.58
23-Nov-2026,,,,,,,,,,
"""


def sdmx(text=SDMX):
    return exchange.parse(raw("eur_2026-11-13.csv", text, "ecb_sdmx"))


def rba(text=RBA):
    return exchange.parse(raw("f11.1-data.csv", text, "rba_f11"))


def values(frame, series_id):
    return frame.filter(pl.col("series_id") == series_id).sort("start_utc")["value"].to_list()


def test_sdmx_rates_are_the_series_of_the_bulk_file():
    frame = validate_series(sdmx())
    assert values(frame, "ECB/AUD") == pytest.approx([1.10 / 1.60, 1.12 / 1.61])
    assert values(frame, "ECB/EUR") == [1.10, 1.12]
    assert frame["start_utc"].min() == datetime(2026, 11, 19, tzinfo=UTC)


def test_sdmx_columns_are_found_by_name_and_quoted_cells_are_read():
    header = "TITLE,OBS_VALUE,TIME_PERIOD,CURRENCY_DENOM,CURRENCY"
    rows = ['"Dollar, ECB",1.12,2026-11-20,EUR,USD', '"Dollar, ECB",1.61,2026-11-20,EUR,AUD']
    assert values(sdmx("\n".join([header, *rows])), "ECB/AUD") == pytest.approx([1.12 / 1.61])


def test_sdmx_without_a_column_or_dollars_or_per_another_currency_is_refused():
    with pytest.raises(SchemaDrift, match=r"line 1: the header lacks \['OBS_VALUE'\]"):
        sdmx(SDMX.replace("OBS_VALUE", "VALUE"))
    with pytest.raises(SchemaDrift, match="no rate of USD"):
        sdmx("\n".join(line for line in SDMX.split("\n") if ".USD." not in line))
    with pytest.raises(SchemaDrift, match="line 2: a rate per GBP, not per EUR"):
        sdmx(SDMX.replace("D,AUD,EUR", "D,AUD,GBP"))


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_the_rba_table_becomes_dollars_for_one_unit(mark):
    frame = validate_series(rba(mark + RBA.replace("\n", "\r\n").encode()))
    assert values(frame, "RBA/AUD") == [0.65, None, 0.66]
    assert values(frame, "RBA/JPY") == pytest.approx([0.65 / 97.5, None, 0.66 / 98.0])
    assert values(frame, "RBA/GBP") == pytest.approx([0.65 / 0.508, None, 0.66 / 0.51])
    assert frame["series_id"].n_unique() == 8


def test_rba_columns_are_found_by_their_title_wherever_they_stand():
    moved = RBA.replace("A$1=USD,Trade-weighted Index May 1970 = 100", "Index,A$1=USD")
    frame = rba(moved.replace("0.6500,61.40", "61.40,0.6500").replace("0.6600,61.60", "61.60,0.66"))
    assert values(frame, "RBA/AUD")[0] == 0.65


def test_an_rba_table_without_its_last_description_is_refused():
    with pytest.raises(SchemaDrift, match="no line starts with 'Series ID'"):
        rba(RBA[:300])


def test_files_saved_by_hand_are_read_with_the_archive(tmp_path):
    folder = tmp_path / "exchange_rate"
    folder.mkdir()
    (folder / "f11.1-data.csv").write_text(RBA)
    (folder / exchange.N2F_FILE).write_text("x")
    _, benchmark, saved = exchange.read_files(Mode.ARCHIVE, tmp_path, clock=clock)
    assert benchmark.source == "n2f_exchange"
    assert values(exchange.parse(saved), "RBA/AUD")[0] == 0.65
