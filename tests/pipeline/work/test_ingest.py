"""From feeds to stored frames: what is kept, rejected, left out, stored and confirmed."""

import json
import logging
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core import errors
from compevo_core.data.schemas import COVARIATE_SCHEMA
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.feeds import Feed, default_feeds
from compevo_pipeline.sources.registry import BUILT_IN
from compevo_pipeline.work.ingest import WHAT_IS_NEW, _Ingest, ingest_dataset, ingest_feed
from compevo_pipeline.work.row_rules import refuse_forecasts, refuse_series
from tests.support import nemweb
from tests.support.deployment import open_home
from tests.support.live import LOG, LiveHome
from tests.support.replay import Answer
from tests.support.sources import raw
from tests.support.store_workers import series
from tests.support.window_samples import make_published

NOW = datetime(2026, 4, 1, tzinfo=UTC)
PRESENT = datetime(2020, 2, 2, tzinfo=UTC)
FILE = "archive:aemo/PRICE_AND_DEMAND_202001_NSW1.csv"
ABSENT = errors.SourceAbsent("no file aemo/* under the archive")
OPERATIONAL = "electricity-operational"
PRODUCT = "aemo_operational_demand"
FIRST_HOUR = datetime(2026, 7, 19, 1)  # noqa: DTZ001 - NEM time
ISSUED = FIRST_HOUR.replace(hour=18)


@pytest.fixture
def workspace(tmp_path):
    return open_home(tmp_path, "archive", now=NOW)


def ingest(workspace, kind, files, parse, dataset):
    feed = Feed(name="fake", read_files=lambda *_: iter(files), parsers={kind: parse})
    return ingest_feed(workspace, feed, dataset, log=LOG)


def article(number, seen="20260318T031500Z", **changes):
    entry = {"url": f"https://example.org/{number}", "title": f"Storm {number}", "seendate": seen}
    return entry | changes


def test_a_mistyped_year_leaves_a_store_empty(workspace):
    files, late = [raw("a.csv", "x", "aemo")], move(series(), "45y")
    with pytest.raises(errors.SchemaDrift, match="2026-04-01"):
        ingest(workspace, FrameKind.SERIES, files, lambda _: late, "electricity")
    with pytest.raises(errors.DataError, match="compevo fit"):
        workspace.series_store().read("electricity")
    assert not list(workspace.layout.raw.rglob("*.csv"))


def test_bad_articles_are_counted_by_kind(workspace):
    good = [article(k) for k in range(40)]
    bad = [
        article(50, seen=f"{NOW + timedelta(days=400):%Y%m%dT%H%M%SZ}"),
        article(51, seen="19700101T000000Z"),
        article(52, title=["a", "list"]),
        article(53, title=" \x00"),
        article(54, title="half \ud83d"),
    ]
    files = [
        raw(f"answer_{number}.json", json.dumps({"articles": answer}), "gdelt_doc")
        for number, answer in enumerate(([*good, *bad], [], []))
    ]
    (gdelt,) = [feed for feed in default_feeds()["news"] if feed.name == "gdelt"]
    parse = gdelt.parsers[FrameKind.ARTICLES]
    counts = ingest(workspace, FrameKind.ARTICLES, files, parse, "news")
    expected = {"empty answers": 2, "mistimed": 2, "unreadable": 1, "without a title": 1}

    assert {name: counts[name] for name in expected} == expected
    assert counts["articles"] == workspace.news_store().read_articles().height == 41


def test_a_gap_is_refused_unless_accepted(workspace):
    head = "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE\n"
    rows = [f"NSW1,2020/01/01 0{k}:00:00,{7000 + k},50,TRADE\n" for k in (1, 2)]
    file = raw("PRICE_AND_DEMAND_202001_NSW1.csv", head + "".join(rows), "aemo_price_and_demand")
    (aemo,) = [feed for feed in default_feeds()["electricity"] if feed.name == "aemo"]
    feed = replace(aemo, read_files=lambda *_: iter([file]))
    with pytest.raises(errors.SchemaDrift, match="tolerate_gaps"):
        ingest_feed(workspace, feed, "electricity", log=LOG)
    assert ingest_feed(workspace, feed.accept_gaps(), "electricity", log=LOG)["new"] == 4


def demand(values=(7000.0, 7100.0), **columns):
    changed = {name: pl.lit(value) for name, value in columns.items()}
    return series(values=values, source=FILE).with_columns(**changed)


def move(frame, by):
    return frame.with_columns(pl.col("start_utc").dt.offset_by(by))


