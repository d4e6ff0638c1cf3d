"""Series assets in live mode, against a replay of the publishers' hosts."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.storage.series_store import FrameStore, SeriesStore
from tests.support import nemweb
from tests.support.deployment import DagsterHome
from tests.support.replay import Answer

OPERATIONAL = "electricity-operational"


class Evening:
    def __call__(self):
        return datetime(2026, 7, 20, 7, 30, tzinfo=UTC)


@pytest.fixture
def live(replay, tmp_path):
    settings = Settings(home=tmp_path / "home", mode=Mode.LIVE, preset="tiny", contact="me@x.org")
    return DagsterHome(
        home=settings.home,
        defs=build_defs(settings, clock=Evening()),
        instance=dg.DagsterInstance.ephemeral(),
    )


def refresh(live, **kwargs):
    config = {f"series/{OPERATIONAL}": {"feeds": ["aemo-operational"]}}
    return live.materialize(f"series/{OPERATIONAL}", config=config, **kwargs)


def stored(live):
    root = live.home / "real"
    return SeriesStore(root).read(OPERATIONAL), {
        path: path.stat().st_mtime_ns for path in (root / "series").rglob("*.parquet")
    }


def test_two_refreshes_in_a_row_ask_for_no_finished_file_again_and_write_no_row(replay, live):
    nemweb.serve_day(replay)
    assert refresh(live).success
    before, files = stored(live)
    assert before.height == 8 * 5
    assert before["source"].str.starts_with("live:aemo_operational_demand/").all()
    published = FrameStore(live.home / "real" / "tables").read(OPERATIONAL, FrameKind.PUBLISHED)
    assert published.height == 96 * 5 * 3
    assert {seen.headers["user-agent"] for seen in replay.seen} == {"compevo/0.3.0 (me@x.org)"}

    asked = len(replay.seen)
    assert refresh(live).success
    after, same_files = stored(live)
    assert all(seen.is_conditional for seen in replay.seen[asked:])
    assert not [seen.path for seen in replay.seen[asked:] if seen.path.endswith(".zip")]
    assert after.equals(before)
    assert same_files == files


def test_what_fails_for_good_stops_the_run_and_keeps_what_is_stored(replay, live):
    nemweb.serve_day(replay)
    assert refresh(live).success
    files = stored(live)[1]
    for part in ("Current", "CURRENT"):
        replay.serve({(nemweb.HOST, f"/Reports/{part}/{nemweb.ACTUAL}/"): Answer(status=403)})
    result = refresh(live, raise_on_error=False)
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "SourceBlocked" in str(failure.event_specific_data)
    assert stored(live)[1] == files
