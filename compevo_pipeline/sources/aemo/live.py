"""AEMO's files from its own hosts: monthly price and demand, and NEMWeb's half-hourly reports.

What belongs here: which files a refresh or a backfill needs, and in which folders they lie. What
does not: listings (``aemo.listing``), requests (``common.http``), formats (the parsers that archive
mode uses too).

A daily refresh looks two weeks back and fetches what the ledger does not have; the monthly files of
this and the last month are asked for each time, conditionally. Older half-hours lie in weekly zips
of zips, and before those in MMSDM's monthly tables, which hold the actuals alone.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import PurePosixPath

from compevo_core.errors import SchemaDrift, SourceAbsent, SourceError
from compevo_pipeline.sources.aemo import price
from compevo_pipeline.sources.aemo.listing import ListedFile, read_listing
from compevo_pipeline.sources.aemo.operational import SOURCE
from compevo_pipeline.sources.aemo.operational_report import (
    ACTUAL_REPORT,
    FORECAST_REPORT,
    MMSDM_ACTUAL,
    ROOFTOP_REPORT,
)
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.ledger import Entry
from compevo_pipeline.sources.common.live import LiveContext, Tolerance
from compevo_pipeline.sources.common.nem import HALF_HOUR, NEM_OFFSET, REGIONS
from compevo_pipeline.sources.common.unpack import unzip_nested

PRICE_ROOT = "https://aemo.com.au/aemo/data/nem/priceanddemand"
REPORTS_ROOT = "https://nemweb.com.au/Reports"
MMSDM_ROOT = "https://nemweb.com.au/Data_Archive/Wholesale_Electricity/MMSDM"
MMSDM_FILES = (f"PUBLIC_ARCHIVE#{MMSDM_ACTUAL}", f"PUBLIC_DVD_{MMSDM_ACTUAL}")
"""Names of MMSDM's table of actuals, the newer spelling first; AEMO changed it in August 2024."""

DAY = timedelta(days=1)
LOOKBACK = 14 * DAY
MANY_FILES = 100
"""Missing half-hours above which the weekly archives are asked first: one holds 336."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One half-hourly report of NEMWeb.

    Attributes:
        prefix: start of its file names.
        folder: where it lies, below ``Current`` and ``Archive``.
        is_required: whether the data set cannot do without it.
    """

    prefix: str
    folder: str
    is_required: bool = False


REPORTS = (
    Report(prefix=ACTUAL_REPORT, folder="Operational_Demand/ACTUAL_HH", is_required=True),
    Report(prefix=FORECAST_REPORT, folder="Operational_Demand/FORECAST_HH"),
    Report(prefix=ROOFTOP_REPORT, folder="ROOFTOP_PV/FORECAST"),
)


def fetch_price_and_demand(live: LiveContext) -> Iterator[RawFile]:
    """Yield the monthly files of the five regions that are new or may have grown.

    Raises:
        SourceAbsent: AEMO has none of the months.
        SourceError: the first of too many failures.
    """
    start, end = live.span(LOOKBACK)
    last_month = _find_last_month(live.now)
    months = _list_months(start, end)
    tolerance = Tolerance("price and demand")

    for month in months if live.since else sorted({last_month, *months}):
        for region in REGIONS:
            name = f"PRICE_AND_DEMAND_{month:%Y%m}_{region}.csv"
            url = f"{PRICE_ROOT}/{name}"
            # A month whose bytes came while it grew is asked for once more.
            entry = live.ledger.get(price.SOURCE, name)
            is_final = month < last_month and not _may_have_grown(entry, month)
            if is_final and not live.ledger.is_due(price.SOURCE, name, live.now):
                continue

            with tolerance.attempt(live, price.SOURCE, name, url, is_final=is_final):
                raw = live.client.fetch(url, source=price.SOURCE, name=name, is_final=is_final)
                if raw is not None:
                    yield raw

    tolerance.refuse_nothing()


def fetch_operational(live: LiveContext) -> Iterator[RawFile]:
    """Yield the files of every report that the ledger does not have.

    A report that fails is left out with a warning, except the actuals: their failure is raised
    after the other reports were fetched.

    Raises:
        SourceError: the failure of the actuals.
    """
    failure: SourceError | None = None
    for report in REPORTS:
        try:
            yield from _fetch_report(live, report)
        except SourceError as error:
            if report.is_required:
                failure = error
            else:
                log.warning("%s is left out: %s", report.prefix, error)

    if failure is not None:
        raise failure


