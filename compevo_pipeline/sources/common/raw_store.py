"""The bytes as the publishers sent them, each with a file of its address, hash and time.

What belongs here: ``<source>/<name>`` below the folder of raw files, with a JSON sidecar. What does
not: fetching (``common.http``), parsing.

Equal bytes are stored once; of other bytes under one name both stay: the newest content lies at
``<source>/<name>``, and what lay there before moves to ``<name>.<sha256[:8]>``.
"""

import contextlib
import json
import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from compevo_core.data.filelock import file_lock
from compevo_core.data.files import write_bytes
from compevo_core.errors import DataError
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.unpack import check_member_path

_HASH_DIGITS = 8
_LOCK = ".lock"


@dataclass(frozen=True)
class RawStore:
    """Raw files under one root folder, which the first write creates."""

    root: Path

    def write(self, raw: RawFile) -> Path:
        """Store the bytes of a file that was read from disk or made.

        They are not flushed to disk: one day has hundreds of files, each can be read again, and the
        hash finds a damaged one.

        Returns:
            The path of the newest content.

        Raises:
            DataError, SchemaDrift: source or name would lead outside the folder.
            StoreBusy: another run writes this source for too long.
        """
        path = self._path(raw.source, raw.name)
        with file_lock(path.parent / _LOCK, exclusive=True):
            if _read_hash(path) == raw.sha256 and path.stat().st_size == len(raw.content):
                return path
            _move_aside(path)
            write_bytes(path, raw.content, is_durable=False)
            _write_sidecar(path, raw.url, raw.sha256, raw.fetched_at, raw.mode, is_durable=False)
        return path

    @contextlib.contextmanager
    def receive(self, source: str, name: str) -> Iterator[Path]:
        """Yield the path of a temporary file in the source's folder, gone when the block ends."""
        path = self._path(source, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)

    def keep(self, part: Path, raw: RawFile, *, is_versioned: bool) -> None:
        """Give a received file its name, flushed to disk.

        Args:
            part: the file, at the path that :meth:`receive` yielded.
            raw: the same bytes with their provenance.
            is_versioned: whether older content of that name stays, under another name.

        Raises:
            StoreBusy: another run writes this source for too long.
        """
        path = self._path(raw.source, raw.name)
        # Without the flush a power cut after the rename can leave an empty file under the name.
        with part.open("rb") as stream:
            os.fsync(stream.fileno())

        with file_lock(path.parent / _LOCK, exclusive=True):
            if _read_hash(path) == raw.sha256 and path.stat().st_size == len(raw.content):
                return
            if is_versioned:
                _move_aside(path)
            part.replace(path)
            _write_sidecar(path, raw.url, raw.sha256, raw.fetched_at, raw.mode, is_durable=True)

    def read(self, source: str, name: str, sha256: str) -> RawFile | None:
        """Return a fetched file as it was kept, or None where it is gone or other bytes."""
        path = self._path(source, name)
        sidecar = _read_sidecar(path)
        if not sidecar or not path.exists():
            return None

        raw = RawFile(
            source=source,
            name=name,
            content=path.read_bytes(),
            url=str(sidecar["url"]),
            fetched_at=datetime.fromisoformat(str(sidecar["fetched_at"])),
            mode=Mode.LIVE,
        )
        return raw if raw.sha256 == sha256 else None

    def _path(self, source: str, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_\-]+", source):
            raise DataError(f"{source!r} is no folder name; use letters, digits, _ and -")

        check_member_path(name, source)
        return self.root / source / name


def _sidecar_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read_sidecar(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_sidecar_of(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return {}  # cut by a power failure: the content is then unknown, and written anew
    return found if isinstance(found, dict) else {}


def _read_hash(path: Path) -> str:
    return str(_read_sidecar(path).get("sha256", "unknown")) if path.exists() else ""


def _move_aside(path: Path) -> None:
    if not path.exists():
        return

    # The content first: a crash in between leaves a sidecar without a file, never the reverse.
    label = _read_hash(path)[:_HASH_DIGITS]
    for old in (path, _sidecar_of(path)):
        if old.exists():
            suffix = old.name.removeprefix(path.name)
            old.replace(old.with_name(f"{path.name}.{label}{suffix}"))


def _write_sidecar(
    path: Path, url: str, sha256: str, fetched_at: datetime, mode: Mode, *, is_durable: bool
) -> None:
    provenance = {
        "url": url,
        "sha256": sha256,
        "bytes": path.stat().st_size,
        "fetched_at": fetched_at.isoformat(),
        "mode": mode.value,
    }
    content = (json.dumps(provenance, indent=1) + "\n").encode()
    write_bytes(_sidecar_of(path), content, is_durable=is_durable)
