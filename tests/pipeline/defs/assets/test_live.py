"""Series assets in live mode, against a replay of the publishers' hosts."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.sources.common.base import Mode
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
    paths = (live.home / "real" / "series").rglob("*.parquet")
    return {path: path.stat().st_mtime_ns for path in paths}


def test_what_fails_for_good_stops_the_run_and_keeps_what_is_stored(replay, live):
    nemweb.serve_day(replay)
    assert refresh(live).success
    assert {seen.headers["user-agent"] for seen in replay.seen} == {"compevo/0.3.0 (me@x.org)"}
    files = stored(live)
    for part in ("Current", "CURRENT"):
        replay.serve({(nemweb.HOST, f"/Reports/{part}/{nemweb.ACTUAL}/"): Answer(status=403)})
    result = refresh(live, raise_on_error=False)
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "SourceBlocked" in str(failure.event_specific_data)
    assert stored(live) == files
