"""Resume, bit for bit: a run that was stopped or killed ends as the run that was left alone."""

import json
import shutil
import signal
import subprocess
import sys
import time
from functools import partialmethod
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from benchmarks.rows import REPO
from compevo_core.data.news_pool import NewsPool
from compevo_core.errors import CheckpointMismatch
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.runtime.files import StoreBusy
from compevo_core.training import checkpoint, loop
from compevo_core.training.run_folder import RunFolder, write_manifest
from compevo_core.training.schedule import RunGenerators
from tests.support.models import move_heads
from tests.support.population import news_pool, tiny
from tests.support.rounds import build_round_trainer
from tests.support.tiny_run import (
    ROUNDS,
    Killed,
    kill_after,
    read_hash,
    read_records,
    read_tensors,
    train_days,
    train_tiny,
)


def _assert_same_end(run, other):
    """Compare records, the last checkpoint's tensors and values, and the sealed model."""
    (records, state, tensors, model), other_end = _read_end(run), _read_end(other)
    theirs = other_end[2]
    assert [r["round"] for r in records] == list(range(ROUNDS))
    assert (records, state, model) == (*other_end[:2], other_end[3])
    assert tensors.keys() == theirs.keys()
    assert [name for name, value in tensors.items() if not torch.equal(value, theirs[name])] == []


def _read_end(run):
    """Return the records of a run, the values and tensors of its last checkpoint, its hash."""
    last = run / "checkpoints" / f"round_{ROUNDS:06d}"
    state = json.loads((last / "state.json").read_text())
    del state["seconds"]
    return read_records(run), state, read_tensors(last), read_hash(run)


def _stop_after(out, number):
    with pytest.raises(Killed):
        train_tiny(out, on_round=kill_after(number))


@pytest.mark.parametrize(
    "number", [2, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 1, 4))]
)
def test_k_rounds_and_the_rest_equal_all(number, tiny_run, tmp_path):
    _stop_after(tmp_path, number)
    torch.manual_seed(999)  # another process would start elsewhere
    train_tiny(tmp_path)
    _assert_same_end(tmp_path, tiny_run)


@pytest.mark.slow
def test_an_unnamed_article_changes_no_training(tiny_run, tmp_path):
    _stop_after(tmp_path, 2)
    torch.manual_seed(999)
    # One more article, the first of the pool's rows.
    pool = news_pool()
    unseen = pool.articles[:1].with_columns(article_id=pl.lit("0" * 32), title=pl.lit("Unseen"))
    embeddings = np.concatenate([pool.embeddings[1:2], pool.embeddings])
    more = NewsPool(pl.concat([unseen, pool.articles]), embeddings, pool.encoder_name)

    train_tiny(tmp_path, news=more)

    _assert_same_end(tmp_path, tiny_run)

    # And the finished run stays finished.
    sealed = (tmp_path / "model" / "manifest.json").stat().st_mtime_ns
    assert train_tiny(tmp_path, news=news_pool()) == train_tiny(tmp_path, news=more)
    assert (tmp_path / "model" / "manifest.json").stat().st_mtime_ns == sealed


def test_another_title_makes_another_run(tiny_run):
    pool = news_pool()
    titles = pl.Series(["Another title", *pool.articles["title"][1:]])
    pool.articles = pool.articles.with_columns(title=titles)
    with pytest.raises(CheckpointMismatch, match="news_hash"):
        train_tiny(tiny_run, news=pool)


@pytest.mark.slow
def test_a_killed_run_ends_as_if_undisturbed(tiny_run, tmp_path):
    script = (
        "import sys, pathlib, tests.support.tiny_run as tiny\n"
        "tiny.train_tiny(pathlib.Path(sys.argv[1]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=REPO)
    deadline = time.monotonic() + 120
    while not (tmp_path / "checkpoints" / "round_000002").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL  # it had not ended by itself
    assert not (tmp_path / "model").exists()

    train_tiny(tmp_path)
    _assert_same_end(tmp_path, tiny_run)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [1, 30, None])
