"""Live files of the exchange, Bitcoin and news sources: addresses and time spans.

What belongs here: what to ask which public endpoint. What does not: HTTP itself
(``common.http``), parsing (the source modules read what is fetched here), AEMO, PeMS (its
clearinghouse needs a personal account: download by hand).

This is library code: no feed offers a live mode yet.

GDELT: bulk files first, the DOC API as an extra, since the API has been shedding load. A quarter
hour without a file is normal; it is reported as absent, to be asked for again later, and is no
error by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from compevo_core.errors import ConfigError, SourceAbsent, SourceBlocked
from compevo_pipeline.sources.bitinfocharts.chart_page import PAGE_IDS
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.http import Client
from compevo_pipeline.sources.exchange.ecb import BULK_URL as ECB_URL
from compevo_pipeline.sources.gdelt.doc import parse_doc
from compevo_pipeline.sources.gdelt.file_lists import SAFE_ROOT

DOC_URL = "https://api.gdeltproject.org/api/v2/doc/doc"
DOC_CAP = 250
"""Most records of one DOC answer; an answer that long was cut, and its span is halved."""

QUARTER_HOUR = timedelta(minutes=15)
GAL_OFFSETS = range(8)
"""Minutes after the quarter hour at which GAL files appear; no list names them, so try each."""

_STAMP = "%Y%m%d%H%M%S"


@dataclass(frozen=True, kw_only=True)
class BulkFetch:
    """Result of a bulk fetch.

    Attributes:
        files: the fetched files.
        absent: names that did not exist, to be asked for again and given up later.
    """

    files: list[RawFile] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def fetch_exchange(client: Client) -> Iterator[RawFile]:
    """Fetch the ECB's bulk file."""
    raw = client.fetch(ECB_URL, source="ecb_bulk", name="eurofxref-hist.zip")
    if raw is not None:
        yield raw


def fetch_bitinfocharts(
    client: Client, slugs: Sequence[str] = tuple(PAGE_IDS)
) -> Iterator[RawFile]:
    """Fetch chart pages, one every ten seconds.

    Raises:
        SourceBlocked: bot protection; stop, keep the last good data, or save the pages by hand.
    """
    # A generator: the first blocked page ends the fetch, and the pages before it are safe.
    for slug in slugs:
        name = f"{slug}-btc.html"
        raw = client.fetch(
            f"https://bitinfocharts.com/comparison/{name}",
            source="bitinfocharts",
            name=name,
            html_expected=True,
        )
        if raw is not None:
            yield raw


def fetch_gdelt_doc(
    client: Client, query: str, start: datetime, end: datetime, *, source: str = "gdelt_doc"
) -> Iterator[RawFile]:
    """Fetch article lists for ``query`` in [start, end), halving any span whose answer was cut.

    A cut answer (:data:`DOC_CAP` records) is replaced by the answers of its halves, down to a
    quarter hour, which is yielded as it is. An empty answer is yielded too, so that the parser
    counts it.

    Raises:
        ConfigError: the span is not in UTC or not positive.
        SourceRejected: GDELT refused the query.
        SourceTransient: throttled, or no usable body.
    """
    _check_span(start, end)
    raw = client.fetch(
        DOC_URL,
        source=source,
        name=f"artlist_{start:{_STAMP}}_{end:{_STAMP}}.json",
        params={
            "query": query,
            "mode": "artlist",
            "format": "json",
            "sort": "DateDesc",
            "maxrecords": str(DOC_CAP),
            "startdatetime": f"{start:{_STAMP}}",
            "enddatetime": f"{end:{_STAMP}}",
        },
        # GDELT sends its refusals as text/html; parse_doc tells them from throttling.
        html_expected=True,
    )

    if raw is None:
        return
    if _count_records(raw) >= DOC_CAP and end - start > QUARTER_HOUR:
        # GDELT's grid is a quarter hour: another bound would cut a slot in two.
        middle = _round_down(start + (end - start) / 2)
        if start < middle < end:
            yield from fetch_gdelt_doc(client, query, start, middle, source=source)
            yield from fetch_gdelt_doc(client, query, middle, end, source=source)
            return

    yield raw


def fetch_gdelt_gkg(client: Client, start: datetime, end: datetime) -> BulkFetch:
    """Fetch the GKG files of every quarter hour in [start, end)."""
    names = [f"{slot:{_STAMP}}.gkg.csv.zip" for slot in _quarter_hours(start, end)]
    return _fetch_bulk(client, "gdeltv2", names)


def fetch_gdelt_gal(client: Client, start: datetime, end: datetime) -> BulkFetch:
    """Fetch the GAL files of every quarter hour in [start, end), trying :data:`GAL_OFFSETS`."""
    names = [
        f"{slot + timedelta(minutes=offset):{_STAMP}}.gal.json.gz"
        for slot in _quarter_hours(start, end)
        for offset in GAL_OFFSETS
    ]
    return _fetch_bulk(client, "gdeltv3/gal", names)


def _fetch_bulk(client: Client, folder: str, names: Sequence[str]) -> BulkFetch:
    """Fetch the files that exist; the host answers 403 or 404 for the others.

    Raises:
        SourceBlocked: every answer was a refusal, which means blocked access and not absent files.
    """
    result = BulkFetch()
    refused = 0
    for name in names:
        url = f"{SAFE_ROOT}/{folder}/{name}"
        try:
            raw = client.fetch(url, source="gdelt_bulk", name=name, is_final=True)
            if raw is not None:
                result.files.append(raw)
        except SourceAbsent:
            result.absent.append(name)
        # The host answers 403 for files that do not exist; only 403 for all means blocked.
        except SourceBlocked:
            refused += 1
            result.absent.append(name)

    if names and refused == len(names):
        raise SourceBlocked(
            f"{SAFE_ROOT}/{folder}: all {refused} requests were refused (401/403); "
            "check whether access is allowed"
        )
    return result


def _count_records(raw: RawFile) -> int:
    try:
        return parse_doc(raw)[1].records
    except EmptyNewsAnswer:
        return 0


def _quarter_hours(start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the quarter hours of GDELT's grid that start in [start, end)."""
    _check_span(start, end)
    slot = _round_down(start)
    while slot < end:
        if slot >= start:
            yield slot
        slot += QUARTER_HOUR


def _round_down(moment: datetime) -> datetime:
    """Round down to a quarter hour."""
    return moment - timedelta(
        minutes=moment.minute % 15, seconds=moment.second, microseconds=moment.microsecond
    )


def _check_span(start: datetime, end: datetime) -> None:
    is_utc = start.utcoffset() == timedelta(0) and end.utcoffset() == timedelta(0)
    if not is_utc or start >= end:
        raise ConfigError(
            f"span {start} to {end}: both must be UTC and the first before the second"
        )
