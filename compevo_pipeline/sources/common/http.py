"""One polite HTTP client for every live source, and what an answer means.

What belongs here: conditional requests, redirects, the caps and checks before bytes are kept, and
the table from an answer to its error. What does not: hosts, pace and keys (``common.hosts``),
whether an error is tried again (``compevo_pipeline.errors``), any publisher's addresses.

Bot protection and log-ins are never circumvented, every certificate is checked, and the first bytes
of an answer count before its status: no bot challenge with status 200 is stored as data.
"""

import io
import logging
import math
import random
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlencode

import requests
import urllib3

from compevo_core.errors import (
    SchemaDrift,
    SourceAbsent,
    SourceBlocked,
    SourceError,
    SourceRejected,
    SourceTransient,
)
from compevo_pipeline.errors import MAX_RETRY_AFTER_S, Throttled, TooSlow, plan_short_wait
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.common.decode import UTF8_BOM
from compevo_pipeline.sources.common.hosts import Pacer, QueryKey, find_host, resolve_link
from compevo_pipeline.sources.common.ledger import Entry, Ledger
from compevo_pipeline.sources.common.raw_store import RawStore

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
BODY_TIMEOUT_S = 300.0  # for a whole body: a publisher that drips never exceeds the one above
FEED_TIMEOUT_S = 600.0  # for all answers that a refresh asks for one feed

MAX_BODY_BYTES = 128 * 2**20  # the largest file asked for is under 10 MiB
MAX_PAGE_BYTES = 16 * 2**20
MAX_REDIRECTS = 5

CHALLENGE_SIGNS = (
    b"cf-challenge",
    b"challenge-platform",
    b"just a moment",
    b"attention required",
    b"captcha",
    b"access denied",
    b"verify you are human",
    b"enable javascript and cookies",
    b"<title>login",
)
"""Lower-case texts of a bot-challenge or login page, in the first kilobytes of an answer."""

_HEAD_BYTES = 1 << 16
_CHALLENGE_BYTES = 4096  # the signs stand at the top of a page; data of megabytes is not searched
_MAX_ERROR_BYTES = 1 << 20  # of an error page nothing but the beginning is looked at
_SHOWN_BYTES = 200
_MAGIC = {".zip": b"PK", ".gz": b"\x1f\x8b"}
_HTML_STARTS = (b"<!doctype html", b"<html", b"<head", b"<script")
_REDIRECTS = (301, 302, 303, 307, 308)

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer."""

    status: int  # HTTP status
    content_type: str  # the header of that name
    head: bytes  # the first bytes of the body
    html_expected: bool  # whether the data itself is a web page

    @property
    def is_whole(self) -> bool:
        """Whether the status says that the body is all of what was asked for."""
        return self.status in (HTTPStatus.OK, HTTPStatus.NON_AUTHORITATIVE_INFORMATION)

    @property
    def is_html(self) -> bool:
        """Whether the header or the first bytes say that the body is a web page."""
        start = self.head.removeprefix(UTF8_BOM).lstrip().lower()
        return "html" in self.content_type.lower() or start.startswith(_HTML_STARTS)

    @property
    def is_challenge(self) -> bool:
        """Whether the body is a page that wants a person or a login."""
        head = self.head[:_CHALLENGE_BYTES].lower()
        return self.is_html and any(sign in head for sign in CHALLENGE_SIGNS)


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row of the table: words for it, whether an answer fits, the error (None: data)."""

    words: str
    fits: Callable[[Answer], bool]
    error: type[SourceError] | None


MEANINGS = (
    Meaning(
        "a bot challenge or a login page, with any status",
        lambda answer: answer.is_challenge,
        SourceBlocked,
    ),
    Meaning(
        "2xx without a byte",
        lambda answer: HTTPStatus.OK <= answer.status < 300 and not answer.head.strip(),
        SourceTransient,
    ),
    Meaning(
        "200 with a web page where data was asked for",
        lambda answer: answer.is_whole and answer.is_html and not answer.html_expected,
        SchemaDrift,
    ),
    Meaning("200 otherwise", lambda answer: answer.is_whole, None),
    Meaning("404, 410", lambda answer: answer.status in (404, 410), SourceAbsent),
    Meaning(
        "401, 403, 407, 451", lambda answer: answer.status in (401, 403, 407, 451), SourceBlocked
    ),
    Meaning(
        "408, 425, 429, 5xx",
        lambda answer: answer.status in (408, 425, 429) or answer.status >= 500,
        SourceTransient,
    ),
    Meaning("any other status, such as a part (206)", lambda answer: True, SourceRejected),
)
"""The first that fits is used."""


