"""Checkpoints of a running training: atomic, verified, newest good one first.

What belongs here: writing and reading one folder of tensors and JSON with hashes, choosing among several.
What does not: what the tensors mean (``learner``, ``trainer``), the finished model (``artifact``).
A checkpoint counts only with its manifest, which is written last and holds the sha256 of every file.
"""

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from compevo_core.errors import CheckpointMismatch

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"
_KEEP = 2


def seal(folder: Path, facts: Mapping[str, Any]) -> str:
    """Writes the manifest of all files below ``folder``, last; returns the hash over their hashes."""
    files = {p.relative_to(folder).as_posix(): sha256(p)
             for p in sorted(folder.rglob("*")) if p.is_file() and p.name != MANIFEST}
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
        raise CheckpointMismatch(f"{folder} has no {MANIFEST}: it was never finished; delete it and train again")
    manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for name, expected in manifest["files"].items():
        path = folder / name
        if not path.is_file() or sha256(path) != expected:
            state = "altered" if path.is_file() else "missing"
            raise CheckpointMismatch(f"{path} is {state} since it was written; restore it or train again")
    return manifest


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def save(root: Path, round_number: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Writes ``root/round_<n>`` through a temporary folder and drops all but the newest two."""
    root.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=root))
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, part / "tensors.safetensors")
    (part / "state.json").write_text(json.dumps(state, sort_keys=True), encoding="utf-8")
    seal(part, {"round": round_number})
    target = root / f"round_{round_number:06d}"
    if target.exists():
        shutil.rmtree(target)
    part.rename(target)
    for old in _candidates(root)[_KEEP:]:
        shutil.rmtree(old)
    for torn in root.glob(".part-*"):
        shutil.rmtree(torn)
    return target


def newest_good(root: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint that verifies, as (tensors, state); damaged ones are logged and passed over."""
    for folder in _candidates(root):
        try:
            verify(folder)
        except (CheckpointMismatch, json.JSONDecodeError, KeyError) as error:
            log.warning("checkpoint %s refused: %s", folder.name, error)
            continue
        log.info("resuming from checkpoint %s", folder.name)
        state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return load_file(folder / "tensors.safetensors"), state
    return None


def _candidates(root: Path) -> list[Path]:
    return sorted(root.glob("round_*"), reverse=True) if root.is_dir() else []
