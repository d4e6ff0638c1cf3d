"""What every source shares: the three modes, a raw file with its provenance, safe readers, the encoding policy.

What belongs here: reading bytes that somebody else wrote without trusting them (size caps, torn archives, paths
that leave their folder, bytes that are not UTF-8, a web page under a CSV's name).
What does not: any publisher's format, network calls, storage.

Encoding policy: text is strict UTF-8 with an optional byte-order mark; a byte that is not UTF-8 is an error that names
file and line. :func:`decode_lossy` is for publishers known to mix encodings (GDELT); it counts what it replaced.
"""

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath

from compevo_core.errors import SchemaDrift, SourceAbsent, SourceTransient

MAX_UNPACKED_BYTES = 512 * 2**20
"""Largest decompressed size accepted from one archive (a month of 5-minute rows is under 1 MiB)."""

SAMPLE_FETCHED_AT = datetime(2026, 1, 1, tzinfo=UTC)
"""Fetch time written on synthetic files, fixed so that two runs give equal frames."""

Clock = Callable[[], datetime]
"""Returns the current time, timezone-aware."""

Member = tuple[str, bytes]
"""Name and content of one file inside an archive."""

_UTF8_BOM = b"\xef\xbb\xbf"
_HTML_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<script", b"<!--")
_CHUNK = 1 << 20


class Mode(StrEnum):
    """Where the bytes come from: the public endpoint, files on disk, or a synthetic generator."""

    LIVE = "live"
    ARCHIVE = "archive"
    SAMPLE = "sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """One published file, unpacked from whatever it travelled in, with its provenance.

    ``source`` is a folder-safe name of the publisher's product (``aemo_histdemand``), ``name`` the published file name.
    """

    source: str
    name: str
    content: bytes
    url: str
    fetched_at: datetime
    mode: Mode

    @property
    def sha256(self) -> str:
        """Hex digest of the content."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def label(self) -> str:
        """What goes into a frame's ``source`` column: ``sample:...`` marks synthetic rows."""
        return f"{self.mode}:{self.source}/{self.name}"


def archive_files(archive: Path | None, folder: str, pattern: str) -> list[Path]:
    """Return the sorted files matching ``pattern`` below ``archive/folder``.

    Raises:
        SourceAbsent: no archive folder was given, or nothing in it matches.
    """
    if archive is None:
        message = f"archive mode needs a folder with {folder}/{pattern}: set COMPEVO_ARCHIVE to the archive's root"
        raise SourceAbsent(message)
    found = sorted(path for path in (archive / folder).glob(pattern) if path.is_file())
    if not found:
        message = f"no file {folder}/{pattern} under {archive}: check COMPEVO_ARCHIVE, or run in sample mode"
        raise SourceAbsent(message)
    return found


def archive_raw(
    path: Path, archive: Path, *, source: str, member: Member | None, clock: Clock
) -> RawFile:
    """Wrap a file of the archive, or one ``member`` unpacked from it, as a :class:`RawFile`."""
    url = f"file:{path.relative_to(archive).as_posix()}"
    if member is None:
        content = read_unpacked(path)
        name = path.name.removesuffix(".gz")
        return RawFile(
            source=source,
            name=name,
            content=content,
            url=url,
            fetched_at=clock(),
            mode=Mode.ARCHIVE,
        )
    name, content = member
    where = f"{url}!{name}"
    return RawFile(
        source=source, name=name, content=content, url=where, fetched_at=clock(), mode=Mode.ARCHIVE
    )


def sample_raw(source: str, name: str, content: bytes) -> RawFile:
    """Wrap synthetic bytes in a publisher's format; their rows say ``sample:`` in their source."""
    return RawFile(
        source=source,
        name=name,
        content=content,
        url=f"sample:{source}/{name}",
        fetched_at=SAMPLE_FETCHED_AT,
        mode=Mode.SAMPLE,
    )


def read_unpacked(path: Path) -> bytes:
    """Read a file, decompressing ``.gz`` (not ``.tar.gz``)."""
    content = path.read_bytes()
    if path.name.endswith(".gz") and not path.name.endswith(".tar.gz"):
        return gunzip(content, path.name)
    return content


