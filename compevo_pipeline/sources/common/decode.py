"""Text and JSON from bytes that a publisher sent.

What belongs here: telling data from a web page under a data file's name, the encoding policy,
strict JSON. What does not: archives (``common.unpack``), tables (``common.tables``), any
publisher's format.

Encoding policy: text is strict UTF-8 with an optional byte-order mark; a byte that is not UTF-8 is
an error that names file and line. :func:`decode_lossy` is for publishers known to mix encodings
(GDELT); it counts the bytes that it replaces.
"""

import json

from compevo_core.errors import SchemaDrift, SourceTransient

_UTF8_BOM = b"\xef\xbb\xbf"
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
    body = content.removeprefix(_UTF8_BOM)
    text = body.decode("utf-8", errors="replace")

    # Replacement characters that the publisher sent himself are not counted.
    published = body.count("\N{REPLACEMENT CHARACTER}".encode())
    return text.replace("\r\n", "\n"), text.count("\N{REPLACEMENT CHARACTER}") - published


def read_json(content: bytes, name: str) -> object:
    """Decode one JSON document.

    Raises:
        SourceTransient: the file is empty.
        SchemaDrift: it is not JSON; names line and column.
    """
    text = read_text(content, name)
    try:
        document: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise SchemaDrift(
            f"{name}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}); "
            "fetch the file again"
        ) from error

    return document
