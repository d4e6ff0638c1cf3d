"""Text, JSON and the members of archives that a stranger sent, and TOML that a user wrote.

What belongs here: telling data from a web page, the encoding policy, JSON and gzip, zip and tar
read without trust in them, and what is taken out of text before it is stored. What does not:
repairing JSON (``gdelt.parse``), tables (``common.tables``), any publisher's format.

Text is strict UTF-8 with an optional byte-order mark. :func:`decode_lossy` is for publishers who
mix encodings (GDELT); it counts the bytes that it replaces. Archives are unpacked in memory, up to
a cap, and an archive with a member whose path leaves its folder is rejected as a whole.

What is empty, cut or damaged raises ``SourceTransient``. A web page, another format, a hostile or
encrypted archive, and one above its cap raise ``SchemaDrift``, which names file and place.
"""

import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from compevo_core.errors import SchemaDrift, SourceTransient

MAX_TITLE_CHARACTERS = 1000  # the longest headline of two years of news has 306
MAX_UNPACKED_BYTES = 512 * 2**20  # of one archive; a month of 5-minute rows is under 1 MiB
Member = tuple[str, bytes]  # name and content of one file inside an archive
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]  # no truth value, no text
_ISO = BeforeValidator(lambda value: datetime.fromisoformat(str(value)))
Day = Annotated[date, _ISO, Field(gt=date(1900, 1, 1), lt=date(2200, 1, 1))]
Moment = Annotated[
    AwareDatetime,
    _ISO,
    Field(gt=datetime(1900, 1, 1, tzinfo=UTC), lt=datetime(2200, 1, 1, tzinfo=UTC)),
]
"""A day and a time with its offset, as ISO 8601 writes them; pydantic's own type takes numbers."""

_Kind = TypeVar("_Kind")

UTF8_BOM = b"\xef\xbb\xbf"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
# Bytes: file systems take 255, and a part file's name is 40 longer.
_LONGEST_NAME = 200
_SHOWN_NAME = 60
_MOST_DIGITS = 300  # the largest float has 309
_HTML_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<script", b"<!--")

# Terminal commands first, whole: without its ESC the rest of one would stay as text.
_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x9b[0-?]*[@-~]")
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE_TAGS = "\U000e0000-\U000e007f"
_REMOVED = re.compile(f"[{_DIRECTIONS}{_INVISIBLE_TAGS}]")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_GZIP_MAGIC = b"\x1f\x8b"
_ZIP_MAGIC = b"PK\x03\x04"


def clean_text(text: str) -> str:
    """Return text in one line, without control characters, direction marks or half characters.

    A headline may hold terminal commands, marks that reverse a line, or invisible tags.
    Joiners that Persian or Sinhala spelling needs (U+200C, U+200D) stay.
    """
    # Nearly every headline has none of them, and this test is the quickest.
    if not text.isprintable():
        text = _CONTROLS.sub(" ", _REMOVED.sub("", _TERMINAL.sub("", text)))
        text = _HALF_PAIR.sub(_REPLACEMENT, text)

    # Line breaks and repeated spaces differ between copies of one article.
    return " ".join(text.split())


def read_title(value: object) -> str | None:
    """Return a headline, "" where the field is empty, None where it is not text or far too long."""
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_TITLE_CHARACTERS:
        return None
    return clean_text(value)


def raise_if_html(content: bytes, name: str) -> None:
    """Reject an empty body and a web page under a data file's name."""
    if not content:
        raise SourceTransient(f"{name}: the file is empty; fetch or copy it again")

    # Errors and log-ins often come with status 200 and the data file's name.
    head = content[:64].removeprefix(UTF8_BOM).lstrip().lower()
    if head.startswith(_HTML_STARTS):
        raise SchemaDrift(
            f"{name}, line 1: a web page where data was expected ({head[:40]!r}); "
            "delete it and fetch it again"
        )


