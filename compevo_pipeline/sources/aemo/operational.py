"""AEMO operational demand: actuals, the forecast in three quantiles, that of rooftop solar power.

What belongs here: which files hold it, and their rows: collected day files (one JSON a trading day)
and the publisher's own reports. What does not: reading the JSON with its checks
(``aemo.operational_day``), the reports (``aemo.operational_report``).

Operational demand is another measure than TOTALDEMAND and HISTDEMAND.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import PUBLISHED_SCHEMA, SERIES_SCHEMA, STEP_COVARIATE_SCHEMA
from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.aemo.operational_day import (
    ACTUAL,
    MEDIAN_FIELD,
    QUANTILES,
    ROOFTOP_PV,
    read_day,
)
from compevo_pipeline.sources.aemo.operational_report import (
    ACTUAL_REPORT,
    FORECAST_REPORT,
    REPORTS,
    ROOFTOP_PV_COVARIATE,
    ROOFTOP_REPORT,
    is_report,
    parse_actual,
    parse_forecast,
    parse_rooftop_forecast,
)
from compevo_pipeline.sources.aemo.sample import OPERATIONAL_SPANS, make_operational_days
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    read_downloads,
)
from compevo_pipeline.sources.common.nem import DEMAND_UNIT, DEMAND_VARIABLE
from compevo_pipeline.sources.common.sample_world import SampleWorld
from compevo_pipeline.sources.common.series_frame import build_series_frame, flag_missing

SOURCE = "aemo_operational_demand"
FORECAST_VARIABLE = "demand_forecast_mw"
FOLDER = "aemo_operational_demand"
FILES = ("*.tar.gz", *(f"{report}_*" for report in REPORTS))
"""Bundles of day files, and AEMO's reports as downloaded: one zip a half-hour, or zips of zips."""


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
            raise SourceAbsent("live mode fetches AEMO's files (aemo.live); there are none to read")


def read_archive(root: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield every day inside the monthly bundles, and every report, however it is packed."""
    yield from read_downloads(root, FOLDER, FILES, source=SOURCE, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse one file into ``SERIES_SCHEMA``: actuals, and the forecasts of a day file.

    A null actual becomes a row flagged ``missing``. A report of forecasts has no row: one interval
    has many issues, which :func:`parse_published` keeps apart.

    Returns:
        Rows of ``AEMO/OPERATIONAL_DEMAND/<region>`` and ``AEMO/POE10|POE50|POE90/<region>``.

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    if is_report(raw, ACTUAL_REPORT):
        return parse_actual(raw)
    if any(is_report(raw, report) for report in REPORTS):
        return pl.DataFrame(schema=SERIES_SCHEMA)

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
    """Parse the forecasts of one file into ``PUBLISHED_SCHEMA``; other reports have none.

    ``available_at`` is when AEMO issued them.

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    if is_report(raw, FORECAST_REPORT):
        return parse_forecast(raw)
    if any(is_report(raw, report) for report in REPORTS):
        return pl.DataFrame(schema=PUBLISHED_SCHEMA)

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
    """Parse a file's forecast of rooftop solar power into ``STEP_COVARIATE_SCHEMA``.

    Raises:
        SchemaDrift: not the known structure; names the file, the path inside it and the remedy.
    """
    if is_report(raw, ROOFTOP_REPORT):
        return parse_rooftop_forecast(raw)
    if any(is_report(raw, report) for report in REPORTS):
        return pl.DataFrame(schema=STEP_COVARIATE_SCHEMA)

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
