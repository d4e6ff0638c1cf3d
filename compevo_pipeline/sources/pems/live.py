"""Live traffic: files that a person fetched, then what the clearinghouse has that is not stored.

What belongs here: which files are wanted. What does not: the site's protocol
(``pems.clearinghouse``), formats (``pems.source``).

A finished file never changes, so none is fetched twice, and the lists of files are asked for once a
day: a second refresh of the same day asks nothing, unless something of the first one failed.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.common.access import PemsAccess
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.ledger import EntryState
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.saved import read_new_saved_files
from compevo_pipeline.sources.pems.clearinghouse import (
    LIST_SOURCE,
    SOURCE,
    Clearinghouse,
    ClearinghouseFile,
    name_list,
)
from compevo_pipeline.sources.pems.source import FOLDER, parse_meta

LOOKBACK = timedelta(days=62)
"""How far back a refresh looks: a month's file appears when the month is over."""

_META = "meta"


def fetch_live(live: LiveContext) -> Iterator[RawFile]:
    """Yield new files of the folder ``traffic``, then those of the clearinghouse.

    Raises:
        SourceAbsent: there is neither an account nor a file fetched by hand.
        SourceBlocked: the log-in failed.
        SourceError: any other failure.
    """
    yield from read_new_saved_files(live, FOLDER, "*_text_station_*", source=SOURCE)
    if live.pems is not None:
        yield from _fetch_listed(live, live.pems)
    elif not live.ledger.list_entries(f"{SOURCE}-saved"):
        raise SourceAbsent(
            "live traffic needs a PeMS account (free, at https://pems.dot.ca.gov): set "
            "COMPEVO_PEMS_USER and COMPEVO_PEMS_PASSWORD, or put station_hour files that you "
            f"downloaded there into the folder {FOLDER} of COMPEVO_ARCHIVE"
        )


def _fetch_listed(live: LiveContext, access: PemsAccess) -> Iterator[RawFile]:
    start, end = live.span(LOOKBACK)
    years = range(start.year, end.year + 1)
    lists = [(kind, year) for kind in access.files for year in years]
    lists += [(_META, year) for year in _list_meta_years(end)]
    if live.since is None and _is_done_today(live, [name_list(access, *one) for one in lists]):
        return

    site = Clearinghouse(client=live.client, access=access)
    for kind in access.files:
        for file in (file for year in years for file in site.list_files(kind, year)):
            raw = site.download(file) if _overlaps(file, start, end) else None
            if raw is not None:
                yield raw
    _keep_newest_meta(site, end)


def _is_done_today(live: LiveContext, lists: Sequence[str]) -> bool:
    """Whether every list was answered today, and no file waits to be fetched or stored."""
    entries = [live.ledger.get(LIST_SOURCE, name) for name in lists]
    is_answered = all(
        entry is not None and entry.asked_at.date() == live.now.date() and not entry.note
        for entry in entries
    )
    waiting = (EntryState.FETCHED, EntryState.FAILED)
    return is_answered and not any(
        entry.state in waiting for entry in live.ledger.list_entries(SOURCE)
    )


def _overlaps(file: ClearinghouseFile, start: datetime, end: datetime) -> bool:
    return file.first <= end.date() and file.last >= start.date()


def _list_meta_years(end: datetime) -> tuple[int, int]:
    # Tables of stations appear a few times a year: in January the newest may be last year's.
    return end.year - 1, end.year


def _keep_newest_meta(site: Clearinghouse, end: datetime) -> None:
    """Keep the newest table of stations up to a day, among the raw files; it makes no series."""
    listed = [
        file
        for year in _list_meta_years(end)
        for file in site.list_files(_META, year)
        if file.first <= end.date()
    ]
    raw = site.download(listed[-1]) if listed else None
    if raw is not None:
        parse_meta(raw)
