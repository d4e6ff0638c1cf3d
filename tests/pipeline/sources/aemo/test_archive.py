"""The real files, where they exist: documented counts and ranges, and the published windows."""

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.news import validate_articles
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.nem import REGIONS
from compevo_pipeline.sources.news2forecast import parse as n2f_parsers
from tests.support.sources import clock

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def archive_raws(archive_dir):
    return list(aemo.read_files(Mode.ARCHIVE, archive=archive_dir, clock=clock))


@pytest.fixture(scope="module")
def archive_series(archive_raws):
    return aemo.parse_all(archive_raws)


@pytest.fixture(scope="module")
def benchmark_raws(archive_dir):
    return list(n2f_parsers.read_files(Mode.ARCHIVE, archive=archive_dir, clock=clock))


def test_every_published_file_is_parsed_and_the_documented_rows_are_there(
    archive_raws, archive_series
):
    assert len(archive_raws) == 108 + 10 + 2 + 396 + 354
    rows = dict(archive_series.group_by("series_id").len().rows())
    for region in REGIONS:
        assert rows[f"AEMO/HISTDEMAND/{region}"] == 19_008
        assert rows[f"AEMO/OPERATIONAL_DEMAND/{region}"] == 354 * 48
    assert rows["AEMO/RRP/VIC1"] == rows["AEMO/TOTALDEMAND/VIC1"] == 101_136
    assert rows["AEMO/TOTALDEMAND/SA1"] >= 125_905


@pytest.mark.parametrize(
    ("series_id", "low", "high"),
    [
        ("AEMO/HISTDEMAND/NSW1", 5616, 13_756),
        ("AEMO/HISTDEMAND/TAS1", 672, 1711),
        ("AEMO/OPERATIONAL_DEMAND/SA1", -263, 3124),
        ("AEMO/TOTALDEMAND/VIC1", 2712.53, 9507.26),
        ("AEMO/TOTALDEMAND/NSW1", None, 14_579.86),
    ],
)
def test_the_documented_ranges_hold(archive_series, series_id, low, high):
    values = archive_series.filter(series_id=series_id)["value"]
    assert values.max() == high
    assert low is None or values.min() == low


def test_the_leakage_window_of_2026_is_complete_with_a_forecast_issued_the_day_before(
    archive_raws, archive_series
):
    first, end = datetime(2026, 2, 18, 14, tzinfo=UTC), datetime(2026, 3, 30, 14, tzinfo=UTC)
    inside = (pl.col("start_utc") >= first) & (pl.col("start_utc") < end)
    published = aemo.parse_published(archive_raws).filter(inside & (pl.col("quantile") == 0.5))
    for region in REGIONS:
        actual = archive_series.filter(
            inside, series_id=f"AEMO/OPERATIONAL_DEMAND/{region}"
        ).drop_nulls("value")
        forecast = published.filter(entity=region)
        assert actual.height == forecast.height == 1920
        lead = forecast["start_utc"] - forecast["available_at"]
        assert lead.min() == timedelta(hours=7)
        if region == "NSW1":
            error = actual.join(forecast, on="start_utc").select(
                (pl.col("value") - pl.col("value_right")).abs().mean()
            )
            assert error.item() == pytest.approx(181, abs=0.5)


def count_equal_days(frame, lookup):
    """Count published days that are equal, different or not covered; values have one decimal."""
    days = {"equal": 0, "different": 0, "not covered": 0}
    for row in frame.iter_rows(named=True):
        for offset, published in ((DAY, row["x"]), (0 * DAY, row["y"])):
            day = datetime.combine(row["target_date"], datetime.min.time(), UTC) - offset
            truth = lookup(row["entity"], day)
            if len(truth) < 48:
                days["not covered"] += 1
            else:
                worst = max(abs(a - b) for a, b in zip(truth, published, strict=True))
                days["equal" if worst < 0.0501 else "different"] += 1
    return days


