"""What is removed of Dagster's own records, and what stays."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs.alerts import TOLD_WARNINGS
from compevo_pipeline.defs.assets.report import FREE_SPACE, RUN_AGE, cleaned, remove_old_runs
from compevo_pipeline.work.deployment import Deployment


@dg.asset
def made():
    print("a line of its log")  # noqa: T201 - captured by the run


@dg.asset(name="made")
def fails():
    raise dg.Failure("no")


def test_old_runs_go_with_their_events(tmp_path):
    now = datetime.now(UTC)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        runs = [dg.materialize([made], instance=instance).run_id for _ in range(3)]
        # It begins to make a version, and makes none.
        runs.append(dg.materialize([fails], instance=instance, raise_on_error=False).run_id)
        assert remove_old_runs(instance, now) == []

        later = now + RUN_AGE + timedelta(days=1)
        found = remove_old_runs(instance, later, dry=True)
        assert {one.path.stem for one in found} == {*runs[:2], runs[3]}
        assert min(one.size for one in found) > 0
        assert all(instance.has_run(run) for run in runs)

        remove_old_runs(instance, later)
        assert [instance.has_run(run) for run in runs] == [False, False, True, False]
        assert instance.fetch_materializations(made.key, limit=1).records
        assert remove_old_runs(instance, later) == []
    assert {path.name.split(".")[0] for path in tmp_path.rglob("*")}.isdisjoint(runs[:2])


@pytest.mark.parametrize("small", ["home", "dagster", ""])
def test_little_space_of_either_disk_warns(tmp_path, monkeypatch, small):
    def measure(path):
        is_small = small != "" and Path(path).is_relative_to(tmp_path / small)
        return SimpleNamespace(free=(4 if is_small else 6) * 2**30)

    workspace = Deployment(settings=Settings(home=tmp_path / "home"))
    workspace.layout.root.mkdir(parents=True)
    (tmp_path / "dagster").mkdir()
    monkeypatch.setattr(shutil, "disk_usage", measure)
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        resources = {"workspace": workspace}
        result = dg.materialize([cleaned], instance=instance, resources=resources)
    (check,) = result.get_asset_check_evaluations()
    assert check.check_name == FREE_SPACE and FREE_SPACE in TOLD_WARNINGS
    assert check.passed == (not small)
    assert str(tmp_path / small) in check.description or not small
