"""Live news from the DOC API: an addition to the bulk files, for the same topics.

What belongs here: queries over spans of time, halved where an answer was cut. What does not: the
answers' format (``gdelt.doc``), the topics (``gdelt.queries``), the pace (``common.hosts``: one
request in 5.5 seconds, over all processes, and none for minutes after the API was throttled).

The API has been shedding load since 2026 and gives no guarantee; it is a feed of its own, and what
the bulk files gave is stored whether it answers or not.
"""

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta

from compevo_core.errors import SourceError
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.gdelt.doc import parse_doc, refuse_throttled
from compevo_pipeline.sources.gdelt.live import QUARTER_HOUR
from compevo_pipeline.sources.gdelt.queries import read_queries
from compevo_pipeline.sources.gdelt.source import DOC_SOURCE

DOC_URL = "https://api.gdeltproject.org/api/v2/doc/doc"
DOC_CAP = 250
"""Most records of one answer; an answer that long was cut, and its span is halved."""

REFRESH_LOOKBACK = timedelta(days=1)
"""How far back a refresh asks: the day before is asked for once more, when it is over."""

_STAMP = "%Y%m%d%H%M%S"
_HASH_DIGITS = 8
_DAY = timedelta(days=1)


def fetch_topics(live: LiveContext) -> Iterator[RawFile]:
    """Ask for every topic, day by day; a day that is over is asked for once.

    Raises:
        SourceRejected: GDELT refused a query.
        SourceTransient: throttled, no usable answer, or nothing but empty ones.
    """
    queries = read_queries(live.news_queries)
    if not queries.fetch.doc:
        return

    for topic in queries.topics:
        for query in topic.doc_queries():
            yield from fetch_query(live, query, REFRESH_LOOKBACK, source=DOC_SOURCE)


def fetch_query(
    live: LiveContext, query: str, lookback: timedelta, *, source: str
) -> Iterator[RawFile]:
    """Ask one query, day by day, for the span of ``live`` or the ``lookback`` up to now.

    Raises:
        SourceError: as :func:`fetch_topics`.
    """
    start, end = live.span(lookback)
    day = start.replace(hour=0, minute=0, second=0, microsecond=0)
    while day < end:
        until = min(day + _DAY, round_down(end))
        if day < until:
            yield from _fetch_span(live, query, day, until, source=source)
        day += _DAY


def round_down(moment: datetime) -> datetime:
    """Round down to a quarter hour, GDELT's grid."""
    return moment - timedelta(
        minutes=moment.minute % 15, seconds=moment.second, microseconds=moment.microsecond
    )


def _fetch_span(
    live: LiveContext, query: str, start: datetime, end: datetime, *, source: str
) -> Iterator[RawFile]:
    """Ask for [start, end); a cut answer is replaced by the answers of its halves."""
    name = _name_span(query, start, end)
    raw = live.client.fetch(
        DOC_URL,
        source=source,
        name=name,
        params={
            "query": query,
            "mode": "artlist",
            "format": "json",
            "sort": "DateDesc",
            "maxrecords": str(DOC_CAP),
            "startdatetime": f"{start:{_STAMP}}",
            "enddatetime": f"{end:{_STAMP}}",
        },
        # GDELT sends its refusals as text/html; parse_doc reads them.
        html_expected=True,
        is_final=True,
        check_start=refuse_throttled,
    )
    if raw is None:
        return

    try:
        records = parse_doc(raw)[1].records
    except SourceError as error:
        # Not kept as an answer, so that the next refresh asks again.
        live.ledger.reject(source, name, f"{type(error).__name__}: {error}")
        if isinstance(error, EmptyNewsAnswer):
            return
        raise

    middle = round_down(start + (end - start) / 2)
    if records >= DOC_CAP and end - start > QUARTER_HOUR and start < middle < end:
        # It counts as an answer when both halves are there: the next refresh asks for the others.
        live.ledger.reject(source, name, f"cut at {records} records, and not every half has come")
        halves = ((start, middle), (middle, end))
        for half in halves:
            yield from _fetch_span(live, query, *half, source=source)
        if not any(
            live.ledger.is_due(source, _name_span(query, *half), live.now) for half in halves
        ):
            live.ledger.record_reread(source, name)
        return
    yield raw


def _name_span(query: str, start: datetime, end: datetime) -> str:
    key = hashlib.sha256(query.encode()).hexdigest()[:_HASH_DIGITS]
    return f"artlist_{key}_{start:{_STAMP}}_{end:{_STAMP}}.json"
