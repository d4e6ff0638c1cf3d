"""Sealed folders: a manifest with the hash of every file, written last.

What belongs here: writing and checking the manifest. What does not: the files it covers
(``training.checkpoint``, ``training.artifact``).

A folder counts only with its manifest. A crash while the folder is written leaves no manifest,
and a file that was altered later no longer has the hash that the manifest holds (decision 17).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compevo_core.data.files import hash_file, hash_text, write_json
from compevo_core.errors import CheckpointMismatch

MANIFEST_FILE = "manifest.json"


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> str:
    """Seal a folder by writing the manifest of all files below it.

    Args:
        folder: the folder, complete but for the manifest.
        facts: values to keep in the manifest beside the hashes.

    Returns:
        the hash over the files' hashes; of a model, this is the artifact hash in result rows.
    """
    files = {
        path.relative_to(folder).as_posix(): hash_file(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST_FILE
    }
    # Over names and hashes alone: facts such as the device may differ between equal models.
    folder_hash = hash_text(json.dumps(files, sort_keys=True))

    write_json(folder / MANIFEST_FILE, {**facts, "files": files, "hash": folder_hash})
    return folder_hash


def verify_manifest(folder: Path) -> dict[str, Any]:
    """Return a sealed folder's manifest after checking every file against it.

    Raises:
        CheckpointMismatch: there is no manifest, or a file is missing or altered.
    """
    manifest_file = folder / MANIFEST_FILE
    if not manifest_file.is_file():
        raise CheckpointMismatch(
            f"{folder} has no {MANIFEST_FILE}: it was never finished; delete it and train again"
        )

    manifest: dict[str, Any] = json.loads(manifest_file.read_text(encoding="utf-8"))
    for name, expected_hash in manifest["files"].items():
        path = folder / name
        if not path.is_file() or hash_file(path) != expected_hash:
            state = "altered" if path.is_file() else "missing"
            raise CheckpointMismatch(
                f"{path} is {state} since it was written; restore it or train again"
            )
    return manifest
