"""From a publisher's news records to ``ARTICLE_SCHEMA``, counting everything that is left out.

What belongs here: the record every news parser makes, the frame of them, the count of what happened on the way, and
the gathering of many files. What does not: any publisher's format, storage, embedding.
An empty answer is not "no news": it is a failure that looks like an answer, is an error of its own, and is counted.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime

import polars as pl

from compevo_core.data.news import (
    derive_article_id,
    availability_expr,
    deduplicate_articles,
    validate_articles,
)
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.errors import SchemaDrift, SourceTransient
from compevo_pipeline.sources.common.base import RawFile

MAX_BAD_SHARE = 0.1
"""Share of unreadable records in one file above which the file, not the record, is at fault."""


class EmptyNewsAnswer(SourceTransient):
    """A news answer without a single record: a rate limit or a failure in disguise, not the absence of news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsReport:
    """What reading news files met; reports add up."""

    files: int = 0
    empty_answers: int = 0
    records: int = 0
    articles: int = 0
    untitled: int = 0
    unreadable: int = 0
    repairs: int = 0
    replaced_bytes: int = 0

    def __add__(self, other: "NewsReport") -> "NewsReport":
        """Add count by count."""
        return NewsReport(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    def as_dict(self) -> dict[str, int]:
        """Counts for metadata or a manifest."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One article as a publisher lists it; at least one of the two times is known."""

    url: str
    title: str
    body: str = ""
    domain: str = ""
    language: str = ""
    country: str | None = None
    published_at: datetime | None
    seen_at: datetime | None


def article_frame(records: Sequence[Record], raw: RawFile, fetched_at: datetime) -> pl.DataFrame:
    """Build a valid article frame, each ``article_id`` once (the one available first)."""
    rows = [
        {
            "article_id": derive_article_id(record.url),
            "url": record.url,
            "title": " ".join(record.title.split()),
            "body": " ".join(record.body.split()),
            "domain": record.domain,
            "language": record.language,
            "country": record.country,
            "published_at": record.published_at,
            "seen_at": record.seen_at,
        }
        for record in records
    ]
    late = {
        "available_at": availability_expr(),
        "fetched_at": pl.lit(fetched_at),
        "source": pl.lit(raw.label),
    }
    schema = pl.Schema(ARTICLE_SCHEMA)
    frame = pl.DataFrame(
        rows, schema={name: kind for name, kind in schema.items() if name not in late}
    )
    frame = frame.with_columns(**late).select(list(schema)).cast(schema)
    return validate_articles(
        frame.sort("available_at").unique("article_id", keep="first", maintain_order=True)
    )


def addressable(url: object) -> bool:
    """Whether ``url`` is a web address that can be reduced to one spelling."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        return False
    try:
        derive_article_id(url)
    except ValueError:
        return False
    return True


def check_unreadable(bad_lines: Sequence[int], total: int, name: str, what: str) -> None:
    """Refuse a file too many of whose records are unreadable.

    Raises:
        SchemaDrift: more than :data:`MAX_BAD_SHARE` are; names the first.
    """
    if bad_lines and len(bad_lines) > MAX_BAD_SHARE * total:
        message = (
            f"{name}, line {bad_lines[0]}: not {what}; {len(bad_lines)} of {total} records are like that, so the "
            "format changed or the file is cut: fetch it again, then compare with GDELT's documentation"
        )
        raise SchemaDrift(message)


def gather(
    raws: Iterable[RawFile], parse: Callable[[RawFile], tuple[pl.DataFrame, NewsReport]]
) -> tuple[pl.DataFrame, NewsReport]:
    """Parse many files into one frame without duplicates; empty answers are counted, not taken for silence.

    Raises:
        EmptyNewsAnswer: every single answer was empty.
        SourceTransient: there was no file at all.
    """
    frames: list[pl.DataFrame] = []
    total = NewsReport()
    for raw in raws:
        try:
            frame, report = parse(raw)
        except EmptyNewsAnswer:
            total += NewsReport(files=1, empty_answers=1)
            continue
        frames.append(frame)
        total += report
    if not frames:
        message = f"none of {total.files} news files held an article; this is a failure, not a day without news: try later"
        raise EmptyNewsAnswer(message)
    return deduplicate_articles(pl.concat(frames)), total
