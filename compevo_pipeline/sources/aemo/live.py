"""AEMO's files from its own hosts: monthly price and demand, and NEMWeb's half-hourly reports.

What belongs here: which files a refresh or a backfill needs, the folders that list them, and their
names. What does not: requests (``common.http``), formats (the parsers that archive mode uses).

A daily refresh looks two weeks back and fetches what the ledger does not have; the monthly files of
this and the last month are asked for each time, conditionally. Older half-hours are in weekly zips
of zips, and before those in MMSDM's monthly tables, which hold only actual values.
"""

import html
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import PurePosixPath
from urllib.parse import unquote

import polars as pl

from compevo_core.errors import SchemaDrift, SourceAbsent, SourceError
from compevo_pipeline.sources.aemo import names
from compevo_pipeline.sources.aemo.source import OPERATIONAL, PRICE
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import decode_lossy, unzip_nested
from compevo_pipeline.sources.common.hosts import resolve_link
from compevo_pipeline.sources.common.http import Client, FileRequest
from compevo_pipeline.sources.common.live import LiveContext, Tolerance
from compevo_pipeline.sources.common.nem import HALF_HOUR, NEM_OFFSET, REGIONS

PRICE_ROOT = "https://aemo.com.au/aemo/data/nem/priceanddemand"
REPORTS_ROOT = "https://nemweb.com.au/Reports"
MMSDM_ROOT = "https://nemweb.com.au/Data_Archive/Wholesale_Electricity/MMSDM"
MMSDM_FILES = (f"PUBLIC_ARCHIVE#{names.MMSDM_ACTUAL}", f"PUBLIC_DVD_{names.MMSDM_ACTUAL}")
"""Names of MMSDM's table of actuals, the newer spelling first; AEMO changed it in August 2024."""

_MMSDM_TABLES = "MMSDM_Historical_Data_SQLLoader/DATA"
LISTINGS = "aemo_listings"
WEEK = timedelta(days=7)
LOOKBACK = 14 * names.DAY
MANY_FILES = 100  # missing half-hours from which weekly archives come first: one holds 336
_REPORT_FOLDERS = {
    names.ACTUAL_REPORT: "Operational_Demand/ACTUAL_HH",
    names.FORECAST_REPORT: "Operational_Demand/FORECAST_HH",
    names.ROOFTOP_REPORT: "ROOFTOP_PV/FORECAST",
}
"""Report -> its folder below ``Current`` and ``Archive``."""

_LINK = re.compile(r"""href\s*=\s*["']([^"'<>]+\.zip)["']""", re.IGNORECASE)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """One file of a folder."""

    name: str  # its file name as the listing spells it
    url: str  # its address, with the link letter by letter
    first: datetime  # start in UTC of what it covers, by the first stamp of its name
    last: datetime  # its end in UTC; equal to `first` for a file of one interval

    def overlaps(self, start: datetime, end: datetime) -> bool:
        """Whether it may hold something of the span."""
        return self.first <= end and self.last >= start


def fetch_price_and_demand(live: LiveContext) -> Iterator[RawFile]:
    """Yield the monthly files of the five regions that are new or may have grown.

    SourceAbsent if AEMO has none of the months; of too many failures the first one.
    """
    start, end = live.span(LOOKBACK)
    last_month = _find_last_month(live.now)
    months = _list_months(start, end)
    tolerance = Tolerance("price and demand")

    for month in months if live.since else sorted({last_month, *months}):
        for region in REGIONS:
            name = f"PRICE_AND_DEMAND_{month:%Y%m}_{region}.csv"
            url = f"{PRICE_ROOT}/{name}"

            # A month whose bytes came when AEMO could still add to them is asked for once more.
            entry = live.ledger.get(PRICE, name)
            fetched_at = entry.fetched_at if entry else None
            may_have_grown = fetched_at is not None and month >= _find_last_month(fetched_at)
            is_final = month < last_month and not may_have_grown
            if is_final and not live.ledger.is_due(PRICE, name, live.now):
                continue

            request = FileRequest(url=url, source=PRICE, name=name, is_final=is_final)
            with tolerance.attempt(live, request):
                yield from live.fetch(request)

    tolerance.raise_if_nothing_arrived()


def fetch_operational(live: LiveContext) -> Iterator[RawFile]:
    """Yield the files of every report that the ledger does not have.

    A report that fails is skipped with a warning; a failure of the actuals is raised at the end.
    """
    failure: SourceError | None = None
    for report in _REPORT_FOLDERS:
        try:
            yield from _fetch_report(live, report)
        except SourceError as error:
            if report == names.ACTUAL_REPORT:
                failure = error
            else:
                log.warning("%s is left out: %s", report, error)

    if failure is not None:
        raise failure