def gunzip(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> bytes:
    """Decompress one gzip stream.

    Raises:
        SourceTransient: the stream is torn or its checksum is wrong.
        SchemaDrift: it is not gzip, or unpacks to more than ``cap`` bytes.
    """
    refuse_html(content, name)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            unpacked = stream.read(cap + 1)
    except EOFError as error:
        message = f"{name}: the gzip stream is truncated after {len(content)} bytes; fetch or copy the file again"
        raise SourceTransient(message) from error
    except (zlib.error, OSError) as error:
        if content[:2] == b"\x1f\x8b":
            message = f"{name}: the gzip stream is damaged ({error}); fetch or copy the file again"
            raise SourceTransient(message) from error
        message = (
            f"{name}: not a gzip file (first bytes {content[:8]!r}); check what the publisher sent"
        )
        raise SchemaDrift(message) from error
    _check_cap(len(unpacked), cap, name)
    return unpacked


def unzip(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[Member]:
    """Yield the files of a zip in name order; nothing is written to disk.

    Raises:
        SourceTransient: the zip is torn.
        SchemaDrift: a member's path leaves its folder, or the total exceeds ``cap``.
    """
    refuse_html(content, name)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            infos = sorted(
                (info for info in bundle.infolist() if not info.is_dir()),
                key=lambda info: info.filename,
            )
            for info in infos:
                check_member_path(info.filename, name)
            room = cap
            for info in infos:
                with bundle.open(info) as stream:
                    data = stream.read(room + 1)
                _check_cap(len(data), room, f"{name}!{info.filename}")
                room -= len(data)
                yield info.filename, data
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        message = f"{name}: the zip is damaged or truncated ({error}); fetch or copy the file again"
        raise SourceTransient(message) from error


def untar(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[Member]:
    """Yield the regular files of a tar or tar.gz in name order; nothing is written to disk.

    Raises:
        SourceTransient: the archive is torn.
        SchemaDrift: a member is a link or device, its path leaves its folder, or the total exceeds ``cap``.
    """
    refuse_html(content, name)
    plain = gunzip(content, name, cap) if content[:2] == b"\x1f\x8b" else content
    members: list[Member] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as bundle:
            for info in bundle:
                check_member_path(info.name, name)
                if info.isdir():
                    continue
                stream = bundle.extractfile(info) if info.isreg() else None
                if stream is None:
                    message = f"{name}!{info.name}: a link or device in a data archive; refuse it, fetch it again"
                    raise SchemaDrift(message)
                members.append((info.name, stream.read()))
    except tarfile.TarError as error:
        message = f"{name}: the tar is damaged or truncated ({error}); fetch or copy the file again"
        raise SourceTransient(message) from error
    yield from sorted(members)


def check_member_path(member: str, name: str) -> None:
    """Refuse an archive member whose path is absolute or climbs out of its folder.

    Raises:
        SchemaDrift: the path is not a plain relative one.
    """
    parts = PurePosixPath(member.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or ":" in member or "\x00" in member:
        message = f"{name}: member {member!r} leads outside its folder; the archive is refused, fetch it again"
        raise SchemaDrift(message)


def refuse_html(content: bytes, name: str) -> None:
    """Refuse an empty body and a web page that came under a data file's name.

    Raises:
        SourceTransient: there are no bytes at all.
        SchemaDrift: the first bytes are markup.
    """
    if not content:
        message = f"{name}: the file is empty; fetch or copy it again"
        raise SourceTransient(message)
    head = content[:64].removeprefix(_UTF8_BOM).lstrip().lower()
    if head.startswith(_HTML_STARTS):
        message = f"{name}, line 1: a web page where data was expected ({head[:40]!r}); delete it and fetch it again"
        raise SchemaDrift(message)


def decode_text(content: bytes, name: str) -> str:
    """Decode strict UTF-8, without a byte-order mark, with line-feed line ends.

    Raises:
        SchemaDrift: a byte is not UTF-8; names the line and the byte.
    """
    try:
        text = content.removeprefix(_UTF8_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        message = f"{name}, line {line}: byte 0x{byte:02x} is not UTF-8; re-save the file as UTF-8 or fetch it again"
        raise SchemaDrift(message) from error
    return text.replace("\r\n", "\n")


def decode_lossy(content: bytes) -> tuple[str, int]:
    """Decode UTF-8 with bad bytes replaced by U+FFFD; return the text and how many were replaced."""
    body = content.removeprefix(_UTF8_BOM)
    text = body.decode("utf-8", errors="replace")
    already = body.count("�".encode())
    return text.replace("\r\n", "\n"), text.count("�") - already


def read_json(content: bytes, name: str) -> object:
    """Decode one JSON document.

    Raises:
        SchemaDrift: it is not JSON; names line and column.
    """
    refuse_html(content, name)
    text = decode_text(content, name)
    try:
        document: object = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"{name}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}); fetch the file again"
        raise SchemaDrift(message) from error
    return document


def _check_cap(size: int, cap: int, name: str) -> None:
    if size > cap:
        message = f"{name}: unpacks to more than {cap} bytes; raise the cap if the file is genuine"
        raise SchemaDrift(message)
