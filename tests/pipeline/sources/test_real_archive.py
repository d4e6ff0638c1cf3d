"""The real archive: as many rows as its provenance states, in the documented ranges.

The numbers are stated by the provenance file in the archive (its sections in comments).
"""

import json
import logging
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data.build import build_windows, grid_chosen
from compevo_core.data.cutting import apply_known_faults
from compevo_core.data.datasets import ELECTRICITY_OPERATIONAL
from compevo_core.data.news import validate_articles
from compevo_core.data.series import regularise_series, validate_series
from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources import news2forecast
from compevo_pipeline.sources.common.base import FrameKind, Mode, read_archive_file
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.registry import BUILT_IN
from compevo_pipeline.work.ingest import ingest_feed
from compevo_pipeline.work.next_day import refuse_implausible
from tests.support.deployment import open_home
from tests.support.issued_samples import make_issued

pytestmark = pytest.mark.slow

REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
OPERATIONAL_STEPS = 354 * 48
FIVE_MINUTES = 6  # rows of a half-hour

# By the folder of the files. Where a publisher gives five minutes, a half-hour is six of its rows.
SERIES = {
    "aemo_histdemand": {f"AEMO/HISTDEMAND/{region}": 95_040 // 5 for region in REGIONS},  # 2.3
    "aemo_price_and_demand": {  # 2.1
        f"AEMO/{measure}/{region}": rows
        for measure in ("TOTALDEMAND", "RRP")
        for region, rows in {
            "VIC1": 101_136,
            "SA1": 150_624 // FIVE_MINUTES,
            "NSW1": (69_696 + 105_120) // FIVE_MINUTES,
            "QLD1": 65_712 + 35_424 // FIVE_MINUTES,  # 2.6
        }.items()
    },
    "aemo_totaldemand_half_hourly": {  # 2.2
        "AEMO/TOTALDEMAND/NSW1": 196_513,
        "AEMO/TOTALDEMAND/SA1": 125_905,
    },
    # 2.5: five days of six months, and the half-hour that each of six cuts divides.
    "aemo_mmsdm": {f"AEMO/TOTALDEMAND/{region}": 6 * (5 * 48 + 1) for region in ("NSW1", "SA1")},
    "aemo_operational_demand": {  # 2.4
        f"AEMO/{measure}/{region}": OPERATIONAL_STEPS
        for measure in ("OPERATIONAL_DEMAND", "POE10", "POE50", "POE90")
        for region in REGIONS
    },
}
FILES = dict(zip(SERIES, (396, 157, 2, 10, 354), strict=True))
DAY = timedelta(days=1)


def now():
    return datetime(2026, 5, 1, tzinfo=UTC)


def find_feed(dataset, name):
    return next(feed for feed in default_feeds()[dataset] if feed.name == name)


@pytest.fixture(scope="module")
def read(archive_dir):
    files = {}

    def read_files(dataset, name):
        if name not in files:
            feed = find_feed(dataset, name)
            files[name] = list(feed.read_files(Mode.ARCHIVE, archive_dir, now))
        return files[name]

    return read_files


@pytest.fixture(scope="module")
def parse(read):
    def parse_files(dataset, name, kind=FrameKind.SERIES):
        return find_feed(dataset, name).parsers[kind](read(dataset, name))

    return parse_files


@pytest.fixture(scope="module")
def demand(parse):
    return parse("electricity", "aemo")


@pytest.mark.parametrize("source", SERIES)
def test_each_folder_of_series_gives_its_rows(read, source):
    raws = [raw for raw in read("electricity", "aemo") if raw.source == source]
    assert len(raws) == FILES[source]
    frame = find_feed("electricity", "aemo").parsers[FrameKind.SERIES](raws)
    assert dict(frame.group_by("series_id").len().iter_rows()) == SERIES[source]


def test_every_feed_with_files_is_counted_here(read):
    assert {raw.source for raw in read("electricity", "aemo")} == set(SERIES)
    counted = {
        *("aemo", "weather", "news2forecast-benchmark", "aemo-operational", "weather-collected"),
        *("exchange", "bitinfocharts", "pems", "gdelt", "news2forecast"),
    }
    feeds = [feed for of_set in default_feeds().values() for feed in of_set]
    with_files = {feed.name for feed in feeds if Mode.ARCHIVE in feed.modes}

    # Files of one more feed exist nowhere.
    assert with_files == counted | {"weather-forecast"}
    with pytest.raises(SourceAbsent):
        read("electricity-operational", "weather-forecast")


def test_day_ahead_and_solar_are_whole(parse):  # 2.4
    published = parse("electricity-operational", "aemo-operational", FrameKind.PUBLISHED)
    by_part = published.group_by("entity", "quantile").len()
    assert (by_part.height, set(by_part["len"])) == (5 * 3, {OPERATIONAL_STEPS})
    solar = parse("electricity-operational", "aemo-operational", FrameKind.STEP_COVARIATES)
    assert dict(solar.group_by("entity").len().rows()) == dict.fromkeys(REGIONS, OPERATIONAL_STEPS)


def test_observed_and_collected_weather_are_whole(read, parse):  # 3
    observed = parse("electricity", "weather", FrameKind.COVARIATES)
    assert observed.select("entity", "valid_date").n_unique() == 28_156

    # The collected weather reaches from a fortnight before operational demand to its end.
    assert len(read("electricity-operational", "weather-collected")) == 1 + 16
    frame = parse("electricity-operational", "weather-collected", FrameKind.STEP_COVARIATES)
    counts = frame.group_by("entity", "name").len()
    assert counts.height == 5 * 5
    assert counts["len"].unique().to_list() == [39_584]


@pytest.mark.parametrize(
    ("sample", "counts"),
    [
        # Of the 156 days before AEMO's change to five minutes, 66 are covered.
        ("test", {"equal": 66, "different": 0, "not covered": 90}),
        ("validation", {"equal": 170, "different": 0, "not covered": 30}),
    ],
)
def test_the_published_windows_equal_aemos_values(archive_dir, demand, sample, counts):
    folder = archive_dir / news2forecast.FOLDER
    (path,) = folder.glob(f"AULF_{sample}_data_*.json")
    file = read_archive_file(path, archive_dir, source=news2forecast.SOURCE, clock=now)
    windows = news2forecast.parse_benchmark(file)
    known = demand.drop_nulls("value").filter(pl.col("series_id").str.contains("/TOTALDEMAND/"))
    parts = known.partition_by("series_id", as_dict=True)

    days = dict.fromkeys(counts, 0)
    for row in windows.filter(pl.col("target_date") < date(2021, 10, 1)).iter_rows(named=True):
        for offset, published in ((DAY, row["x"]), (0 * DAY, row["y"])):
            part = parts.get((f"AEMO/TOTALDEMAND/{row['entity']}",), known.clear())
            # A day begins at 23:30 NEM time of the day before.
            start = datetime.combine(row["target_date"], datetime.min.time(), UTC)
            start -= offset + timedelta(hours=10, minutes=30)
            inside = pl.col("start_utc").is_between(start, start + DAY, closed="left")
            truth = part.filter(inside)["value"].to_numpy()
            if len(truth) < 48:
                days["not covered"] += 1
            else:
                is_equal = np.abs(truth - published).max() < 0.0501  # they have one decimal
                days["equal" if is_equal else "different"] += 1
    assert days == counts


def test_benchmark_and_news_have_documented_counts(read, parse):
    records = parse("electricity", "news2forecast-benchmark", FrameKind.BENCHMARK)
    by_region = dict(records.group_by("entity").len().iter_rows())
    assert by_region == {"NSW1": 23, "QLD1": 20, "SA1": 13, "TAS1": 25, "VIC1": 19}

    files = [*read("news", "news2forecast"), *read("electricity", "news2forecast-benchmark")]
    table = next(raw for raw in files if raw.source == "n2f_news")
    articles, counts = news2forecast.parse_news(table)
    assert (articles.height, counts) == (1570, {"rows without news": 441})
    validate_articles(articles)
    test_file = next(raw for raw in files if raw.source == news2forecast.SOURCE)
    assert news2forecast.parse_prompt_articles(test_file).height == 28


def test_the_stored_polls_are_whole(read):
    polls = [raw for raw in read("news", "gdelt") if raw.source != gdelt.BULK_SOURCE]
    frame, report = gdelt.parse_all(polls)
    assert (report["files"], report["empty answers"], report["records"]) == (194, 1, 17_934)
    assert (report["unreadable"], report["repairs"], report["bytes replaced"]) == (0, 0, 0)
    assert report["without a title"] == 5
    assert frame["language"].n_unique() == 60
    validate_articles(frame)

    # All addresses but the untitled and respelled are kept, and none was seen after its poll.
    polls = [file for file in polls if not file.url.endswith("empty_response/gdelt.json")]
    listed = {event["url"] for file in polls for event in json.loads(file.content)["events"]}
    assert (len(listed), frame["article_id"].n_unique()) == (14_736, frame.height)
    assert frame.height == 11_911
    assert (frame["fetched_at"] - frame["seen_at"]).min() >= timedelta(minutes=10)
    assert frame["seen_at"].min() == datetime(2026, 3, 10, 6, tzinfo=UTC)
    assert frame["seen_at"].max() == datetime(2026, 3, 17, 22, 45, tzinfo=UTC)


def test_the_real_rates_are_those_of_both_publishers(parse):
    frame = validate_series(parse("exchange", "exchange"))
    benchmark = frame.filter(pl.col("series_id") == "N2F/AUD")
    counts = dict(benchmark["flag"].value_counts().iter_rows())
    assert counts == {"observed": 1258, "nulled:interpolated": 567, "missing": 1}
    assert (benchmark["value"].min(), benchmark["value"].max()) == (0.5571, 0.8096)
    assert regularise_series(benchmark, DAY)[1]["rows"] == 1826

    both = frame.filter(pl.col("series_id") == "ECB/AUD").join(
        benchmark.drop_nulls("value"), on="start_utc", suffix="_n2f"
    )
    assert both.height > 1200
    assert (both["value"] - both["value_n2f"]).abs().median() < 0.003


def test_the_real_table_of_bitcoin_is_whole(parse):
    frame = validate_series(parse("bitcoin", "bitinfocharts"))

    assert frame.group_by("series_id").len()["len"].to_list() == [4521] * 18
    assert (frame["flag"] == "missing").sum() == 290
    price = frame.filter(pl.col("series_id") == "BITINFOCHARTS/price")
    recent = price.filter(pl.col("start_utc") >= datetime(2019, 1, 1, tzinfo=UTC))
    assert (recent["value"].min(), recent["value"].max()) == (3392.0, 63438.0)
    # A placeholder stands on the days before there was a price.
    old = price.filter(pl.col("start_utc") < datetime(2010, 7, 17, tzinfo=UTC))
    assert (old["value"].round(2) == 46678.67).sum() == 372
    assert apply_known_faults(old)["value"].null_count() == old.height


def test_the_real_sensor_is_whole(parse):
    frame = validate_series(parse("traffic", "pems"))
    assert frame.height == 17_544
    assert (frame["value"].min(), frame["value"].max()) == (0.0, 0.4747)
    assert frame["value"].mean() == pytest.approx(0.0493, abs=5e-5)
    assert (frame["value"] == 0).sum() == 15


def test_no_day_of_the_archive_is_refused(archive_dir, tmp_path):
    dataset = "electricity-operational"
    workspace = open_home(tmp_path, "archive", now=now(), archive=archive_dir)
    feed = default_feeds()[dataset][0]
    counts = ingest_feed(workspace, feed, dataset, log=logging.getLogger())
    assert counts["published rows"] == 3 * 5 * OPERATIONAL_STEPS

    # The truth itself, and AEMO's forecast, as if either were about to be sealed.
    spec, rules = ELECTRICITY_OPERATIONAL, BUILT_IN[dataset].rules
    series = workspace.series_store().read(dataset)
    published = workspace.series_store().read_frame(dataset, FrameKind.PUBLISHED)
    windows = build_windows(
        spec, series, published=published, first_origin=datetime(2025, 5, 20, 14, tzinfo=UTC)
    )
    grids = grid_chosen(spec, series)
    is_point = (pl.col("method") == "forecast") & pl.col("quantile").is_null()
    issued = {region: make_issued([region]) for region in REGIONS}
    points = {region: forecast.rows.filter(is_point) for region, forecast in issued.items()}
    sealed = 0
    for window in windows:
        view = window.view
        for values in (window.y, view.published):
            if values is None or not np.isfinite(values).all():
                continue
            starts = [view.origin_utc + step * view.step for step in range(48)]
            rows = points[view.entity].with_columns(
                pl.Series("value", values), pl.Series("start_utc", starts)
            )
            refuse_implausible(replace(issued[view.entity], rows=rows), [view], grids, rules)
            sealed += 1
    assert sealed > 3000
