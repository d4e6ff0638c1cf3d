"""Column names and types of every frame that passes between the pipeline and the core.

What belongs here: the frame contracts and the check of columns and types. What does not: rules on
values (``data.series.validate_series``, ``data.news.validate_articles``) and parsing, which the
sources do.

Instants are UTC with microseconds. A column ``available_at`` says when the public could first know
the row; nothing enters a window whose origin is not later.
"""

from collections.abc import Mapping

import polars as pl

from compevo_core.errors import DataError
from compevo_core.runtime.files import read_packaged

UTC_US = pl.Datetime("us", "UTC")

# One row per interval of a series. ``start_utc`` is the start, even if the source stamps the end.
SERIES_SCHEMA: dict[str, pl.DataType] = {
    "series_id": pl.String(),
    "variable": pl.String(),
    "start_utc": UTC_US,
    "value": pl.Float64(),  # null where ``flag`` says missing or nulled
    "unit": pl.String(),
    "flag": pl.String(),  # matches ``FLAG_PATTERN``
    "source": pl.String(),  # "<mode>:<publisher>/<file>"
    "fetched_at": UTC_US,
}
# One row per day and name, for example the maximum temperature in kelvin.
COVARIATE_SCHEMA: dict[str, pl.DataType] = {
    "entity": pl.String(),
    "name": pl.String(),
    "valid_date": pl.Date(),
    "value": pl.Float64(),
    "available_at": UTC_US,
    "source": pl.String(),
}
# One row per target interval and name, for example the forecast power of rooftop solar.
STEP_COVARIATE_SCHEMA: dict[str, pl.DataType] = {
    "entity": pl.String(),
    "name": pl.String(),
    "start_utc": UTC_US,
    "value": pl.Float64(),
    "available_at": UTC_US,
    "source": pl.String(),
}
# One row per target interval and quantile of a forecast that somebody else published.
PUBLISHED_SCHEMA: dict[str, pl.DataType] = {
    "entity": pl.String(),
    "start_utc": UTC_US,
    "value": pl.Float64(),
    "available_at": UTC_US,
    "quantile": pl.Float64(),  # 0.5 is AEMO's POE50
    "source": pl.String(),
}
# One row per record of a published benchmark, by region and predicted day.
BENCHMARK_SCHEMA: dict[str, pl.DataType] = {
    "record": pl.Int64(),
    "entity": pl.String(),
    "target_date": pl.Date(),
    "x": pl.List(pl.Float64),  # 48 inputs, MW
    "y": pl.List(pl.Float64),  # 48 targets, MW
    "source": pl.String(),
}
# One row per article.
ARTICLE_SCHEMA: dict[str, pl.DataType] = {
    "article_id": pl.String(),  # ``data.news.derive_article_id`` of the address
    "url": pl.String(),
    "title": pl.String(),
    "body": pl.String(),
    "domain": pl.String(),
    "language": pl.String(),
    "country": pl.String(),
    "published_at": UTC_US,
    "seen_at": UTC_US,  # when a crawler first met it
    "available_at": UTC_US,  # the later of the two
    "fetched_at": UTC_US,
    "source": pl.String(),
}

COLUMN_MEANINGS: Mapping[str, str] = read_packaged(__file__, "columns")
"""Meaning of every column above, for the documentation and the UI."""

FLAG_PATTERN = r"^(observed|missing|filled:.+|nulled:.+)$"


def validate_frame(
    frame: pl.DataFrame, schema: Mapping[str, pl.DataType], name: str
) -> pl.DataFrame:
    """Return ``frame`` with exactly the columns of ``schema``, in its order; others are dropped.

    ``name`` is what messages call the frame. DataError if a column is missing or has another type;
    nothing is cast here.
    """
    missing = [column for column in schema if column not in frame.columns]
    if missing:
        raise DataError(
            f"{name} lacks column(s) {', '.join(missing)}; parse it again with the current parser"
        )

    mismatches = [
        f"{column} is {frame.schema[column]}, not {dtype}"
        for column, dtype in schema.items()
        if frame.schema[column] != dtype
    ]
    if mismatches:
        raise DataError(f"{name}: {'; '.join(mismatches)}; cast in the parser")

    return frame.select(list(schema))
