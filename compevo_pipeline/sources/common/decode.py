"""Text and JSON from bytes that a publisher sent.

What belongs here: telling data from a web page under a data file's name, the encoding policy, JSON
without trust in it. What does not: repairing JSON (``gdelt.json_repair``), archives
(``common.unpack``), tables (``common.tables``), any publisher's format.

Encoding policy: text is strict UTF-8 with an optional byte-order mark; a byte that is not UTF-8 is
an error that names file and line. :func:`decode_lossy` is for publishers known to mix encodings
(GDELT); it counts the bytes that it replaces.
"""

import json
import re
from typing import Any

from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.text import mend_surrogates

_UTF8_BOM = b"\xef\xbb\xbf"
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_MOST_DIGITS = 300  # the largest float has 309
_HTML_STARTS = (b"<!doctype", b"<html", b"<head", b"<?xml", b"<script", b"<!--")


def refuse_html(content: bytes, name: str) -> None:
    """Refuse an empty body and a web page under a data file's name.

    Raises:
        SourceTransient: there are no bytes at all.
        SchemaDrift: the first bytes are markup.
    """
    if not content:
        raise SourceTransient(f"{name}: the file is empty; fetch or copy it again")

    # Errors and log-ins often come with status 200 and the data file's name.
    head = content[:64].removeprefix(_UTF8_BOM).lstrip().lower()
    if head.startswith(_HTML_STARTS):
        raise SchemaDrift(
            f"{name}, line 1: a web page where data was expected ({head[:40]!r}); "
            "delete it and fetch it again"
        )


def decode_text(content: bytes, name: str) -> str:
    """Decode strict UTF-8, without a byte-order mark, with line-feed line ends.

    Raises:
        SchemaDrift: a byte is not UTF-8; names the line and the byte.
    """
    try:
        text = content.removeprefix(_UTF8_BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        # The position is a byte offset; a person looks for a line.
        line = content.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise SchemaDrift(
            f"{name}, line {line}: byte 0x{byte:02x} is not UTF-8; "
            "re-save the file as UTF-8 or fetch it again"
        ) from error

    return text.replace("\r\n", "\n")


def read_text(content: bytes, name: str) -> str:
    """Decode a data file, refusing an empty one and a web page.

    Raises:
        SourceTransient, SchemaDrift: see :func:`refuse_html` and :func:`decode_text`.
    """
    refuse_html(content, name)
    return decode_text(content, name)


def decode_lossy(content: bytes) -> tuple[str, int]:
    """Decode UTF-8 with bad bytes replaced by U+FFFD; return the text and the number of them."""
    text, replaced = decode_line_lossy(content.removeprefix(_UTF8_BOM))
    return text.replace("\r\n", "\n"), replaced


def decode_line_lossy(content: bytes) -> tuple[str, int]:
    """Decode as :func:`decode_lossy` does, but for byte-order mark and line ends."""
    try:
        return content.decode(), 0
    except UnicodeDecodeError:
        text = content.decode(errors="replace")

    # Replacement characters that the publisher sent himself are not counted.
    published = content.count("\N{REPLACEMENT CHARACTER}".encode())
    return text, text.count("\N{REPLACEMENT CHARACTER}") - published


def read_json(content: bytes, name: str) -> object:
    """Decode one JSON document.

    Raises:
        SourceTransient: the file is empty.
        SchemaDrift: it is not JSON, or holds half a surrogate pair.
    """
    document, mended = parse_json(read_text(content, name), name)
    if mended:
        raise SchemaDrift(
            f"{name}: {mended} text(s) hold half a surrogate pair, which is no character; "
            "fetch the file again"
        )

    return document


def parse_json(text: str, name: str, *, strict: bool = True) -> tuple[object, int]:
    """Decode JSON that somebody else wrote.

    Args:
        text: the document.
        name: the file's name, for messages.
        strict: whether control characters inside texts are refused.

    Returns:
        The document, and the number of texts in which half a surrogate pair (a title that was cut
        inside a character) was replaced by U+FFFD.

    Raises:
        SchemaDrift: it is not JSON (names line and column), is nested too deeply, or holds a number
            of thousands of digits.
    """
    try:
        document = json.loads(
            text, strict=strict, parse_constant=_refuse_constant, parse_int=_read_integer
        )
        # Half a pair can only be written as an escape: other documents are not walked.
        return _mend_surrogates(document) if _SURROGATE_ESCAPE.search(text) else (document, 0)
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
            f"{name}: JSON with a number that is none ({error}); fetch the file again"
        ) from error


def _refuse_constant(name: str) -> object:
    # NaN and Infinity are Python's own addition to JSON.
    raise ValueError(f"{name} is no number of JSON")


def _read_integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"{len(digits)} digits")
    return int(digits)


def _mend_surrogates(value: object) -> tuple[Any, int]:
    """Return the value with every half of a surrogate pair replaced, and the number of texts."""
    if isinstance(value, str):
        mended = mend_surrogates(value)
        return mended, int(mended != value)

    if isinstance(value, list):
        items = [_mend_surrogates(item) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)

    if isinstance(value, dict):
        pairs = [(_mend_surrogates(key), _mend_surrogates(item)) for key, item in value.items()]
        count = sum(of_key + of_item for (_, of_key), (_, of_item) in pairs)
        return {key: item for (key, _), (item, _) in pairs}, count
    return value, 0
