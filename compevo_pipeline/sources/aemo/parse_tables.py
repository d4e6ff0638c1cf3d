"""AEMO's tables of demand, and the framing of NEMWeb's and MMSDM's reports.

What belongs here: monthly price and demand, HISTDEMAND days, MMSDM months, and what others
collected from the monthly files. What does not: operational demand (``parse_operational``), which
files are read and which wins (``source``), known bad readings (``compevo_core.data.cutting``).

A report is a CSV of ``C`` (comment), ``I`` (columns) and ``D`` (data) records. Columns are found by
the names in the ``I`` record, since AEMO adds columns from one version to the next.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import polars as pl

from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common import nem, tables
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import read_text

STAMP_FORMATS = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M")
PRICE_HEADER = ("REGION", "SETTLEMENTDATE", "TOTALDEMAND", "RRP", "PERIODTYPE")

_FRAME_COLUMNS = ("_record", "_table", "_part", "_version")
_FOOTER = re.compile(r'^C,"?END OF REPORT"?,(\d{1,12})$')
_SHOWN_CHARACTERS = 60

# By header; two columns identify the collection: the region, and the spelling of the stamp.
_COLLECTIONS: dict[tuple[str, ...], tuple[pl.Expr, tuple[str, ...]]] = {
    # The day comes first.
    ("DATETIME", "TOTALDEMAND", "REGIONID"): (pl.col("REGIONID"), ("%d/%m/%Y %H:%M",)),
    # The file holds one region and has no column for it.
    ("datetime", "load_act"): (pl.lit("SA1"), ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M")),
}


def parse_price(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse ``PRICE_AND_DEMAND_YYYYMM_REGION.csv`` into half-hourly demand and price.

    A month has 30-minute rows until 2021-09 and 5-minute rows after. With ``tolerate_gaps`` stamps
    may be missing; half-hours without six parts are nulled and flagged. Series are
    ``AEMO/TOTALDEMAND/<region>`` in MW and ``AEMO/RRP/<region>`` in AUD/MWh.
    """
    text = read_text(raw.content, raw.name)
    table = tables.read_table(text, raw.name, PRICE_HEADER)
    table = convert_columns(table, raw, "SETTLEMENTDATE", ["TOTALDEMAND", "RRP"], "REGION")
    tables.raise_if_duplicates(table, raw.name, ["REGION", "SETTLEMENTDATE"])

    # The step is read from the file: AEMO changed it in October 2021 without changing the name.
    is_half_hourly = table["SETTLEMENTDATE"].dt.minute().is_in([0, 30]).all()
    step = nem.HALF_HOUR if is_half_hourly else nem.FIVE_MINUTES
    if not tolerate_gaps:
        tables.raise_if_gaps(table, raw.name, "SETTLEMENTDATE", step, by="REGION")

    # The last half-hour of a month that still grows is incomplete: averaging nulls and flags it.
    if not is_half_hourly:
        table = nem.average_half_hours(table, "SETTLEMENTDATE", "REGION", ["TOTALDEMAND", "RRP"])

    keys = ("REGION", "SETTLEMENTDATE")
    demand = build_region_series(table, raw, "TOTALDEMAND", *keys, "TOTALDEMAND")
    price = build_region_series(
        table, raw, "RRP", *keys, "RRP", variable=nem.PRICE_VARIABLE, unit=nem.PRICE_UNIT
    )
    return pl.concat([demand, price])