def classify_answer(answer: Answer) -> type[SourceError] | None:
    """Return the error that an answer amounts to, or None where its body may be data."""
    return next(meaning.error for meaning in MEANINGS if meaning.fits(answer))


class Session(requests.Session):
    """A session that leaves redirects to the client."""

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Find none: requests would read the whole body of a redirect, and parse its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRequest:
    """One file to ask for, at an https address on a known host."""

    url: str
    source: str  # of the raw file
    name: str  # of the raw file
    params: Mapping[str, str] | None = None  # in the address that is noted
    html_expected: bool = False  # whether a web page is the data
    is_final: bool = False  # whether the publisher never changes it: kept bytes are enough
    # Whether a host answers 403 for files that do not exist: the caller decides what that means.
    may_be_absent: bool = False
    max_bytes: int = MAX_BODY_BYTES  # of the body, after decompression by the connection
    # Raises the error that the first kilobytes amount to where an absent file has status 200.
    check_start: Callable[[bytes], None] | None = None
    key: QueryKey | None = None  # one more parameter; in no message, and neither noted nor kept
    is_versioned: bool = True  # whether earlier bytes of its name are kept

    @property
    def address(self) -> str:
        """The address with its parameters, without the key."""
        return f"{self.url}?{urlencode(self.params)}" if self.params else self.url


