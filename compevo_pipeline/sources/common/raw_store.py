"""The bytes as the publishers sent them, with earlier months packed.

What belongs here: files below ``raw``, the sidecar of each, and the zip of each product and month.
What does not: what was asked for (``common.ledger``), which files are a feed's
(``work.kept_files``).

The rule: what came live stays as it is during its month and the next. Then all that came of a
product in a month is put into one zip, ``packed/<source>-<month>.zip``, which any program unpacks:
the same bytes under the same names, beside their sidecars, compressed where the publisher did not.
Nothing is removed. A packing that is killed leaves files, or files and a zip of them, and the next
one goes on.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import uuid
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from compevo_core.errors import DataError
from compevo_core.runtime.files import (
    StoreBusy,
    file_lock,
    hash_file,
    write_atomically,
    write_bytes,
)
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.decode import check_member_path
from compevo_pipeline.sources.common.ledger import Entry

PACKS = "packed"  # folder of the zips; no product has its name
_HASH_DIGITS = 8
_LOCK = ".lock"
_COMPRESSED = (".zip", ".gz")
_OPEN_PACKS = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFile:
    """A raw file, or an earlier version of one, that is not read yet."""

    path: Path  # the file, or where it was before it was packed
    name: str  # the name that it was published under
    sidecar: Mapping[str, Any]  # address, hash, time and mode

    @property
    def fetched_at(self) -> datetime:
        """When its bytes came."""
        return datetime.fromisoformat(self.sidecar["fetched_at"])

    @property
    def sha256(self) -> str:
        """The hash of the bytes that came."""
        return str(self.sidecar["sha256"])

    @property
    def label(self) -> str:
        """Value of its rows' ``source`` column."""
        return f"{self.sidecar['mode']}:{self.path.parent.name}/{self.name}"

    def load(self) -> RawFile | None:
        """Return the file, or None where it holds other bytes than came."""
        content: bytes | None = None
        with contextlib.suppress(FileNotFoundError):
            content = self.path.read_bytes()
        if content is None or hashlib.sha256(content).hexdigest() != self.sha256:
            content = _read_packed(self.path, self.fetched_at, self.sha256)
        if content is None:
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
    bytes under one name both stay: the newest are at ``<source>/<name>``, the ones before move to
    ``<name>.<sha256[:8]>``.
    """

    root: Path

    def write(self, raw: RawFile) -> Path:
        """Store the bytes of a file that was read from disk or made; return their path.

        They are not flushed to disk: one day has hundreds of files, each can be read again, and the
        hash finds a damaged one.

        Raises:
            DataError, SchemaDrift: source or name would lead outside the folder.
            StoreBusy: another run writes this source for too long.
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

        with file_lock(path.parent / _LOCK, exclusive=True):
            if _holds(path, raw):
                return
            if is_versioned:
                _move_aside(path)
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
        loose = (file for file in self._list_loose() if file.path.is_file())
        # Packed files that were not removed yet are there twice.
        by_identity = {(file.path, file.sha256): file for file in (*self._list_packed(), *loose)}
        return sorted(by_identity.values(), key=lambda file: (file.fetched_at, file.label))

    def pack(self, now: datetime, *, dry: bool = False) -> list[tuple[Path, int, int]]:
        """Pack what came live before the last month.

        With ``dry`` nothing is done.

        Returns:
            For each zip its path, the number of files that it took in, and their bytes.
        """
        last_month = f"{now.replace(day=1) - timedelta(days=1):%Y-%m}"
        packs: dict[Path, list[KeptFile]] = defaultdict(list)
        for file in self._list_loose():
            if file.sidecar["mode"] == Mode.LIVE and f"{file.fetched_at:%Y-%m}" < last_month:
                packs[_pack_of(file.path, file.fetched_at)].append(file)

        packed = []
        for pack, files in sorted(packs.items()):
            # What cannot be packed now is packed by the next call.
            with contextlib.suppress(StoreBusy):
                done = files if dry else _pack_files(pack, files)
                size = sum(file.sidecar["bytes"] for file in done)
                packed.append((pack, len(done), size))
        return packed

    def _list_loose(self) -> Iterator[KeptFile]:
        """Yield the file of every sidecar, whether it is there or not."""
        for sidecar in sorted(self.root.glob("*/*.json")):
            path = sidecar.with_name(sidecar.name.removesuffix(".json"))
            yield from _read_kept(path, _read_sidecar(path))

    def _list_packed(self) -> Iterator[KeptFile]:
        for pack in sorted((self.root / PACKS).glob("*.zip")):
            folder = self.root / pack.name[: -len("-2026-01.zip")]
            try:
                bundle = _open_pack(pack, pack.stat().st_mtime_ns)
                for name in bundle.namelist()[1::2]:
                    path = folder / name.removesuffix(".json")
                    yield from _read_kept(path, json.loads(bundle.read(name)))
            except zipfile.BadZipFile as error:
                log.warning("%s is damaged (%s): bring it back from a backup", pack, error)

    def _path(self, source: str, name: str) -> Path:
        check_member_path(name, source)
        return self.root / check_folder_name(source) / name


