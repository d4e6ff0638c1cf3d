"""Counts of what is stored of each source, backfills that resume, and what is not made again."""

import logging
import shutil
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import chain, repeat
from unittest.mock import Mock, patch

import dagster as dg
import polars as pl
import pytest

from compevo_core.data.context import ContextBuilder
from compevo_core.data.schemas import PUBLISHED_SCHEMA
from compevo_core.data.view import WindowView
from compevo_core.errors import ConfigError, SourceBlocked
from compevo_core.runtime.files import StoreBusy
from compevo_core.runtime.usage import Steps
from compevo_pipeline.config.settings import Layout, Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs import asset_checks
from compevo_pipeline.defs.asset_keys import make_months, months_key
from compevo_pipeline.defs.assets import windows as windows_asset
from compevo_pipeline.defs.assets.sources import backfill_job, build_months_asset, report_months
from compevo_pipeline.sources.bitinfocharts import METRICS
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.work import source_coverage as coverage
from compevo_pipeline.work.ingest import DATA_VERSION_TAG, WHAT_IS_NEW, hash_series, ingest_dataset
from compevo_pipeline.work.stored_windows import cut_windows, write_windows
from tests.pipeline.sources import test_daily_prices as daily
from tests.pipeline.sources.gdelt import test_live as gdelt
from tests.pipeline.sources.pems import test_pems as pems
from tests.support import nemweb, operational
from tests.support.commands import invoke
from tests.support.deployment import QUIET, open_home
from tests.support.live import LOG, LiveHome
from tests.support.population import news_pool
from tests.support.replay import Answer
from tests.support.trees import read_tree
from tests.support.weather import ENDPOINT, answer, asked_run
from tests.support.window_samples import DAY, from_nem, make_articles, make_series

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
FIRST = from_nem(2026, 2, 27)
DATASET = "electricity-operational"
WEATHER = next(feed for feed in default_feeds()[DATASET] if feed.is_optional)
SINCE, UNTIL = datetime(2025, 4, 29, tzinfo=UTC), datetime(2025, 5, 3, tzinfo=UTC)
NOW = datetime(2026, 7, 20, 7, 30, tzinfo=UTC)
N_RUNS = 4


@pytest.fixture
def workspace(tmp_path):
    return open_home(tmp_path, "live", now=NOON)


def row(counts, source, month, counted):
    (found,) = counts.filter(source=source, month=month, counted=counted).rows(named=True)
    return found


def store_demand(workspace, source):
    names = {"series_id": "AEMO/OPERATIONAL_DEMAND/NSW1", "source": source}
    frame = make_series([7000.0] * 6 * 48, first=FIRST, **names)
    second = frame.with_columns(series_id=pl.lit("AEMO/OPERATIONAL_DEMAND/VIC1"))
    # The first day of March has no value of Victoria.
    start, end = from_nem(2026, 3, 1), from_nem(2026, 3, 2)
    second = second.filter(~pl.col("start_utc").is_between(start, end, closed="left"))
    workspace.series_store().write("electricity-operational", pl.concat([frame, second]))


@pytest.mark.parametrize(
    ("mode", "days", "months"),
    [("archive", 4, {}), ("live", 10, {"2026-02": True, "2026-03": False})],
)
def test_values_are_counted_by_the_markets_clock(workspace, mode, days, months):
    store_demand(workspace, f"{mode}:aemo/a.csv")
    counts = coverage.measure_coverage(workspace)
    source = "electricity-operational: AEMO/OPERATIONAL_DEMAND"
    february = row(counts, source, "2026-02", "values")
    assert (february["expected"], february["stored"]) == (2 * 2 * 48, 2 * 2 * 48)
    march = row(counts, source, "2026-03", "values")
    assert (march["expected"], march["stored"]) == (days * 96, 4 * 96 - 48)
    assert march["absent"] == march["expected"] - march["stored"]

    # Only a live source makes a month whole: it is expected until today.
    assert coverage.find_stored_months(workspace, "electricity-operational") == months
    assert coverage.find_stored_months(workspace, "news") == {}


@pytest.mark.parametrize(("holidays", "is_whole"), [(3, True), (4, False)])
def test_a_month_of_rates_may_have_holidays(workspace, holidays, is_whole):
    named = {"series_id": "ECB/AUD", "source": "live:ecb/a.csv"}
    frame = make_series([1.0] * 31, first=datetime(2026, 1, 1, tzinfo=UTC), step=DAY, **named)
    frame = frame.filter(pl.col("start_utc").dt.weekday() < 6)
    workspace.series_store().write("exchange", pl.concat([frame[:5], frame[5 + holidays :]]))
    assert coverage.find_stored_months(workspace, "exchange")["2026-01"] is is_whole


