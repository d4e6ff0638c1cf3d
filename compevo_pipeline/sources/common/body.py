"""Reading one answer's body, and refusing what is not the file that was asked for.

What belongs here: caps while bytes arrive, the checks before they are kept, and the translation of
the library's errors. What does not: sending requests (``common.http``), their time
(``common.connection``), the table of what an answer means (``common.answers``).
"""

import zipfile
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import BinaryIO

import requests
import urllib3

from compevo_core.errors import (
    SchemaDrift,
    SourceBlocked,
    SourceError,
    SourceRejected,
    SourceTransient,
)
from compevo_pipeline.failures import Throttled
from compevo_pipeline.sources.common.answers import Answer, classify_answer

MAX_BODY_BYTES = 128 * 2**20  # the largest file asked for is under 10 MiB

_CHUNK_BYTES = 1 << 16
_HEAD_BYTES = 1 << 16
_MAX_ERROR_BYTES = 1 << 20  # of an error page nothing but the beginning is looked at
_SHOWN_BYTES = 200
_MAGIC = {".zip": b"PK", ".gz": b"\x1f\x8b"}
_PERMANENT_FAILURES = (
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
    requests.exceptions.InvalidHeader,
)


def read_body(response: requests.Response, url: str, cap: int, sink: BinaryIO) -> bytes:
    """Write a body into ``sink`` as it arrives; return its first bytes.

    Args:
        response: an answer whose body was not read yet.
        url: its address, for messages.
        cap: largest body in bytes, after decompression by the connection.
        sink: takes the bytes.

    Raises:
        SourceRejected: the body is larger than ``cap``.
        SourceTransient: it is cut, damaged or took too long.
    """
    cap = cap if response.ok else min(cap, _MAX_ERROR_BYTES)
    head = b""
    size = 0
    try:
        # read1 returns what has arrived: a read of a fixed size would wait out a slow drip.
        while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
            size += len(chunk)
            if size > cap:
                raise SourceRejected(
                    f"{url}: more than {cap} bytes; raise the cap if the file is genuine"
                )
            sink.write(chunk)
            head += chunk[: _HEAD_BYTES - len(head)]
    except urllib3.exceptions.HTTPError as error:
        # A full disk is no failure of the publisher: it passes as it is.
        raise translate_failure(error, url) from error
    return head


def refuse_failure(
    response: requests.Response,
    head: bytes,
    url: str,
    *,
    html_expected: bool,
    now: datetime,
    shows_body: bool = True,
) -> None:
    """Refuse an answer that is not the file asked for.

    Args:
        response: the answer.
        head: first bytes of its body.
        url: its address, for messages.
        html_expected: whether a web page is the data.
        now: present time, which a ``Retry-After`` date is compared with.
        shows_body: whether the message quotes the body; the answer to a login may repeat it.

    Raises:
        SourceError: as the table of :mod:`compevo_pipeline.sources.common.answers` says;
            :class:`Throttled` where the server says how long to wait.
    """
    content_type = response.headers.get("Content-Type", "")
    error = classify_answer(
        Answer(
            status=response.status_code,
            content_type=content_type,
            head=head,
            html_expected=html_expected,
            part_expected="Range" in response.request.headers,
        )
    )
    if error is None:
        return

    message = f"{url}: HTTP {response.status_code}, {content_type or 'no content type'}, " + (
        f"starting {head[:_SHOWN_BYTES]!r}" if shows_body else "body not shown"
    )
    # The wait that the server asks for travels with the error.
    wait_s = parse_retry_after_s(response.headers.get("Retry-After"), now)
    is_throttled = wait_s > 0 or response.status_code == requests.codes.too_many_requests
    if issubclass(error, SourceTransient) and is_throttled:
        raise Throttled(f"{message}; request less often", wait_s)

    raise error(f"{message}; see docs/reference/live-sources.md for what this answer means")


def refuse_damaged(path: Path, head: bytes, name: str) -> None:
    """Refuse a received archive that is no archive, or has no end.

    Raises:
        SchemaDrift: its first bytes are another format's.
        SourceTransient: the zip's directory, which stands at its end, is missing.
    """
    suffix = Path(name).suffix.lower()
    if suffix in _MAGIC and not head.startswith(_MAGIC[suffix]):
        raise SchemaDrift(
            f"{name}: not a {suffix} file (first bytes {head[:8]!r}); check what the publisher sent"
        )
    if suffix == ".zip" and not zipfile.is_zipfile(path):
        raise SourceTransient(f"{name}: the zip is truncated; fetch it again")


def parse_retry_after_s(value: str | None, now: datetime) -> float:
    """Return the seconds that a ``Retry-After`` header (a number or a date) asks for, or 0."""
    if not value:
        return 0.0
    # Of the characters that are digits, some ("²") are no part of a number.
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text)

    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        # The zone of a date can be further away than any time span.
        return 0.0

    # HTTP dates are GMT, also where the zone is left out.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def translate_failure(error: Exception, url: str) -> SourceError:
    """Return the project's error of a request that got no whole answer."""
    if isinstance(error, requests.exceptions.SSLError | urllib3.exceptions.SSLError):
        return SourceBlocked(
            f"{url}: the certificate was refused ({error}); certificates are always checked, "
            "so use another host"
        )
    if isinstance(error, _PERMANENT_FAILURES):
        return SourceRejected(f"{url}: {type(error).__name__}; correct the address")

    return SourceTransient(f"{url}: {type(error).__name__} ({error}); try again later")
