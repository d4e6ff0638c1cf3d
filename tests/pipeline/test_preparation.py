"""What a feed's files do to the store, and what is counted of them."""

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.errors import DataError, SchemaDrift
from compevo_pipeline.feeds import Feed, default_feeds
from compevo_pipeline.preparation import ingest_feed
from compevo_pipeline.resources import Workspace
from compevo_pipeline.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode
from tests.support.sources import raw
from tests.support.store_workers import series

NOW = datetime(2026, 4, 1, tzinfo=UTC)
LOG = logging.getLogger("test")


@pytest.fixture
def workspace(tmp_path):
    return Workspace(settings=Settings(home=tmp_path, mode=Mode.ARCHIVE))


def ingest(workspace, kind, files, parse, dataset):
    feed = Feed(name="fake", read_files=lambda *_: iter(files), parsers={kind: parse})
    return ingest_feed(workspace, feed, dataset, clock=lambda: NOW, log=LOG)


def ingest_series(workspace, frame):
    files = [raw("a.csv", "x", "aemo")]
    return ingest(workspace, FrameKind.SERIES, files, lambda _: frame, "electricity")


def ingest_answers(workspace, *answers):
    (gdelt,) = [feed for feed in default_feeds()["news"] if feed.name == "gdelt"]
    files = [
        raw(f"answer_{number}.json", json.dumps({"articles": answer}), "gdelt_doc")
        for number, answer in enumerate(answers)
    ]
    parse = gdelt.parsers[FrameKind.ARTICLES]
    return ingest(workspace, FrameKind.ARTICLES, files, parse, "news")


def article(number, seen="20260318T031500Z", **changes):
    entry = {"url": f"https://example.org/{number}", "title": f"Storm {number}", "seendate": seen}
    return entry | changes


def test_kilowatts_are_refused_before_a_row_or_a_file_is_stored(workspace):
    ingest_series(workspace, series(values=(7000.0, 7100.0)))
    with pytest.raises(SchemaDrift, match=r"archive:test: 2 row\(s\) outside the bounds"):
        ingest_series(workspace, series(values=(7_000_000.0, 7_100_000.0)))
    assert workspace.series_store().read("electricity")["value"].to_list() == [7000.0, 7100.0]


def test_a_mistyped_year_leaves_an_empty_store_empty(workspace):
    with pytest.raises(SchemaDrift, match="cannot be known on 2026-04-01"):
        ingest_series(workspace, series().with_columns(pl.col("start_utc").dt.offset_by("45y")))
    with pytest.raises(DataError, match="materialize series/electricity first"):
        workspace.series_store().read("electricity")
    assert not list(workspace.layout.raw.rglob("*.csv"))


def test_nulls_over_known_values_are_counted(workspace):
    ingest_series(workspace, series(values=(7000.0, 7100.0)))
    counts = ingest_series(workspace, series(values=(None, 7200.0)))
    assert (counts["nulls kept out"], counts["changed"]) == (1, 1)


def test_bad_articles_are_counted_by_kind_and_the_good_ones_are_stored(workspace):
    good = [article(k) for k in range(40)]
    bad = [
        article(50, seen=f"{NOW + timedelta(days=400):%Y%m%dT%H%M%SZ}"),
        article(51, seen="19700101T000000Z"),
        article(52, title=["a", "list"]),
        article(53, title=" \x00"),
        article(54, title="half \ud83d"),
    ]
    counts = ingest_answers(workspace, [*good, *bad], [], [])
    expected = {"empty answers": 2, "mistimed": 2, "unreadable": 1, "without a title": 1}
    assert {name: counts[name] for name in expected} == expected
    assert counts["articles"] == workspace.news_store().read_articles().height == 41


def test_a_gap_is_refused_unless_the_run_accepts_it(workspace):
    head = "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE\n"
    rows = [f"NSW1,2020/01/01 0{k}:00:00,{7000 + k},50,TRADE\n" for k in (1, 2)]
    file = raw("PRICE_AND_DEMAND_202001_NSW1.csv", head + "".join(rows), "aemo_price_and_demand")
    (aemo,) = [feed for feed in default_feeds()["electricity"] if feed.name == "aemo"]
    feed = replace(aemo, read_files=lambda *_: iter([file]))
    with pytest.raises(SchemaDrift, match="or set tolerate_gaps for this run"):
        ingest_feed(workspace, feed, "electricity", clock=lambda: NOW, log=LOG)
    counts = ingest_feed(workspace, feed.accept_gaps(), "electricity", clock=lambda: NOW, log=LOG)
    assert counts["new"] == 4