def test_forecasts_and_news_are_counted_by_day(workspace):
    rows = [("NSW1", FIRST + i * DAY, 1.0, FIRST, 0.5, "archive:aemo_day/x") for i in (0, 1, 4)]
    frame = pl.DataFrame(rows, schema=PUBLISHED_SCHEMA, orient="row")
    workspace.series_store().write_frame("electricity-operational", FrameKind.PUBLISHED, frame)
    articles = make_articles([NOON - 3 * DAY, NOON - 3 * DAY + timedelta(hours=1), NOON - 5 * DAY])
    workspace.news_store().upsert_articles(articles.with_columns(source=pl.lit("live:gdelt/x")))

    counts = coverage.measure_coverage(workspace)
    forecasts = row(counts, "electricity-operational: aemo_day (published)", "2026-03", "days")
    assert (forecasts["expected"], forecasts["stored"]) == (3, 1)
    news = row(counts, "news: gdelt", "2026-03", "days")
    assert (news["expected"], news["stored"]) == (6, 2)


def test_only_the_last_months_are_shown(workspace):
    assert coverage.measure_coverage(workspace).height == 0
    assert coverage.pivot_months(coverage.measure_coverage(workspace), 3).height == 0
    store_demand(workspace, "archive:aemo/a.csv")
    counts = coverage.measure_coverage(workspace)
    assert coverage.pivot_months(counts, 1).columns[2:] == ["2026-03"]
    assert coverage.pivot_months(counts, 9).columns[2:] == ["2026-03", "2026-02"]


def test_a_files_name_has_its_month():
    months = {
        "PRICE_AND_DEMAND_202603_NSW1.csv": "2026-03",
        "PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH_202607190030_20260719000007.zip": "2026-07",
        "20260301001500.gkg.csv.zip": "2026-03",
        "eurofxref-hist.zip": "",
        "202613_1.csv": "",
    }
    assert {name: coverage.find_month(name) for name in months} == months


def fetch(home, *, dataset=DATASET, feeds=(WEATHER,), now=NOW, **changes):
    workspace = open_home(home, "live", now=now)
    span = {"since": SINCE, "until": UNTIL} | changes
    log = logging.getLogger("backfill")
    return workspace, coverage.backfill(workspace, dataset, feeds, log=log, **span)


def count_stored_runs(workspace):
    frame = workspace.series_store().read_frame(DATASET, FrameKind.STEP_COVARIATES)
    return 0 if frame is None else frame["available_at"].n_unique()