@dataclass(kw_only=True)
class Client:
    """A session that keeps a host's pace, asks conditionally and tries again a little."""

    user_agent: str  # sent with every request; names the program and a contact
    clock: Clock  # returns the current time
    ledger: Ledger  # remembers what came, and with which validators
    raw: RawStore  # keeps the bytes
    pacer: Pacer  # gives out turns at hosts
    deadline: float = math.inf  # of all its answers, on the clock of ``time.monotonic``
    sleep: Callable[[float], None] = time.sleep  # waits before another try
    draw: Callable[[], float] = random.random  # from 0 to 1; spreads the waits of many clients
    session: requests.Session = field(default_factory=Session)  # keeps a log-in's cookies

    def fetch(self, request: FileRequest) -> RawFile | None:
        """Get one file and keep its bytes, or raise the error that its answer amounts to.

        None where its rows are in the store and the publisher has nothing newer.

        Raises:
            SourceAbsent: there is no such file.
            SourceTransient: a failure that a later try may cure.
            SourceRejected: the request or its address is wrong, or the body too large.
            SourceBlocked: a login, bot protection, or a certificate that does not match.
            SchemaDrift: another thing than the file that was asked for.
        """
        entry = self.ledger.get(request.source, request.name)
        is_stored = entry is not None and entry.is_stored
        if is_stored and request.is_final:
            return None

        # A stored file needs no bytes: its validators show whether there is something newer.
        saved = None if is_stored or entry is None else self.raw.read(entry)
        fetched = None
        if saved is None or not request.is_final:
            fetched = self._ask(request, entry if is_stored or saved is not None else None)
        if fetched is None and saved is not None:
            self.ledger.record_reread(request.source, request.name)
        return fetched or saved

    def read_page(self, request: FileRequest) -> bytes:
        """Return a page that changes, such as a folder's listing; only its newest bytes are kept.

        It raises what :meth:`fetch` raises.
        """
        request = replace(request, html_expected=True, max_bytes=MAX_PAGE_BYTES, is_versioned=False)
        entry = self.ledger.get(request.source, request.name)
        saved = None if entry is None else self.raw.read(entry)

        page = self._ask(request, entry if saved is not None else None) or saved
        if page is None:
            raise SourceRejected(f"{request.url}: 304 to a request without conditions; report it")
        return page.content

    def submit(self, url: str, form: Mapping[str, str]) -> bytes:
        """Send a form, such as a login, and return the page that answers; nothing of it is kept.

        It raises what :meth:`fetch` raises; the form's values are in no message.
        """

        def send() -> bytes:
            with self._open(url, {}, form) as response:
                body = io.BytesIO()
                head = read_body(response, url, MAX_PAGE_BYTES, body, self.deadline)
                # The answer to a login may repeat it.
                _raise_if_failed(response, head, url, self.clock(), True, shows_body=False)
                return body.getvalue()

        return self._try(send)

    def _ask(self, request: FileRequest, known: Entry | None) -> RawFile | None:
        """Ask for a file, under the conditions of a known entry; None means not modified."""
        headers: dict[str, str] = {}
        # Another address under the same name (another query) is another file.
        if known is not None and known.url == request.address and known.fetched_at is not None:
            since = known.last_modified or format_datetime(known.fetched_at, usegmt=True)
            headers["If-Modified-Since"] = since
            if known.etag:
                headers["If-None-Match"] = known.etag

        try:
            return self._try(lambda: self._receive(request, headers))
        except SourceAbsent:
            raise  # only the source knows whether a missing file is expected
        except SourceError as error:
            if not (request.may_be_absent and isinstance(error, SourceBlocked)):
                self.ledger.record_failure(
                    request.source,
                    request.name,
                    url=request.address,
                    note=f"{type(error).__name__}: {error}",
                    now=self.clock(),
                )
            raise

    def _receive(self, request: FileRequest, headers: Mapping[str, str]) -> RawFile | None:
        source, name, url, key = request.source, request.name, request.address, request.key
        opened = self._open(url, headers, key=key)
        with opened as response, self.raw.receive(source, name) as part:
            now = self.clock()
            if response.status_code == HTTPStatus.NOT_MODIFIED and headers:
                self.ledger.record_unchanged(source, name, now)
                return None

            with part.open("wb") as sink:
                head = read_body(response, url, request.max_bytes, sink, self.deadline)
            if key is not None:
                # Publishers quote the rejected address.
                head = key.hide(head)
            _raise_if_failed(response, head, url, now, request.html_expected)
            suffix = Path(name).suffix.lower()
            if suffix in _MAGIC and not head.startswith(_MAGIC[suffix]):
                raise SchemaDrift(
                    f"{name}: not a {suffix} file (first bytes {head[:8]!r}); check what the "
                    "publisher sent"
                )
            # The directory of a zip is at its end.
            if suffix == ".zip" and not zipfile.is_zipfile(part):
                raise SourceTransient(f"{name}: the zip is truncated; fetch it again")
            if request.check_start is not None:
                request.check_start(head)

            raw = RawFile(
                source=source,
                name=name,
                content=part.read_bytes(),
                url=url if key is not None else response.url,
                fetched_at=now,
                mode=Mode.LIVE,
            )
            self.raw.keep(part, raw, is_versioned=request.is_versioned)

        # Without a Last-Modified the server's own Date of this answer serves the same purpose.
        self.ledger.record_fetched(
            source,
            name,
            url=url,
            sha256=raw.sha256,
            now=now,
            etag=response.headers.get("ETag"),
            last_modified=response.headers.get("Last-Modified") or response.headers.get("Date"),
        )
        return raw

    def _try(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask, and ask again after short waits while the failure allows it."""
        # Not urllib3's Retry: it sees neither bodies nor turns at a host (decision 18-live-mode).
        attempt = 0
        while True:
            try:
                return ask()
            except SourceError as error:
                wait_s = plan_short_wait(error, attempt, self.draw())
                if wait_s is None:
                    raise

            self.sleep(wait_s)
            attempt += 1

    @contextmanager
    def _open(
        self,
        url: str,
        headers: Mapping[str, str],
        form: Mapping[str, str] | None = None,
        key: QueryKey | None = None,
    ) -> Iterator[requests.Response]:
        """Open an answer, following redirects only to known hosts, and none with a key."""
        for _ in range(MAX_REDIRECTS + 1):
            name, host = find_host(url)
            if time.monotonic() > self.deadline:
                raise TooSlow(f"{url}: not asked, as the time for its feed is over")
            self.pacer.wait_for_turn(name, host.pause_s)
            if key is not None:
                # It writes whole addresses at DEBUG.
                logging.getLogger("urllib3.connectionpool").setLevel(logging.INFO)
            try:
                response = self.session.request(
                    "GET" if form is None else "POST",
                    url,
                    params=None if key is None else {key.name: key.value},
                    data=form,
                    headers={"User-Agent": self.user_agent, **headers},
                    # Without this, requests would send a login that a .netrc file has for the host.
                    auth=lambda request: request,
                    timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
                    allow_redirects=False,
                    stream=True,
                )
            except requests.RequestException as error:
                if key is None:
                    raise _translate(error, url) from error
                # The failure that it follows from names the whole address, in every log of it.
                raise _translate(type(error)(key.hide(str(error))), url) from None

            with response:
                target = response.headers.get("Location")
                if response.status_code not in _REDIRECTS or not target:
                    try:
                        yield response
                    except Throttled as error:
                        # Every process that asks the host keeps the pause that it asked for.
                        error.retry_after_s = error.retry_after_s or host.throttled_s
                        self.pacer.postpone(name, min(error.retry_after_s, MAX_RETRY_AFTER_S))
                        raise
                    return

            if key is not None:
                raise SourceRejected(f"{url}: a redirect, which no key follows; correct the host")
            url, form = resolve_link(url, target), None

        raise SourceRejected(f"{url}: more than {MAX_REDIRECTS} redirects; correct the address")


def read_body(
    response: requests.Response, url: str, cap: int, sink: BinaryIO, deadline: float = math.inf
) -> bytes:
    """Write a body into ``sink`` as it arrives; return its first bytes.

    SourceRejected if it is larger than ``cap`` bytes, after decompression; TooSlow if it runs past
    ``deadline``, or for longer than ``BODY_TIMEOUT_S``; SourceTransient if it is cut or damaged.
    """
    cap = cap if response.ok else min(cap, _MAX_ERROR_BYTES)
    head = b""
    size = 0
    deadline = min(deadline, time.monotonic() + BODY_TIMEOUT_S)

    try:
        # What has arrived, where stream() waits for a whole chunk.
        while chunk := response.raw.read1(1 << 16, decode_content=True):
            if time.monotonic() > deadline:
                raise TooSlow(f"{url}: it still sends when its time is over, after {size} bytes")
            size += len(chunk)
            if size > cap:
                raise SourceRejected(
                    f"{url}: more than {cap} bytes; raise the cap if the file is genuine"
                )
            sink.write(chunk)
            head += chunk[: _HEAD_BYTES - len(head)]
    except urllib3.exceptions.HTTPError as error:
        # A full disk is not a failure of the publisher: it passes as it is.
        raise _translate(error, url) from error

    return head


def _raise_if_failed(
    response: requests.Response,
    head: bytes,
    url: str,
    now: datetime,
    html_expected: bool,
    *,
    shows_body: bool = True,
) -> None:
    """Raise the error of :data:`MEANINGS`; :class:`Throttled` where the server asks for a pause."""
    status, content_type = response.status_code, response.headers.get("Content-Type", "")
    error = classify_answer(
        Answer(status=status, content_type=content_type, head=head, html_expected=html_expected)
    )
    if error is None:
        return

    message = f"{url}: HTTP {status}, {content_type or 'no content type'}, " + (
        f"starting {head[:_SHOWN_BYTES]!r}" if shows_body else "body not shown"
    )
    # The wait that the server asks for travels with the error.
    wait_s = _parse_retry_after_s(response.headers.get("Retry-After", ""), now)
    is_throttled = wait_s > 0 or status == HTTPStatus.TOO_MANY_REQUESTS
    if issubclass(error, SourceTransient) and is_throttled:
        raise Throttled(f"{message}; request less often", wait_s)

    raise error(f"{message}; see docs/reference/live-sources.md for what this answer means")


def _parse_retry_after_s(value: str, now: datetime) -> float:
    """Return the seconds that a ``Retry-After`` header (a number or a date) asks for, or 0."""
    # Of the characters that are digits, some ("²") are not part of a number.
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


def _translate(error: Exception, url: str) -> SourceError:
    """Return the project's error of a request that got no whole answer."""
    if isinstance(error, requests.exceptions.SSLError | urllib3.exceptions.SSLError):
        return SourceBlocked(
            f"{url}: the certificate was refused ({error}); certificates are always checked, "
            "so use another host"
        )
    # What requests raises of an address or a header that it cannot send.
    if isinstance(error, requests.RequestException) and isinstance(error, ValueError):
        return SourceRejected(f"{url}: {type(error).__name__}; correct the address")

    return SourceTransient(f"{url}: {type(error).__name__} ({error}); try again later")
