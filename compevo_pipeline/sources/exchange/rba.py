"""The Reserve Bank of Australia's daily rates (table F11.1), quoted at 16:00 in Sydney.

What belongs here: the format. What does not: fetching (``exchange.live``).

The CSV opens with ragged lines of description, each with a name in its first cell: ``Title`` says
what a column is (``A$1=JPY``), ``Frequency`` that it is daily, ``Series ID`` ends them. Rates are
units for one Australian dollar, so USD per X = (USD per AUD) / (X per AUD).

Published at https://www.rba.gov.au/statistics/tables/csv/f11.1-data.csv (CC BY 4.0), from 2023 on.
"""

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import decode_lossy, refuse_html
from compevo_pipeline.sources.common.tables import (
    LINE,
    Quoting,
    read_rows,
    refuse_duplicates,
    split_cells,
    to_number,
    to_stamp,
)
from compevo_pipeline.sources.exchange.rates import CURRENCIES, build_published_rates

SOURCE = "rba_f11"
URL = "https://www.rba.gov.au/statistics/tables/csv/f11.1-data.csv"
FILE = "f11.1-data.csv"

_LAST_DESCRIPTION = "Series ID"
_TITLE = "A$1="
_DAY_FORMAT = "%d-%b-%Y"
_MISSING = ("", "n.a.", "CLOSED", "Closed")
_QUOTED = tuple(code for code in CURRENCIES if code != "AUD")


def parse_f11(raw: RawFile) -> pl.DataFrame:
    """Parse the table into USD per unit (``RBA/AUD`` ...), one row a published day.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: a web page; no ``Series ID`` line, a currency without a daily column, or a date
            or number that is none.
    """
    refuse_html(raw.content, raw.name)
    # Notes above the table have been in two encodings; the rows below are ASCII either way.
    text, _ = decode_lossy(raw.content)
    descriptions, first_row, body = _split_descriptions(text, raw.name)

    columns = _find_currencies(descriptions, raw.name)
    width = len(descriptions[_LAST_DESCRIPTION])
    names = ["Date", *(columns.get(index, f"_{index}") for index in range(1, width))]
    table = read_rows(body, raw.name, names, first_line=first_row)

    table = to_stamp(table.select(LINE, "Date", "USD", *_QUOTED), raw.name, "Date", (_DAY_FORMAT,))
    refuse_duplicates(table, raw.name, ["Date"])
    table = to_number(table, raw.name, ["USD", *_QUOTED], missing=_MISSING)

    usd_per_aud = pl.col("USD")
    rates = table.sort("Date").select(
        "Date", AUD=usd_per_aud, **{code: usd_per_aud / pl.col(code) for code in _QUOTED}
    )
    return build_published_rates(rates, raw, "RBA")


def _split_descriptions(text: str, name: str) -> tuple[dict[str, list[str]], int, str]:
    """Return the described lines by their name, the first row's line number, and the rows."""
    descriptions: dict[str, list[str]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        cells = [cell.strip() for cell in split_cells(line, quoting=Quoting.CELLS)]
        if cells:
            descriptions[cells[0]] = cells
        if _LAST_DESCRIPTION in descriptions:
            return descriptions, number + 1, "\n".join(lines[number:])

    raise SchemaDrift(
        f"{name}: no line starts with {_LAST_DESCRIPTION!r}, so this is not table F11.1 or it is "
        f"cut; compare with {URL}"
    )


def _find_currencies(descriptions: dict[str, list[str]], name: str) -> dict[int, str]:
    """Return the currency of each daily column of units for one Australian dollar."""
    # The last description says how wide the table is: a title beyond it has no column.
    names = ("Title", "Frequency", _LAST_DESCRIPTION)
    described = zip(*(descriptions.get(key, []) for key in names), strict=False)
    columns = {
        index: title.removeprefix(_TITLE)
        for index, (title, frequency, _) in enumerate(described)
        if title.startswith(_TITLE) and frequency == "Daily"
    }

    absent = [code for code in ("USD", *_QUOTED) if code not in columns.values()]
    if absent:
        raise SchemaDrift(
            f"{name}: no daily column {_TITLE}{absent[0]} (missing: {absent}); f11-data.csv is the "
            f"monthly table, take {FILE}"
        )
    return columns