def _read_kept(path: Path, sidecar: Mapping[str, Any]) -> Iterator[KeptFile]:
    """Yield the file of a sidecar, unless the sidecar is torn."""
    if sidecar.keys() >= {"url", "sha256", "bytes", "fetched_at", "mode"}:
        name = path.name.removesuffix(f".{sidecar['sha256'][:_HASH_DIGITS]}")
        yield KeptFile(path=path, name=name, sidecar=sidecar)


def _pack_of(path: Path, fetched_at: datetime) -> Path:
    return path.parents[1] / PACKS / f"{path.parent.name}-{fetched_at:%Y-%m}.zip"


@functools.lru_cache(maxsize=_OPEN_PACKS)
def _open_pack(pack: Path, written_ns: int) -> zipfile.ZipFile:
    """Open a version of a zip; thousands of files are read from it one by one."""
    return zipfile.ZipFile(pack)


def _read_packed(path: Path, fetched_at: datetime, sha256: str) -> bytes | None:
    pack = _pack_of(path, fetched_at)
    # KeyError: the zip has no such file.
    with contextlib.suppress(FileNotFoundError, KeyError, zipfile.BadZipFile):
        content = _open_pack(pack, pack.stat().st_mtime_ns).read(path.name)
        return content if hashlib.sha256(content).hexdigest() == sha256 else None
    return None


def _pack_files(pack: Path, files: Sequence[KeptFile]) -> list[KeptFile]:
    """Put files into a zip, beside those that it has, then remove them; return them.

    A damaged file stays as it is, and so does one that the zip does not give back whole.
    """

    def fill(part: Path) -> None:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as bundle:
            if pack.exists():
                with zipfile.ZipFile(pack) as before:
                    for info in before.infolist():
                        bundle.writestr(info, before.read(info))
            there = {*bundle.namelist()}
            for file in files:
                name = file.path.name
                content = None if name in there else file.load()
                if content is not None:
                    is_packed = name.endswith(_COMPRESSED)
                    kind = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
                    bundle.writestr(name, content.content, kind)
                    bundle.writestr(f"{name}.json", json.dumps(dict(file.sidecar), indent=1))

    pack.parent.mkdir(exist_ok=True)
    write_atomically(pack, fill)

    done = [f for f in files if _read_packed(f.path, f.fetched_at, f.sha256) is not None]
    folder = pack.parents[1] / files[0].path.parent.name
    # A backup holds the first lock: it must not miss both the zip and the files.
    with (
        file_lock(pack.parents[1] / _LOCK, exclusive=True),
        file_lock(folder / _LOCK, exclusive=True),
    ):
        for file in done:
            # The content first: a kill in between leaves a sidecar, which the next call removes.
            if not file.path.exists() or hash_file(file.path) == file.sha256:
                file.path.unlink(missing_ok=True)
                _sidecar_of(file.path).unlink(missing_ok=True)
    return done


def check_folder_name(text: str) -> str:
    """Return a text that may name a folder; raise :class:`DataError` for any other."""
    if not re.fullmatch(r"[A-Za-z0-9_\-]+", text):
        raise DataError(f"{text!r} is not a folder name; use letters, digits, _ and -")
    return text


def _sidecar_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _read_sidecar(path: Path) -> dict[str, Any]:
    # Cut by a power failure, the content is unknown, and written anew.
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        sidecar = json.loads(_sidecar_of(path).read_text(encoding="utf-8"))
        return sidecar if isinstance(sidecar, dict) else {}
    return {}


def _holds(path: Path, raw: RawFile) -> bool:
    is_there = path.exists() and path.stat().st_size == len(raw.content)
    return is_there and _read_sidecar(path).get("sha256") == raw.sha256


def _move_aside(path: Path) -> None:
    if not path.exists():
        return

    # The content first: a crash in between leaves a sidecar without a file, never the reverse.
    label = str(_read_sidecar(path).get("sha256", "unknown"))[:_HASH_DIGITS]
    for old in (path, _sidecar_of(path)):
        if old.exists():
            suffix = old.name.removeprefix(path.name)
            old.replace(old.with_name(f"{path.name}.{label}{suffix}"))
