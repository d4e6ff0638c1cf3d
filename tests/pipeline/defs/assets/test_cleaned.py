"""What is removed of Dagster's own records, and what stays."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg

from compevo_pipeline.defs.assets.report import RUN_AGE, remove_old_runs


@dg.asset
def made() -> None:
    """An asset of which only the newest version counts."""
    print("a line of its log")  # noqa: T201 - captured by the run


def test_old_runs_go_with_their_events_but_for_the_one_that_made_the_newest_version(
    tmp_path: Path,
) -> None:
    now = datetime.now(UTC)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        runs = [dg.materialize([made], instance=instance).run_id for _ in range(3)]
        assert remove_old_runs(instance, now) == []

        later = now + RUN_AGE + timedelta(days=1)
        found = remove_old_runs(instance, later, dry=True)
        assert {one.path.stem for one in found} == set(runs[:2])
        assert min(one.size for one in found) > 0
        assert all(instance.has_run(run) for run in runs)

        remove_old_runs(instance, later)
        assert [instance.has_run(run) for run in runs] == [False, False, True]
        assert instance.get_latest_materialization_event(made.key) is not None
        assert remove_old_runs(instance, later) == []
    left = {path.name.split(".")[0] for path in tmp_path.rglob("*")}
    assert left.isdisjoint(runs[:2])