@pytest.fixture(scope="module")
def total_demand(archive_series):
    """Values of the 48 half-hours from 23:30 NEM time of the day before a day on."""
    series = archive_series.filter(
        pl.col("series_id").str.starts_with("AEMO/TOTALDEMAND/")
    ).drop_nulls("value")
    parts = {
        str(key[0]).rsplit("/", 1)[1]: part
        for key, part in series.partition_by("series_id", as_dict=True).items()
    }

    def lookup(entity, day):
        if entity not in parts:
            return []
        start = day - timedelta(hours=10, minutes=30)
        inside = pl.col("start_utc").is_between(start, start + DAY, closed="left")
        return parts[entity].filter(inside)["value"].to_list()

    return lookup


def test_the_published_test_windows_equal_aemo_wherever_the_archive_covers_them(
    benchmark_raws, total_demand
):
    """34 of the 156 days before the change to five minutes are covered, and all 34 are equal."""
    (test_file,) = [one for one in benchmark_raws if n2f_parsers.is_test_file(one)]
    frame = n2f_parsers.parse_benchmark(test_file)
    assert frame.height == 100
    assert dict(frame.group_by("entity").len().rows()) == {
        "NSW1": 23,
        "QLD1": 20,
        "SA1": 13,
        "TAS1": 25,
        "VIC1": 19,
    }
    before = frame.filter(pl.col("target_date") < date(2021, 10, 1))
    assert count_equal_days(before, total_demand) == {
        "equal": 34,
        "different": 0,
        "not covered": 122,
    }


def test_the_published_validation_windows_equal_aemo_wherever_the_archive_covers_them(
    benchmark_raws, total_demand
):
    (validation,) = [
        one
        for one in benchmark_raws
        if one.source == n2f_parsers.SOURCE and not n2f_parsers.is_test_file(one)
    ]
    counts = count_equal_days(n2f_parsers.parse_benchmark(validation), total_demand)
    assert counts == {"equal": 140, "different": 0, "not covered": 60}


def test_after_the_change_to_five_minutes_the_published_values_lie_25_minutes_later(
    benchmark_raws, archive_raws
):
    """The benchmark averages the 5-minute rows t .. t+25 there, AEMO's half-hour is t-25 .. t."""
    rows = [
        pl.read_csv(one.content, columns=["SETTLEMENTDATE", "TOTALDEMAND"])
        for one in archive_raws
        if one.name in [f"PRICE_AND_DEMAND_2021{month}_SA1.csv" for month in (10, 11, 12)]
    ]
    table = pl.concat(rows).with_columns(
        pl.col("SETTLEMENTDATE").str.to_datetime("%Y/%m/%d %H:%M:%S")
    )
    label = pl.col("SETTLEMENTDATE").dt.truncate("30m").dt.replace_time_zone("UTC").alias("label")
    means = (
        table.group_by(label)
        .agg(pl.col("TOTALDEMAND").mean(), pl.len())
        .filter(len=6)
        .sort("label")
    )

    def lookup(entity, day):
        inside = pl.col("label").is_between(day, day + DAY, closed="left")
        return means.filter(inside)["TOTALDEMAND"].to_list() if entity == "SA1" else []

    (test_file,) = [one for one in benchmark_raws if n2f_parsers.is_test_file(one)]
    after = n2f_parsers.parse_benchmark(test_file).filter(
        pl.col("target_date") >= date(2021, 10, 1)
    )
    assert after.height == 22
    assert count_equal_days(after, lookup) == {"equal": 2, "different": 0, "not covered": 42}


def test_the_news_table_gives_the_documented_counts(benchmark_raws):
    (table,) = [one for one in benchmark_raws if one.source == "n2f_news"]
    articles, report = n2f_parsers.parse_news(table)
    assert report == {
        "rows": 2079, "no_news": 441, "repeats": 68, "articles": 1570, "untimed": 14, "redated": 31
    }  # fmt: skip
    validate_articles(articles)


def test_the_test_prompts_news_is_from_before_the_predicted_day(benchmark_raws):
    (test_file,) = [one for one in benchmark_raws if n2f_parsers.is_test_file(one)]
    assert n2f_parsers.parse_prompt_articles(test_file).height == 28
