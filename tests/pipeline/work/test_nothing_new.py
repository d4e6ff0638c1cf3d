"""What has not changed is not made again, and what was lost is."""

import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from unittest.mock import patch

import dagster as dg
import polars as pl
import pytest

from compevo_core.data.context import ContextBuilder
from compevo_core.data.view import WindowView
from compevo_pipeline.config.settings import Layout, Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs import asset_checks
from compevo_pipeline.defs.assets import windows as windows_asset
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.work.ingest import ingest_dataset
from compevo_pipeline.work.stored_windows import cut_windows, write_windows
from tests.support import operational
from tests.support.deployment import open_home
from tests.support.live import LOG
from tests.support.population import news_pool
from tests.support.trees import read_tree
from tests.support.window_samples import make_articles

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DATASET = "bitcoin"


def test_files_are_parsed_once(tmp_path):
    workspace = open_home(tmp_path, now=NOW)
    parsed: list[str] = []
    feeds = [feed for feed in default_feeds()[DATASET] if feed.exists_in(Mode.SAMPLE)]

    def watch(feed):
        def parse(files):
            parsed.append(feed.name)
            return feed.parsers[FrameKind.SERIES](files)

        return replace(feed, parsers={**feed.parsers, FrameKind.SERIES: parse})

    def ingest(chosen=feeds):
        return ingest_dataset(workspace, DATASET, [watch(feed) for feed in chosen], log=LOG)

    ingest()
    before = read_tree(tmp_path)
    counts = ingest()
    assert len(parsed) == len(feeds)
    assert counts[feeds[0].name]["known files"] == counts[feeds[0].name]["files"] > 0
    assert read_tree(tmp_path) == before

    # A run that accepts gaps is asked for with other parsers.
    ingest([feed.accept_gaps() for feed in feeds])
    assert len(parsed) == 2 * len(feeds)


@pytest.mark.slow
def test_a_second_run_cuts_no_window(tmp_path, monkeypatch):
    defs = build_defs(Settings(home=tmp_path / "home", mode=Mode.SAMPLE), clock=lambda: NOW)
    keys = ("series", DATASET), ("windows", DATASET), ("news", "articles")
    selection = dg.AssetSelection.assets(*map(dg.AssetKey, keys))
    job = dg.define_asset_job("some", selection, executor_def=dg.in_process_executor)
    resolved = dg.Definitions.merge(defs, dg.Definitions(jobs=[job])).resolve_job_def("some")

    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        first = resolved.execute_in_process(instance=instance)
        before = read_tree(tmp_path / "home")
        monkeypatch.setattr(windows_asset.stored_windows, "cut_windows", None)
        monkeypatch.setattr(asset_checks, "run_suites", None)
        monkeypatch.setattr(asset_checks, "WindowSet", None)
        second = resolved.execute_in_process(instance=instance)

    assert first.success and second.success
    assert read_tree(tmp_path / "home") == before
    runs = (first, second)
    one, other = (run.asset_materializations_for_node("windows__bitcoin")[0] for run in runs)
    assert one.tags["dagster/data_version"] == other.tags["dagster/data_version"]
    assert one.metadata.keys() == other.metadata.keys()
    judged = [len(run.get_asset_check_evaluations()) for run in runs]
    assert judged[0] == judged[1] > 0


@pytest.mark.parametrize("change", ["value", pytest.param("article", marks=pytest.mark.slow)])
def test_windows_before_a_change_stay(tmp_path, monkeypatch, change):
    layout = Layout(root=tmp_path / "sample")
    operational.store_until(layout, operational.issue_time(date(2026, 2, 24)))
    workspace = operational.open_workspace(layout)
    workspace.news_store().upsert_articles(news_pool().articles)
    dataset = operational.DATASET
    windows = cut_windows(workspace, dataset)
    write_windows(workspace, windows)

    built: list[datetime] = []
    build_view = ContextBuilder.build_view

    def count(self, series, entity, inputs, *others):
        built.append(inputs.origin_utc)
        return build_view(self, series, entity, inputs, *others)

    monkeypatch.setattr(ContextBuilder, "build_view", count)
    init = WindowView.__init__
    with patch.object(WindowView, "__init__", autospec=True, side_effect=init) as read:
        cut_windows(workspace, dataset)
    assert built == [] and read.call_count == len(windows)

    first_changed = datetime(2026, 2, 1, tzinfo=UTC)
    if change == "value":
        store = workspace.series_store()
        at = pl.col("start_utc") == first_changed + timedelta(days=20)
        raised = pl.when(at).then(pl.col("value") + 1.0).otherwise("value").alias("value")
        store.write(dataset, store.read(dataset).with_columns(raised))
    else:
        workspace.news_store().upsert_articles(make_articles([first_changed + timedelta(days=2)]))

    again = cut_windows(workspace, dataset)
    n_built = len(built)
    assert all(origin + timedelta(days=2) > first_changed for origin in built)
    assert 0 < n_built < len(windows)

    # As if all were cut again, to the last bit.
    shutil.rmtree(layout.receipts)
    whole = cut_windows(workspace, dataset)
    assert len(built) - n_built == len(whole)
    assert (again.hash, again.manifest) == (whole.hash, whole.manifest)
    assert again.hash != windows.hash
