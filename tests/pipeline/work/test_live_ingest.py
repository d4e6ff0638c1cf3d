"""A publisher's files on their way into the store: kept, parsed, stored, then confirmed."""

import logging
from datetime import UTC, datetime

import pytest

from compevo_core.errors import SchemaDrift
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import WHAT_IS_NEW, _Ingest, ingest_feed
from tests.support import nemweb
from tests.support.replay import Answer

OPERATIONAL = "electricity-operational"
PRODUCT = "aemo_operational_demand"
FIRST_HOUR = datetime(2026, 7, 19, 1)  # noqa: DTZ001 - NEM time
LOG = logging.getLogger("test")


@pytest.fixture
def workspace(replay, tmp_path):
    settings = Settings(home=tmp_path / "home", mode=Mode.LIVE)
    return Deployment(settings=settings, mode=Mode.LIVE)


def now():
    return datetime(2026, 7, 20, 7, 30, tzinfo=UTC)


def ingest(workspace, dataset=OPERATIONAL, span=WHAT_IS_NEW):
    feed = default_feeds()[dataset][0]
    return ingest_feed(workspace, feed, dataset, clock=now, log=LOG, span=span)


def read(workspace, dataset=OPERATIONAL):
    return workspace.series_store().read(dataset)


def ledger(workspace):
    return workspace.live_context(now).ledger


def serve_actuals(replay, count):
    """Serves the first half-hours of a day, and no forecast."""
    midnight = FIRST_HOUR.replace(hour=0)
    ends = [midnight + nemweb.HALF_HOUR * (step + 1) for step in range(count)]
    nemweb.serve_folder(replay, nemweb.ACTUAL, [nemweb.actual(end) for end in ends])


def zips_asked_for(replay, asked):
    return [seen.path for seen in replay.seen[asked:] if seen.path.endswith(".zip")]


def test_a_file_that_cannot_be_parsed_costs_itself_and_is_fetched_anew(replay, workspace):
    serve_actuals(replay, 3)
    name, body = nemweb.actual(FIRST_HOUR)
    path = (nemweb.HOST, f"/Reports/CURRENT/{nemweb.ACTUAL}/{name}")
    stem = name.removesuffix(".zip")
    replay.serve({path: Answer(body=nemweb.pack((f"{stem}.CSV", "C,not a report\n")))})
    assert ingest(workspace)["rejected"] == 1
    assert read(workspace).height == 2 * 5
    assert ledger(workspace).get(PRODUCT, name).state is EntryState.FAILED

    replay.serve({path: Answer(body=body)})
    assert ingest(workspace)["files"] == 1
    assert read(workspace).height == 3 * 5


@pytest.mark.parametrize("good", [0, 1])
def test_a_format_that_changed_for_most_files_fails_and_stores_the_others(replay, workspace, good):
    serve_actuals(replay, 4 + good)
    names = [
        nemweb.actual(FIRST_HOUR.replace(hour=hour, minute=minute))[0]
        for hour, minute in ((0, 30), (1, 0), (1, 30), (2, 0))
    ]
    for name in names:
        body = nemweb.pack((f"{name.removesuffix('.zip')}.CSV", "C,another format\n"))
        replay.serve({(nemweb.HOST, f"/Reports/CURRENT/{nemweb.ACTUAL}/{name}"): Answer(body=body)})
    with pytest.raises(SchemaDrift):
        ingest(workspace)
    files = list(workspace.layout.series.rglob("*.parquet"))
    assert len(files) == 5 * good and (not files or read(workspace).height == 5)
    assert ledger(workspace).get(PRODUCT, names[0]).state is EntryState.FAILED


def test_a_run_that_dies_before_its_rows_are_stored_finds_the_bytes_again(
    replay, workspace, monkeypatch
):
    serve_actuals(replay, 8)

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Ingest, "store", die)
        with pytest.raises(KeyboardInterrupt):
            ingest(workspace)
    asked = len(replay.seen)
    assert ingest(workspace)["new"] == 8 * 5
    assert zips_asked_for(replay, asked) == []


def test_counts_of_batches_are_those_of_one(replay, workspace, monkeypatch):
    nemweb.serve_day(replay, count=1)
    issued = datetime(2026, 7, 19, 16)  # noqa: DTZ001 - NEM time
    files = [nemweb.forecast(issued.replace(hour=hour), steps=4) for hour in (16, 17)]
    nemweb.serve_folder(replay, nemweb.FORECAST, files)
    monkeypatch.setattr("compevo_pipeline.work.ingest.MAX_BATCH_BYTES", 1)
    counts = ingest(workspace)
    assert counts["published rows"] == 2 * 4 * 5 * 3
    assert counts["step_covariates rows"] == 96 * 5


def test_a_backfill_that_dies_goes_on_after_the_last_batch_that_was_stored(
    replay, workspace, monkeypatch
):
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
            ingest(workspace, span=span)
    entries = ledger(workspace).list_entries(PRODUCT)
    # Forecasts, which nobody serves, are absent.
    states = [entry.state for entry in entries if entry.state is not EntryState.ABSENT]
    # The last stored one may hold more members, so it is read again from its kept bytes.
    assert states == [EntryState.STORED] * 2 + [EntryState.FETCHED] * 2

    ingest(workspace, span=span)
    assert read(workspace).height == 5 * 5
    asked = [path for path in replay.paths() if path.endswith(".zip")]
    assert len(asked) == len(set(asked))


ISSUED = FIRST_HOUR.replace(hour=18)


def read_published(workspace, kind=FrameKind.PUBLISHED):
    return workspace.frame_store().read(OPERATIONAL, kind)


def test_a_forecast_far_from_what_came_with_it_is_refused_until_it_is_corrected(replay, workspace):
    # Nothing is stored yet: what it is held against arrives in the same refresh.
    nemweb.serve_day(replay, count=2)
    good, bad = nemweb.forecast(ISSUED.replace(hour=17)), nemweb.forecast(ISSUED, value=2600.0)
    nemweb.serve_folder(replay, nemweb.FORECAST, [good, bad])
    assert ingest(workspace)["rejected"] == 1
    assert read_published(workspace)["available_at"].n_unique() == 1
    entry = ledger(workspace).get(PRODUCT, bad[0])
    assert entry.state is EntryState.FAILED and "times the level of the days before" in entry.note

    # The next tick takes the corrected file, and the actuals were never in danger.
    nemweb.serve_folder(replay, nemweb.FORECAST, [good, nemweb.forecast(ISSUED)])
    assert ingest(workspace)["files"] == 1
    assert read_published(workspace)["available_at"].n_unique() == 2
    assert read(workspace).height == 2 * 5


def test_a_report_is_known_when_its_rows_were_loaded_however_early_its_first_record_is(
    replay, workspace
):
    nemweb.serve_day(replay)
    seventeen = FIRST_HOUR.replace(hour=17)
    early = nemweb.forecast(seventeen, created=seventeen.replace(hour=10))
    nemweb.serve_folder(replay, nemweb.FORECAST, [early])
    ingest(workspace)
    known = read_published(workspace)["available_at"].unique().to_list()
    assert known == [datetime(2026, 7, 19, 7, tzinfo=UTC)]
