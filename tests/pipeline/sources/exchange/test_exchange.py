"""ECB rates, the AUD/USD benchmark and the undated panel."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.series import is_synthetic, regularise_series, validate_series
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.exchange import source as exchange
from tests.support.nemweb import pack
from tests.support.sources import NOW, clock, raw

ECB = """Date,USD,JPY,GBP,CHF,AUD,CAD,CNY,NZD,SGD,
2020-01-03,1.10,120,0.85,1.08,1.60,1.45,N/A,1.66,1.50,
2020-01-02,1.12,N/A,0.86,1.09,1.61,1.46,N/A,1.67,1.51,
2020-01-01,1.11,121,0.84,1.07,1.59,1.44,N/A,1.65,1.49,
"""
N2F = """,Time,AUD/USD,AUGDP,AUUN,AUIR,USAGDP,USAUN,USAIR
0,1/1/2018,0.7799,540342,5.5,1.5,20328.5,4,1.41
1,1/2/2018,0.786099868,540342,5.5,1.5,20328.5,4,1.41
2,1/3/2018,,540342,5.5,1.5,20328.5,4,1.41
"""


def ecb(text=ECB, name="eurofxref-hist.csv"):
    return exchange.parse(raw(name, text, "ecb_bulk"))


def n2f(text=N2F):
    return exchange.parse(raw("aud.csv", text, "n2f_exchange"))


def select_series(frame, series_id):
    return frame.filter(pl.col("series_id") == series_id).sort("start_utc")


def test_a_rate_is_pivoted_to_dollars_for_one_unit():
    frame = validate_series(ecb())
    assert select_series(frame, "ECB/AUD")["value"].to_list() == pytest.approx(
        [1.11 / 1.59, 1.12 / 1.61, 1.10 / 1.60]
    )
    assert select_series(frame, "ECB/EUR")["value"].to_list() == [1.11, 1.12, 1.10]
    assert select_series(frame, "ECB/JPY").row(0, named=True)["variable"] == "rate_usd_per_jpy"


def test_a_day_without_a_rate_is_missing_and_a_currency_never_published_makes_no_series():
    frame = ecb()
    assert select_series(frame, "ECB/JPY")["flag"].to_list() == ["observed", "missing", "observed"]
    assert select_series(frame, "ECB/CNY").is_empty()


def test_the_zip_gives_what_its_csv_gives():
    packed = pack(("eurofxref-hist.csv", ECB))
    assert ecb(packed, "eurofxref-hist.zip").equals(
        ecb().with_columns(source=pl.lit("archive:ecb_bulk/eurofxref-hist.zip"))
    )


def test_a_zip_with_another_file_is_refused():
    with pytest.raises(SchemaDrift, match=r"readme.txt"):
        ecb(pack(("readme.txt", "hello")), "eurofxref-hist.zip")


@pytest.mark.parametrize(
    ("parse", "text", "match"),
    [
        (ecb, ECB.replace("AUD", "AUX"), r"line 1: the header lacks \['AUD'\]"),
        (n2f, N2F.replace("1/3/2018", "1/4/2018"), "aud.csv, line 4: .*rows are missing"),
    ],
)
def test_a_bad_table_names_the_line(parse, text, match):
    with pytest.raises(SchemaDrift, match=match):
        parse(text)


def test_interpolated_values_are_nulled_and_an_empty_one_is_missing():
    frame = validate_series(n2f())
    assert frame["flag"].to_list() == ["observed", "nulled:interpolated", "missing"]
    assert frame["value"].to_list() == [0.7799, None, None]


def test_a_file_of_another_source_is_refused_with_those_that_are_known():
    with pytest.raises(SchemaDrift, match=r"'lstnet_exchange' is known; known: .*n2f"):
        exchange.parse(raw("exchange_rate.txt", "0.7855,1.611\n", "lstnet_exchange"))


def test_sample_mode_gives_the_wheels_real_rates_and_does_not_call_them_synthetic():
    (file,) = exchange.read_files(Mode.SAMPLE, archive=None, clock=clock)
    frame = validate_series(exchange.parse(file))
    aud = select_series(frame, "ECB/AUD")
    assert not is_synthetic(frame)
    assert aud["start_utc"][0] == datetime(1999, 1, 4, tzinfo=UTC)
    assert aud.height >= 7126
    assert aud["value"].is_between(0.45, 1.15).all()
    assert aud["start_utc"].dt.weekday().max() == 5
    assert aud["fetched_at"][0] > aud["start_utc"].max()


def test_the_real_benchmark_has_567_interpolated_values(archive_dir):
    file = [
        file
        for file in exchange.read_files(Mode.ARCHIVE, archive=archive_dir, clock=clock)
        if file.source == "n2f_exchange"
    ]
    frame = validate_series(exchange.parse(file[0]))
    counts = dict(frame["flag"].value_counts().iter_rows())
    assert counts == {"observed": 1258, "nulled:interpolated": 567, "missing": 1}
    assert (frame["value"].min(), frame["value"].max()) == (0.5571, 0.8096)
    weekend = frame.filter(pl.col("start_utc").dt.weekday() > 5)
    assert (weekend["flag"] == "nulled:interpolated").sum() == 519
    assert regularise_series(frame, timedelta(days=1))[1]["rows"] == 1826
    assert frame["fetched_at"].unique().to_list() == [NOW]


def test_ecb_and_benchmark_agree_on_quoted_days(archive_dir):
    files = exchange.read_files(Mode.ARCHIVE, archive=archive_dir, clock=clock)
    frame = pl.concat(exchange.parse(file) for file in files)
    both = (
        select_series(frame, "ECB/AUD")
        .join(select_series(frame, "N2F/AUD"), on="start_utc", suffix="_n2f")
        .drop_nulls("value_n2f")
    )
    gap = (both["value"] - both["value_n2f"]).abs()
    assert both.height > 1200
    assert gap.median() < 0.003