LATE = {"fetched_at": PRESENT + timedelta(days=60)}
FRAMES = {
    "kilowatts": (demand(values=(7_000_000.0, 7_100_000.0)), "2 .*MW"),
    "another unit": (demand(unit="kW"), "2 .*MW"),
    "negative count": (demand(variable="rooftop_mw", values=(-1.0, 1.0)), "1 .*0 to inf"),
    "off the grid": (move(demand(), "7m"), "2 .*0:30:00"),
    "ordinary": (demand(values=(2000.0, None, -20.0), series_id="AEMO/TOTALDEMAND/SA1"), None),
    "future without a value": (move(demand(values=(None, None)), "1y"), None),
    "fetched by a clock that is ahead": (move(demand(**LATE), "60d"), None),
}


@pytest.mark.parametrize(("frame", "problem"), FRAMES.values(), ids=FRAMES)
def test_only_an_impossible_row_is_refused(frame, problem):
    is_refused = pytest.raises(errors.SchemaDrift, match=f"^{FILE}: {problem}")
    with is_refused if problem else nullcontext():
        refuse_series(frame, BUILT_IN["electricity"].rules, PRESENT)


def test_forecast_weather_must_be_numbers():
    def admit_weather(value):
        frame = make_published(NOW, 1).drop("quantile")
        frame = frame.with_columns(name=pl.lit("temperature_c"), value=pl.lit(value))
        refuse_forecasts(frame, BUILT_IN["electricity-operational"].rules, frame.clear())

    admit_weather(20.0)
    with pytest.raises(errors.SchemaDrift):
        admit_weather(float("nan"))


def make_feed(name, kind=FrameKind.SERIES, error=None, *, mode=Mode.ARCHIVE, **options):
    """A feed of one file that holds two values, or that fails."""

    def read(*_):
        if error is not None:
            raise error
        yield raw(f"{name}.csv", name, "aemo", mode=mode)

    frame = series(values=(7000.0, 7100.0))
    parsed = frame if kind is FrameKind.SERIES else pl.DataFrame(schema=COVARIATE_SCHEMA)
    fetch = read if mode is Mode.LIVE else None
    parsers = {kind: lambda _: parsed}
    return Feed(name=name, read_files=read, fetch_live=fetch, parsers=parsers, **options)


def ingest_all(home, *feeds, mode=Mode.ARCHIVE):
    workspace = open_home(home, mode, now=NOW, archive=home)
    return ingest_dataset(workspace, "electricity", feeds, log=LOG)


def read_values(home):
    return list(open_home(home, "archive").series_store().read("electricity")["value"])


@pytest.mark.parametrize(
    ("error", "is_optional"), [(ABSENT, False), (errors.SchemaDrift("cut"), True)]
)
def test_an_absent_or_optional_feed_is_left_out(tmp_path, caplog, error, is_optional):
    caplog.set_level(logging.WARNING)
    weather = make_feed("weather", FrameKind.COVARIATES, error, is_optional=is_optional)
    counts = ingest_all(tmp_path, weather, make_feed("aemo"))
    assert list(counts) == ["aemo"] and counts["aemo"]["series rows"] == 2
    assert read_values(tmp_path) == [7000.0, 7100.0]
    assert "weather" in caplog.text and type(error).__name__ in caplog.text


def test_weather_alone_is_no_data_set(tmp_path):
    weather = make_feed("weather", FrameKind.COVARIATES)
    with pytest.raises(errors.SourceAbsent, match="aemo"):
        ingest_all(tmp_path, weather, make_feed("aemo", error=ABSENT))
    # Nothing is missing where nothing was left out: a run may ask for just the weather.
    assert list(ingest_all(tmp_path, weather)) == ["weather"]


@pytest.mark.parametrize(("replaces", "mode"), [(True, Mode.ARCHIVE), (False, Mode.SAMPLE)])
def test_a_declared_feed_is_never_left_out(tmp_path, replaces, mode):
    other = make_feed("other", error=ABSENT, replaces=replaces)
    with pytest.raises(errors.SourceAbsent):
        ingest_all(tmp_path, make_feed("aemo"), other, mode=mode)


def test_a_torn_file_ends_the_run_alone(tmp_path):
    torn = make_feed("torn", error=errors.SchemaDrift("line 3: cut"))
    with pytest.raises(errors.SchemaDrift, match="line 3"):
        ingest_all(tmp_path, make_feed("aemo"), torn, make_feed("after"))
    assert read_values(tmp_path) == [7000.0, 7100.0]


def test_live_feeds_are_read_before_one_fails(tmp_path):
    faults = (errors.SourceRejected("another"), errors.SourceTransient("cut"), None)
    feeds = [make_feed(f"{n}", error=error, mode=Mode.LIVE) for n, error in enumerate(faults)]

    with pytest.raises(errors.SourceTransient):
        ingest_all(tmp_path, *feeds, mode=Mode.LIVE)
    assert read_values(tmp_path) == [7000.0, 7100.0]


@pytest.fixture
def live(replay, tmp_path):
    return LiveHome(tmp_path / "home", datetime(2026, 7, 20, 7, 30, tzinfo=UTC))