def parse_collected(raw: RawFile, *, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse half-hourly TOTALDEMAND that others collected from AEMO's monthly files.

    The values are AEMO's, to the cent, except South Australia after 2021-10-01, whose collector
    averaged the six 5-minute rows as :func:`average_half_hours` does.
    """
    text = read_text(raw.content, raw.name)
    first_line = text.partition("\n")[0]
    first_cells = tuple(tables.split_cells(first_line)[:2])

    # read_table compares the rest and names what changed.
    header = next((known for known in _COLLECTIONS if known[:2] == first_cells), None)
    if header is None:
        headers = " or ".join(map(",".join, _COLLECTIONS))
        raise SchemaDrift(
            f"{raw.name}, line 1: the header is {first_line[:200]!r}, expected {headers}; extend "
            "_COLLECTIONS"
        )

    (stamp, value), (region, formats) = header[:2], _COLLECTIONS[header]
    table = tables.read_table(text, raw.name, header).with_columns(region=region)
    table = convert_columns(table, raw, stamp, [value], "region", formats)
    tables.raise_if_duplicates(table, raw.name, ["region", stamp])
    if not tolerate_gaps:
        tables.raise_if_gaps(table, raw.name, stamp, nem.HALF_HOUR, by="region")
    return build_region_series(table, raw, "TOTALDEMAND", "region", stamp, value)


def parse_histdemand(*raws: RawFile, tolerate_gaps: bool = False) -> pl.DataFrame:
    """Parse ``PUBLIC_HISTDEMAND`` days into ``AEMO/HISTDEMAND/<region>``, in whole MW.

    It is another measure than TOTALDEMAND (a mean 45 MW higher in New South Wales).
    ``SETTLEMENTDATE`` is the trading day at midnight, and ``PERIODID`` counts from 1 to 48.
    """
    columns = ("REGIONID", "SETTLEMENTDATE", "PERIODID", "DEMAND")
    raw, *_ = raws
    table = tables.stack_files(raws, lambda one: read_report(one, ("DEMAND", "HISTORIC"), columns))
    table = convert_columns(table, raw, "SETTLEMENTDATE", ["PERIODID", "DEMAND"], "REGIONID")

    # Read as a number, so 1.5 gets this far.
    period = pl.col("PERIODID")
    in_day = period.is_between(1, nem.PERIODS_PER_DAY) & (period == period.round())
    problem = f"PERIODID is {{PERIODID}}, not 1 to {nem.PERIODS_PER_DAY}"
    tables.raise_if_rows(table, raw.name, ~in_day, problem, "fetch the file again")
    tables.raise_if_duplicates(table, raw.name, ["REGIONID", "SETTLEMENTDATE", "PERIODID"])
    if not tolerate_gaps:
        days = table.group_by(tables.FILE, tables.NAME, "REGIONID", "SETTLEMENTDATE").agg(
            periods=pl.len(), line=pl.max(tables.LINE)
        )
        # A region that lacks the whole day has no row here; the series' gaps show it.
        tables.raise_if_rows(
            days.sort(tables.FILE, tables.LINE),
            raw.name,
            pl.col("periods") != nem.PERIODS_PER_DAY,
            "{REGIONID} on {SETTLEMENTDATE:%Y-%m-%d} has {periods} periods, "
            f"not {nem.PERIODS_PER_DAY}",
            "fetch the file again, or set tolerate_gaps for this run",
        )

    # The stamp is the day's midnight in NEM time, and period 1 starts there.
    end = pl.col("SETTLEMENTDATE") + pl.duration(minutes=30 * period.cast(pl.Int64))
    return build_region_series(
        table.with_columns(end=end), raw, "HISTDEMAND", "REGIONID", "end", "DEMAND"
    )


def parse_mmsdm(raw: RawFile) -> pl.DataFrame:
    """Parse an MMSDM month into half-hourly ``AEMO/TOTALDEMAND/<region>``.

    ``TRADINGREGIONSUM`` has half-hours, ``DISPATCHREGIONSUM`` 5-minute rows: of two for one time
    the physical run (INTERVENTION 1) counts; a half-hour without its six is nulled and flagged.
    """
    # AEMO writes the table's name in the file name, in capitals or not.
    is_dispatch = "DISPATCHREGIONSUM" in raw.name.upper()
    keys = ("REGIONID", "SETTLEMENTDATE")
    runs = ["INTERVENTION"] if is_dispatch else []

    # The archive's copies were filtered by row, so the footer counts more lines than there are.
    name = ("DISPATCH" if is_dispatch else "TRADING", "REGIONSUM")
    table = read_report(raw, name, [*keys, "TOTALDEMAND", *runs], check_count=False)
    table = convert_columns(table, raw, "SETTLEMENTDATE", ["TOTALDEMAND"], "REGIONID")
    tables.raise_if_duplicates(table, raw.name, [*keys, *runs])

    if is_dispatch:
        # Sorted by INTERVENTION, the last row of an interval is the physical run.
        physical = table.sort("INTERVENTION").unique(keys, keep="last", maintain_order=True)
        table = nem.average_half_hours(
            physical.sort(keys), "SETTLEMENTDATE", "REGIONID", ["TOTALDEMAND"]
        )
    return build_region_series(table, raw, "TOTALDEMAND", *keys, "TOTALDEMAND")


def convert_columns(
    table: pl.DataFrame,
    raw: RawFile,
    stamp: str,
    numbers: Sequence[str],
    region: str,
    formats: Sequence[str] = STAMP_FORMATS,
    missing: Sequence[str] = (),
) -> pl.DataFrame:
    """Return a table with a column of naive stamps, columns of numbers and known regions."""
    table = tables.to_stamp(table, raw.name, stamp, formats)
    table = tables.to_number(table, raw.name, numbers, missing=missing)
    tables.raise_if_rows(
        table,
        raw.name,
        ~pl.col(region).is_in(nem.REGIONS),
        f"{region} is {{{region}!r}}",
        f"expected one of {', '.join(nem.REGIONS)}; extend nem.REGIONS for a new one",
    )
    return table


def build_region_series(
    table: pl.DataFrame,
    raw: RawFile,
    measure: str,
    region: str,
    end: str,
    value: str,
    *,
    variable: str = nem.DEMAND_VARIABLE,
    unit: str = nem.DEMAND_UNIT,
) -> pl.DataFrame:
    """Build ``AEMO/<measure>/<region>`` from columns of regions, values and ends in NEM time.

    Every row counts as observed unless the table has a column ``flag``.
    """
    return tables.build_series_frame(
        table,
        raw,
        series_id=pl.concat_str(pl.lit(f"AEMO/{measure}/"), pl.col(region)),
        variable=variable,
        start_utc=nem.interval_start_utc(pl.col(end), nem.HALF_HOUR),
        value=pl.col(value),
        unit=unit,
        flag=pl.col("flag") if "flag" in table.columns else tables.OBSERVED,
    )


def read_report(
    raw: RawFile, table: tuple[str, str], columns: Sequence[str], *, check_count: bool = True
) -> pl.DataFrame:
    """Read the one table of a report as text, with the line number of each row.

    ``table`` is the second and third cell of the ``I`` record, such as ``("DEMAND", "HISTORIC")``,
    which must name ``columns``. With ``check_count`` the footer must count the lines.
    """
    lines = read_text(raw.content, raw.name).rstrip("\n").split("\n")
    if not lines[0].startswith("C,"):
        raise SchemaDrift(
            f"{raw.name}, line 1: not a C record ({lines[0][:_SHOWN_CHARACTERS]!r}); "
            "check whether this is an AEMO report"
        )

    footer = _FOOTER.match(lines[-1])
    if footer is None:
        raise SchemaDrift(
            f"{raw.name}, line {len(lines)}: no END OF REPORT record "
            f"({lines[-1][:_SHOWN_CHARACTERS]!r}); the file is cut, fetch it again"
        )
    if check_count and int(footer[1]) != len(lines):
        raise SchemaDrift(
            f"{raw.name}, line {len(lines)}: the footer counts {footer[1]} lines, "
            f"the file has {len(lines)}; fetch it again"
        )

    record = tables.split_cells(lines[1]) if len(lines) > 1 else []
    # Four cells frame the record, so a table with one column has five.
    if len(record) < 5 or record[0] != "I" or tuple(record[1:3]) != table:
        raise SchemaDrift(
            f"{raw.name}, line 2: expected the I record of {table[0]},{table[1]}, found "
            f"{','.join(record[:4])!r}; the report changed or this is another one: "
            "extend the parser or remove the file"
        )
    published = record[len(_FRAME_COLUMNS) :]
    absent = [name for name in columns if name not in published]
    if absent:
        raise SchemaDrift(
            f"{raw.name}, line 2: no column {', '.join(absent)} in the I record; extend the parser"
        )

    # A second I record would start another table, whose columns are others.
    for number, line in enumerate(lines[2:-1], start=3):
        if not line.startswith("D,"):
            raise SchemaDrift(
                f"{raw.name}, line {number}: expected a D record, found "
                f"{line[:_SHOWN_CHARACTERS]!r}; fetch the file again"
            )

    rows = tables.read_rows(
        "\n".join(lines[2:-1]), raw.name, [*_FRAME_COLUMNS, *published], first_line=3
    )
    return rows.select(*columns, tables.LINE)


def read_created(raw: RawFile) -> datetime:
    """Return when AEMO made a report: date and time in its first record, NEM time, as UTC."""
    first_line = read_text(raw.content, raw.name).partition("\n")[0]
    stamp = " ".join(tables.split_cells(first_line)[5:7])
    try:
        created = datetime.strptime(stamp, STAMP_FORMATS[0])  # noqa: DTZ007 - NEM time, as published
        return (created - nem.NEM_OFFSET).replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise SchemaDrift(
            f"{raw.name}, line 1: {stamp[:_SHOWN_CHARACTERS]!r} is not a date and time of "
            "creation; fetch the file again, or extend the parser if the C record changed"
        ) from error
