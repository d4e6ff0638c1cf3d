"""Checkpoints of a running training: atomic, verified, newest good one first.

What belongs here: writing and reading one folder of tensors and JSON with hashes, choosing among several.
What does not: what the tensors mean (``learner``, ``snapshot``), the finished model (``artifact``).
A checkpoint counts only with its manifest, which is written last and holds the sha256 of every file. There is one file
an agent and one of what all share, whoever wrote them: any number of processes can go on from it.
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

from compevo_core.distributed import AgentShards
from compevo_core.errors import CheckpointMismatch

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
_KEEP = 2
_PART = ".part-"
_SHARED = "shared.safetensors"


def seal(folder: Path, facts: Mapping[str, Any]) -> str:
    """Writes the manifest of all files below ``folder``, last; returns the hash over their hashes."""
    files = {
        p.relative_to(folder).as_posix(): sha256(p)
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != MANIFEST
    }
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    text = json.dumps({**facts, "files": files, "hash": digest}, indent=1, sort_keys=True)
    (folder / MANIFEST).write_text(text, encoding="utf-8")
    return digest


def verify(folder: Path) -> dict[str, Any]:
    """Reads a sealed folder's manifest after checking every file against it.

    Raises:
        CheckpointMismatch: no manifest, or a file is missing or altered.
    """
    if not (folder / MANIFEST).is_file():
        raise CheckpointMismatch(
            f"{folder} has no {MANIFEST}: it was never finished; delete it and train again"
        )
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file() or sha256(path) != expected:
            state = "altered" if path.is_file() else "missing"
            raise CheckpointMismatch(
                f"{path} is {state} since it was written; restore it or train again"
            )
    return manifest


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint on disk and its plain values; tensors are read when asked for."""

    folder: Path
    state: dict[str, Any]

    def agent(self, number: int) -> dict[str, Tensor]:
        """The tensors of one agent."""
        tensors: dict[str, Tensor] = load_file(self.folder / _agent_file(number))
        return tensors

    def shared(self) -> dict[str, Tensor]:
        """The tensors that belong to no single agent."""
        tensors: dict[str, Tensor] = load_file(self.folder / _SHARED)
        return tensors


def save(
    root: Path,
    round_number: int,
    agents: Mapping[int, Mapping[str, Tensor]],
    shared: Mapping[str, Tensor],
    state: Mapping[str, Any],
    shards: AgentShards,
) -> Path:
    """Writes ``root/round_<n>`` through a temporary folder and drops all but the newest two.

    Every process calls this and writes its own ``agents``; the first writes the rest, and the manifest when all are
    done. They must see one file system.

    Raises:
        CheckpointMismatch: the processes' copies of ``shared`` differ.
    """
    target = root / f"round_{round_number:06d}"
    with written_together(root, target, {"round": round_number}, shards) as part:
        for number, tensors in agents.items():
            _write(tensors, part / _agent_file(number))
        shards.assert_identical(
            f"gates, fusion or fitness after round {round_number}", _digest(shared)
        )
        if shards.is_first:
            _write(shared, part / _SHARED)
            (part / "state.json").write_text(json.dumps(state, sort_keys=True), encoding="utf-8")
    if shards.is_first:
        for old in _candidates(root)[_KEEP:]:
            shutil.rmtree(old)
    return target


@contextlib.contextmanager
def written_together(
    root: Path, target: Path, facts: Mapping[str, Any], shards: AgentShards
) -> Iterator[Path]:
    """A temporary folder that all processes write into; sealed and moved to ``target`` when the last one is done.

    What an earlier, interrupted writing left in ``root`` is removed.
    """
    part = root / f"{_PART}{target.name}"
    if shards.is_first:
        for torn in root.glob(f"{_PART}*"):
            shutil.rmtree(torn)
        part.mkdir(parents=True)
    shards.barrier()
    yield part
    shards.barrier()
    if shards.is_first:
        seal(part, facts)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    shards.barrier()


def newest_good(root: Path, shards: AgentShards) -> Saved | None:
    """The newest checkpoint that verifies; damaged ones are logged and passed over.

    The first process checks the files, and all open the one it found.
    """
    name = shards.broadcast(_newest_good_name(root) if shards.is_first else None)
    if name is None:
        return None
    return Saved(root / name, json.loads((root / name / "state.json").read_text(encoding="utf-8")))


def _newest_good_name(root: Path) -> str | None:
    for folder in _candidates(root):
        try:
            verify(folder)
        except (CheckpointMismatch, json.JSONDecodeError, KeyError) as error:
            log.warning("checkpoint %s refused: %s", folder.name, error)
            continue
        log.info("resuming from checkpoint %s", folder.name)
        return folder.name
    return None


def _agent_file(number: int) -> str:
    return f"agent_{number:02d}.safetensors"


def _write(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, path)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _candidates(root: Path) -> list[Path]:
    return sorted(root.glob("round_*"), reverse=True) if root.is_dir() else []