def ingest_live(home, span=WHAT_IS_NEW):
    feed = default_feeds()[OPERATIONAL][0]
    return ingest_feed(home.workspace, feed, OPERATIONAL, log=LOG, span=span)


def serve_actuals(replay, count):
    """Serves the first half-hours of a day, and no forecast."""
    midnight = FIRST_HOUR.replace(hour=0)
    ends = [midnight + nemweb.HALF_HOUR * (step + 1) for step in range(count)]
    nemweb.serve_folder(replay, nemweb.ACTUAL, [nemweb.actual(end) for end in ends])


@pytest.mark.parametrize("good", [0, 1])
def test_a_changed_format_stores_the_other_files(replay, live, good):
    serve_actuals(replay, 4 + good)
    names = [nemweb.actual(FIRST_HOUR + step * nemweb.HALF_HOUR)[0] for step in range(-1, 3)]
    for name in names:
        body = nemweb.pack((f"{name.removesuffix('.zip')}.CSV", "C,another format\n"))
        replay.serve({(nemweb.HOST, f"/Reports/CURRENT/{nemweb.ACTUAL}/{name}"): Answer(body=body)})
    with pytest.raises(errors.SchemaDrift):
        ingest_live(live)
    files = list(live.workspace.layout.series.rglob("*.parquet"))

    assert len(files) == 5 * good and (not files or live.series(OPERATIONAL).height == 5)
    assert live.ledger.get(PRODUCT, names[0]).state is EntryState.FAILED


def test_counts_of_batches_are_added(replay, live, monkeypatch):
    nemweb.serve_day(replay, count=1)
    issued = datetime(2026, 7, 19, 16)  # noqa: DTZ001 - NEM time
    files = [nemweb.forecast(issued.replace(hour=hour), steps=4) for hour in (16, 17)]
    nemweb.serve_folder(replay, nemweb.FORECAST, files)
    monkeypatch.setattr("compevo_pipeline.work.ingest.MAX_BATCH_BYTES", 1)
    counts = ingest_live(live)
    assert counts["published rows"] == 2 * 4 * 5 * 3
    assert counts["step_covariates rows"] == 96 * 5


def test_a_killed_backfill_goes_on_by_batch(replay, live, monkeypatch):
    # Smaller than one file: each is a batch of its own.
    monkeypatch.setattr("compevo_pipeline.work.ingest.MAX_BATCH_BYTES", 1)
    serve_actuals(replay, 5)
    span = (datetime(2026, 7, 18, tzinfo=UTC), datetime(2026, 7, 19, tzinfo=UTC))
    store, left = _Ingest.store, [3]

    def die_at_the_fourth(*args):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return store(*args)

    with monkeypatch.context() as patched:
        patched.setattr(_Ingest, "store", die_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            ingest_live(live, span=span)
    entries = live.ledger.list_entries(PRODUCT)
    # Forecasts, which no host serves, are absent.
    states = [entry.state for entry in entries if entry.state is not EntryState.ABSENT]
    # The last stored one may hold more members, so it is read again from its kept bytes.
    assert states == [EntryState.STORED] * 2 + [EntryState.FETCHED] * 2

    ingest_live(live, span=span)
    assert live.series(OPERATIONAL).height == 5 * 5
    asked = [path for path in replay.paths() if path.endswith(".zip")]
    assert len(asked) == len(set(asked))


def read_published(home):
    return home.workspace.series_store().read_frame(OPERATIONAL, FrameKind.PUBLISHED)


def test_a_forecast_far_off_waits_for_correction(replay, live):
    # Nothing is stored yet: what it is held against arrives in the same refresh.
    nemweb.serve_day(replay, count=2)
    good, bad = nemweb.forecast(ISSUED.replace(hour=17)), nemweb.forecast(ISSUED, value=2600.0)
    nemweb.serve_folder(replay, nemweb.FORECAST, [good, bad])
    assert ingest_live(live)["rejected"] == 1
    assert read_published(live)["available_at"].n_unique() == 1
    assert live.ledger.get(PRODUCT, bad[0]).state is EntryState.FAILED

    # The next tick takes the corrected file, and the actuals were never in danger.
    nemweb.serve_folder(replay, nemweb.FORECAST, [good, nemweb.forecast(ISSUED)])
    assert ingest_live(live)["files"] == 1
    assert read_published(live)["available_at"].n_unique() == 2
    assert live.series(OPERATIONAL).height == 2 * 5


def test_a_report_is_known_when_loaded(replay, live):
    nemweb.serve_day(replay)
    seventeen = FIRST_HOUR.replace(hour=17)
    early = nemweb.forecast(seventeen, created=seventeen.replace(hour=10))
    nemweb.serve_folder(replay, nemweb.FORECAST, [early])
    ingest_live(live)
    known = read_published(live)["available_at"].unique().to_list()
    assert known == [datetime(2026, 7, 19, 7, tzinfo=UTC)]
