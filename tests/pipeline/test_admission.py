"""Rows that cannot be true, on their way to the store."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.errors import SchemaDrift
from compevo_pipeline.admission import drop_mistimed, refuse_future, refuse_series
from compevo_pipeline.series_rules import RULES
from compevo_pipeline.sources.common.base import wrap_sample
from compevo_pipeline.sources.pems.source import parse_station_hour
from tests.support.store_workers import articles, series
from tests.support.window_samples import make_published

NOW = datetime(2020, 2, 2, tzinfo=UTC)
FILE = "archive:aemo/PRICE_AND_DEMAND_202001_NSW1.csv"


def demand(values=(7000.0, 7100.0), **columns):
    return series(values=values, source=FILE).with_columns(
        **{name: pl.lit(value) for name, value in columns.items()}
    )


def admit(frame):
    refuse_series(frame, RULES["electricity"], NOW)


def test_ordinary_rows_pass():
    admit(demand(values=(7000.0, None, -20.0)))


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (demand(values=(7_000_000.0, 7_100_000.0)), r"2 row\(s\) outside .*demand_mw, -1000 to"),
        (demand(unit="kW"), r"2 row\(s\) in another unit than MW"),
        (demand(variable="rooftop_mw", values=(-1.0, 1.0)), r"1 row\(s\) outside .*0 to inf"),
        (
            demand().with_columns(pl.col("start_utc").dt.offset_by("45y")),
            r"2 row\(s\) with a start_utc that cannot be known on 2020-02-02",
        ),
        (
            demand().with_columns(pl.col("start_utc").dt.offset_by("7m")),
            r"2 row\(s\) off the grid of 0:30:00",
        ),
    ],
    ids=["kW for MW", "another unit", "negative count", "year 2065", "off the grid"],
)
def test_a_row_that_cannot_be_true_is_refused_with_its_file(frame, problem):
    with pytest.raises(SchemaDrift, match=f"^{FILE}: {problem}.*Nothing was stored"):
        admit(frame)


def test_each_variable_of_traffic_has_bounds():
    line = "03/01/2016 00:00:00,400001,4,101,S,ML,.5,10,{},5,.01,60" + "," * 30
    raw = wrap_sample("pems", "d04_text_station_hour_2016_03.txt", b"")
    refuse_series(parse_station_hour(line.format(100), raw), RULES["traffic"], NOW)
    with pytest.raises(SchemaDrift, match="outside the bounds of pct_observed, 0 to 100"):
        refuse_series(parse_station_hour(line.format(900), raw), RULES["traffic"], NOW)


def test_rows_of_the_future_without_a_value_say_nothing_wrong():
    admit(demand(values=(None, None)).with_columns(pl.col("start_utc").dt.offset_by("1y")))


def test_a_file_of_a_clock_that_is_ahead_is_measured_by_that_clock():
    later = NOW + timedelta(days=60)
    admit(demand(fetched_at=later).with_columns(pl.col("start_utc").dt.offset_by("60d")))


def test_a_published_forecast_of_another_year_is_refused():
    frame = make_published(NOW + timedelta(days=1), 1)
    refuse_future(frame, NOW)
    with pytest.raises(SchemaDrift, match="that cannot be known on 2020-02-02"):
        refuse_future(frame.with_columns(pl.col("start_utc").dt.offset_by("1y")), NOW)


def test_one_article_of_a_wrong_time_is_left_out_and_counted_and_the_others_stay():
    stamped = [
        articles(1, available=NOW),
        articles(2, available=datetime(2099, 1, 1, tzinfo=UTC)),
        articles(3, available=datetime(1970, 1, 1, tzinfo=UTC)),
    ]
    kept, mistimed = drop_mistimed(pl.concat(stamped), NOW)
    assert mistimed == 2
    assert kept["url"].to_list() == ["https://example.org/1"]
