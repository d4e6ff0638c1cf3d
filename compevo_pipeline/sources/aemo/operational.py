"""AEMO operational demand: actuals and the day-ahead forecast in three quantiles.

What belongs here: the collected day files (one JSON a trading day) and the publisher's own
``OPERATIONAL_DEMAND`` report, and the forecast of rooftop solar power that the days also carry.
What does not: reading the JSON with its checks (``aemo.operational_day``).

Operational demand is another measure than TOTALDEMAND and HISTDEMAND.

Published at https://nemweb.com.au/Reports/Current/Operational_Demand/.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import PUBLISHED_SCHEMA, STEP_COVARIATE_SCHEMA
from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.aemo.operational_day import (
    ACTUAL,
    MEDIAN_FIELD,
    QUANTILES,
    ROOFTOP_PV,
    read_day,
)
from compevo_pipeline.sources.aemo.region_series import build_region_series, refuse_unknown_regions
from compevo_pipeline.sources.aemo.report import STAMP_FORMATS, read_report
from compevo_pipeline.sources.aemo.sample import OPERATIONAL_SPANS, make_operational_days
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    find_archive_files,
    wrap_member,
)
from compevo_pipeline.sources.common.nem import (
    DEMAND_UNIT,
    DEMAND_VARIABLE,
    HALF_HOUR,
    interval_start_utc,
)
from compevo_pipeline.sources.common.sample_world import SampleWorld
from compevo_pipeline.sources.common.series_frame import build_series_frame, flag_missing
from compevo_pipeline.sources.common.tables import LINE, to_number, to_stamp
from compevo_pipeline.sources.common.unpack import untar

SOURCE = "aemo_operational_demand"
FORECAST_VARIABLE = "demand_forecast_mw"
ROOFTOP_PV_COVARIATE = "rooftop_pv_mw"
REPORT_TABLE = ("OPERATIONAL_DEMAND", "ACTUAL")
REPORT_COLUMNS = ("REGIONID", "INTERVAL_DATETIME", "OPERATIONAL_DEMAND", "LASTCHANGED")


def read_files(mode: Mode, *, archive: Path | None = None, clock: Clock) -> Iterator[RawFile]:
    """Yield every day's file in a mode, for a data set of this measure alone.

    Raises:
        SourceAbsent: live mode, or an archive without the product's folder.
    """
    match mode:
        case Mode.SAMPLE:
            world = SampleWorld()
            for span in OPERATIONAL_SPANS:
                yield from make_operational_days(world, SOURCE, span)
        case Mode.ARCHIVE:
            yield from read_archive(archive, clock)
        case Mode.LIVE:
            raise SourceAbsent(
                "AEMO's files cannot be fetched in live mode yet; download them into the archive "
                "folder and use archive mode"
            )


def read_archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield every day inside the monthly bundles."""
    for path in find_archive_files(root, "aemo_operational_demand", "*.tar.gz"):
        for member in untar(path.read_bytes(), path.name):
            yield wrap_member(path, path.parents[1], member, source=SOURCE, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse one day of actuals and forecasts into ``SERIES_SCHEMA``.

    A null actual becomes a row flagged ``missing``.

    Returns:
        Rows of ``AEMO/OPERATIONAL_DEMAND/<region>`` and ``AEMO/POE10|POE50|POE90/<region>``.

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    # Actual and forecasts become different series: a forecast never stands in for an actual.
    is_actual = pl.col("field") == ACTUAL
    measure = (
        pl.when(is_actual)
        .then(pl.lit("OPERATIONAL_DEMAND"))
        .otherwise(pl.col("field").str.to_uppercase())
    )
    variable = pl.when(is_actual).then(pl.lit(DEMAND_VARIABLE)).otherwise(pl.lit(FORECAST_VARIABLE))

    return build_series_frame(
        read_day(raw),
        raw,
        series_id=pl.concat_str(pl.lit("AEMO/"), measure, pl.lit("/"), pl.col("region")),
        variable=variable,
        start_utc=pl.col("start_utc"),
        value=pl.col("value"),
        unit=DEMAND_UNIT,
        flag=flag_missing(pl.col("value")),
    )


def parse_published(raw: RawFile) -> pl.DataFrame:
    """Parse one day's forecasts into ``PUBLISHED_SCHEMA``.

    ``available_at`` is when AEMO issued them.

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    forecasts = read_day(raw).filter(pl.col("field") != ACTUAL, pl.col("value").is_not_null())

    rows = forecasts.select(
        pl.col("region").alias("entity"),
        pl.col("start_utc"),
        pl.col("value"),
        pl.col("available_at"),
        pl.col("field").replace_strict(QUANTILES, return_dtype=pl.Float64).alias("quantile"),
        pl.lit(raw.label).alias("source"),
    )
    return rows.select(pl.col(name).cast(kind) for name, kind in PUBLISHED_SCHEMA.items())


def parse_step_covariates(raw: RawFile) -> pl.DataFrame:
    """Parse one day's forecast of rooftop solar power into ``STEP_COVARIATE_SCHEMA``.

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    forecasts = read_day(raw, ROOFTOP_PV, [MEDIAN_FIELD]).filter(pl.col("value").is_not_null())

    rows = forecasts.select(
        pl.col("region").alias("entity"),
        pl.lit(ROOFTOP_PV_COVARIATE).alias("name"),
        pl.col("start_utc"),
        pl.col("value"),
        pl.col("available_at"),
        pl.lit(raw.label).alias("source"),
    )
    return rows.select(pl.col(name).cast(kind) for name, kind in STEP_COVARIATE_SCHEMA.items())


def parse_report(raw: RawFile) -> pl.DataFrame:
    """Parse AEMO's own ``PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH`` report into ``SERIES_SCHEMA``.

    Of a reissued interval the row with the latest LASTCHANGED counts. The adjustment and the
    demand-response estimate in the report are not added to the demand.

    Raises:
        SchemaDrift: framing, number, timestamp or region; names file, line and remedy.
    """
    table = read_report(raw, REPORT_TABLE, REPORT_COLUMNS)
    table = to_stamp(table, raw.name, "INTERVAL_DATETIME", STAMP_FORMATS)
    table = to_stamp(table, raw.name, "LASTCHANGED", STAMP_FORMATS)
    table = to_number(table, raw.name, ["OPERATIONAL_DEMAND"])
    refuse_unknown_regions(table, raw.name, "REGIONID")

    # LINE breaks ties: of two rows changed in the same second the later line is the reissue.
    latest = table.sort("LASTCHANGED", LINE).unique(
        ["REGIONID", "INTERVAL_DATETIME"], keep="last", maintain_order=True
    )
    return build_region_series(
        latest,
        raw,
        "OPERATIONAL_DEMAND",
        region="REGIONID",
        start_utc=interval_start_utc(pl.col("INTERVAL_DATETIME"), HALF_HOUR),
        value="OPERATIONAL_DEMAND",
    )
