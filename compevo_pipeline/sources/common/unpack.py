"""Archives that somebody else packed, read without trusting them.

What belongs here: gzip, zip and tar in memory, with size caps, errors for damaged streams and a
check of every member's path. What does not: decoding text (``common.decode``), what the files hold.

Nothing is written to disk here, so a hostile member name cannot leave its folder; the check refuses
such an archive all the same, because it is no data archive.
"""

import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.decode import refuse_html

MAX_UNPACKED_BYTES = 512 * 2**20
"""Largest decompressed size accepted from one archive (a month of 5-minute rows is under 1 MiB)."""

Member = tuple[str, bytes]
"""Name and content of one file inside an archive."""

_BYTES_PER_PART = 2**17  # stays in the cache of a core
_GZIP_MAGIC = b"\x1f\x8b"
_ZIP_MAGIC = b"PK\x03\x04"


def read_unpacked(path: Path) -> bytes:
    """Read a file, decompressing ``.gz`` (not ``.tar.gz``)."""
    content = path.read_bytes()
    if path.name.endswith(".gz") and not path.name.endswith(".tar.gz"):
        return gunzip(content, path.name)

    return content


def read_members(path: Path) -> Iterator[Member]:
    """Yield the files that a downloaded file holds, as publishers pack them.

    A tar, a zip and a zip of zips hold several; a plain file, and one that is compressed alone,
    holds itself.

    Raises:
        SourceTransient, SchemaDrift: as the functions that unpack.
    """
    name = path.name.lower()
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        yield from untar(path.read_bytes(), path.name)
    elif name.endswith(".zip"):
        yield from unzip_nested(path.read_bytes(), path.name)
    else:
        yield path.name.removesuffix(".gz"), read_unpacked(path)


