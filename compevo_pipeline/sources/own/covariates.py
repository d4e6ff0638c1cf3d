"""A user's daily values beside the series, such as the weather, as ``COVARIATE_SCHEMA``.

What belongs here: days, the mean, lowest and highest of finer rows, and when each value could be
known. What does not: cells (``own.numbers``, ``own.stamps``).
"""

from collections.abc import Sequence

import polars as pl

from compevo_core.data.schemas import COVARIATE_SCHEMA
from compevo_core.errors import DataError
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.own.clocks import find_standard_offset
from compevo_pipeline.sources.own.declaration import DAY, CovariateKeys, Declaration
from compevo_pipeline.sources.own.numbers import read_numbers
from compevo_pipeline.sources.own.spec import make_label
from compevo_pipeline.sources.own.stamps import read_stamps, to_wall_clock
from compevo_pipeline.sources.own.table import read_columns

_DAY = "_day"


def parse(
    raws: Sequence[RawFile],
    declaration: Declaration,
    keys: CovariateKeys,
    entities: Sequence[str],
) -> pl.DataFrame:
    """Parse the table of daily values.

    A value of a day is known when the day is over on the clock without daylight saving, or when it
    begins where the declaration says that the table holds plans or forecasts.

    Args:
        raws: the one file.
        declaration: of the data set, for its clock.
        keys: how the table is read.
        entities: the series that a table without a column of series is for.

    Raises:
        DataError: a cell that is no stamp or number, or two rows of one day and series that are
            days alone.
    """
    raw = raws[0]
    zone = declaration.series.time_zone
    table = read_columns(raw.content, raw.name, [keys.time, *keys.values, *filter(None, [keys.id])])
    stamps, found = read_stamps(
        table,
        raw.name,
        keys.time,
        zone=zone,
        time_format=keys.time_format,
        by=keys.id,
        # Which of two equal hours a value is in makes no other day.
        repeated_hour="first",
    )
    days = to_wall_clock(stamps, zone).dt.date()
    names = pl.col(keys.id).map_elements(make_label, pl.String) if keys.id else pl.lit("")
    rows = table.with_columns(days.alias(_DAY), names.alias("entity"))
    if found.are_days:
        _refuse_second_rows(rows, raw.name, keys)

    frames = []
    for column in keys.values:
        values, _ = read_numbers(table, raw.name, column, keys.decimal)
        frames += _summarise_days(
            rows.with_columns(values.alias("value")), column, are_days=found.are_days
        )
    frame = pl.concat(frames)
    if not keys.id:
        frame = frame.drop("entity").join(
            pl.DataFrame({"entity": list(entities)}, schema={"entity": pl.String}), how="cross"
        )

    midnight = pl.col("valid_date").cast(pl.Datetime("us")) - find_standard_offset(zone)
    is_over = DAY if keys.known == "after" else DAY * 0
    # Known before the origin: a plan that is out at midnight sharp was out the instant before.
    moment = midnight + is_over - pl.duration(microseconds=1)
    return frame.with_columns(
        moment.dt.replace_time_zone("UTC").alias("available_at"), pl.lit(raw.label).alias("source")
    ).select([pl.col(name).cast(kind) for name, kind in COVARIATE_SCHEMA.items()])


def _refuse_second_rows(rows: pl.DataFrame, name: str, keys: CovariateKeys) -> None:
    twice = rows.filter(pl.struct(_DAY, "entity").is_duplicated())
    if twice.height:
        row = twice.row(1, named=True)
        raise DataError(
            f"{name}, row {row['line']}, column {keys.time!r}: {row[keys.time]!r} comes twice; "
            "keep one row a day, or name the column of series as covariates.id"
        )


def _summarise_days(rows: pl.DataFrame, column: str, *, are_days: bool) -> list[pl.DataFrame]:
    """Return the values of each day; of finer rows their mean, lowest and highest."""
    label = make_label(column)
    known = rows.filter(pl.col("value").is_not_null())
    value = pl.col("value")
    by_name = {label: value.first()}
    if not are_days:
        by_name = {
            f"{label}_mean": value.mean(),
            f"{label}_min": value.min(),
            f"{label}_max": value.max(),
        }
    return [
        known.group_by("entity", _DAY, maintain_order=True)
        .agg(summary.alias("value"))
        .rename({_DAY: "valid_date"})
        .with_columns(pl.lit(name).alias("name"))
        .select("entity", "name", "valid_date", "value")
        for name, summary in by_name.items()
    ]
