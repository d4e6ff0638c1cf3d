"""The real archive, feed by feed: each file gives as many rows as its provenance says it holds.

The numbers are those that the provenance beside the files states (its sections in comments). Those
of exchange rates and traffic are tested beside their parsers.
"""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from compevo_core.data.build import build_windows, grid_chosen
from compevo_core.data.datasets import ELECTRICITY_OPERATIONAL
from compevo_core.errors import SourceAbsent
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.sources.registry import BUILT_IN
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import refuse_implausible
from compevo_pipeline.work.preparation import ingest_feed
from tests.support.issued_samples import make_issued

pytestmark = pytest.mark.slow

REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
MEASURES = ("OPERATIONAL_DEMAND", "POE10", "POE50", "POE90")
OPERATIONAL_STEPS = 354 * 48
FIVE_MINUTES = 6  # rows of a half-hour

# By the folder of the files. Where a publisher gives five minutes, a half-hour is six of its rows.
SERIES = {
    "electricity": {
        "aemo_histdemand": {f"AEMO/HISTDEMAND/{region}": 95_040 // 5 for region in REGIONS},  # 2.3
        "aemo_price_and_demand": {  # 2.1
            f"AEMO/{measure}/{region}": rows
            for measure in ("TOTALDEMAND", "RRP")
            for region, rows in {
                "VIC1": 101_136,
                "SA1": 150_624 // FIVE_MINUTES,
                "NSW1": (69_696 + 105_120) // FIVE_MINUTES,
            }.items()
        },
        "aemo_totaldemand_half_hourly": {  # 2.2
            "AEMO/TOTALDEMAND/NSW1": 196_513,
            "AEMO/TOTALDEMAND/SA1": 125_905,
        },
        # 2.5: five days of six months, and the half-hour that each of six cuts divides.
        "aemo_mmsdm": {
            f"AEMO/TOTALDEMAND/{region}": 6 * (5 * 48 + 1) for region in ("NSW1", "SA1")
        },
        "aemo_operational_demand": {  # 2.4
            f"AEMO/{measure}/{region}": OPERATIONAL_STEPS
            for measure in MEASURES
            for region in REGIONS
        },
    },
    "electricity-operational": {
        "aemo_operational_demand": {
            f"AEMO/{measure}/{region}": OPERATIONAL_STEPS
            for measure in MEASURES
            for region in REGIONS
        },
    },
}
FILES = {
    "aemo_histdemand": 396,
    "aemo_price_and_demand": 108,
    "aemo_totaldemand_half_hourly": 2,
    "aemo_mmsdm": 10,
    "aemo_operational_demand": 354,
}
NOT_IN_THE_ARCHIVE = {"weather-forecast"}
"""Feeds whose files nobody had; every other one is counted below."""


def now():
    return datetime(2026, 5, 1, tzinfo=UTC)


def find_feed(dataset, name):
    return next(feed for feed in default_feeds()[dataset] if feed.name == name)


def read(feed, archive):
    return list(feed.read_files(Mode.ARCHIVE, archive, now))


@pytest.mark.parametrize(
    ("dataset", "source"), [(dataset, source) for dataset in SERIES for source in SERIES[dataset]]
)
def test_each_folder_of_series_gives_its_rows(archive_dir, dataset, source):
    feed = default_feeds()[dataset][0]
    raws = [raw for raw in read(feed, archive_dir) if raw.source == source]
    assert len(raws) == FILES[source]
    frame = feed.parsers[FrameKind.SERIES](raws)
    assert dict(frame.group_by("series_id").len().iter_rows()) == SERIES[dataset][source]


def test_every_folder_of_a_series_feed_is_counted_above(archive_dir):
    for dataset, sources in SERIES.items():
        found = {raw.source for raw in read(default_feeds()[dataset][0], archive_dir)}
        assert found == set(sources), dataset


def test_every_feed_with_files_is_counted_here(archive_dir):
    counted = {
        *("aemo", "weather", "news2forecast-benchmark", "aemo-operational", "weather-collected"),
        *("exchange", "bitinfocharts", "pems", "gdelt", "news2forecast"),
    }
    with_files = {
        feed.name
        for feeds in default_feeds().values()
        for feed in feeds
        if Mode.ARCHIVE in feed.modes
    }
    assert with_files == counted | NOT_IN_THE_ARCHIVE
    with pytest.raises(SourceAbsent):
        read(find_feed("electricity-operational", "weather-forecast"), archive_dir)


def test_the_day_ahead_forecast_and_rooftop_solar_are_whole(archive_dir):  # 2.4
    feed = find_feed("electricity-operational", "aemo-operational")
    raws = read(feed, archive_dir)
    published = feed.parsers[FrameKind.PUBLISHED](raws)
    by_part = published.group_by("entity", "quantile").len()
    assert (by_part.height, set(by_part["len"])) == (5 * 3, {OPERATIONAL_STEPS})
    solar = feed.parsers[FrameKind.STEP_COVARIATES](raws)
    assert dict(solar.group_by("entity").len().iter_rows()) == dict.fromkeys(
        REGIONS, OPERATIONAL_STEPS
    )


def test_the_collected_weather_reaches_from_a_fortnight_before_demand_to_its_end(archive_dir):
    feed = find_feed("electricity-operational", "weather-collected")
    raws = read(feed, archive_dir)
    assert len(raws) == 1 + 16
    frame = feed.parsers[FrameKind.STEP_COVARIATES](raws)
    counts = frame.group_by("entity", "name").len()
    assert counts.height == 5 * 5
    assert counts["len"].unique().to_list() == [39_584]


def test_observed_weather_and_the_benchmark_are_whole(archive_dir):  # 3
    weather = find_feed("electricity", "weather")
    covariates = weather.parsers[FrameKind.COVARIATES](read(weather, archive_dir))
    assert covariates.select("entity", "valid_date").n_unique() == 28_156

    benchmark = find_feed("electricity", "news2forecast-benchmark")
    records = benchmark.parsers[FrameKind.BENCHMARK](read(benchmark, archive_dir))
    by_region = dict(records.group_by("entity").len().iter_rows())
    assert by_region == {"NSW1": 23, "QLD1": 20, "SA1": 13, "TAS1": 25, "VIC1": 19}


def test_no_day_of_the_archive_is_refused_at_the_door_or_before_the_seal(
    archive_dir: Path, tmp_path: Path
) -> None:
    dataset = "electricity-operational"
    settings = Settings(home=tmp_path, mode=Mode.ARCHIVE, archive=archive_dir)
    workspace = Deployment(settings=settings)
    feed = default_feeds()[dataset][0]
    counts = ingest_feed(workspace, feed, dataset, clock=now, log=logging.getLogger())
    assert counts["published rows"] == 3 * 5 * OPERATIONAL_STEPS

    # The truth itself, and AEMO's forecast, as if either were about to be sealed.
    spec, rules = ELECTRICITY_OPERATIONAL, BUILT_IN[dataset].rules
    series = workspace.series_store().read(dataset)
    published = workspace.frame_store().read(dataset, FrameKind.PUBLISHED)
    windows = build_windows(
        spec, series, published=published, first_origin=datetime(2025, 5, 20, 14, tzinfo=UTC)
    )
    grids = grid_chosen(spec, series)
    sealed = 0
    for window in windows:
        view = window.view
        for values in (window.y, view.published):
            if values is None or not np.isfinite(values).all():
                continue
            forecast = make_issued([view.entity], origin=view.origin_utc)
            starts = [view.origin_utc + step * view.step for step in range(48)]
            flat = forecast.rows.filter(
                pl.col("method") == "compevo", pl.col("quantile").is_null()
            ).with_columns(pl.Series("value", values), pl.Series("start_utc", starts))
            refuse_implausible(replace(forecast, rows=flat), [view], grids, rules)
            sealed += 1
    assert sealed > 3000
