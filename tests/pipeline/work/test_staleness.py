"""What new data marks as stale: what was made of it, and nothing of other data sets."""

import time
from datetime import date, timedelta

import dagster as dg
import polars as pl
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from compevo_pipeline.defs.asset_keys import DATASETS
from compevo_pipeline.sources.common.base import FrameKind
from tests.support.deployment import deploy, open_home, read_materialization
from tests.support.store_workers import articles
from tests.support.window_samples import make_covariates

pytestmark = pytest.mark.slow


@pytest.fixture
def deployment(tmp_path):
    made = deploy(tmp_path)
    for key in ("news/articles", "news/embeddings"):
        report(made, key)
    for layer in ("series", "windows", "models/compevo", "evaluation/baselines"):
        for dataset in DATASETS:
            report(made, f"{layer}/{dataset}")
    return made


def report(deployment, key):
    time.sleep(0.002)  # Dagster compares the times of such events
    event = dg.AssetMaterialization(dg.AssetKey(key.split("/")))
    deployment.instance.report_runless_asset_event(event)


def stale(deployment):
    graph = deployment.defs.resolve_asset_graph()
    context = LoadingContextForTest(deployment.instance)
    resolver = CachingStaleStatusResolver(deployment.instance, graph, context)
    keys = graph.get_all_asset_keys()
    return {k.to_user_string() for k in keys if resolver.get_status(k) == StaleStatus.STALE}


def test_new_windows_mark_their_own_models(deployment):
    assert stale(deployment) == set()
    report(deployment, "windows/traffic")
    assert stale(deployment) == {"models/compevo/traffic", "evaluation/baselines/traffic"}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Materialized by runs, so that every event has the versions that the assets give."""
    made = deploy(tmp_path_factory.mktemp("home"))
    made.materialize("series/traffic", "news/articles", "news/embeddings", "windows/traffic")
    return made


@pytest.fixture(scope="module")
def workspace(real):
    return open_home(real.home, preset="tiny")


def version(real):
    made = read_materialization(real.materialize("news/embeddings"), "news/embeddings")
    return made.tags["dagster/data_version"]


def test_equal_data_leave_windows_fresh(real):
    assert stale(real) == set()
    real.materialize("series/traffic", "news/articles")
    assert stale(real) == set()


def test_a_new_value_marks_the_windows(real, workspace):
    store = workspace.series_store()
    newest = store.read("traffic").sort("start_utc").tail(1)
    store.write("traffic", newest.with_columns(pl.col("start_utc") + timedelta(hours=1)))
    real.materialize("series/traffic")
    assert stale(real) == {"windows/traffic"}
    real.materialize("windows/traffic")
    assert stale(real) == set()


def test_a_frame_is_content_too(real, workspace):
    store = workspace.series_store()
    before = store.hash_files("electricity")
    rows = make_covariates([date(2026, 1, 1)])
    store.write_frame("electricity", FrameKind.COVARIATES, rows)
    assert len(store.hash_files("electricity")) == len(before) + 1
    with_frames = store.hash_files("electricity")
    store.write_frame("electricity", FrameKind.COVARIATES, rows)
    assert store.hash_files("electricity") == with_frames
    store.write_frame("electricity", FrameKind.COVARIATES, rows.with_columns(value=pl.lit(301.0)))
    assert store.hash_files("electricity") != with_frames


def test_a_new_article_marks_the_windows(real, workspace):
    embedded = version(real)
    workspace.news_store().upsert_articles(articles(1))
    real.materialize("news/articles")
    assert stale(real) == {"windows/traffic", "news/embeddings"}
    assert version(real) == embedded == "hashing"