def test_a_torn_history_resumes_before_its_tear(lost, tiny_run, tmp_path):
    _stop_after(tmp_path, 3)
    rounds = tmp_path / "rounds.jsonl"
    whole = rounds.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    rounds.write_bytes(whole[: -(lost or last)])
    played = []

    train_tiny(tmp_path, on_round=played.append)
    assert [record.round for record in played] == [3, 4, 5]
    _assert_same_end(tmp_path, tiny_run)


def test_a_checkpoint_of_another_version_is_an_error(tiny_run, tmp_path):
    # As if it had been killed after its last round.
    unfinished = shutil.ignore_patterns("model", "metrics.json")
    shutil.copytree(tiny_run, tmp_path / "run", ignore=unfinished)
    newest = tmp_path / "run" / "checkpoints" / f"round_{ROUNDS:06d}"
    state = json.loads((newest / "state.json").read_text())
    state["version"] += 1
    (newest / "state.json").write_text(json.dumps(state))
    write_manifest(newest, {"round": ROUNDS, "start": 0})
    with pytest.raises(CheckpointMismatch, match="another version"):
        train_tiny(tmp_path / "run")


class _StandInGpu:
    """Two generators in the place of those that torch keeps for GPUs."""

    def __init__(self, patch):
        self.states = [torch.arange(16, dtype=torch.uint8), torch.full((16,), 7, dtype=torch.uint8)]
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: len(self.states))
        patch.setattr(torch.cuda, "get_rng_state_all", lambda: [s.clone() for s in self.states])
        patch.setattr(torch.cuda, "manual_seed_all", lambda _: None)
        patch.setattr(torch.cuda, "set_rng_state", self.set_state)

    def set_state(self, state, device):
        self.states[device] = state.clone()


@pytest.mark.parametrize("began_with_gpus", [True, False])
def test_the_generators_of_gpus_are_restored(began_with_gpus, tmp_path, monkeypatch):
    trainer, state, _ = build_round_trainer()
    state.train_seconds = 3.0
    generators = RunGenerators.from_seed(0, range(3), torch.device("cpu"))
    gpu = _StandInGpu(monkeypatch) if began_with_gpus else None
    captured = checkpoint.capture_state(trainer.model, trainer.update.optimizer, state, generators)
    checkpoint.save_checkpoint(tmp_path, 1, captured, trainer.shards)
    gpu = gpu or _StandInGpu(monkeypatch)
    before = [one.clone() for one in gpu.states]
    for one in gpu.states if began_with_gpus else ():
        one.zero_()

    saved = checkpoint.load_newest_checkpoint(tmp_path, trainer.shards)
    assert saved is not None
    again = checkpoint.restore_state(saved, trainer.model, trainer.update.optimizer, generators)
    assert all(torch.equal(a, b) for a, b in zip(gpu.states, before, strict=True))
    assert again.train_seconds == 3.0


CONFIG = tiny(run__rounds=2, run__validate_every=1, evolution__every=0)


def raise_killed(*_):
    raise Killed


def run_here(out, **options):
    return train_days(CONFIG, out, days=2, val_days=1, **options)


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    out = tmp_path_factory.mktemp("clean")
    run_here(out)
    return out


@pytest.fixture(scope="module")
def old_run(tmp_path_factory):
    """A finished run of the same configuration by other code, with more rounds on disk."""
    out = tmp_path_factory.mktemp("old")
    with pytest.MonkeyPatch.context() as patch:
        # As if older code had begun elsewhere, and validated better than any round.
        patch.setattr(loop, "PopulationModel", move_heads(0.01))
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


def test_a_restarted_run_seals_its_own_weights(out, clean):
    assert read_hash(out) != read_hash(clean)

    summary = run_here(out, resume=False)

    assert summary["artifact_hash"] == read_hash(out) == read_hash(clean)
    kept = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert kept == ["round_000001", "round_000002"]
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
def test_killed_removals_leave_nothing_that_seems_new(at, out, clean):
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
    expected = RunFolder(clean).read_metrics()
    measured = {"seconds", "peak_memory_gb"}
    assert summary.keys() == expected.keys()
    assert {name for name in summary if summary[name] != expected[name]} <= measured


@pytest.mark.slow
def test_an_old_summary_fits_no_new_model(out, clean):
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