def test_a_span_is_read_by_month():
    def moments(feed, since, until):
        parts = coverage.list_parts([feed], since, until)
        return [(f"{start:%m-%d %H}", f"{end:%m-%d %H}") for _, start, end in parts]

    months = [("04-29 00", "05-01 00"), ("05-01 00", "06-01 00"), ("06-01 00", "06-03 00")]
    june = datetime(2025, 6, 3, tzinfo=UTC)
    assert moments(WEATHER, SINCE, june) == months
    assert moments(replace(WEATHER, is_whole=True), SINCE, june) == [("04-29 00", "06-03 00")]
    december, february = datetime(2025, 12, 31, 6, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    assert moments(WEATHER, december, february) == [("12-31 06", "01-01 00")]
    assert coverage.list_parts([replace(WEATHER, is_whole=True)], UNTIL, SINCE) == []


def test_a_month_is_stored_before_the_next(replay, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    clock = chain([0.0], repeat(60.0)).__next__
    monkeypatch.setattr("compevo_pipeline.work.source_coverage.Steps", partial(Steps, clock=clock))
    replay.serve({ENDPOINT: answer})
    workspace, counts = fetch(tmp_path)
    assert counts["weather-forecast"]["files"] == N_RUNS == len(replay.seen)
    assert count_stored_runs(workspace) == N_RUNS
    told = [record.message for record in caplog.records if "/2 " in record.message]
    assert ["about 1m00s left" in line for line in told] == [False, True]

    fetch(tmp_path)
    assert len(replay.seen) == N_RUNS


def test_a_backfill_ends_today_whatever_its_last_day(replay, tmp_path):
    nemweb.serve_prices(replay, date(2026, 7, 1))
    prices, *_ = default_feeds()["electricity"]
    span = {"since": datetime(2026, 7, 1, tzinfo=UTC), "until": datetime(2026, 9, 9, tzinfo=UTC)}
    _, counts = fetch(tmp_path, dataset="electricity", feeds=[prices], **span)
    assert counts["aemo"]["files"] == 5
    assert len(replay.seen) == 5


def test_a_failed_backfill_asks_for_the_rest(replay, tmp_path):
    denied = Answer(status=403, body=b"no", kind="text/plain")
    day = datetime(2025, 5, 2, tzinfo=UTC)
    replay.serve({ENDPOINT: lambda seen: denied if asked_run(seen) >= day else answer(seen)})
    with pytest.raises(SourceBlocked):
        fetch(tmp_path)
    first = [asked_run(seen) for seen in replay.seen]
    workspace = open_home(tmp_path, "live")
    # The run that failed is the last that was asked for; those of its month before it are stored.
    assert count_stored_runs(workspace) == len(first) - 1 == 3

    replay.serve({ENDPOINT: answer})
    workspace, _ = fetch(tmp_path)
    again = [asked_run(seen) for seen in replay.seen][len(first) :]
    assert again[0] == first[-1] and not set(again) & set(first[:-1])
    assert count_stored_runs(workspace) == N_RUNS


def test_a_backfill_without_span_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="archive"):
        workspace = open_home(tmp_path, "archive")
        coverage.backfill(workspace, DATASET, [WEATHER], since=SINCE, log=logging.root)
    with pytest.raises(ConfigError, match="2025-05-03"):
        fetch(tmp_path, since=UNTIL, until=SINCE)


def test_feeds_without_an_endpoint_are_refused():
    feeds = {DATASET: (WEATHER, replace(WEATHER, name="table", fetch_live=None))}

    assert coverage.choose_feeds(feeds, DATASET, None) == [WEATHER]
    assert coverage.choose_feeds(feeds, DATASET, ["weather-forecast"]) == [WEATHER]
    with pytest.raises(ConfigError, match=r"'wether'.*electricity-operational"):
        coverage.choose_feeds(feeds, "wether", None)
    with pytest.raises(ConfigError, match="weather-forecast"):
        coverage.choose_feeds(feeds, DATASET, ["table"])
    with pytest.raises(ConfigError, match="none"):
        coverage.choose_feeds({"news": ()}, "news", None)


def test_the_job_says_that_series_changed(replay, tmp_path):
    replay.serve({ENDPOINT: answer})
    span = {"since": "2025-04-29", "until": "2025-04-30"}
    config = {"dataset": DATASET, "feeds": ["weather-forecast"], **span}
    result = backfill_job.execute_in_process(
        run_config={"ops": {"fetch_missing": {"config": config}}, "loggers": QUIET},
        resources={"workspace": open_home(tmp_path, "live", now=NOW)},
    )
    (event,) = result.asset_materializations_for_node("fetch_missing")
    assert event.asset_key == dg.AssetKey(["series", DATASET])
    assert len(replay.seen) == 1

    # The version is that of what is stored, so that windows are stale after it.
    assert event.tags[DATA_VERSION_TAG] == hash_series(open_home(tmp_path, "live"), DATASET)


def test_missing_months_are_fetched_by_one_run(replay, tmp_path):
    replay.serve({ENDPOINT: answer})
    workspace = open_home(tmp_path, "live", now=NOW)
    asset = build_months_asset(DATASET, make_months(workspace.registry[DATASET].spec))
    first, last = "2025-06-01", "2025-07-01"
    span = {"start": first, "end": last}
    ops = {asset.op.name: {"config": {"feeds": ["weather-forecast"]}}}
    result = dg.materialize(
        [asset],
        resources={"workspace": workspace},
        tags={f"dagster/asset_partition_range_{end}": month for end, month in span.items()},
        run_config={"loggers": QUIET, "ops": ops},
    )
    made = result.asset_materializations_for_node(asset.op.name)
    assert [(one.asset_key, one.partition) for one in made] == [
        (dg.AssetKey(["series", DATASET]), None),  # windows are stale now
        (asset.key, first),
        (asset.key, last),
    ]
    days = {asked_run(seen).date() for seen in replay.seen}
    assert (min(days), max(days)) == (date(2025, 6, 1), date(2025, 7, 31))


def test_whole_months_are_told_once(tmp_path, monkeypatch, caplog):
    instance, key = dg.DagsterInstance.ephemeral(), months_key("bitcoin")
    workspace = open_home(tmp_path, "live", now=datetime(2026, 4, 8, tzinfo=UTC))
    # To the third of April: that month is not over, and March has a gap.
    source = {"series_id": "BITINFOCHARTS/BTC", "source": "live:bitinfocharts/price"}
    frame = make_series([1.0] * 93, first=datetime(2026, 1, 1, tzinfo=UTC), step=DAY, **source)
    is_there = pl.col("start_utc") != datetime(2026, 3, 9, tzinfo=UTC)
    workspace.series_store().write("bitcoin", frame.filter(is_there))
    for _ in range(2):
        report_months(instance, workspace, "bitcoin", logging.root)
    told = instance.fetch_materializations(key, limit=99).records
    assert sorted(one.partition_key for one in told) == ["2026-01-01", "2026-02-01"]

    # A store that is busy ends no refresh.
    busy = Mock(side_effect=StoreBusy("held by another run"))
    monkeypatch.setattr("compevo_pipeline.defs.assets.sources.find_stored_months", busy)
    report_months(instance, workspace, "bitcoin", logging.root)
    assert "held by another run" in caplog.text

    # A deployment on files fetches nothing, and has no such asset.
    report_months(instance, open_home(tmp_path, "archive"), "news", logging.root)
    assert not instance.has_asset_key(months_key("news"))


def test_the_command_says_that_series_changed(replay, tmp_path, monkeypatch):
    serve_charts(replay)
    (tmp_path / "dagster").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    words = ("backfill", "bitcoin", "--since", "2026-01-01")
    assert "bitinfocharts" in invoke(*words, home=tmp_path / "home", mode="live")

    key = dg.AssetKey(["series", "bitcoin"])
    with dg.DagsterInstance.get() as instance:
        made = instance.get_latest_materialization_event(key).asset_materialization
    workspace = open_home(tmp_path / "home", "live")
    assert made.tags[DATA_VERSION_TAG] == hash_series(workspace, "bitcoin")
    assert made.metadata["dagster/row_count"].value > 0


def serve_operational(replay):
    nemweb.serve_day(replay)
    replay.serve({ENDPOINT: answer})


def serve_charts(replay):
    # No tag: the program's own time of the last fetch has to do.
    page = Answer(body=daily.page(), kind="text/html", modified="Fri, 20 Nov 2026 07:00:00 GMT")
    replay.serve({daily.path(slug): page for slug in METRICS})


RATES = {daily.BULK: daily.BULK_ANSWER, daily.TABLE: daily.RBA_ANSWER}
MONTHS, PEMS = (date(2026, 6, 1), date(2026, 7, 1)), ("pems.dot.ca.gov", "/")
CASES = {
    "electricity": (lambda replay: nemweb.serve_prices(replay, *MONTHS), NOW, WHAT_IS_NEW),
    "electricity-operational": (serve_operational, NOW, WHAT_IS_NEW),
    "exchange": (lambda replay: replay.serve(RATES), daily.FRIDAY_EVENING, WHAT_IS_NEW),
    "bitcoin": (serve_charts, daily.NOW, WHAT_IS_NEW),
    "traffic": (lambda replay: replay.serve({PEMS: pems.Site()}), pems.NOW, WHAT_IS_NEW),
    # An hour of it: a day is hundreds of files.
    coverage.NEWS: (gdelt.serve_gal, gdelt.NOW, gdelt.HOUR),
}


def stored_files(home):
    """What is stored, without the bytes as they came and the ledger."""
    tree = read_tree(home.workspace.layout.root)
    return {name: content for name, (content, _) in tree.items() if not name.startswith("raw/")}


def test_every_live_feed_has_a_case():
    for dataset, feeds in default_feeds().items():
        assert any(feed.exists_in(Mode.LIVE) for feed in feeds) == (dataset in CASES), dataset


@pytest.mark.parametrize("dataset", CASES)
def test_a_second_refresh_writes_no_row(replay, tmp_path, dataset):
    serve, now, span = CASES[dataset]
    serve(replay)
    archive = tmp_path / "archive"
    archive.mkdir()
    home = LiveHome(tmp_path / "home", now, {"archive": archive} | pems.ACCOUNT)

    first = home.ingest(dataset, span=span)
    assert all(counts["files"] > 0 for counts in first.values())
    before, asked = stored_files(home), len(replay.seen)

    home.wait(minutes=5)
    second = home.ingest(dataset, span=span)
    assert [seen.path for seen in replay.seen[asked:] if not seen.is_conditional] == []
    assert {name: counts["files"] for name, counts in second.items()} == dict.fromkeys(first, 0)
    assert stored_files(home) == before


def test_files_are_parsed_once(tmp_path):
    workspace = open_home(tmp_path, now=NOW)
    parsed: list[str] = []
    feeds = [feed for feed in default_feeds()["bitcoin"] if feed.exists_in(Mode.SAMPLE)]

    def watch(feed):
        def parse(files):
            parsed.append(feed.name)
            return feed.parsers[FrameKind.SERIES](files)

        return replace(feed, parsers={**feed.parsers, FrameKind.SERIES: parse})

    def ingest(chosen=feeds):
        return ingest_dataset(workspace, "bitcoin", [watch(feed) for feed in chosen], log=LOG)

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
    keys = ("series", "bitcoin"), ("windows", "bitcoin"), ("news", "articles")
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