def decode_text(content: bytes, name: str) -> str:
    """Decode strict UTF-8, without a byte-order mark, with line-feed line ends."""
    try:
        text = content.removeprefix(UTF8_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        # The position is a byte offset; a person looks for a line.
        line = content.count(b"\n", 0, error.start) + 1
        raise SchemaDrift(
            f"{name}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8; "
            "re-save the file as UTF-8 or fetch it again"
        ) from error

    return text.replace("\r\n", "\n")


def read_text(content: bytes, name: str) -> str:
    """Decode a data file; errors as of :func:`raise_if_html` and :func:`decode_text`."""
    raise_if_html(content, name)
    return decode_text(content, name)


def decode_lossy(content: bytes) -> tuple[str, int]:
    """Decode UTF-8 with bad bytes replaced by U+FFFD; return the text and the number of them."""
    content = content.removeprefix(UTF8_BOM)
    text = content.decode(errors="replace")
    # Replacement characters that the publisher sent himself are not counted.
    replaced = text.count(_REPLACEMENT) - content.count(_REPLACEMENT.encode())
    return text.replace("\r\n", "\n"), replaced


def read_json(content: bytes, name: str) -> object:
    """Decode one JSON document."""
    document, mended = parse_json(read_text(content, name), name)
    if mended:
        raise SchemaDrift(
            f"{name}: {mended} time(s) half a surrogate pair in place of a character; fetch the "
            "file again"
        )
    return document


def check_document(document: object, name: str, kind: type[_Kind], *within: str) -> _Kind:
    """Return a decoded JSON document, or the part of one ``within`` those keys, as ``kind``."""
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, (*within, *fault["loc"]))) or "the document"
        raise SchemaDrift(
            f"{name}, at {place}: {fault['msg']} (it is {str(fault['input'])[:40]!r}); "
            "fetch the file again; extend the parser if the format changed"
        ) from error


def parse_json(text: str, name: str, *, strict: bool = True) -> tuple[object, int]:
    """Decode JSON that somebody else wrote.

    Unless ``strict``, texts may hold control characters. Also return how many halves of surrogate
    pairs (of titles that were cut inside a character) were replaced by U+FFFD.
    """
    try:
        document = json.loads(
            text, strict=strict, parse_constant=_reject_constant, parse_int=_read_integer
        )
        # Half a pair can only be written as an escape: other documents are not searched.
        if not _SURROGATE_ESCAPE.search(text):
            return document, 0
        mended, halves = _HALF_PAIR.subn(_REPLACEMENT, json.dumps(document, ensure_ascii=False))
        return json.loads(mended), halves
    except json.JSONDecodeError as error:
        raise SchemaDrift(
            f"{name}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}); "
            "fetch the file again"
        ) from error
    except RecursionError as error:
        raise SchemaDrift(
            f"{name}: JSON nested too deeply for any publisher's data; fetch the file again"
        ) from error
    except ValueError as error:
        raise SchemaDrift(
            f"{name}: JSON with an invalid number ({error}); fetch the file again"
        ) from error


def _reject_constant(name: str) -> object:
    # NaN and Infinity are Python's own addition to JSON.
    raise ValueError(f"{name} is not a JSON number")


def _read_integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"{len(digits)} digits")
    return int(digits)


class TomlSection(BaseModel):
    """A table of a TOML file."""

    # A misspelt key is an error: ignored, it would leave a default in its place in silence.
    model_config = {"frozen": True, "extra": "forbid", "use_attribute_docstrings": True}


def read_unpacked(path: Path) -> bytes:
    """Read a file, decompressing ``.gz`` (not ``.tar.gz``)."""
    content = path.read_bytes()
    if path.name.endswith(".gz") and not path.name.endswith(".tar.gz"):
        return gunzip(content, path.name)

    return content


def read_members(path: Path) -> Iterator[Member]:
    """Yield the files that a download holds: a tar, a zip, a zip of zips, or a plain file."""
    name = path.name.lower()
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        yield from untar(path.read_bytes(), path.name)
    elif name.endswith(".zip"):
        yield from unzip_nested(path.read_bytes(), path.name)
    else:
        yield path.name.removesuffix(".gz"), read_unpacked(path)


