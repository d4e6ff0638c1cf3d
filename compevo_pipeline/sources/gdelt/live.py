"""Live news from GDELT's 15-minute files: GAL first, GKG where a quarter hour has no GAL file.

What belongs here: which files to ask for, in which order, and how much a refresh may fetch. What
does not: formats (``gdelt.bulk``), the lists of files (``gdelt.file_lists``), which articles are
kept (``gdelt.queries``), the DOC API (``gdelt.doc_live``).

GAL files appear at varying minutes after the quarter hour and no list names them, so the minutes
are tried one after the other, those that were right for the last quarter hour first, until two are
found. A quarter hour without two is asked for again after growing pauses, then given up. GKG files
have a list with size and MD5; a file that differs is fetched once more, then set aside.

A refresh goes from the newest quarter hour to the oldest, and ends where its limits are reached:
what is left is fetched by the next one.
"""

import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from compevo_core.errors import SourceAbsent, SourceBlocked, SourceTransient
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.unpack import gunzip
from compevo_pipeline.sources.gdelt.bulk import MAX_BULK_BYTES
from compevo_pipeline.sources.gdelt.file_lists import (
    SAFE_ROOT,
    BulkFile,
    parse_list,
    verify_file,
)
from compevo_pipeline.sources.gdelt.queries import FetchLimits, read_queries
from compevo_pipeline.sources.gdelt.source import BULK_SOURCE

SLOT_SOURCE = "gdelt_gal_slots"
"""Quarter hours without two GAL files, in the ledger."""

LIST_SOURCE = "gdelt_lists"
QUARTER_HOUR = timedelta(minutes=15)
GAL_OFFSETS = tuple(range(8))
"""Minutes after the quarter hour at which GAL files have been seen."""

FILES_OF_A_SLOT = 2
SETTLED = timedelta(minutes=20)
"""Age from which a quarter hour is asked for."""

SECOND_FILE_WITHIN = timedelta(days=1)
"""Age from which a quarter hour with one file is not asked for the other."""

GAP_AGE = timedelta(hours=6)
"""Age from which a quarter hour without a GAL file is one that will have none."""

LIST_TAIL_BYTES = 2 * 2**20
"""Bytes asked for of the end of GDELT's list, which has grown since 2015; a day takes 30 kB."""

_STAMP = "%Y%m%d%H%M%S"
_MEGABYTE = 10**6
_FEWEST_TRIED = 8  # quarter hours; with fewer, nothing found is no sign of a block

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Budget:
    """What a refresh may still fetch."""

    requests: int
    size_bytes: int

    @property
    def is_spent(self) -> bool:
        return self.requests <= 0 or self.size_bytes <= 0


@dataclass(kw_only=True)
class _Refresh:
    """One refresh: what it knows, and what it has seen so far."""

    live: LiveContext
    limits: FetchLimits
    budget: _Budget
    stored: set[str]
    offsets: list[int] = field(default_factory=lambda: list(GAL_OFFSETS))
    gaps: list[datetime] = field(default_factory=list)
    refusals: list[SourceBlocked] = field(default_factory=list)
    tried: int = 0
    found: int = 0
    set_aside: list[str] = field(default_factory=list)


def fetch_live(live: LiveContext) -> Iterator[RawFile]:
    """Fetch the files of the quarter hours that are not stored, newest first.

    Raises:
        SourceBlocked: the host refused every file of many quarter hours.
        SourceTransient: a file was damaged twice and set aside; all others are fetched.
        SourceError: any other failure.
    """
    limits = read_queries(live.news_queries).fetch
    start, end = live.span(timedelta(days=limits.days_back))
    entries = live.ledger.list_entries(BULK_SOURCE)
    refresh = _Refresh(
        live=live,
        limits=limits,
        budget=_Budget(requests=limits.most_requests, size_bytes=limits.most_mb * _MEGABYTE),
        stored={entry.name for entry in entries if entry.state is EntryState.STORED},
    )

    slots = list(iterate_slots(start, min(end, live.now - SETTLED)))[::-1]
    for number, slot in enumerate(slots):
        if refresh.budget.is_spent:
            _tell_rest(refresh, slots[number:])
            break
        yield from _fetch_gal(refresh, slot)
    _refuse_silence(refresh)

    wanted = {"none": [], "gaps": refresh.gaps, "all": slots}[limits.gkg]
    yield from _fetch_gkg(refresh, wanted)
    if refresh.set_aside:
        raise SourceTransient(
            f"set aside after two damaged answers, and not asked for again: "
            f"{', '.join(refresh.set_aside)}; all other files are fetched"
        )


