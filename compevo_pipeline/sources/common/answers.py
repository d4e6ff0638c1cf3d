"""What an HTTP answer means: one table from what came to the error that it amounts to.

What belongs here: the table, and the signs of a page that is no data. What does not: what an error
does to retries (``compevo_pipeline.failures``), reading a body (``common.body``).

A status of 200 that carries a bot challenge, stored as data, costs more than any failure, so the
first bytes count before the status does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from compevo_core.errors import (
    SchemaDrift,
    SourceAbsent,
    SourceBlocked,
    SourceError,
    SourceRejected,
    SourceTransient,
)

CHALLENGE_SIGNS = (
    *(b"cf-challenge", b"challenge-platform", b"just a moment", b"attention required", b"captcha"),
    *(b"access denied", b"verify you are human", b"enable javascript and cookies", b"<title>login"),
)
"""Lower-case texts of a bot-challenge or login page, in the first kilobytes of an answer."""

_HEAD_BYTES = 4096
_UTF8_BOM = b"\xef\xbb\xbf"
_HTML_STARTS = (b"<!doctype html", b"<html", b"<head", b"<script")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer.

    Attributes:
        status: HTTP status.
        content_type: the header of that name.
        head: the first bytes of the body.
        html_expected: whether the data itself is a web page.
        part_expected: whether a part of the file was asked for.
    """

    status: int
    content_type: str
    head: bytes
    html_expected: bool
    part_expected: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the status says that the body is all of what was asked for."""
        is_part = self.part_expected and self.status == HTTPStatus.PARTIAL_CONTENT
        return is_part or self.status in (HTTPStatus.OK, HTTPStatus.NON_AUTHORITATIVE_INFORMATION)

    @property
    def is_html(self) -> bool:
        """Whether the header or the first bytes say that the body is a web page."""
        start = self.head.removeprefix(_UTF8_BOM).lstrip().lower()
        return "html" in self.content_type.lower() or start.startswith(_HTML_STARTS)

    @property
    def is_challenge(self) -> bool:
        """Whether the body is a page that wants a person or a login."""
        # The marks stand at the top of a page; data of megabytes is not searched.
        head = self.head[:_HEAD_BYTES].lower()
        return self.is_html and any(sign in head for sign in CHALLENGE_SIGNS)


@dataclass(frozen=True, slots=True)
class Meaning:
    """One row of the table.

    Attributes:
        words: what came, for a reader.
        fits: whether an answer is of this kind.
        error: what it amounts to; None where the body may be data.
    """

    words: str
    fits: Callable[[Answer], bool]
    error: type[SourceError] | None


MEANINGS = (
    Meaning(
        "a bot challenge or a login page, whatever the status",
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
    Meaning(
        "any other status, a part (206) that was not asked for among them",
        lambda answer: True,
        SourceRejected,
    ),
)
"""The first that fits is used."""


def classify_answer(answer: Answer) -> type[SourceError] | None:
    """Return the error that an answer amounts to, or None where its body may be data."""
    return next(meaning.error for meaning in MEANINGS if meaning.fits(answer))
