"""A run that starts over: nothing of the run before is sealed, returned or in the way."""

import shutil
from functools import partialmethod
from pathlib import Path

import pytest
import torch

from compevo_core.errors import CheckpointMismatch
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.runtime.files import StoreBusy
from compevo_core.training import loop
from compevo_core.training.model import PopulationModel
from compevo_core.training.run_folder import RunFolder
from tests.support.population import news_pool, tiny
from tests.support.tiny_run import Killed, read_hash, train_days

CONFIG = tiny(run__rounds=2, run__validate_every=1, evolution__every=0)


class FasterStart(PopulationModel):
    """What an older code did: its heads start elsewhere, and validate better than any round."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        for parameter in self.head_parameters():
            parameter.data.add_(0.01)


def raise_killed(*_):
    raise Killed


def run_here(out, **options):
    return train_days(CONFIG, out, days=2, val_days=1, **options)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """A run in a folder of its own."""
    out = tmp_path_factory.mktemp("clean")
    run_here(out)
    return out


@pytest.fixture(scope="module")
def old_run(tmp_path_factory):
    """A finished run of the same configuration by other code, with more rounds on disk."""
    out = tmp_path_factory.mktemp("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "PopulationModel", FasterStart)
        run_here(out)
    for name in ("best", "checkpoints"):
        newest = max((out / name).iterdir())
        newest.rename(newest.with_name("round_000009"))
    return out


@pytest.fixture
def out(old_run, tmp_path):
    """A copy of the old run, to start over in."""
    shutil.copytree(old_run, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_that_starts_over_seals_its_own_weights(out, clean):
    assert read_hash(out) != read_hash(clean)
    summary = run_here(out, resume=False)
    assert read_hash(out) == read_hash(clean)
    assert summary["artifact_hash"] == read_hash(clean)
    assert sorted(p.name for p in (out / "checkpoints").iterdir()) == [
        "round_000001",
        "round_000002",
    ]
    assert len(RunFolder(out).read_rounds()) == 2


def _kill_points(monkeypatch, at):
    """Kill before anything is removed, or at the n-th removal, a folder's being half done."""
    if not at:
        monkeypatch.setattr(RunFolder, "remove_training", raise_killed)
    removals = iter(range(1, 100))
    remove_tree, unlink = shutil.rmtree, Path.unlink

    def kill_tree(path):
        if next(removals) == at:
            for child in sorted(Path(path).iterdir())[:1]:
                remove_tree(child) if child.is_dir() else unlink(child)
            raise Killed
        remove_tree(path)

    def kill_file(path, *, missing_ok=False):
        if path.name in ("metrics.json", "rounds.jsonl") and next(removals) == at:
            raise Killed
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr("compevo_core.training.run_folder.shutil.rmtree", kill_tree)
    monkeypatch.setattr(Path, "unlink", kill_file)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(6))
def test_a_kill_while_old_files_are_removed_leaves_nothing_that_passes_for_new(at, out, clean):
    with pytest.MonkeyPatch.context() as patch:
        _kill_points(patch, at)
        with pytest.raises(Killed):
            run_here(out, resume=False)

    assert not RunFolder(out).is_finished
    with pytest.raises((CheckpointMismatch, FileNotFoundError)):
        CompEvoForecaster.load(out, news_pool())
    run_here(out)
    assert read_hash(out) == read_hash(clean)


@pytest.mark.slow
@pytest.mark.parametrize("resume", [True, False])
def test_a_kill_between_model_and_summary_loses_neither(resume, tmp_path, clean, old_run):
    out = tmp_path / "run"
    if not resume:
        shutil.copytree(old_run, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "write_metrics", raise_killed)
        with pytest.raises(Killed):
            run_here(out, resume=resume)
    assert read_hash(out) == read_hash(clean)

    rounds = []
    summary = run_here(out, on_round=rounds.append)
    assert rounds == []
    assert read_hash(out) == summary["artifact_hash"] == read_hash(clean)
    measured = ("seconds", "peak_memory_gb")
    expected = RunFolder(clean).read_metrics()
    assert {k: v for k, v in summary.items() if k not in measured} == {
        k: v for k, v in expected.items() if k not in measured
    }


@pytest.mark.slow
def test_a_summary_of_an_earlier_start_does_not_pass_for_that_of_a_new_model(out, clean):
    old = RunFolder(out).read_metrics()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "write_metrics", raise_killed)
        # As if it had been killed before it came to the summary.
        patch.setattr(RunFolder, "remove_training", lambda _: None)
        shutil.rmtree(out / "checkpoints")
        with pytest.raises(Killed):
            run_here(out, resume=False)
    summary = run_here(out)
    assert summary["artifact_hash"] != old["artifact_hash"]
    assert summary["artifact_hash"] == read_hash(out)


def test_two_trainings_do_not_write_one_folder(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    impatient = partialmethod(RunFolder.hold, wait_seconds=0.0)
    monkeypatch.setattr(RunFolder, "hold", impatient)
    with folder.hold(), pytest.raises(StoreBusy, match=r"run\.lock"):
        run_here(folder.path)
    assert not folder.path.exists()


@pytest.fixture(autouse=True)
def _other_dropout_state():
    torch.manual_seed(999)  # another process would start elsewhere
    yield
