"""NEMWeb's reports of operational demand: actuals, the forecast of demand, that of rooftop solar.

What belongs here: the three reports, by the names that AEMO gives their files. What does not: the
framing of a report (``aemo.report``), the collected day files (``aemo.operational_day``), which
report is read where (``aemo.operational``).

A forecast was public when its file was created: the stamp of its first record, NEM time. Each issue
is kept, with the intervals that begin within two days of it; later ones no view of a day can use.

Published at https://nemweb.com.au/Reports/Current/ in ``Operational_Demand/ACTUAL_HH``,
``Operational_Demand/FORECAST_HH`` and ``ROOFTOP_PV/FORECAST``.
"""

from datetime import timedelta

import polars as pl

from compevo_core.data.schemas import PUBLISHED_SCHEMA, STEP_COVARIATE_SCHEMA
from compevo_pipeline.sources.aemo.region_series import build_region_series, refuse_unknown_regions
from compevo_pipeline.sources.aemo.report import STAMP_FORMATS, read_created, read_report
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.nem import HALF_HOUR, interval_start_utc
from compevo_pipeline.sources.common.tables import (
    BLANK,
    LINE,
    refuse_duplicates,
    to_number,
    to_stamp,
)

ACTUAL_REPORT = "PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH"
FORECAST_REPORT = "PUBLIC_FORECAST_OPERATIONAL_DEMAND_HH"
ROOFTOP_REPORT = "PUBLIC_ROOFTOP_PV_FORECAST"
MMSDM_ACTUAL = "DEMANDOPERATIONALACTUAL"
"""MMSDM's monthly table of the actuals, which has the same records."""

REPORTS = (ACTUAL_REPORT, FORECAST_REPORT, ROOFTOP_REPORT)

ROOFTOP_PV_COVARIATE = "rooftop_pv_mw"
LONGEST_LEAD = timedelta(days=2)

_POE = {
    "OPERATIONAL_DEMAND_POE10": 0.9,
    "OPERATIONAL_DEMAND_POE50": 0.5,
    "OPERATIONAL_DEMAND_POE90": 0.1,
}
_ROOFTOP_MEDIAN = "POWERPOE50"
_KEY = ("REGIONID", "INTERVAL_DATETIME")


def is_report(raw: RawFile, report: str) -> bool:
    """Say whether a file is one of a report; AEMO writes names in capitals or not."""
    name = raw.name.upper()
    return name.startswith(report) or (report == ACTUAL_REPORT and MMSDM_ACTUAL in name)


def parse_actual(raw: RawFile) -> pl.DataFrame:
    """Parse a file of actuals into ``SERIES_SCHEMA``.

    Of a reissued interval the row with the latest LASTCHANGED counts. The adjustment and the
    demand-response estimate in the report are not added to the demand.

    Raises:
        SchemaDrift: framing, number, timestamp or region; names file, line and remedy.
    """
    columns = (*_KEY, "OPERATIONAL_DEMAND", "LASTCHANGED")
    table = read_report(raw, ("OPERATIONAL_DEMAND", "ACTUAL"), columns)
    table = to_stamp(table, raw.name, "INTERVAL_DATETIME", STAMP_FORMATS)
    table = to_stamp(table, raw.name, "LASTCHANGED", STAMP_FORMATS)
    table = to_number(table, raw.name, ["OPERATIONAL_DEMAND"])
    refuse_unknown_regions(table, raw.name, "REGIONID")

    # LINE breaks ties: of two rows changed in the same second the later line is the reissue.
    latest = table.sort("LASTCHANGED", LINE).unique(_KEY, keep="last", maintain_order=True)
    return build_region_series(
        latest,
        raw,
        "OPERATIONAL_DEMAND",
        region="REGIONID",
        start_utc=interval_start_utc(pl.col("INTERVAL_DATETIME"), HALF_HOUR),
        value="OPERATIONAL_DEMAND",
    )


def parse_forecast(raw: RawFile) -> pl.DataFrame:
    """Parse one issue of the demand forecast into ``PUBLISHED_SCHEMA``.

    Raises:
        SchemaDrift: framing, number, timestamp, region or duplicate; names file, line and remedy.
    """
    table = _read_issue(raw, ("OPERATIONAL_DEMAND", "FORECAST"), list(_POE))
    quantiles = table.unpivot(
        list(_POE), index=["entity", "start_utc", "available_at", "source"], variable_name="poe"
    )
    rows = quantiles.drop_nulls("value").with_columns(
        pl.col("poe").replace_strict(_POE, return_dtype=pl.Float64).alias("quantile")
    )
    return rows.select(pl.col(name).cast(kind) for name, kind in PUBLISHED_SCHEMA.items())


def parse_rooftop_forecast(raw: RawFile) -> pl.DataFrame:
    """Parse one issue of the forecast of rooftop solar power into ``STEP_COVARIATE_SCHEMA``.

    Raises:
        SchemaDrift: framing, number, timestamp, region or duplicate; names file, line and remedy.
    """
    table = _read_issue(raw, ("ROOFTOP", "FORECAST"), [_ROOFTOP_MEDIAN])
    rows = table.drop_nulls(_ROOFTOP_MEDIAN).with_columns(
        pl.lit(ROOFTOP_PV_COVARIATE).alias("name"), pl.col(_ROOFTOP_MEDIAN).alias("value")
    )
    return rows.select(pl.col(name).cast(kind) for name, kind in STEP_COVARIATE_SCHEMA.items())


def _read_issue(raw: RawFile, table_name: tuple[str, str], values: list[str]) -> pl.DataFrame:
    """Read one issue of a forecast: a row for each region and interval within the longest lead.

    Returns:
        ``values`` as numbers, ``entity``, ``start_utc``, ``available_at`` and ``source``.
    """
    table = read_report(raw, table_name, (*_KEY, *values))
    table = to_stamp(table, raw.name, "INTERVAL_DATETIME", STAMP_FORMATS)
    table = to_number(table, raw.name, values, missing=BLANK)
    refuse_unknown_regions(table, raw.name, "REGIONID")
    refuse_duplicates(table, raw.name, list(_KEY))

    created = read_created(raw)
    rows = table.select(
        *values,
        pl.col("REGIONID").alias("entity"),
        interval_start_utc(pl.col("INTERVAL_DATETIME"), HALF_HOUR).alias("start_utc"),
        pl.lit(created).alias("available_at"),
        pl.lit(raw.label).alias("source"),
    )
    return rows.filter(pl.col("start_utc") < created + LONGEST_LEAD)
