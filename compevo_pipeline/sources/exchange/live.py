"""Live exchange rates: the ECB's whole history once, then its newest days; the RBA's daily table.

What belongs here: what to ask, and when there can be anything new. What does not: HTTP
(``common.http``), parsing (``exchange.ecb``, ``exchange.rba``).

The two banks are two feeds: the RBA's host refuses many addresses of data centres (403), and that
must not hold up the ECB's rates.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.exchange import ecb, rba
from compevo_pipeline.sources.exchange.rates import CURRENCIES

SDMX_URL = (
    f"https://data-api.ecb.europa.eu/service/data/EXR/D.{'+'.join((*CURRENCIES, 'USD'))}.EUR.SP00.A"
)
OVERLAP = timedelta(days=7)
"""Days asked for again: corrections, and a long holiday before the last fetch."""

ECB_SETTLED = time(17, tzinfo=UTC)
"""Rates of a business day appear at about 16:00 in Frankfurt; an hour or two later they are out."""

_BULK_FILE = "eurofxref-hist.zip"
_DAY_TEXT = re.compile(r"\d{4}-\d\d-\d\d")  # twice in the name of a span's file
_DAY = timedelta(days=1)
_SATURDAY = 5


def fetch_ecb(live: LiveContext) -> Iterator[RawFile]:
    """Fetch the whole history where none is stored, else the days since the last fetch.

    A backfill asks for its span alone. Nothing is asked where no rate can have been published since
    the last fetch.

    Raises:
        SourceError: the ECB did not answer with rates.
    """
    if live.since is not None:
        start, end = live.span(OVERLAP)
        yield from _fetch_days(live, start.date(), end.date())
        return

    last = _find_last_fetch(live)
    if last is None:
        raw = live.client.fetch(ecb.BULK_URL, source=ecb.BULK_SOURCE, name=_BULK_FILE)
        if raw is not None:
            yield raw
    elif last < find_newest_publication(live.now):
        yield from _fetch_days(live, (last - OVERLAP).date(), live.now.date())


def fetch_rba(live: LiveContext) -> Iterator[RawFile]:
    """Fetch the RBA's table of all days since 2023, if it has changed.

    Raises:
        SourceBlocked: the host refuses this address: save the file by hand.
        SourceError: any other failure.
    """
    raw = live.client.fetch(rba.URL, source=rba.SOURCE, name=rba.FILE)
    if raw is not None:
        yield raw


def find_newest_publication(now: datetime) -> datetime:
    """Return the last moment at which the rates of a business day were out."""
    moment = datetime.combine(now.date(), ECB_SETTLED)
    while moment > now or moment.weekday() >= _SATURDAY:
        moment -= _DAY
    return moment


def _find_last_fetch(live: LiveContext) -> datetime | None:
    """Return up to when rates are stored without a gap, or None where the history is not."""
    bulk = live.ledger.get(ecb.BULK_SOURCE, _BULK_FILE)
    if bulk is None or bulk.stored_at is None:
        return None

    last = bulk.stored_at
    # A backfill of an older span, fetched later, says nothing of the days since the last refresh.
    for first, end in sorted(_list_spans(live)):
        if first.date() <= last.date():
            last = max(last, end)
    return last


def _list_spans(live: LiveContext) -> Iterator[tuple[datetime, datetime]]:
    """Yield the start and the end of each span of days whose rates are stored."""
    for entry in live.ledger.list_entries(ecb.SDMX_SOURCE):
        if entry.stored_at is not None:
            first, last = (
                datetime.fromisoformat(day).replace(tzinfo=UTC)
                for day in _DAY_TEXT.findall(entry.name)
            )
            yield first, min(last + _DAY, entry.stored_at)


def _fetch_days(live: LiveContext, first: date, last: date) -> Iterator[RawFile]:
    try:
        raw = live.client.fetch(
            SDMX_URL,
            source=ecb.SDMX_SOURCE,
            name=f"eur_{first}_{last}.csv",
            params={
                "startPeriod": f"{first}",
                "endPeriod": f"{last}",
                "format": "csvdata",
                "detail": "dataonly",
            },
        )
    except SourceAbsent as error:
        # The API answers 404 to a span without a rate, such as Easter.
        raise SourceAbsent(
            f"the ECB has no rate from {first} to {last} ({error}); ask for a longer span"
        ) from error
    if raw is not None:
        yield raw
