"""From a parsed table to rows of ``compevo_core.data.schemas.SERIES_SCHEMA``.

What belongs here: the last step of every series parser, and the flags that more than one of them
sets. What does not: reading tables (``common.tables``), series ids and units (the source modules).
"""

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_pipeline.sources.common.base import RawFile

OBSERVED = "observed"
MISSING = "missing"


def build_series_frame(
    table: pl.DataFrame,
    raw: RawFile,
    *,
    series_id: pl.Expr,
    variable: pl.Expr | str,
    start_utc: pl.Expr,
    value: pl.Expr,
    unit: pl.Expr | str,
    flag: pl.Expr | str,
) -> pl.DataFrame:
    """Select the columns of ``SERIES_SCHEMA`` from a table.

    Text stands for itself, not for a column. ``source`` and ``fetched_at`` are those of ``raw``.
    """
    # In the order of SERIES_SCHEMA: frames of several files are stacked by position.
    columns = {
        "series_id": series_id,
        "variable": variable,
        "start_utc": start_utc,
        "value": value,
        "unit": unit,
        "flag": flag,
        "source": raw.label,
        "fetched_at": pl.lit(raw.fetched_at),
    }

    return table.select(
        **{name: pl.lit(one) if isinstance(one, str) else one for name, one in columns.items()}
    ).cast(pl.Schema(SERIES_SCHEMA))


def flag_missing(value: pl.Expr) -> pl.Expr:
    """Flag a null as missing and any other value as observed."""
    return pl.when(value.is_null()).then(pl.lit(MISSING)).otherwise(pl.lit(OBSERVED))
