"""Which checkpoint a run goes on from, and which ones it keeps."""

from pathlib import Path

import torch

from compevo_core.distributed import AgentShards
from compevo_core.training.checkpoint import load_newest_checkpoint, save_checkpoint

ONE_PROCESS = AgentShards(2)


def save(root: Path, round_number: int) -> Path:
    tensors = {"x": torch.full((3,), float(round_number))}
    agents = dict.fromkeys(range(2), tensors)
    return save_checkpoint(root, round_number, agents, tensors, {"r": round_number}, ONE_PROCESS)


def test_the_newest_two_are_kept_and_the_newest_is_taken(tmp_path: Path) -> None:
    for round_number in (2, 10, 9, 11):
        save(tmp_path, round_number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round_000010", "round_000011"]

    newest = load_newest_checkpoint(tmp_path, ONE_PROCESS)
    assert newest is not None and newest.state == {"r": 11}
    assert newest.read_agent(1)["x"].tolist() == [11.0] * 3
    assert newest.read_shared()["x"].tolist() == [11.0] * 3


def test_a_damaged_newest_checkpoint_leaves_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / "agent_01.safetensors").unlink()
    taken = load_newest_checkpoint(tmp_path, ONE_PROCESS)
    assert taken is not None and taken.state == {"r": 1}


def test_a_checkpoint_without_its_manifest_was_never_finished(tmp_path: Path) -> None:
    (save(tmp_path, 1) / "manifest.json").unlink()
    assert load_newest_checkpoint(tmp_path, ONE_PROCESS) is None


def test_a_checkpoint_of_the_run_before_is_passed_over_however_many_rounds_it_has(
    tmp_path: Path,
) -> None:
    save(tmp_path, 60)
    assert load_newest_checkpoint(tmp_path, ONE_PROCESS, start=1) is None

    tensors = {"x": torch.zeros(3)}
    agents = dict.fromkeys(range(2), tensors)
    save_checkpoint(tmp_path, 5, agents, tensors, {"r": 5}, ONE_PROCESS, start=1)
    taken = load_newest_checkpoint(tmp_path, ONE_PROCESS, start=1)
    assert taken is not None and taken.state == {"r": 5}