def _fetch_report(live: LiveContext, report: Report) -> Iterator[RawFile]:
    start, end = live.span(LOOKBACK)
    tolerance = Tolerance(report.prefix)

    listed = read_listing(live.client, _spell("Current", report), [report.prefix])
    # A forecast is named by the end of its first half-hour, which lies after its issue.
    current = [file for file in listed if file.overlaps(start, end + HALF_HOUR)]
    missing = [file for file in current if live.ledger.is_due(SOURCE, file.name, live.now)]

    # The archive has what has left the current folder, and spares hundreds of requests at first.
    oldest = _find_oldest(listed)
    if start < oldest or len(missing) > MANY_FILES:
        older_end = end if len(missing) > MANY_FILES else min(end, oldest)
        yield from _fetch_older(live, report, start, older_end, tolerance)
    yield from _fetch_files(live, missing, tolerance)
    tolerance.refuse_nothing()


def _find_oldest(listed: Sequence[ListedFile]) -> datetime:
    """Return the first stamp from which on the folder has every day."""
    stamps = sorted((file.first for file in listed), reverse=True)
    oldest = stamps[0]
    for stamp in stamps:
        # A single file that was left behind says nothing about the days after it.
        if oldest - stamp > DAY:
            break
        oldest = stamp
    return oldest


def _fetch_older(
    live: LiveContext, report: Report, start: datetime, end: datetime, tolerance: Tolerance
) -> Iterator[RawFile]:
    """Yield weekly archives, and for a backfill MMSDM's months before the first of them."""
    try:
        weeks = read_listing(live.client, _spell("Archive", report), [report.prefix])
    except (SourceAbsent, SchemaDrift) as error:
        log.warning("%s has no archive: %s", report.prefix, error)
        weeks = []

    oldest = min((week.first for week in weeks), default=end)
    if live.since is not None and start < oldest and report.is_required:
        yield from _fetch_months(live, start, min(end, oldest), tolerance)
    yield from _fetch_files(live, [w for w in weeks if w.overlaps(start, end)], tolerance)


def _fetch_months(
    live: LiveContext, start: datetime, end: datetime, tolerance: Tolerance
) -> Iterator[RawFile]:
    for month in _list_months(start, end):
        folder = (
            f"{MMSDM_ROOT}/{month:%Y}/MMSDM_{month:%Y_%m}/MMSDM_Historical_Data_SQLLoader/DATA/"
        )
        # A month appears in MMSDM weeks after its end: one that is not there is no failure.
        name = f"MMSDM_{month:%Y%m}"
        if live.ledger.is_due(SOURCE, name, live.now):
            with tolerance.attempt(live, SOURCE, name, folder, is_final=True):
                tables = read_listing(live.client, [folder], MMSDM_FILES)
                yield from _fetch_files(live, tables, tolerance)


def _fetch_files(
    live: LiveContext, files: Sequence[ListedFile], tolerance: Tolerance
) -> Iterator[RawFile]:
    for file in files:
        if not live.ledger.is_due(SOURCE, file.name, live.now):
            continue

        with tolerance.attempt(live, SOURCE, file.name, file.url, is_final=True):
            raw = live.client.fetch(file.url, source=SOURCE, name=file.name, is_final=True)
            if raw is not None:
                yield from _unpack(live, raw)


def _unpack(live: LiveContext, raw: RawFile) -> list[RawFile]:
    """Return the reports in a zip; those of a weekly zip count as fetched one by one.

    Raises:
        SourceTransient, SchemaDrift: the zip is damaged, hostile or empty.
    """
    members = [
        RawFile(
            source=raw.source,
            name=PurePosixPath(name).name,
            content=content,
            url=f"{raw.url}!{name}",
            fetched_at=raw.fetched_at,
            mode=Mode.LIVE,
            packed_in=raw.name,
        )
        for name, content in unzip_nested(raw.content, raw.name)
    ]
    if not members:
        raise SchemaDrift(f"{raw.name}: a zip without a file; look at what AEMO publishes there")
    if len(members) > 1:
        live.ledger.record_members(
            raw.source, [f"{PurePosixPath(member.name).stem}.zip" for member in members], raw
        )
    return members


def _spell(part: str, report: Report) -> list[str]:
    # Both spellings have been seen; paths are case-sensitive.
    return [f"{REPORTS_ROOT}/{spelling}/{report.folder}/" for spelling in (part, part.upper())]


def _list_months(start: datetime, end: datetime) -> list[date]:
    """Return the first days of the months, in NEM time, that have an interval in [start, end)."""
    months = [_find_month(start)]
    last = _find_month(end - HALF_HOUR)
    while months[-1] < last:
        months.append((months[-1] + timedelta(days=32)).replace(day=1))
    return months


def _may_have_grown(entry: Entry | None, month: date) -> bool:
    """Whether the bytes of a month came when AEMO could still add to them."""
    if entry is None or entry.fetched_at is None:
        return False
    return month >= _find_last_month(entry.fetched_at)


def _find_last_month(moment: datetime) -> date:
    """Return the first day of the month, in NEM time, before the one that holds a moment."""
    return (_find_month(moment) - DAY).replace(day=1)


def _find_month(moment: datetime) -> date:
    """Return the first day of the month, in NEM time, that holds a moment."""
    return (moment + NEM_OFFSET).date().replace(day=1)
