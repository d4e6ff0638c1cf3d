"""What a source's failure means, and what it does to Dagster's retries: one table.

What belongs here: HTTP answer -> error class, error class -> verdict, verdict -> Dagster exception.
What does not: parsing, fetching, the wording of a source's own errors.

Why a table: a permanent failure that is retried costs hours (another project saw one 405 retried 5,363 times), and a
200 that carries a bot wall, stored as data, costs more. So: transient failures are retried a few times with growing
waits; everything else stops at once and stays stopped until somebody acts on the message.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

import dagster as dg

from compevo_core.errors import (
    CompEvoError,
    SchemaDrift,
    SourceAbsent,
    SourceBlocked,
    SourceError,
    SourceRejected,
    SourceTransient,
)


class Throttled(SourceTransient):
    """The publisher asks us to slow down, and may say for how long (``Retry-After``)."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Verdict(StrEnum):
    """What to do about a failure."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    BLOCKED = "blocked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How often to try again, how long to wait first (doubling each time), and what a person should do."""

    verdict: Verdict
    retries: int
    first_wait_s: float
    remedy: str

    def wait_s(self, attempt: int) -> float:
        """Seconds to wait before retry number ``attempt`` (0 for the first)."""
        return float(self.first_wait_s * 2**attempt)


_RETRY = Policy(
    verdict=Verdict.TRANSIENT,
    retries=3,
    first_wait_s=60.0,
    remedy="wait, then materialize again; for a file on disk, fetch or copy it again",
)
_STOP = Policy(
    verdict=Verdict.PERMANENT,
    retries=0,
    first_wait_s=0.0,
    remedy="correct the request, the file or the parser, then materialize again",
)
_WALL = Policy(
    verdict=Verdict.BLOCKED,
    retries=0,
    first_wait_s=0.0,
    remedy="do not go around the wall: keep the last good data, or save the file by hand into the archive folder",
)

POLICIES: tuple[tuple[type[CompEvoError], Policy], ...] = (
    (SourceTransient, _RETRY),
    (SourceAbsent, _STOP),
    (SourceRejected, _STOP),
    (SourceBlocked, _WALL),
    (SchemaDrift, _STOP),
    (CompEvoError, _STOP),
)
"""First match wins; every error of the project's family has a policy."""

STATUS_ERRORS: Mapping[int, type[SourceError]] = {
    HTTPStatus.BAD_REQUEST: SourceRejected,
    HTTPStatus.UNAUTHORIZED: SourceBlocked,
    HTTPStatus.FORBIDDEN: SourceBlocked,
    HTTPStatus.NOT_FOUND: SourceAbsent,
    HTTPStatus.METHOD_NOT_ALLOWED: SourceRejected,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: SourceBlocked,
    HTTPStatus.REQUEST_TIMEOUT: SourceTransient,
    HTTPStatus.GONE: SourceAbsent,
    HTTPStatus.TOO_EARLY: SourceTransient,
    HTTPStatus.TOO_MANY_REQUESTS: SourceTransient,
    HTTPStatus.UNAVAILABLE_FOR_LEGAL_REASONS: SourceBlocked,
}
"""Status -> error; other 4xx are rejected, 5xx transient, and 3xx that reach us rejected."""

CHALLENGE_SIGNS = (
    *(b"cf-challenge", b"challenge-platform", b"just a moment", b"attention required", b"captcha"),
    *(b"access denied", b"verify you are human", b"enable javascript and cookies", b"<title>login"),
)
"""Lower-case marks of a bot wall or log-in page in the first kilobytes of an answer."""

_HEAD_BYTES = 4096


def policy_of(error: CompEvoError) -> Policy:
    """Return the policy of an error; the most specific entry of :data:`POLICIES` that fits."""
    return next(policy for kind, policy in POLICIES if isinstance(error, kind))


def classify_status(status: int) -> type[SourceError] | None:
    """Return the error class of an HTTP status, or None for success (2xx)."""
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return None
    if status in STATUS_ERRORS:
        return STATUS_ERRORS[status]
    return SourceTransient if status >= HTTPStatus.INTERNAL_SERVER_ERROR else SourceRejected


def classify_response(
    status: int, content_type: str, content: bytes, *, html_expected: bool
) -> type[SourceError] | None:
    """Return the error class of a whole answer, or None where it may be data.

    A challenge page is a wall under any status (503 is a favourite of theirs). A successful answer without bytes is
    transient; one that is a web page where none was expected is drift.
    """
    head = content[:_HEAD_BYTES].lower()
    is_html = "html" in content_type.lower() or head.lstrip().startswith(
        (b"<!doctype html", b"<html")
    )
    if is_html and any(sign in head for sign in CHALLENGE_SIGNS):
        return SourceBlocked
    by_status = classify_status(status)
    if by_status is not None:
        return by_status
    if not content.strip():
        return SourceTransient
    return SchemaDrift if is_html and not html_expected else None


def to_dagster(error: CompEvoError, *, attempt: int = 0, retry: bool = True) -> Exception:
    """Return what an asset should raise: ``RetryRequested`` while another try may help, else a final ``Failure``.

    Args:
        error: what went wrong; a :class:`Throttled` one may ask for a longer wait than ours.
        attempt: how many retries there have been (``context.retry_number``).
        retry: whether trying again can help at all; False for files on disk, which do not mend themselves.
    """
    policy = policy_of(error)
    if retry and attempt < policy.retries:
        asked = error.retry_after_s if isinstance(error, Throttled) else 0.0
        return dg.RetryRequested(
            max_retries=policy.retries, seconds_to_wait=max(policy.wait_s(attempt), asked)
        )
    gave_up = f" (given up after {attempt} retries)" if attempt else ""
    metadata = {
        "error": type(error).__name__,
        "verdict": policy.verdict.value,
        "remedy": policy.remedy,
    }
    return dg.Failure(
        f"{type(error).__name__}: {error}{gave_up}", metadata=metadata, allow_retries=False
    )


@contextmanager
def source_failures(*, attempt: int = 0, retry: bool = True) -> Iterator[None]:
    """Turn the project's errors inside the block into Dagster's; arguments as for :func:`to_dagster`.

    Raises:
        dagster.RetryRequested: a transient failure.
        dagster.Failure: any other, or a transient one out of tries.
    """
    try:
        yield
    except CompEvoError as error:
        raise to_dagster(error, attempt=attempt, retry=retry) from error
