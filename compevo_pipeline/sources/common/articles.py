"""From a publisher's news records to ``ARTICLE_SCHEMA``, counting what is left out.

What belongs here: the record that every news parser makes, the frame of such records, and the
counts of what was left out or repaired. What does not: any publisher's format, storage, embedding.

An empty answer is not "no news": it is a failure in disguise, so it is an error and is counted.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import polars as pl

from compevo_core.data.news import availability_expr, derive_article_id, validate_articles
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.errors import SourceTransient
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import clean_text

MAX_ADDRESS_CHARACTERS = 4096  # longer addresses are unreadable records


class EmptyNewsAnswer(SourceTransient):
    """A news answer without a single record: a rate limit or a failure, not the absence of news."""


LOSSES = ("empty answers", "records", "without a title", "unreadable", "repairs", "bytes replaced")
"""What is counted of every publisher's news files beyond ``files`` and ``articles``."""


class NewsRecord(NamedTuple):
    """One article as a publisher lists it; at least one of the two times is known."""

    url: str
    title: str
    published_at: datetime | None
    seen_at: datetime | None
    body: str = ""
    domain: str = ""
    language: str = ""
    country: str | None = None


def build_article_frame(
    records: Sequence[NewsRecord], raw: RawFile, fetched_at: datetime
) -> pl.DataFrame:
    """Build a valid article frame, each ``article_id`` once (the version available first)."""
    # All news enters here, so no text is stored uncleaned; an address stays as it is.
    rows = [
        {
            name: clean_text(cell) if isinstance(cell, str) and name != "url" else cell
            for name, cell in record._asdict().items()
        }
        | {"article_id": derive_article_id(record.url)}
        for record in records
    ]
    computed = {
        "available_at": availability_expr(),
        "fetched_at": pl.lit(fetched_at),
        "source": pl.lit(raw.label),
    }

    # The schema is given, so that a file without articles has typed columns too.
    schema = pl.Schema(ARTICLE_SCHEMA)
    frame = pl.DataFrame(
        rows, schema={name: kind for name, kind in schema.items() if name not in computed}
    )
    frame = frame.with_columns(**computed).select(list(schema)).cast(schema)

    # An address listed again in the same file may carry a later edit: the first version counts.
    earliest = frame.sort("available_at").unique("article_id", keep="first", maintain_order=True)
    return validate_articles(earliest)


def is_web_address(url: object) -> bool:
    """Whether ``url`` is a web address, of printable characters, that has one canonical form."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        return False
    if len(url) > MAX_ADDRESS_CHARACTERS or not url.isprintable():
        return False

    try:
        derive_article_id(url)
    except ValueError:
        return False
    return True