def gunzip(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> bytes:
    """Decompress one gzip stream.

    Args:
        content: the compressed bytes.
        name: the file's name, for messages.
        cap: largest accepted decompressed size in bytes.

    Raises:
        SourceTransient: the stream is cut or its checksum is wrong.
        SchemaDrift: it is not gzip, or unpacks to more than ``cap`` bytes.
    """
    refuse_html(content, name)
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            # One byte more than allowed is enough to know, and a decompression bomb ends there.
            unpacked = stream.read(cap + 1)
    except EOFError as error:
        raise SourceTransient(
            f"{name}: the gzip stream is truncated after {len(content)} bytes; "
            "fetch or copy the file again"
        ) from error
    except (zlib.error, OSError) as error:
        if content.startswith(_GZIP_MAGIC):
            raise SourceTransient(
                f"{name}: the gzip stream is damaged ({error}); fetch or copy the file again"
            ) from error
        raise SchemaDrift(
            f"{name}: not a gzip file (first bytes {content[:8]!r}); check what the publisher sent"
        ) from error

    _check_cap(len(unpacked), cap, name)
    return unpacked


def unzip(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[Member]:
    """Yield the files of a zip in name order.

    Args:
        content: the bytes of the zip.
        name: the file's name, for messages.
        cap: largest accepted total of decompressed bytes.

    Raises:
        SourceTransient: the zip is cut or damaged.
        SchemaDrift: a member's path leaves its folder, a member is encrypted or packed by a method
            that is not known, or the total exceeds ``cap``.
    """
    with _open_zip(content, name) as (bundle, files):
        room = cap
        for info in files:
            with bundle.open(info) as stream:
                data = stream.read(room + 1)
            # The cap is for the whole archive: many small members make a bomb too.
            _check_cap(len(data), room, f"{name}!{info.filename}")
            room -= len(data)
            yield info.filename, data


def stream_only_member(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[bytes]:
    """Yield the one file of a zip in parts, which take less memory and time than the whole.

    A damaged end is noticed when it comes: what was made of earlier parts is worth nothing then.

    Args:
        content: the bytes of the zip.
        name: the file's name, for messages.
        cap: largest accepted number of decompressed bytes.

    Raises:
        SourceTransient, SchemaDrift: as :func:`unzip`, or the zip holds more files than one.
    """
    with _open_zip(content, name) as (bundle, files):
        if len(files) != 1:
            raise SchemaDrift(f"{name}: holds {len(files)} files instead of one; fetch it again")

        size = 0
        with bundle.open(files[0]) as stream:
            while part := stream.read(_BYTES_PER_PART):
                size += len(part)
                _check_cap(size, cap, f"{name}!{files[0].filename}")
                yield part


@contextmanager
def _open_zip(content: bytes, name: str) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    """Open a zip with its files in name order; say what is wrong with it, now or while it is read.

    Raises:
        SourceTransient, SchemaDrift: see :func:`unzip`.
    """
    refuse_html(content, name)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as bundle:
            files = [info for info in bundle.infolist() if not info.is_dir()]
            files.sort(key=lambda info: info.filename)

            # All paths are checked before the first member is read: an archive with one bad path
            # is refused as a whole.
            for info in files:
                check_member_path(info.filename, name)
            yield bundle, files
    except (RuntimeError, NotImplementedError) as error:
        # zipfile has no better class for a password or a method that it does not know.
        raise SchemaDrift(
            f"{name}: the zip is encrypted or packed in a way that is not read ({error}); "
            "publishers send neither: fetch it again, or unpack it and pack it plainly"
        ) from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise SourceTransient(
            f"{name}: the zip is damaged or truncated ({error}); fetch or copy the file again"
        ) from error


def unzip_nested(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[Member]:
    """Yield the files of a zip, and those of the zips in it, in name order.

    AEMO's weekly archives are zips of the half-hourly zips.

    Args:
        content: the bytes of the outer zip.
        name: the file's name, for messages.
        cap: largest accepted total of decompressed bytes, those of the inner zips included.

    Raises:
        SourceTransient: a zip is cut or damaged.
        SchemaDrift: as for :func:`unzip`, or a zip in a zip holds a third one.
    """
    room = cap
    for member, data in unzip(content, name, cap):
        room -= len(data)
        if not data.startswith(_ZIP_MAGIC):
            yield member, data
            continue

        inner_name = f"{name}!{member}"
        # One room for all: many small zips make a bomb too.
        for inner, inner_data in unzip(data, inner_name, room):
            room -= len(inner_data)
            if inner_data.startswith(_ZIP_MAGIC):
                raise SchemaDrift(
                    f"{inner_name}!{inner}: a zip in a zip in a zip is refused; unpack the "
                    "outer one"
                )
            yield inner, inner_data


def untar(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[Member]:
    """Yield the regular files of a tar or tar.gz in name order.

    Args:
        content: the bytes of the tar.
        name: the file's name, for messages.
        cap: largest accepted decompressed size in bytes.

    Raises:
        SourceTransient: the archive is cut or damaged.
        SchemaDrift: a member is a link or device, its path leaves its folder, or the archive
            unpacks to more than ``cap`` bytes.
    """
    refuse_html(content, name)
    plain = gunzip(content, name, cap) if content.startswith(_GZIP_MAGIC) else content

    members: list[Member] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as bundle:
            for info in bundle:
                check_member_path(info.name, name)
                if info.isdir():
                    continue

                stream = bundle.extractfile(info) if info.isreg() else None
                if stream is None:
                    raise SchemaDrift(
                        f"{name}!{info.name}: a link or device in a data archive is refused; "
                        "fetch the archive again"
                    )
                members.append((info.name, stream.read()))
    except tarfile.TarError as error:
        raise SourceTransient(
            f"{name}: the tar is damaged or truncated ({error}); fetch or copy the file again"
        ) from error

    # In name order, like unzip: the order inside an archive is the packer's accident.
    yield from sorted(members)


def check_member_path(member: str, name: str) -> None:
    """Refuse an archive member whose path is absolute or climbs out of its folder.

    Raises:
        SchemaDrift: the path is not a plain relative one.
    """
    # A backslash or a colon is a plain character here and a path on Windows.
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in member or "\x00" in member:
        raise SchemaDrift(
            f"{name}: member {member!r} leads outside its folder; the archive is refused, "
            "fetch it again"
        )


def _check_cap(size: int, cap: int, name: str) -> None:
    if size > cap:
        raise SchemaDrift(
            f"{name}: unpacks to more than {cap} bytes; raise the cap if the file is genuine"
        )