def iterate_slots(start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the quarter hours of GDELT's grid that start in [start, end)."""
    slot = start - timedelta(
        minutes=start.minute % 15, seconds=start.second, microseconds=start.microsecond
    )
    while slot < end:
        if slot >= start:
            yield slot
        slot += QUARTER_HOUR


def _fetch_gal(refresh: _Refresh, slot: datetime) -> Iterator[RawFile]:
    """Fetch up to two GAL files of a quarter hour, trying the likeliest minutes first."""
    if not _is_missing(refresh, slot):
        return

    live = refresh.live
    names = {offset: _name_gal(slot, offset) for offset in refresh.offsets}
    found = _count_stored(refresh, slot)
    slot_name = f"{slot:{_STAMP}}"
    # A quarter hour with one file shows that there are files.
    refresh.tried += found == 0
    for offset, name in names.items():
        if found >= FILES_OF_A_SLOT or refresh.budget.is_spent:
            break
        raw = None if name in refresh.stored else _probe(refresh, name)
        if raw is None:
            continue

        found += 1
        refresh.found += 1
        refresh.offsets.remove(offset)
        refresh.offsets.insert(0, offset)
        yield raw

    if found >= FILES_OF_A_SLOT or refresh.budget.is_spent:
        return
    live.ledger.mark_absent(SLOT_SOURCE, slot_name, f"{SAFE_ROOT}/gdeltv3/gal", live.now)
    if found and live.now - slot > SECOND_FILE_WITHIN:
        live.ledger.freeze(SLOT_SOURCE, slot_name)
    if not found and live.now - slot > GAP_AGE:
        refresh.gaps.append(slot)


def _is_missing(refresh: _Refresh, slot: datetime) -> bool:
    """Whether a quarter hour lacks a file, and its pause is over."""
    live = refresh.live
    has_both = _count_stored(refresh, slot) >= FILES_OF_A_SLOT
    return not has_both and live.ledger.is_due(SLOT_SOURCE, f"{slot:{_STAMP}}", live.now)


def _count_stored(refresh: _Refresh, slot: datetime) -> int:
    return sum(_name_gal(slot, offset) in refresh.stored for offset in GAL_OFFSETS)


def _tell_rest(refresh: _Refresh, slots: list[datetime]) -> None:
    """Warn of the quarter hours that the limits left out: nothing else shows that they are."""
    missing = [slot for slot in slots if _is_missing(refresh, slot)]
    if missing:
        log.warning(
            "gdelt: the limits of a run (%d requests, %d MB) are reached, and %d quarter hours from"
            " %s to %s are left; run it again, or raise the limits in the file of queries",
            refresh.limits.most_requests,
            refresh.limits.most_mb,
            len(missing),
            f"{missing[-1]:%Y-%m-%d %H:%M}",
            f"{missing[0]:%Y-%m-%d %H:%M}",
        )


def _probe(refresh: _Refresh, name: str) -> RawFile | None:
    """Ask for a GAL file that may not exist; the host says so with 404, or with 403.

    Returns:
        The file, or None where there is none or it was damaged twice and set aside.
    """
    try:
        return _fetch_checked(
            refresh, f"{SAFE_ROOT}/gdeltv3/gal/{name}", name, _check_gzip, may_be_absent=True
        )
    except SourceAbsent:
        return None
    except SourceBlocked as error:
        refresh.refusals.append(error)
        return None


def _refuse_silence(refresh: _Refresh) -> None:
    """Refuse a refresh that found nothing where there must be something."""
    if refresh.found or refresh.tried < _FEWEST_TRIED:
        return

    where = f"{SAFE_ROOT}/gdeltv3/gal: none of {refresh.tried} quarter hours has a file"
    if refresh.refusals:
        raise SourceBlocked(
            f"{where} and requests were refused ({refresh.refusals[-1]}); check whether access is "
            "allowed from this address"
        )
    raise SourceAbsent(
        f"{where}; GDELT may be down or have moved its files: look at its blog, then try later"
    )


def _fetch_gkg(refresh: _Refresh, slots: list[datetime]) -> Iterator[RawFile]:
    """Fetch the listed GKG files of quarter hours, checked against the list."""
    live = refresh.live
    names = {f"{slot:{_STAMP}}.gkg.csv.zip" for slot in slots}
    wanted = [name for name in sorted(names, reverse=True) if _is_wanted(refresh, name)]
    if not wanted or refresh.budget.is_spent:
        return

    listed = _read_list(live)
    oldest = min(listed)
    for name in wanted:
        if refresh.budget.is_spent:
            return
        if name in listed:
            raw = _fetch_checked(
                refresh, listed[name].url, name, functools.partial(_check_listed, listed[name])
            )
            if raw is not None:
                yield raw
        elif name > oldest:
            live.ledger.mark_absent(BULK_SOURCE, name, f"{SAFE_ROOT}/gdeltv2/{name}", live.now)


def _is_wanted(refresh: _Refresh, name: str) -> bool:
    return name not in refresh.stored and refresh.live.ledger.is_due(
        BULK_SOURCE, name, refresh.live.now
    )


def _read_list(live: LiveContext) -> dict[str, BulkFile]:
    """Return the newest listed GKG files by name."""
    page = live.client.read_page(
        f"{SAFE_ROOT}/gdeltv2/masterfilelist.txt",
        source=LIST_SOURCE,
        name="masterfilelist-end.txt",
        tail_bytes=LIST_TAIL_BYTES,
    )
    # The first line is cut, and is left out like any malformed one.
    files, _ = parse_list(page, "masterfilelist.txt")
    return {file.url.rsplit("/", 1)[-1]: file for file in files if file.kind == "gkg.csv.zip"}


def _fetch_checked(
    refresh: _Refresh,
    url: str,
    name: str,
    check: Callable[[RawFile], None],
    *,
    may_be_absent: bool = False,
) -> RawFile | None:
    """Fetch a file that never changes, once more where it is damaged, then set it aside."""
    live = refresh.live
    for _ in range(2):
        refresh.budget.requests -= 1
        raw = live.client.fetch(
            url, source=BULK_SOURCE, name=name, is_final=True, may_be_absent=may_be_absent
        )
        if raw is None:
            return None

        refresh.budget.size_bytes -= len(raw.content)
        try:
            check(raw)
        except SourceTransient as error:
            live.ledger.reject(BULK_SOURCE, name, f"{error}")
        else:
            return raw

    # Its bytes stay among the raw files, for a person to look at.
    live.ledger.freeze(BULK_SOURCE, name)
    refresh.set_aside.append(name)
    return None


def _check_listed(listed: BulkFile, raw: RawFile) -> None:
    verify_file(raw.content, listed)


def _check_gzip(raw: RawFile) -> None:
    # GAL has no list with checksums; the stream's own checksum is at its end.
    gunzip(raw.content, raw.name, MAX_BULK_BYTES)


def _name_gal(slot: datetime, offset: int) -> str:
    return f"{slot + timedelta(minutes=offset):{_STAMP}}.gal.json.gz"