def _fetch_report(live: LiveContext, report: str) -> Iterator[RawFile]:
    start, end = live.span(LOOKBACK)
    tolerance = Tolerance(report)

    listed = read_listing(live.client, _spell_folder("Current", report), [report])
    # A forecast is named by the end of its first half-hour, which is after its issue.
    current = [file for file in listed if file.overlaps(start, end + HALF_HOUR)]
    missing = [file for file in current if live.ledger.is_due(OPERATIONAL, file.name, live.now)]

    # The archive has what has left the current folder, and spares hundreds of requests at first.
    stamps = sorted((file.first for file in listed), reverse=True)
    oldest = stamps[0]
    for stamp in stamps:
        # A single file that was left behind says nothing about the days after it.
        if oldest - stamp > names.DAY:
            break
        oldest = stamp
    if start < oldest or len(missing) > MANY_FILES:
        # Weekly archives, and for a backfill MMSDM's months before the first of them.
        older_end = end if len(missing) > MANY_FILES else min(end, oldest)
        try:
            weeks = read_listing(live.client, _spell_folder("Archive", report), [report])
        except (SourceAbsent, SchemaDrift) as error:
            log.warning("%s has no archive: %s", report, error)
            weeks = []

        first = min((week.first for week in weeks), default=older_end)
        if live.since is not None and start < first and report == names.ACTUAL_REPORT:
            for month in _list_months(start, min(older_end, first)):
                # A month appears in MMSDM weeks after its end: its absence is not a failure.
                name = f"MMSDM_{month:%Y%m}"
                folder = f"{MMSDM_ROOT}/{month:%Y}/MMSDM_{month:%Y_%m}/{_MMSDM_TABLES}/"
                if live.ledger.is_due(OPERATIONAL, name, live.now):
                    request = FileRequest(url=folder, source=OPERATIONAL, name=name, is_final=True)
                    with tolerance.attempt(live, request):
                        tables = read_listing(live.client, [folder], MMSDM_FILES)
                        yield from _fetch_files(live, tables, tolerance)
        weeks = [week for week in weeks if week.overlaps(start, older_end)]
        yield from _fetch_files(live, weeks, tolerance)
    yield from _fetch_files(live, missing, tolerance)
    tolerance.raise_if_nothing_arrived()


def _fetch_files(
    live: LiveContext, files: Sequence[ListedFile], tolerance: Tolerance
) -> Iterator[RawFile]:
    for file in files:
        if not live.ledger.is_due(OPERATIONAL, file.name, live.now):
            continue

        request = FileRequest(url=file.url, source=OPERATIONAL, name=file.name, is_final=True)
        with tolerance.attempt(live, request):
            for raw in live.fetch(request):
                yield from _unpack(live, raw)


def unpack(raw: RawFile) -> list[RawFile]:
    """Return the reports in a zip; a file that is not a zip is returned as it is."""
    if not raw.name.lower().endswith(".zip"):
        return [raw]
    members = [
        replace(
            raw,
            name=PurePosixPath(name).name,
            content=content,
            url=f"{raw.url}!{name}",
            packed_in=raw.name,
        )
        for name, content in unzip_nested(raw.content, raw.name)
    ]

    if not members:
        raise SchemaDrift(f"{raw.name}: a zip without a file; look at what AEMO publishes there")
    return members


def _unpack(live: LiveContext, raw: RawFile) -> list[RawFile]:
    """Return the reports in a zip; each report of a weekly zip counts as fetched."""
    members = unpack(raw)
    if len(members) > 1:
        packed = [f"{PurePosixPath(member.name).stem}.zip" for member in members]
        live.ledger.record_members(raw.source, packed, raw)
    return members


def read_listing(
    client: Client, folders: Sequence[str], prefixes: Sequence[str]
) -> list[ListedFile]:
    """Return the files of a NEMWeb folder whose name starts with a prefix, by name.

    A listing links in the server's own spelling of the path. Links are followed letter by letter,
    since paths are case-sensitive since 2026 and a ``#`` in a name is encoded once or twice.

    ``folders`` are the spellings of its address that were seen; the first that exists is read.
    Capitals of ``prefixes`` do not count. SourceAbsent if there is no such folder, or it is empty;
    SchemaDrift if it has files, and none of that name: they were renamed.
    """
    absent: SourceAbsent | None = None
    for url in folders:
        file = re.sub(r"[^A-Za-z0-9]+", "_", url.removeprefix("https://")).strip("_")
        try:
            page = client.read_page(FileRequest(url=url, source=LISTINGS, name=f"{file}.html"))
            break
        except SourceAbsent as error:
            absent = absent or error
    else:
        raise absent or SourceAbsent("no folder was named; report it")

    # A listing names each file twice, as a link and as its text.
    links = dict.fromkeys(html.unescape(link) for link in _LINK.findall(decode_lossy(page)[0]))
    if not links:
        raise SourceAbsent(f"{url}: the folder lists no zip file; look whether AEMO moved it")

    files = {}
    for link in links:
        name = link.rsplit("/", 1)[-1]
        read = unquote(unquote(name))
        is_wanted = read.upper().startswith(tuple(prefix.upper() for prefix in prefixes))
        if is_wanted and (stamp := names.read_stamp(read)) is not None:
            # A date without time names a week of files.
            first, is_day = stamp
            last = first + (WEEK if is_day else timedelta(0))
            files[name] = ListedFile(name=name, url=resolve_link(url, link), first=first, last=last)

    if not files:
        raise SchemaDrift(
            f"{url}: {len(links)} zip files, none named {' or '.join(prefixes)} (the first is "
            f"{next(iter(links))[-80:]!r}); AEMO renamed them, extend aemo.live"
        )
    return [files[name] for name in sorted(files)]


def _spell_folder(part: str, report: str) -> list[str]:
    # Both spellings have been seen; paths are case-sensitive.
    folder = _REPORT_FOLDERS[report]
    return [f"{REPORTS_ROOT}/{spelling}/{folder}/" for spelling in (part, part.upper())]


def _list_months(start: datetime, end: datetime) -> list[date]:
    """Return the first days of the months, in NEM time, that have an interval in [start, end)."""
    first, last = _find_month(start), _find_month(end - HALF_HOUR)
    return pl.date_range(first, max(first, last), "1mo", eager=True).to_list()


def _find_last_month(moment: datetime) -> date:
    """Return the first day of the month, in NEM time, before the one that holds a moment."""
    return (_find_month(moment) - names.DAY).replace(day=1)


def _find_month(moment: datetime) -> date:
    """Return the first day of the month, in NEM time, that holds a moment."""
    return (moment + NEM_OFFSET).date().replace(day=1)
