"""One polite HTTP client for every live source: timeouts, pacing, size cap, and answers judged before they are data.

What belongs here: a session with an honest user agent, a pause between requests to one host, the translation of every
failure into the project's errors. What does not: retries (Dagster's, by ``failures``), any publisher's addresses.
No bot wall or log-in is ever gone around, and no certificate goes unchecked.
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
MAX_BODY_BYTES = 128 * 2**20
_CHUNK = 1 << 16


@dataclass(kw_only=True)
class Client:
    """A session that waits ``pause_s`` between requests to one host.

    ``user_agent`` should name a contact. ``monotonic`` and ``sleep`` come from ``time``; tests pass their own.
    """

    user_agent: str
    clock: Clock
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    session: requests.Session = field(default_factory=requests.Session)
    _last: dict[str, float] = field(default_factory=dict)

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
        """Get one file, or raise the error its answer amounts to.

        Raises:
            SourceAbsent: 404 or 410.
            SourceTransient: timeout, broken connection, 5xx, an empty body; :class:`Throttled` for 429.
            SourceRejected: our request is wrong (other 4xx, not HTTPS, a redirect loop, too large a body).
            SourceBlocked: 401, 403, a challenge page, or a certificate that does not match.
            SchemaDrift: a web page where data was expected.
        """
        if urlsplit(url).scheme != "https":
            message = f"{url}: not an https address; use the publisher's https host"
            raise SourceRejected(message)
        self._pace(url, pause_s)
        try:
            with self.session.get(
                url,
                params=params,
                headers={"User-Agent": self.user_agent},
                timeout=(CONNECT_TIMEOUT_S, READ_TIMEOUT_S),
                stream=True,
            ) as response:
                content = _read_capped(response, url)
                _judge(response, content, url, html_expected, self.clock())
                final = response.url
        except requests.RequestException as error:
            raise _translate(error, url) from error
        return RawFile(
            source=source,
            name=name,
            content=content,
            url=final,
            fetched_at=self.clock(),
            mode=Mode.LIVE,
        )

    def _pace(self, url: str, pause_s: float) -> None:
        host = urlsplit(url).netloc
        if host in self._last:
            wait = self._last[host] + pause_s - self.monotonic()
            if wait > 0:
                self.sleep(wait)
        self._last[host] = self.monotonic()


def retry_after_s(value: str | None, now: datetime) -> float:
    """Return the seconds a ``Retry-After`` header asks for (a number or a date); 0 where it says nothing."""
    if not value:
        return 0.0
    if value.strip().isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _read_capped(response: requests.Response, url: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    for chunk in response.iter_content(_CHUNK):
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            message = (
                f"{url}: more than {MAX_BODY_BYTES} bytes; raise the cap if the file is genuine"
            )
            raise SourceRejected(message)
        parts.append(chunk)
    return b"".join(parts)


def _judge(
    response: requests.Response, content: bytes, url: str, html_expected: bool, now: datetime
) -> None:
    kind = response.headers.get("Content-Type", "")
    error = classify_response(response.status_code, kind, content, html_expected=html_expected)
    if error is None:
        return
    met = f"HTTP {response.status_code}, {kind or 'no content type'}, {len(content)} bytes, starting {content[:60]!r}"
    message = f"{url}: {met}"
    if response.status_code == HTTPStatus.TOO_MANY_REQUESTS and issubclass(error, SourceTransient):
        wait = retry_after_s(response.headers.get("Retry-After"), now)
        raise Throttled(f"{message}; slow down", wait)
    raise error(f"{message}; see compevo_pipeline.failures for what this status means")


def _translate(error: requests.RequestException, url: str) -> SourceError:
    if isinstance(error, requests.exceptions.SSLError):
        return SourceBlocked(
            f"{url}: the certificate was refused ({error}); it is never ignored, use another host"
        )
    lasting = (
        requests.TooManyRedirects,
        requests.exceptions.InvalidURL,
        requests.exceptions.InvalidSchema,
        requests.exceptions.MissingSchema,
    )
    if isinstance(error, lasting):
        return SourceRejected(f"{url}: {type(error).__name__}; correct the address")
    return SourceTransient(f"{url}: {type(error).__name__} ({error}); try again later")
