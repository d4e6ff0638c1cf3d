"""The job ``refresh`` in live mode, every publisher answering: once, and once more for nothing."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from compevo_core.forecast.issued import find_newest
from compevo_pipeline.config.settings import Layout, Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.common.nem import HALF_HOUR, REGIONS
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import FrameStore, SeriesStore
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.preparation import ingest_dataset, ingest_feeds
from tests.pipeline.sources.gdelt import test_doc_live as doc
from tests.pipeline.sources.gdelt import test_gdelt_live as gdelt
from tests.pipeline.sources.pems import test_pems_live as pems
from tests.pipeline.work.test_live_refresh import (
    serve_charts,
    serve_rates,
    serve_runs,
    serve_traffic,
)
from tests.support import nemweb, operational
from tests.support.live import LOG, NEWS, SetClock

NOW = datetime(2026, 11, 20, 18, tzinfo=UTC)
DAY = "2026-11-21"
"""The day on the market's clock, where it has begun."""
NEM_DAYS = [datetime(2026, 11, 18) + n * timedelta(days=1) for n in range(3)]  # noqa: DTZ001 - NEM time
OTHERS = ("electricity", "exchange", "bitcoin", "traffic")
QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def serve_everything(replay):
    """Every publisher, as of :data:`NOW`."""
    nemweb.serve_prices(replay, date(2026, 10, 1), date(2026, 11, 1))
    nemweb.serve_day(replay, NEM_DAYS[-1])
    ends = [day + HALF_HOUR * (step + 1) for day in NEM_DAYS for step in range(48)]
    nemweb.serve_folder(replay, nemweb.ACTUAL, [nemweb.actual(end) for end in ends])
    # A view of tomorrow takes note of how wrong the forecasts of the days before were.
    issues = [day + timedelta(hours=17) for day in (NEM_DAYS[0] - timedelta(days=1), *NEM_DAYS)]
    nemweb.serve_folder(replay, nemweb.FORECAST, [nemweb.forecast(issue) for issue in issues])
    for serve in (serve_runs, serve_rates, serve_charts, serve_traffic):
        serve(replay)

    gdelt.serve_gal(replay, only=gdelt.slots(NOW - timedelta(days=1), 4 * 24))
    replay.serve({doc.DOC: doc.answer_every(60)})


def make_history(home: Path) -> None:
    """What such a deployment has from before: years of series and news, and a population."""
    operational.make_deployment(home, operational.NOW, REGIONS)
    workspace = Deployment(settings=Settings(home=home, mode=Mode.SAMPLE))
    for dataset in OTHERS:
        ingest_dataset(workspace, dataset, clock=SetClock(NOW), log=LOG)
    feeds = [feed for feed in default_feeds()[NEWS] if feed.exists_in(Mode.SAMPLE)]
    ingest_feeds(workspace, feeds, NEWS, clock=SetClock(NOW), log=LOG)
    (home / "sample").rename(home / "real")


@pytest.fixture
def live(tmp_path, replay):
    """The definitions of a deployment in live mode, its folders and its clock."""
    serve_everything(replay)
    home, archive = tmp_path / "home", tmp_path / "archive"
    archive.mkdir()
    make_history(home)
    settings = Settings(
        home=home,
        mode=Mode.LIVE,
        preset="tiny",
        archive=archive,
        pems_user=pems.USER,
        pems_password=pems.PASSWORD,
        news_queries=gdelt.queries(tmp_path, ("days_back = 7", "days_back = 1")),
    )
    clock = SetClock(NOW)
    return build_defs(settings, clock=clock), settings.layout(Mode.LIVE), clock


def refresh(defs: dg.Definitions) -> None:
    """The daily refresh, and of each data set that it leaves out the series and windows."""
    job = defs.resolve_job_def("refresh")
    others = defs.resolve_implicit_global_asset_job_def()
    keys = [dg.AssetKey([layer, name]) for layer in ("series", "windows") for name in OTHERS[1:]]
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(QUIET, partition_key=DAY, instance=instance).success
        assert others.execute_in_process(QUIET, asset_selection=keys, instance=instance).success


def read_rows(layout: Layout) -> dict[str, pl.DataFrame]:
    """Every stored row of every data set."""
    rows = {name: SeriesStore(layout.root).read(name) for name in (*OTHERS, operational.DATASET)}
    for kind in (FrameKind.PUBLISHED, FrameKind.STEP_COVARIATES):
        found = FrameStore(layout.tables).read(operational.DATASET, kind)
        assert found is not None
        rows[kind.value] = found
    return rows | {NEWS: NewsStore(layout.news_database).read_articles()}


def find_publishers(rows: dict[str, pl.DataFrame]) -> set[str]:
    sources = pl.concat([frame.select("source") for frame in rows.values()])["source"]
    return set(sources.str.extract("^live:([^/]*)").drop_nulls())


@pytest.mark.slow
def test_a_second_refresh_sends_only_conditional_requests_and_writes_no_row(replay, live):
    defs, layout, clock = live
    refresh(defs)
    before, asked = read_rows(layout), len(replay.seen)
    assert find_publishers(before) == {
        *("aemo_price_and_demand", "aemo_operational_demand"),
        *("open_meteo_runs", "ecb_bulk", "rba_f11", "bitinfocharts", "pems"),
        *("gdelt_bulk", "gdelt_doc"),
    }
    folders = (layout.root / "series", layout.tables, layout.issued(operational.DATASET))
    kept = {path: path.read_bytes() for root in folders for path in root.rglob("*.parquet")}
    assert find_newest(folders[-1]) is not None, "the forecast of tomorrow was issued"

    clock.now += timedelta(minutes=5)
    refresh(defs)
    again = [seen for seen in replay.seen[asked:] if not seen.is_conditional]
    assert [(seen.host, seen.path, seen.query) for seen in again] == []
    after = read_rows(layout)
    assert {name for name in before if not after[name].equals(before[name])} == set()
    assert {path for path, content in kept.items() if path.read_bytes() != content} == set()