def gunzip(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> bytes:
    """Decompress one gzip stream of at most ``cap`` bytes; ``name`` is for messages."""
    raise_if_html(content, name)
    if not content.startswith(_GZIP_MAGIC):
        raise SchemaDrift(
            f"{name}: not a gzip file (first bytes {content[:8]!r}); check what the publisher sent"
        )
    with _translate_damage(name, "gzip stream"), gzip.open(io.BytesIO(content)) as stream:
        # One byte more than allowed is enough to know, and a decompression bomb ends there.
        return _check_cap(stream.read(cap + 1), cap, name)


def unzip(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[Member]:
    """Yield the files of a zip in name order, at most ``cap`` decompressed bytes in all."""
    raise_if_html(content, name)
    with _translate_damage(name, "zip"), zipfile.ZipFile(io.BytesIO(content)) as bundle:
        files = [info for info in bundle.infolist() if not info.is_dir()]
        # Before the first member is read: one bad path rejects the whole archive.
        for info in files:
            check_member_path(info.filename, name)

        room = cap
        for info in sorted(files, key=lambda info: info.filename):
            with bundle.open(info) as stream:
                # The cap is for the whole archive: many small members make a bomb too.
                data = _check_cap(stream.read(room + 1), room, f"{name}!{info.filename}")
            room -= len(data)
            yield info.filename, data


def unzip_only(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> bytes:
    """Return the one file of a zip, apart from what a Mac notes on it."""
    members = [data for path, data in unzip(content, name, cap) if not path.startswith("__MACOSX")]
    if len(members) != 1:
        raise SchemaDrift(
            f"{name}: holds {len(members)} files instead of one; unpack it and name one of them"
        )
    return members[0]


def unzip_nested(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[Member]:
    """Yield the files of a zip, and of the zips in it (AEMO's weekly archives), in name order."""
    room = cap
    for member, data in unzip(content, name, cap):
        room -= len(data)
        if not data.startswith(_ZIP_MAGIC):
            yield member, data
            continue

        # One room for all: many small zips make a bomb too.
        for inner, inner_data in unzip(data, f"{name}!{member}", room):
            room -= len(inner_data)
            if inner_data.startswith(_ZIP_MAGIC):
                raise SchemaDrift(
                    f"{name}!{member}!{inner}: a zip in a zip in a zip is never unpacked; unpack "
                    "the outer one"
                )
            yield inner, inner_data


def untar(content: bytes, name: str, cap: int = MAX_UNPACKED_BYTES) -> Iterator[Member]:
    """Yield the regular files of a tar or tar.gz of at most ``cap`` bytes, in name order."""
    raise_if_html(content, name)
    plain = gunzip(content, name, cap) if content.startswith(_GZIP_MAGIC) else content

    members: list[Member] = []
    with (
        _translate_damage(name, "tar"),
        tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as bundle,
    ):
        for info in bundle:
            check_member_path(info.name, name)
            stream = bundle.extractfile(info) if info.isreg() else None
            if stream is not None:
                members.append((info.name, stream.read()))
            elif not info.isdir():
                raise SchemaDrift(
                    f"{name}!{info.name}: a link or device in a data archive is never unpacked; "
                    "fetch the archive again"
                )

    # In name order, like unzip: the order inside an archive is the packer's accident.
    yield from sorted(members)


@contextmanager
def _translate_damage(name: str, form: str) -> Iterator[None]:
    """Turn what the standard library raises of a packed file into this project's errors."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        # zipfile has no better class for a password or an unknown method.
        raise SchemaDrift(
            f"{name}: the {form} is encrypted or packed by an unknown method ({error}); "
            "publishers send neither: fetch it again, or unpack it and pack it plainly"
        ) from error
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        OSError,
        EOFError,
        ValueError,
        tarfile.TarError,
    ) as error:
        raise SourceTransient(
            f"{name}: the {form} is damaged or truncated ({error}); fetch or copy the file again"
        ) from error


def check_member_path(member: str, name: str) -> None:
    """Raise :class:`SchemaDrift` unless an archive member's path is a plain relative one."""
    # A backslash or a colon is a plain character here and a path on Windows.
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in member or "\x00" in member:
        raise SchemaDrift(
            f"{name}: member {member!r} leads outside its folder; nothing of the archive is read, "
            "fetch it again"
        )
    longest = max((len(part.encode()) for part in path.parts), default=0)
    if longest > _LONGEST_NAME:
        raise SchemaDrift(
            f"{name}: a file name of {longest} bytes, {member[:_SHOWN_NAME]!r}..., where a folder "
            f"takes {_LONGEST_NAME}; compare with the publisher's page"
        )


def _check_cap(data: bytes, cap: int, name: str) -> bytes:
    if len(data) > cap:
        raise SchemaDrift(
            f"{name}: unpacks to more than {cap} bytes; raise the cap if the file is genuine"
        )
    return data
