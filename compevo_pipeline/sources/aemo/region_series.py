"""What the parsers of AEMO's tables share: the region check and the frame of one measure.

What belongs here: rows ``AEMO/<measure>/<region>``. What does not: any file format, facts of the
market (``common.nem``).
"""

import polars as pl

from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.nem import DEMAND_UNIT, DEMAND_VARIABLE, REGIONS
from compevo_pipeline.sources.common.series_frame import OBSERVED, build_series_frame
from compevo_pipeline.sources.common.tables import refuse_rows


def refuse_unknown_regions(table: pl.DataFrame, file_name: str, column: str) -> None:
    """Refuse a table with a region that is not one of the five.

    Raises:
        SchemaDrift: names the line and the region.
    """
    refuse_rows(
        table,
        file_name,
        ~pl.col(column).is_in(REGIONS),
        f"{column} is {{{column}!r}}",
        f"expected one of {', '.join(REGIONS)}; extend nem.REGIONS if the market has a new region",
    )


def build_region_series(
    table: pl.DataFrame,
    raw: RawFile,
    measure: str,
    *,
    region: str,
    start_utc: pl.Expr,
    value: str,
    flag: pl.Expr | str = OBSERVED,
    variable: str = DEMAND_VARIABLE,
    unit: str = DEMAND_UNIT,
) -> pl.DataFrame:
    """Build ``AEMO/<measure>/<region>`` rows of ``SERIES_SCHEMA``.

    Args:
        table: one row an interval and region.
        raw: the file they come from.
        measure: the second part of the series id.
        region: column of regions.
        start_utc: start of the interval.
        value: column of values.
        flag: a flag for all rows, or an expression.
        variable: name of the measured variable.
        unit: its unit.
    """
    # All AEMO ids have this form: storage, windows and checks select series by its prefix.
    return build_series_frame(
        table,
        raw,
        series_id=pl.concat_str(pl.lit(f"AEMO/{measure}/"), pl.col(region)),
        variable=variable,
        start_utc=start_utc,
        value=pl.col(value),
        unit=unit,
        flag=flag,
    )
