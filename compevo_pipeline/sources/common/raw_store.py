"""The bytes as the publishers sent them.

What belongs here: files below ``raw`` and the sidecar of each. What does not: what was asked for
(``common.ledger``), which files are a feed's (``work.ingest``).
"""

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from compevo_core.errors import DataError
from compevo_core.runtime.files import LOCK_FILE, file_lock, write_bytes
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.decode import check_member_path
from compevo_pipeline.sources.common.ledger import Entry

_HASH_DIGITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A raw file, or an earlier version of one, that is not read yet."""

    path: Path
    name: str  # the name that it was published under
    sidecar: Mapping[str, Any]  # address, hash, time and mode

    @property
    def fetched_at(self) -> datetime:
        """When its bytes came."""
        return datetime.fromisoformat(self.sidecar["fetched_at"])

    @property
    def label(self) -> str:
        """Value of its rows' ``source`` column."""
        return f"{self.sidecar['mode']}:{self.path.parent.name}/{self.name}"

    def load(self) -> RawFile | None:
        """Return the file, or None where it holds other bytes than came."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(content).hexdigest() != self.sidecar["sha256"]:
            return None
        return RawFile(
            source=self.path.parent.name,
            name=self.name,
            content=content,
            url=self.sidecar["url"],
            fetched_at=self.fetched_at,
            mode=Mode(self.sidecar["mode"]),
        )


@dataclass(frozen=True)
class RawStore:
    """The bytes as the publishers sent them: ``<source>/<name>`` below a root, each with a sidecar.

    The sidecar, a JSON file, holds address, hash and time. Equal bytes are stored once. Of other
    bytes under one name both stay: the older ones move to ``<name>.<sha256[:8]>``.
    """

    root: Path

    def write(self, raw: RawFile) -> Path:
        """Store the bytes of a file that was read from disk or made; return their path.

        They are not flushed to disk: one day has hundreds of files, each can be read again, and the
        hash finds a damaged one. DataError or SchemaDrift if source or name would lead outside the
        folder; StoreBusy if another run writes this source for too long.
        """
        path = self._path(raw.source, raw.name)
        if not _holds(path, raw):
            with self.receive(raw.source, raw.name) as part:
                part.write_bytes(raw.content)
                self.keep(part, raw, is_durable=False)
        return path

    @contextmanager
    def receive(self, source: str, name: str) -> Iterator[Path]:
        """Yield the path of a temporary file in the source's folder, gone when the block ends."""
        path = self._path(source, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
        try:
            yield part
        finally:
            part.unlink(missing_ok=True)

    def keep(
        self, part: Path, raw: RawFile, *, is_versioned: bool = True, is_durable: bool = True
    ) -> None:
        """Give a received file its name.

        Unless ``is_versioned``, older content of that name goes. Unless ``is_durable``, it is not
        flushed to disk, and a power cut after the rename can leave an empty file under the name.
        """
        path = self._path(raw.source, raw.name)
        if is_durable:
            with part.open("rb") as stream:
                os.fsync(stream.fileno())

        with file_lock(path.parent / LOCK_FILE, exclusive=True):
            if _holds(path, raw):
                return
            if is_versioned and path.exists():
                # The content first: a crash in between leaves a sidecar without a file, never the
                # reverse.
                label = str(_read_sidecar(path).get("sha256", "unknown"))[:_HASH_DIGITS]
                for old in (path, _sidecar_of(path)):
                    if old.exists():
                        suffix = old.name.removeprefix(path.name)
                        old.replace(old.with_name(f"{path.name}.{label}{suffix}"))
            part.replace(path)
            provenance = {
                "url": raw.url,
                "sha256": raw.sha256,
                "bytes": len(raw.content),
                "fetched_at": raw.fetched_at.isoformat(),
                "mode": raw.mode.value,
            }
            content = (json.dumps(provenance, indent=1) + "\n").encode()
            write_bytes(_sidecar_of(path), content, is_durable=is_durable)

    def read(self, entry: Entry) -> RawFile | None:
        """Return a fetched file as it was kept, or None where it is gone or other bytes."""
        path = self._path(entry.source, entry.name)
        if entry.fetched_at is None or entry.sha256 is None:
            return None
        at = entry.fetched_at.isoformat()
        sidecar = {"url": entry.url, "sha256": entry.sha256, "fetched_at": at, "mode": Mode.LIVE}
        return KeptFile(path=path, name=entry.name, sidecar=sidecar).load()

    def list_kept(self) -> list[KeptFile]:
        """Return every file and earlier version that is whole with its sidecar, oldest first."""
        kept = []
        for sidecar in self.root.glob("*/*.json"):
            path = sidecar.with_name(sidecar.name.removesuffix(".json"))
            facts = _read_sidecar(path)
            # A torn sidecar says nothing of its file.
            if path.is_file() and facts.keys() >= {"url", "sha256", "bytes", "fetched_at", "mode"}:
                name = path.name.removesuffix(f".{facts['sha256'][:_HASH_DIGITS]}")
                kept.append(KeptFile(path=path, name=name, sidecar=facts))
        return sorted(kept, key=lambda file: (file.fetched_at, file.label, file.path))

    def _path(self, source: str, name: str) -> Path:
        check_member_path(name, source)
        return self.root / check_folder_name(source) / name


def check_folder_name(text: str) -> str:
    """Return a text that may name a folder; raise :class:`DataError` for any other."""
    if not re.fullmatch(r"[A-Za-z0-9_\-]+", text):
        raise DataError(f"{text!r} is not a folder name; use letters, digits, _ and -")
    return text


def _sidecar_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read_sidecar(path: Path) -> dict[str, Any]:
    # If a power failure cut it, the content is unknown and is written again.
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        sidecar = json.loads(_sidecar_of(path).read_text(encoding="utf-8"))
        return sidecar if isinstance(sidecar, dict) else {}
    return {}


def _holds(path: Path, raw: RawFile) -> bool:
    is_there = path.exists() and path.stat().st_size == len(raw.content)
    return is_there and _read_sidecar(path).get("sha256") == raw.sha256
