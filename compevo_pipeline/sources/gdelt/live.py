"""Live news from GDELT: its 15-minute files, and the DOC API for a user's own query.

What belongs here: which files and queries to ask for, in which order, and how much a refresh may
fetch. What does not: formats (``gdelt.parse``), which articles are kept (``gdelt.queries``), the
pace (``common.hosts``: the API is asked once in 5.5 seconds, and for minutes not after a throttle).

GAL files come first. They appear at varying minutes after the quarter hour and no list names them,
so the minutes are tried one after the other, those that were right for the last quarter hour first,
until two are found. A quarter hour without two is asked for again after growing pauses, then given
up. GKG files are named by the quarter hour itself. Both are packed with a checksum; a file that is
damaged is fetched once more, then set aside. A refresh goes from the newest quarter hour to the
oldest, and ends where its limits are reached: the next one fetches the rest.

The API gives no guarantee since 2026: only the query of an own data set is asked of it.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from compevo_core.errors import SourceAbsent, SourceBlocked, SourceError, SourceTransient
from compevo_core.runtime.files import hash_text
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import gunzip, unzip_only
from compevo_pipeline.sources.common.http import FileRequest
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.gdelt.parse import MAX_BULK_BYTES, parse_doc, raise_if_throttled
from compevo_pipeline.sources.gdelt.source import BULK_SOURCE, QUARTER_HOUR, read_queries

SAFE_ROOT = "https://storage.googleapis.com/data.gdeltproject.org"  # with a right certificate
SLOT_SOURCE = "gdelt_gal_slots"  # quarter hours without two GAL files, in the ledger
GAL_OFFSETS = tuple(range(8))  # minutes after the quarter hour at which GAL files have been seen
FILES_OF_A_SLOT = 2
SETTLED = timedelta(minutes=20)  # age from which a quarter hour is asked for
SECOND_FILE_WITHIN = timedelta(days=1)  # age from which the second file is not asked for
GAP_AGE = timedelta(hours=6)  # age from which a quarter hour without a GAL file will have none
DOC_URL = "https://api.gdeltproject.org/api/v2/doc/doc"
DOC_CAP = 250  # most records of one answer; an answer that long was cut, and its span is halved

_STAMP = "%Y%m%d%H%M%S"
_FEWEST_TRIED = 8  # quarter hours; with fewer, nothing found is not a sign of a block
_HASH_DIGITS = 8
_DAY = timedelta(days=1)
log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Refresh:
    """One refresh: what it knows, and what it has seen so far."""

    live: LiveContext
    requests_left: int
    bytes_left: int
    stored: set[str]
    offsets: list[int] = field(default_factory=lambda: list(GAL_OFFSETS))
    gaps: list[datetime] = field(default_factory=list)
    refusals: list[SourceBlocked] = field(default_factory=list)
    tried: int = 0
    files: int = 0
    set_aside: list[str] = field(default_factory=list)

    @property
    def is_spent(self) -> bool:
        """Whether the limits are reached."""
        return self.requests_left <= 0 or self.bytes_left <= 0


def fetch_live(live: LiveContext) -> Iterator[RawFile]:
    """Fetch the files of the quarter hours that are not stored, newest first.

    SourceBlocked if the host refused every file of many quarter hours; SourceTransient if a file
    was damaged twice and set aside: all others are fetched.
    """
    limits = read_queries(live.news_queries).fetch
    start, end = live.span(timedelta(days=limits.days_back))
    entries = live.ledger.list_entries(BULK_SOURCE)
    refresh = _Refresh(
        live=live,
        requests_left=limits.most_requests,
        bytes_left=limits.most_mb * 10**6,
        stored={entry.name for entry in entries if entry.state is EntryState.STORED},
    )

    slots = []
    slot = round_down(min(end, live.now - SETTLED) - timedelta.resolution)
    while slot >= start:
        slots.append(slot)
        slot -= QUARTER_HOUR

    for number, slot in enumerate(slots):
        if refresh.is_spent:
            # Nothing else shows the quarter hours that the limits left out.
            missing = [later for later in slots[number:] if _is_missing(refresh, later)]
            if missing:
                log.warning(
                    "gdelt: the limits of a run (%d requests, %d MB) are reached, and %d quarter "
                    "hours from %s to %s are left; run it again, or raise the limits in the file "
                    "of queries",
                    limits.most_requests,
                    limits.most_mb,
                    len(missing),
                    f"{missing[-1]:%Y-%m-%d %H:%M}",
                    f"{missing[0]:%Y-%m-%d %H:%M}",
                )
            break
        yield from _fetch_gal(refresh, slot)
    if not refresh.files and refresh.tried >= _FEWEST_TRIED:
        where = f"{SAFE_ROOT}/gdeltv3/gal: none of {refresh.tried} quarter hours has a file"
        if refresh.refusals:
            raise SourceBlocked(
                f"{where} and requests were refused ({refresh.refusals[-1]}); check whether access "
                "is allowed from this address"
            )
        raise SourceAbsent(
            f"{where}; GDELT may be down or have moved its files: look at its blog, then try later"
        )

    for slot in {"none": [], "gaps": refresh.gaps, "all": slots}[limits.gkg]:
        if refresh.is_spent:
            break
        name = f"{slot:{_STAMP}}.gkg.csv.zip"
        if name in refresh.stored or not live.ledger.is_due(BULK_SOURCE, name, live.now):
            continue
        raw = _fetch_file(refresh, "gdeltv2", name, unzip_only)
        if raw is not None:
            yield raw
        elif name not in refresh.set_aside:
            live.ledger.mark_absent(BULK_SOURCE, name, f"{SAFE_ROOT}/gdeltv2/{name}", live.now)
    if refresh.set_aside:
        raise SourceTransient(
            f"set aside after two damaged answers, and not asked for again: "
            f"{', '.join(refresh.set_aside)}; all other files are fetched"
        )


def fetch_query(
    live: LiveContext, query: str, lookback: timedelta, *, source: str
) -> Iterator[RawFile]:
    """Ask one query, day by day, for the span of ``live`` or the ``lookback`` up to now.

    A day that is over is asked for once. SourceRejected at a refusal, SourceTransient at a limit.
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
    return moment.replace(minute=moment.minute // 15 * 15, second=0, microsecond=0)


def _fetch_gal(refresh: _Refresh, slot: datetime) -> Iterator[RawFile]:
    """Fetch up to two GAL files of a quarter hour, trying the likeliest minutes first."""
    if not _is_missing(refresh, slot):
        return

    live = refresh.live
    names = {offset: _name_gal(slot, offset) for offset in refresh.offsets}
    arrived = _count_stored(refresh, slot)
    slot_name = f"{slot:{_STAMP}}"
    # A quarter hour with one file shows that there are files.
    refresh.tried += arrived == 0
    for offset, name in names.items():
        if arrived >= FILES_OF_A_SLOT or refresh.is_spent:
            break
        if name in refresh.stored:
            continue
        raw = _fetch_file(refresh, "gdeltv3/gal", name, gunzip)
        if raw is None:
            continue

        arrived += 1
        refresh.files += 1
        refresh.offsets.remove(offset)
        refresh.offsets.insert(0, offset)
        yield raw

    if arrived >= FILES_OF_A_SLOT or refresh.is_spent:
        return
    live.ledger.mark_absent(SLOT_SOURCE, slot_name, f"{SAFE_ROOT}/gdeltv3/gal", live.now)
    if arrived and live.now - slot > SECOND_FILE_WITHIN:
        live.ledger.freeze(SLOT_SOURCE, slot_name)
    if not arrived and live.now - slot > GAP_AGE:
        refresh.gaps.append(slot)


def _is_missing(refresh: _Refresh, slot: datetime) -> bool:
    """Whether a quarter hour lacks a file, and its pause is over."""
    live = refresh.live
    has_both = _count_stored(refresh, slot) >= FILES_OF_A_SLOT
    return not has_both and live.ledger.is_due(SLOT_SOURCE, f"{slot:{_STAMP}}", live.now)


def _count_stored(refresh: _Refresh, slot: datetime) -> int:
    return sum(_name_gal(slot, offset) in refresh.stored for offset in GAL_OFFSETS)


def _fetch_file(
    refresh: _Refresh, folder: str, name: str, unpack: Callable[[bytes, str, int], bytes]
) -> RawFile | None:
    """Fetch a file that never changes, once more where it is damaged, then set it aside.

    None where there is none (404 or 403) or it was set aside.
    """
    live = refresh.live
    request = FileRequest(
        url=f"{SAFE_ROOT}/{folder}/{name}",
        source=BULK_SOURCE,
        name=name,
        is_final=True,
        may_be_absent=True,
    )
    for _ in range(2):
        refresh.requests_left -= 1
        try:
            raw = live.client.fetch(request)
        except SourceAbsent:
            return None
        except SourceBlocked as error:
            refresh.refusals.append(error)
            return None
        if raw is None:
            return None

        refresh.bytes_left -= len(raw.content)
        try:
            unpack(raw.content, raw.name, MAX_BULK_BYTES)
        except SourceTransient as error:
            live.ledger.reject(BULK_SOURCE, name, f"{error}")
        else:
            return raw

    # Its bytes stay among the raw files, for a person to look at.
    live.ledger.freeze(BULK_SOURCE, name)
    refresh.set_aside.append(name)
    return None


def _name_gal(slot: datetime, offset: int) -> str:
    return f"{slot + timedelta(minutes=offset):{_STAMP}}.gal.json.gz"


def _fetch_span(
    live: LiveContext, query: str, start: datetime, end: datetime, *, source: str
) -> Iterator[RawFile]:
    """Ask for [start, end); a cut answer is replaced by the answers of its halves."""
    name = _name_span(query, start, end)
    request = FileRequest(
        url=DOC_URL,
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
        check_start=raise_if_throttled,
    )
    raw = live.client.fetch(request)
    if raw is None:
        return

    try:
        records = parse_doc(raw)[1]["records"]
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
    key = hash_text(query)[:_HASH_DIGITS]
    return f"artlist_{key}_{start:{_STAMP}}_{end:{_STAMP}}.json"
