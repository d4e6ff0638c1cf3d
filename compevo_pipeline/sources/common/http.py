"""One polite HTTP client for live sources: timeouts, pauses, a size cap, checks of every answer.

What belongs here: a session with an honest user agent, a pause between requests to one host, the
translation of every failure into the project's errors. What does not: retries (Dagster's, by
``compevo_pipeline.failures``), any publisher's addresses (``sources.live``).

Bot protection and log-ins are never circumvented, and every certificate is checked. No asset uses
this client yet: ``sources.live`` is library code until the feeds offer a live mode.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import urlsplit

import requests

from compevo_core.errors import SourceBlocked, SourceError, SourceRejected, SourceTransient
from compevo_pipeline.failures import Throttled, classify_response
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
MAX_BODY_BYTES = 128 * 2**20  # the largest file asked for is under 10 MiB

_CHUNK_BYTES = 1 << 16
_PERMANENT_FAILURES = (
    requests.TooManyRedirects,
    requests.exceptions.InvalidURL,
    requests.exceptions.InvalidSchema,
    requests.exceptions.MissingSchema,
)


@dataclass(kw_only=True)
class Client:
    """A session that waits ``pause_s`` between requests to one host.

    Attributes:
        user_agent: sent with every request; should name a contact.
        clock: returns the current time.
        monotonic: ``time.monotonic``; tests pass their own.
        sleep: ``time.sleep``; tests pass their own.
        session: the session of all requests.
    """

    user_agent: str
    clock: Clock
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    session: requests.Session = field(default_factory=requests.Session)
    _last_request_s: dict[str, float] = field(default_factory=dict)

    def fetch(
        self,
        url: str,
        *,
        source: str,
        name: str,
        pause_s: float,
        params: Mapping[str, str] | None = None,
        html_expected: bool = False,
    ) -> RawFile:
        """Get one file, or raise the error that its answer amounts to.

        Args:
            url: an https address.
            source: ``source`` of the raw file.
            name: ``name`` of the raw file.
            pause_s: least time since the last request to this host, in seconds.
            params: query parameters.
            html_expected: whether a web page is the data.

        Raises:
            SourceAbsent: 404 or 410.
            SourceTransient: timeout, broken connection, 5xx, an empty body; :class:`Throttled`
                for 429.
            SourceRejected: our request is wrong (other 4xx, not HTTPS, a redirect loop, too large
                a body).
            SourceBlocked: 401, 403, a challenge page, or a certificate that does not match.
            SchemaDrift: a web page where data was expected.
        """
        if urlsplit(url).scheme != "https":
            raise SourceRejected(f"{url}: not an https address; use the publisher's https host")

        self._wait_for_turn(url, pause_s)
        try:
            # Streamed, so that a body over the cap is never held in memory.
            with self.session.get(
                url,
                params=params,
                headers={"User-Agent": self.user_agent},
                timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
                stream=True,
            ) as response:
                content = _read_capped(response, url)
                _refuse_failure(response, content, url, html_expected, self.clock())
                final_url = response.url
        except requests.RequestException as error:
            raise _translate_failure(error, url) from error

        return RawFile(
            source=source,
            name=name,
            content=content,
            url=final_url,
            fetched_at=self.clock(),
            mode=Mode.LIVE,
        )

    def _wait_for_turn(self, url: str, pause_s: float) -> None:
        host = urlsplit(url).netloc
        if host in self._last_request_s:
            wait_s = self._last_request_s[host] + pause_s - self.monotonic()
            if wait_s > 0:
                self.sleep(wait_s)

        # Stored before the request: a slow answer does not lengthen the next pause.
        self._last_request_s[host] = self.monotonic()


def parse_retry_after_s(value: str | None, now: datetime) -> float:
    """Return the seconds that a ``Retry-After`` header (a number or a date) asks for, or 0."""
    if not value:
        return 0.0
    if value.strip().isdigit():
        return float(value)

    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0

    # HTTP dates are GMT, also where the zone is left out.
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _read_capped(response: requests.Response, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    for chunk in response.iter_content(_CHUNK_BYTES):
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise SourceRejected(
                f"{url}: more than {MAX_BODY_BYTES} bytes; raise the cap if the file is genuine"
            )
        parts.append(chunk)

    return b"".join(parts)


def _refuse_failure(
    response: requests.Response, content: bytes, url: str, html_expected: bool, now: datetime
) -> None:
    """Raise the error of an answer that is not the file asked for."""
    content_type = response.headers.get("Content-Type", "")
    error = classify_response(
        response.status_code, content_type, content, html_expected=html_expected
    )
    if error is None:
        return

    message = (
        f"{url}: HTTP {response.status_code}, {content_type or 'no content type'}, "
        f"{len(content)} bytes, starting {content[:60]!r}"
    )
    # The wait that the server asks for travels with the error, for Dagster's retry policy.
    if response.status_code == HTTPStatus.TOO_MANY_REQUESTS and issubclass(error, SourceTransient):
        wait_s = parse_retry_after_s(response.headers.get("Retry-After"), now)
        raise Throttled(f"{message}; request less often", wait_s)

    raise error(f"{message}; see compevo_pipeline.failures for what this status means")


def _translate_failure(error: requests.RequestException, url: str) -> SourceError:
    if isinstance(error, requests.exceptions.SSLError):
        return SourceBlocked(
            f"{url}: the certificate was refused ({error}); certificates are always checked, "
            "so use another host"
        )
    if isinstance(error, _PERMANENT_FAILURES):
        return SourceRejected(f"{url}: {type(error).__name__}; correct the address")

    return SourceTransient(f"{url}: {type(error).__name__} ({error}); try again later")
