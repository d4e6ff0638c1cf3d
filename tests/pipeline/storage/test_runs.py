"""What is removed and what stays, by the written rule."""

import json
import os
import shutil
from datetime import UTC, datetime, timedelta

import pytest

from compevo_core.errors import DataError
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.storage.runs import clean, find_current_run, set_current_run

NOW = datetime(2026, 11, 21, 17, 30, tzinfo=UTC)


@pytest.fixture
def layout(tmp_path):
    return Layout(root=tmp_path)


def age(path, days):
    then = (NOW - timedelta(days=days)).timestamp()
    for one in (*path.rglob("*"), path):
        os.utime(one, (then, then))


def make_run(layout, name, days, *, finished=True):
    """Make a run folder with a checkpoint, a best round, and a model if it is finished."""
    run = RunFolder(layout.run(name))
    for folder in (run.checkpoints, run.best):
        (folder / "round_000001").mkdir(parents=True)
        (folder / "round_000001" / "x.safetensors").write_text("tensors")
    if finished:
        run.model.mkdir()
        run.model_manifest_file.write_text(json.dumps({"hash": "x"}))
        run.write_metrics({})
    age(run.path, days)
    return run


def names(layout):
    return {path.name for path in layout.run("x").parent.iterdir() if path.is_dir()}


def test_the_newest_and_current_runs_stay(layout):
    for number in range(6):
        make_run(layout, f"compevo-traffic-c{number}-d", days=10 - number)
    make_run(layout, "ablation-traffic-no-grpo-c-d", days=300)
    set_current_run(layout, "traffic", "compevo-traffic-c0-d")

    removed = clean(layout, NOW)
    kept = {f"compevo-traffic-c{number}-d" for number in (0, 3, 4, 5)}
    assert names(layout) == kept | {"ablation-traffic-no-grpo-c-d"}
    gone = {one.path.name for one in removed if one.path.parent.name == "runs"}
    assert gone == {f"compevo-traffic-c{number}-d" for number in (1, 2)}
    assert all(one.size > 0 and one.reason for one in removed)
    assert clean(layout, NOW) == []

    # A finished run keeps its model, and nothing to resume from.
    for run in (RunFolder(layout.run(name)) for name in kept):
        assert run.is_finished and not run.checkpoints.exists() and not run.best.exists()


def test_a_young_or_training_run_stays(layout):
    young = make_run(layout, "compevo-traffic-c-d", days=29, finished=False)
    old = make_run(layout, "compevo-traffic-c-e", days=31, finished=False)
    with old.hold():
        assert clean(layout, NOW) == []
    assert len(clean(layout, NOW)) == 1
    assert list(old.path.parent.iterdir()) == [young.path]
    assert (young.checkpoints / "round_000001").is_dir()


def test_vanishing_files_are_no_failure(layout):
    run = make_run(layout, "compevo-traffic-c-d", days=31, finished=False)
    # A link to nothing: listed, and without a status, as a file that was renamed in between.
    for folder in (layout.series / "traffic", run.checkpoints):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".x.parquet.abc.part").symlink_to("nothing")
    age(run.checkpoints / "round_000001", 1)
    assert clean(layout, NOW) == []


def test_parts_fits_and_states_go_by_age(layout):
    run = make_run(layout, "compevo-traffic-c-d", days=1)
    shutil.rmtree(run.checkpoints)
    shutil.rmtree(run.best)
    unfinished = layout.run("r") / "checkpoints" / ".part-round_000003"
    gone = {
        layout.series / "traffic" / ".x.parquet.old.part": 1.1,
        unfinished: 2,
        layout.fits / "v1" / "gbm-seed0-a": 31,
        run.path / "daily" / "v1": 31,
    }
    kept = {
        layout.series / "traffic" / ".x.parquet.new.part": 0.9,
        layout.fits / "v2" / "gbm-seed0-b": 29,
        run.path / "daily" / "v2": 1,
    }
    for path, days in (gone | kept).items():
        file = path if path.suffix == ".part" else path / "x.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("half a file")
        age(path, days)

    assert {one.path for one in clean(layout, NOW, dry=True)} == gone.keys()
    assert all(path.exists() for path in gone)
    clean(layout, NOW)
    assert {path for path in gone | kept if path.exists()} == kept.keys()


@pytest.mark.parametrize("content", ['{"run": "on', "{}", "[1]"])
def test_a_torn_pointer_stops_cleaning(layout, content):
    run = make_run(layout, "a-00000000-00000000", 40)
    pointer = run.path.parent / "current-exchange.json"
    pointer.write_text(content)
    for act in (lambda: find_current_run(layout, "exchange"), lambda: clean(layout, NOW)):
        with pytest.raises(DataError, match=r"current-exchange\.json"):
            act()
    assert run.model.exists()
