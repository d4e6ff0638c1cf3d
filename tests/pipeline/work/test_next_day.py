"""The forecast of a day: issued once from what is stored, refused where an input is stale."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from datetime import date, timedelta
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from compevo_core.data.build import BuiltViews, grid_chosen
from compevo_core.data.context import find_newest_known
from compevo_core.data.datasets import ELECTRICITY_OPERATIONAL
from compevo_core.errors import ConfigError, DataError
from compevo_core.forecast.issued import FACTS_FILE, find_issued, is_issued, write_issued
from compevo_core.runtime.files import StoreBusy
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.defs.asset_checks import judge_news_change
from compevo_pipeline.defs.assets.forecast import NextDayConfig
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.sources.registry import BUILT_IN
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import SeriesStore
from compevo_pipeline.work import next_day
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import KnownTo, Origin, StaleNews, StoredFrames
from compevo_pipeline.work.stored_windows import cut_windows, find_current_windows, write_windows
from tests.support import operational
from tests.support import population as small
from tests.support.issued_samples import make_issued
from tests.support.live import LOG
from tests.support.window_samples import HALF_HOUR, from_nem, make_articles

DATASET = operational.DATASET
DAY = date(2026, 2, 24)
ORIGIN = from_nem(2026, 2, 24)
ISSUED = Origin.of(ELECTRICITY_OPERATIONAL, DAY, KnownTo.ISSUE_TIME)


@pytest.fixture(scope="module")
def layout(tmp_path_factory, operational_run):
    home = tmp_path_factory.mktemp("home")
    return operational.make_deployment(home, operational.issue_time(DAY), operational_run)


@pytest.fixture
def fresh(layout, tmp_path):
    """A copy of the deployment, for a test that changes it."""
    return Layout(root=shutil.copytree(layout.root, tmp_path / "home" / "sample"))


def issue(layout, day=DAY):
    workspace = operational.open_workspace(layout)
    return next_day.forecast_day(workspace, DATASET, day, KnownTo.ISSUE_TIME, log=LOG)


def read_frames(layout):
    deployment = operational.open_workspace(layout)
    return StoredFrames.read(deployment, ELECTRICITY_OPERATIONAL, reads_news=True)


def test_a_forecast_begins_with_its_day():
    quarters = replace(ELECTRICITY_OPERATIONAL, stride_steps=12, horizon_steps=12)
    start = NextDayConfig(at="18:00").find_start("2026-02-24")

    assert Origin.of(quarters, start, KnownTo.MIDNIGHT).origin_utc == ORIGIN + timedelta(hours=18)
    whole = NextDayConfig().find_start("2026-02-24")
    assert Origin.of(quarters, whole, KnownTo.MIDNIGHT).origin_utc == ORIGIN
    late = NextDayConfig(at="18:30").find_start("2026-02-24")
    with pytest.raises(ConfigError, match=r"18:30, .*00:00.* 6h"):
        Origin.of(quarters, late, KnownTo.MIDNIGHT)
    with pytest.raises(ConfigError, match=r"at 00:00$"):
        Origin.of(ELECTRICITY_OPERATIONAL, start, KnownTo.MIDNIGHT)


def test_a_forecast_is_sealed_with_its_inputs(layout, monkeypatch):
    found = issue(layout)
    assert found.is_new
    assert found.forecast.facts["newest"] == {
        "values": {"NSW1": "2026-02-23T07:00:00+00:00"},
        "publication": "2026-02-23T07:00:00+00:00",
        "article": small.news_pool().articles["available_at"].max().isoformat(),
    }

    monkeypatch.setattr(next_day, "CompEvoForecaster", None)
    again = issue(layout)
    assert (again.is_new, again.notes) == (False, ())
    assert again.forecast.hash == found.forecast.hash


def test_a_crowding_site_is_told(fresh):
    seen = ORIGIN - timedelta(hours=9)
    titles = [f"heat{n} wave{n} black{n} out{n} in Sydney" for n in range(150)]
    false = make_articles([seen] * 150, titles).with_columns(domain=pl.lit("strangers.example"))
    NewsStore(fresh.news_database).upsert_articles(false)
    shutil.rmtree(fresh.issued(DATASET), ignore_errors=True)

    workspace = operational.open_workspace(fresh)
    found = issue(fresh)
    (told,) = found.notes
    assert "150 articles" in told and "strangers.example" in told and "16" in told
    frames = StoredFrames.read(workspace, ELECTRICITY_OPERATIONAL, reads_news=True)
    (view,) = frames.build_views(ISSUED).views
    assert len(view.candidate_ids) == 16
    assert issue(fresh).forecast.hash == found.forecast.hash

    settings = workspace.settings.model_copy(update={"news_domains": ("example.org",)})
    chosen = StoredFrames.read(Deployment(settings=settings), frames.spec, reads_news=True)
    assert set(chosen.articles["domain"]) <= {"example.org"}


def test_news_that_moves_much_is_told(tmp_path):
    def issue_moved(day, **changes):
        issued = make_issued(origin=ORIGIN + timedelta(days=day))
        series = [
            one | {"news_change": changes.get(one["entity"])} for one in issued.facts["series"]
        ]
        moved = replace(issued, facts=issued.facts | {"series": series})
        write_issued(tmp_path, moved)
        return judge_news_change(tmp_path), list(next_day._describe_news(moved))

    assert judge_news_change(tmp_path).passed
    assert issue_moved(0)[0].passed  # it reads no news
    outcome, notes = issue_moved(1, NSW1=0.004, SA1=0.028)
    assert not outcome.passed and "SA1 +2.8%" in outcome.text
    assert "SA1" in notes[0] and "+2.8%" in notes[0]
    # If news moves a forecast this much every day, twice as much is noted.
    assert issue_moved(2, NSW1=0.0, SA1=-0.05)[0].passed
    assert not issue_moved(3, NSW1=0.08, SA1=0.0)[0].passed


def test_later_data_are_no_newest_input(layout):
    frames = read_frames(layout)
    origin = Origin.of(ELECTRICITY_OPERATIONAL, date(2026, 2, 22), KnownTo.ISSUE_TIME)
    views = frames.build_views(origin).views
    late = make_articles([origin.until - HALF_HOUR, origin.until + HALF_HOUR])
    newest = find_newest_known(views, frames.series, published=frames.published, articles=late)

    assert newest == ({"NSW1": origin.until}, origin.until, origin.until - HALF_HOUR)


def test_revised_data_leave_the_record(fresh):
    first = issue(fresh)
    store = SeriesStore(fresh.root)
    before = store.read(DATASET)
    at = ORIGIN - timedelta(hours=12)
    revised = pl.when(pl.col("start_utc") == at).then(1.0).otherwise("value")
    store.write(DATASET, before.with_columns(value=revised))
    again = issue(fresh)
    # Also where a kill left the last step of the issue undone.
    (first.folder / FACTS_FILE).rename(first.folder / "sealing.json")
    finished = issue(fresh)
    assert "revised" in again.notes[0]
    assert again.forecast.hash == first.forecast.hash == finished.forecast.hash
    assert not finished.is_new

    # What is stored no more is said as well, and the record is still read.
    shutil.rmtree(fresh.series / DATASET)
    assert "stored" in issue(fresh).notes[0]


def test_stored_windows_are_as_if_cut(fresh):
    workspace = operational.open_workspace(fresh)
    cut = read_frames(fresh).build_later_windows()
    write_windows(workspace, cut_windows(workspace, DATASET))
    stored = find_current_windows(workspace, DATASET)

    assert stored is not None
    assert read_frames(fresh).build_later_windows(stored).hash == cut.hash
    # Of windows that were cut from something else nothing is said.
    series = workspace.series_store()
    series.write(DATASET, series.read(DATASET).with_columns(pl.col("value") + 1))
    assert find_current_windows(workspace, DATASET) is None


def test_observed_errors_come_from_the_series(layout):
    assert not layout.windows(DATASET).exists()
    windows = read_frames(layout).build_later_windows()
    days = {view.calendar.target_date for view in windows.views()}
    assert max(days) == date(2026, 2, 22)  # the 23rd had not ended at 17:00
    assert {view.split for view in windows.views()} == {"val", "test"}


def test_a_day_without_publication_is_refused(fresh):
    store = SeriesStore(fresh.root)
    published = store.read_frame(DATASET, FrameKind.PUBLISHED)
    cut = published.filter(pl.col("start_utc") != from_nem(2026, 2, 23, 5))
    store.write_frame(DATASET, FrameKind.PUBLISHED, cut, replace=True)
    with pytest.raises(DataError, match=r"published.*NSW1"):
        issue(fresh, date(2026, 2, 23))
    assert issue(fresh, date(2026, 2, 22)).is_new


@pytest.mark.parametrize(
    ("factor", "why"),
    [
        (1 / 1000, r"spreads from yesterday and from last week \(4 are allowed\), \d"),
        (-1.0, r"leaves the bounds of demand_mw, -1000 to \d+, -\d"),
        (float("nan"), "holds values that are not numbers and was not sealed"),
    ],
)
def test_an_impossible_forecast_is_not_sealed(fresh, monkeypatch, factor, why):
    day = date(2026, 2, 21)
    sound = next_day.issued.issue_forecast

    def spoil(*args, **options):
        forecast = sound(*args, **options)
        return replace(forecast, rows=forecast.rows.with_columns(pl.col("value") * factor))

    origin = Origin.of(ELECTRICITY_OPERATIONAL, day, KnownTo.ISSUE_TIME)
    folder = find_issued(fresh.issued(DATASET), origin.origin_utc, origin.until)
    with monkeypatch.context() as patched:
        patched.setattr(next_day.issued, "issue_forecast", spoil)
        with pytest.raises(DataError, match=f"NSW1 for 2026-02-21 .*{why}"):
            issue(fresh, day)
    assert not is_issued(folder)
    assert issue(fresh, day).is_new and is_issued(folder)


@pytest.mark.parametrize(
    ("level", "published", "is_sealed"),
    [(1300.0, 1300.0, True), (1400.0, None, True), (1700.0, 1700.0, False), (900.0, 2000.0, False)],
)
def test_a_hot_day_is_sealed(layout, level, published, is_sealed):
    frames = read_frames(layout)
    (view,) = frames.build_views(ISSUED).views
    given = None if published is None else np.full(48, published)
    forecast = make_issued(["NSW1"], origin=view.origin_utc, level=level)
    grids = grid_chosen(ELECTRICITY_OPERATIONAL, frames.series)
    flat = forecast.rows.with_columns(pl.lit(level).alias("value"))
    rules = BUILT_IN[DATASET].rules
    views = [replace(view, published=given)]

    with nullcontext() if is_sealed else pytest.raises(DataError):
        next_day.refuse_implausible(replace(forecast, rows=flat), views, grids, rules)


def test_one_cause_is_said_once():
    left_out = {"NSW1": ("late", "to May"), "SA1": ("short", ""), "VIC1": ("late", "to June")}
    frames = SimpleNamespace(build_views=lambda _: BuiltViews(views=(), left_out=left_out))

    missing = next_day.check_inputs(frames, ISSUED, None).missing

    assert missing == ("NSW1 (to May), VIC1 (to June): late", "SA1: short")


@pytest.mark.parametrize(
    ("hours", "action", "missing", "warnings"),
    [(71, StaleNews.REFUSE, 0, 0), (73, StaleNews.WARN, 0, 1), (73, StaleNews.REFUSE, 1, 0)],
)
def test_old_news_warn_or_refuse(layout, hours, action, missing, warnings):
    frames = read_frames(layout)
    available = ISSUED.until - timedelta(hours=hours)
    at = pl.lit(available).dt.cast_time_unit("us")
    articles = small.news_pool().articles.with_columns(available_at=at)

    rule = next_day.NewsRule(action=action)
    inputs = next_day.check_inputs(replace(frames, articles=articles), ISSUED, rule)
    assert (len(inputs.missing), len(inputs.warnings)) == (missing, warnings)
    assert all("73" in text and "72" in text for text in (*inputs.missing, *inputs.warnings))


def test_a_numeric_model_opens_no_news(tmp_path, monkeypatch):
    operational.train_population(tmp_path / "run", is_numeric=True)
    until = operational.issue_time(DAY)
    layout = operational.make_deployment(tmp_path / "home", until, tmp_path / "run")
    workspace = operational.open_workspace(layout)
    workspace.news_store().upsert_articles(make_articles([ORIGIN - timedelta(days=3)]))
    write_windows(workspace, cut_windows(workspace, DATASET))

    def refuse(*_):
        raise StoreBusy("a DuckDB shell holds it")

    monkeypatch.setattr(NewsStore, "reader", refuse)
    with pytest.raises(StoreBusy):
        read_frames(layout)
    found = issue(layout)
    assert (found.is_new, found.notes) == (True, ())
    assert found.forecast.facts["newest"]["article"] is None
    assert (issue(layout).is_new, issue(layout).notes) == (False, ())
    next_day.renew_state(workspace, DATASET, DAY, log=LOG)

    # Kept states are known by their windows; the articles of stored windows do not count.
    frames = StoredFrames.read(workspace, ELECTRICITY_OPERATIONAL, reads_news=False)
    stored = find_current_windows(workspace, DATASET, counts_news=False)
    assert stored is not None and any(view.candidate_ids for view in stored.views())
    assert frames.build_later_windows(stored).hash == frames.build_later_windows().hash
