"""Live files of the exchange, Bitcoin and news sources: addresses, pauses and windows.

What belongs here: what to ask which public endpoint, and how often. What does not: HTTP itself (``http``), parsing (the
source modules read what is fetched here), AEMO, PeMS (its clearinghouse needs a personal account: download by hand).

GDELT: bulk files first, the DOC API as an extra, since the API has been shedding load. A quarter hour without a file is
normal; it is reported as absent, to be asked for again later, and is never an error by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from compevo_core.errors import ConfigError, SourceAbsent, SourceBlocked
from compevo_pipeline.sources.bitinfocharts.source import PAGE_IDS
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.http import Client
from compevo_pipeline.sources.exchange import ECB_URL
from compevo_pipeline.sources.gdelt.doc import parse_doc
from compevo_pipeline.sources.gdelt.file_lists import SAFE_ROOT

ECB_PAUSE_S = 1.0
PAGE_PAUSE_S = 10.0
DOC_PAUSE_S = 5.5
"""GDELT asks for at most one request every five seconds."""

BULK_PAUSE_S = 0.2
DOC_URL = "https://api.gdeltproject.org/api/v2/doc/doc"
DOC_CAP = 250
"""Most records one DOC answer holds; an answer that long was cut, and its span is halved."""

SLOT = timedelta(minutes=15)
GAL_OFFSETS = range(8)
"""GAL files appear at varying minutes after the quarter hour and are listed nowhere: each is asked for."""

_STAMP = "%Y%m%d%H%M%S"


@dataclass(frozen=True, kw_only=True)
class BulkFetch:
    """What a bulk fetch brought, and the names that were not there (to be asked for again, then given up)."""

    files: list[RawFile] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def exchange(client: Client) -> Iterator[RawFile]:
    """Fetch the ECB's bulk file."""
    yield client.fetch(ECB_URL, source="ecb_bulk", name="eurofxref-hist.zip", pause_s=ECB_PAUSE_S)


def bitinfocharts(client: Client, slugs: Sequence[str] = tuple(PAGE_IDS)) -> Iterator[RawFile]:
    """Fetch chart pages, one every ten seconds.

    Raises:
        SourceBlocked: a bot wall; stop, keep the last good data, or save the pages by hand.
    """
    for slug in slugs:
        name = f"{slug}-btc.html"
        url = f"https://bitinfocharts.com/comparison/{name}"
        yield client.fetch(
            url, source="bitinfocharts", name=name, pause_s=PAGE_PAUSE_S, html_expected=True
        )


def gdelt_doc(client: Client, query: str, start: datetime, end: datetime) -> Iterator[RawFile]:
    """Fetch article lists for ``query`` in [start, end), halving any span whose answer was cut at 250 records.

    A cut answer is not yielded but replaced by its halves, down to a quarter hour, which is yielded as it is. An empty
    answer is yielded, so that whoever gathers the answers counts it.

    Raises:
        SourceRejected: GDELT refused the query.
        SourceTransient: throttled, or no usable body.
    """
    _check_span(start, end)
    params = {
        "query": query,
        "mode": "artlist",
        "format": "json",
        "sort": "DateDesc",
        "maxrecords": str(DOC_CAP),
        "startdatetime": f"{start:{_STAMP}}",
        "enddatetime": f"{end:{_STAMP}}",
    }
    name = f"artlist_{start:{_STAMP}}_{end:{_STAMP}}.json"
    raw = client.fetch(
        DOC_URL,
        source="gdelt_doc",
        name=name,
        pause_s=DOC_PAUSE_S,
        params=params,
        html_expected=True,
    )
    if _records(raw) >= DOC_CAP and end - start > SLOT:
        middle = start + (end - start) / 2
        middle -= timedelta(
            minutes=middle.minute % 15, seconds=middle.second, microseconds=middle.microsecond
        )
        if start < middle < end:
            yield from gdelt_doc(client, query, start, middle)
            yield from gdelt_doc(client, query, middle, end)
            return
    yield raw


def gdelt_gkg(client: Client, start: datetime, end: datetime) -> BulkFetch:
    """Fetch the GKG files of every quarter hour in [start, end)."""
    names = [f"{slot:{_STAMP}}.gkg.csv.zip" for slot in _slots(start, end)]
    return _bulk(client, "gdeltv2", names)


def gdelt_gal(client: Client, start: datetime, end: datetime) -> BulkFetch:
    """Fetch the GAL files of every quarter hour in [start, end), asking for each of the minutes they may bear."""
    names = [
        f"{slot + timedelta(minutes=offset):{_STAMP}}.gal.json.gz"
        for slot in _slots(start, end)
        for offset in GAL_OFFSETS
    ]
    return _bulk(client, "gdeltv3/gal", names)


def _bulk(client: Client, folder: str, names: Sequence[str]) -> BulkFetch:
    """Fetch what is there; the host answers 403 or 404 for what is not.

    Raises:
        SourceBlocked: every answer was a refusal, which is a wall and not an absence.
    """
    result = BulkFetch()
    refused = 0
    for name in names:
        url = f"{SAFE_ROOT}/{folder}/{name}"
        try:
            result.files.append(
                client.fetch(url, source="gdelt_bulk", name=name, pause_s=BULK_PAUSE_S)
            )
        except SourceAbsent:
            result.absent.append(name)
        except SourceBlocked:
            refused += 1
            result.absent.append(name)
    if names and refused == len(names):
        message = f"{SAFE_ROOT}/{folder}: all {refused} requests were refused (401/403); check whether access is allowed"
        raise SourceBlocked(message)
    return result


def _records(raw: RawFile) -> int:
    try:
        return parse_doc(raw)[1].records
    except EmptyNewsAnswer:
        return 0


def _slots(start: datetime, end: datetime) -> Iterator[datetime]:
    _check_span(start, end)
    slot = start - timedelta(
        minutes=start.minute % 15, seconds=start.second, microseconds=start.microsecond
    )
    while slot < end:
        if slot >= start:
            yield slot
        slot += SLOT


def _check_span(start: datetime, end: datetime) -> None:
    if start.utcoffset() != timedelta(0) or end.utcoffset() != timedelta(0) or start >= end:
        message = f"span {start} to {end}: both must be UTC and the first before the second"
        raise ConfigError(message)
