"""Checkpoints of a running training: atomic, verified, the newest intact one first.

What belongs here: one folder of tensors and JSON a checkpoint, written by all processes together,
and choosing among several. What does not: what the tensors mean (``training.train_state``), hashes
(``training.manifest``), the finished model (``training.artifact``).

There is one file an agent, and one of what all agents share, whichever process wrote them. Any
number of processes can resume from them.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from compevo_core.data.files import write_text
from compevo_core.distributed import AgentShards
from compevo_core.errors import CheckpointMismatch
from compevo_core.training.manifest import verify_manifest, write_manifest

log = logging.getLogger(__name__)

KEPT_CHECKPOINTS = 2  # the newest may be damaged by a crash of the machine; the one before is not
_TEMPORARY_PREFIX = ".part-"
_SHARED_FILE = "shared.safetensors"
_STATE_FILE = "state.json"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk; its tensors are read when asked for.

    Attributes:
        folder: where it lies.
        state: its plain values.
    """

    folder: Path
    state: dict[str, Any]

    def read_agent(self, agent: int) -> dict[str, Tensor]:
        """Read the tensors of one agent."""
        tensors: dict[str, Tensor] = load_file(self.folder / _agent_file(agent))
        return tensors

    def read_shared(self) -> dict[str, Tensor]:
        """Read the tensors that belong to no single agent."""
        tensors: dict[str, Tensor] = load_file(self.folder / _SHARED_FILE)
        return tensors


def save_checkpoint(
    root: Path,
    round_number: int,
    agents: Mapping[int, Mapping[str, Tensor]],
    shared: Mapping[str, Tensor],
    state: Mapping[str, Any],
    shards: AgentShards,
    *,
    start: int = 0,
) -> Path:
    """Write ``root/round_<n>`` and remove all but the newest two checkpoints.

    Every process calls this and writes its own agents; the first writes the rest. The processes
    must see one file system.

    Args:
        root: folder of the checkpoints.
        round_number: number of finished rounds.
        agents: tensors by agent, of the local agents.
        shared: tensors that all agents share, equal on every process.
        state: plain values, equal on every process.
        shards: the processes.
        start: which start of the run it belongs to (``RunFolder.begin_again``).

    Raises:
        CheckpointMismatch: the processes' copies of ``shared`` differ.
    """
    target = root / f"round_{round_number:06d}"
    facts = {"round": round_number, "start": start}
    with write_sealed_folder(root, target, facts, shards) as part:
        for agent in shards.written_agents:
            _write_tensors(agents[agent], part / _agent_file(agent))

        # Each process updates its own copy of gates and fusion, and of the adapters of the agents
        # that it has in common with others. If they have drifted apart, then
        # which copy is saved would depend on the process, so nothing is saved.
        copies = {**shared, **({} if shards.splits_agents else _join(agents))}
        shards.assert_identical(
            f"gates, fusion, fitness or adapters after round {round_number}", _hash_tensors(copies)
        )
        if shards.is_first:
            _write_tensors(shared, part / _SHARED_FILE)
            write_text(part / _STATE_FILE, json.dumps(state, sort_keys=True))

    if shards.is_first:
        for old in _list_newest_first(root)[KEPT_CHECKPOINTS:]:
            shutil.rmtree(old)
    return target


def load_newest_checkpoint(
    root: Path, shards: AgentShards, start: int = 0, *, most_rounds: int | None = None
) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None; damaged ones are logged and passed over.

    So are those of an earlier start than ``start``: the run was started over, and an interruption
    has left them behind. And those of more than ``most_rounds`` rounds, where given.

    The first process checks the files and all open the one that it chose: two processes that
    resumed from different rounds would train one population apart.
    """
    name = shards.broadcast(
        _find_newest_intact(root, start, most_rounds) if shards.is_first else None
    )
    if name is None:
        return None

    state = json.loads((root / name / _STATE_FILE).read_text(encoding="utf-8"))
    return Checkpoint(root / name, state)


@contextlib.contextmanager
def write_sealed_folder(
    root: Path, target: Path, facts: Mapping[str, Any], shards: AgentShards
) -> Iterator[Path]:
    """Give all processes one temporary folder to fill, then seal it and move it to ``target``.

    A reader sees the old folder, none, or the whole new one. What an interrupted writing left in
    ``root`` is removed.

    Args:
        root: folder of ``target`` and of the temporary folder: one file system, so that the move is
            a rename.
        target: the finished folder.
        facts: values for its manifest.
        shards: the processes.
    """
    part = root / f"{_TEMPORARY_PREFIX}{target.name}"
    if shards.is_first:
        for torn in root.glob(f"{_TEMPORARY_PREFIX}*"):
            shutil.rmtree(torn)
        part.mkdir(parents=True)
    shards.barrier()  # nobody writes before the folder is there

    yield part

    shards.barrier()  # nothing is sealed before everybody has written
    if shards.is_first:
        write_manifest(part, facts)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    shards.barrier()  # nobody reads the target before it is there


def _find_newest_intact(root: Path, start: int, most_rounds: int | None) -> str | None:
    for folder in _list_newest_first(root):
        try:
            manifest = verify_manifest(folder)
        except (CheckpointMismatch, json.JSONDecodeError, KeyError) as error:
            log.warning("checkpoint %s refused: %s", folder.name, error)
            continue

        if manifest.get("start", 0) < start:
            log.info("checkpoint %s is of a run that was started over since", folder.name)
            continue

        if most_rounds is not None and manifest["round"] > most_rounds:
            log.warning("checkpoint %s has more rounds than are recorded", folder.name)
            continue

        log.info("resuming from checkpoint %s", folder.name)
        return folder.name
    return None


def _list_newest_first(root: Path) -> list[Path]:
    return sorted(root.glob("round_*"), reverse=True) if root.is_dir() else []


def _agent_file(agent: int) -> str:
    return f"agent_{agent:02d}.safetensors"


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, path)


def _join(agents: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{agent}.{name}": t for agent, tensors in agents.items() for name, t in tensors.items()
    }


def _hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
