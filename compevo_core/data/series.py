"""Series on a regular grid: schema, gaps, faults and causal fill (design 3).

What belongs here: the frame contracts of series, covariates, published forecasts (``quantile`` 0.5 is POE50) and
published benchmark records (48 values in ``x``, 48 in ``y``, by region and predicted date), and what may be done to a
series before windows are cut. What does not: parsing (the pipeline's sources), windows, features.
``start_utc`` is the start of the interval, whatever the source stamps. Nothing is filled from the future, and
nothing is filled or nulled without a flag.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import polars as pl

from compevo_core.data.faults import KNOWN_FAULTS, Fault, apply_known_faults
from compevo_core.data.scaling import Scaler
from compevo_core.errors import DataError

__all__ = [
    "BENCHMARK_SCHEMA",
    "COVARIATE_SCHEMA",
    "KNOWN_FAULTS",
    "PUBLISHED_SCHEMA",
    "SERIES_SCHEMA",
    "UTC_US",
    "Fault",
    "GapReport",
    "Scaler",
    "apply_known_faults",
    "causal_fill",
    "is_synthetic",
    "regularise",
    "to_step",
    "validate_frame",
    "validate_series",
]

UTC_US = pl.Datetime("us", "UTC")

SERIES_SCHEMA: dict[str, pl.DataType] = {
    "series_id": pl.String(),
    "variable": pl.String(),
    "start_utc": UTC_US,
    "value": pl.Float64(),
    "unit": pl.String(),
    "flag": pl.String(),
    "source": pl.String(),
    "fetched_at": UTC_US,
}
COVARIATE_SCHEMA: dict[str, pl.DataType] = {
    "entity": pl.String(),
    "name": pl.String(),
    "valid_date": pl.Date(),
    "value": pl.Float64(),
    "available_at": UTC_US,
    "source": pl.String(),
}
PUBLISHED_SCHEMA: dict[str, pl.DataType] = {
    "entity": pl.String(),
    "start_utc": UTC_US,
    "value": pl.Float64(),
    "available_at": UTC_US,
    "quantile": pl.Float64(),
    "source": pl.String(),
}
BENCHMARK_SCHEMA: dict[str, pl.DataType] = {
    "record": pl.Int64(),
    "entity": pl.String(),
    "target_date": pl.Date(),
    "x": pl.List(pl.Float64),
    "y": pl.List(pl.Float64),
    "source": pl.String(),
}
FLAG_PATTERN = r"^(observed|missing|filled:.+|nulled:.+)$"
SYNTHETIC_PREFIX = "sample:"


@dataclass(frozen=True, slots=True, kw_only=True)
class GapReport:
    """What putting a series on its full grid found: counts by flag, and the longest run without a value."""

    rows: int
    missing: int
    nulled: int
    filled: int
    longest_gap_steps: int

    def as_dict(self) -> dict[str, int]:
        """Counts for a manifest or for metadata."""
        return {
            name: getattr(self, name)
            for name in ("rows", "missing", "nulled", "filled", "longest_gap_steps")
        }


def validate_frame(
    frame: pl.DataFrame, schema: Mapping[str, pl.DataType], what: str
) -> pl.DataFrame:
    """Return ``frame`` with the columns of ``schema`` in its order; refuse missing columns and other types."""
    absent = [name for name in schema if name not in frame.columns]
    if absent:
        raise DataError(
            f"{what} lacks column(s) {', '.join(absent)}; parse it again with the current parser"
        )
    wrong = [
        f"{n} is {frame.schema[n]}, not {t}" for n, t in schema.items() if frame.schema[n] != t
    ]
    if wrong:
        raise DataError(f"{what}: {'; '.join(wrong)}; cast in the parser")
    return frame.select(list(schema))


def validate_series(frame: pl.DataFrame) -> pl.DataFrame:
    """Check a series frame against ``SERIES_SCHEMA`` and its rules; return it sorted by series and time.

    Raises:
        DataError: wrong columns or types, unknown flags, null keys, duplicates, non-finite values, or a flag that
            contradicts the value (a value where the flag says missing or nulled, none where it says observed).
    """
    frame = validate_frame(frame, SERIES_SCHEMA, "series frame")
    keys = ["series_id", "variable", "start_utc"]
    for name in [*keys, "unit", "flag", "source", "fetched_at"]:
        if frame[name].null_count():
            raise DataError(
                f"series frame has {frame[name].null_count()} null(s) in {name}; the parser must set it"
            )
    _refuse(frame, ~pl.col("flag").str.contains(FLAG_PATTERN), "unknown flag; see FLAG_PATTERN")
    _refuse(
        frame,
        ~pl.col("value").fill_null(0.0).is_finite(),
        "NaN or infinite value; use null with a flag",
    )
    has_value = pl.col("value").is_not_null()
    says_value = (pl.col("flag") == "observed") | pl.col("flag").str.starts_with("filled:")
    _refuse(frame, has_value != says_value, "flag and value contradict each other")
    doubled = frame.filter(frame.select(keys).is_duplicated())
    if doubled.height:
        row = doubled.row(0, named=True)
        raise DataError(
            f"{doubled.height} rows share a key, first {row['series_id']} {row['variable']} at {row['start_utc']}; "
            "keep one row for each (series_id, variable, start_utc)"
        )
    return frame.sort(keys)


def _refuse(frame: pl.DataFrame, bad: pl.Expr, what: str) -> None:
    rows = frame.filter(bad)
    if rows.height:
        row = rows.row(0, named=True)
        raise DataError(
            f"series frame: {rows.height} row(s) with {what}; first {row['series_id']} at {row['start_utc']}, "
            f"value {row['value']}, flag {row['flag']}"
        )


def is_synthetic(frame: pl.DataFrame) -> bool:
    """Whether any row came from the sample mode of a source."""
    return bool(frame["source"].str.starts_with(SYNTHETIC_PREFIX).any())


def to_step(frame: pl.DataFrame, step: timedelta) -> pl.DataFrame:
    """Average a finer regular grid to ``step``; an interval counts only if all its parts are there.

    Interval starts are floored, so six 5-minute rows 00:00..00:25 make the half-hour from 00:00 (AEMO's own rule).
    A series whose rows already lie ``step`` or more apart is returned as it is. An incomplete interval is dropped
    here and comes back as ``missing`` from :func:`regularise`.
    """
    if frame.height < 2:
        return frame
    frame = frame.sort("start_utc")
    finest = frame["start_utc"].diff().drop_nulls().min()
    if not isinstance(finest, timedelta) or finest >= step:
        return frame
    if step % finest:
        raise DataError(
            f"rows {finest} apart do not divide into steps of {step}; resample in the parser"
        )
    stamp = pl.col("start_utc")
    alone = ((stamp - stamp.shift(1)).fill_null(step) >= step) & (
        (stamp.shift(-1) - stamp).fill_null(step) >= step
    )
    own = frame.with_columns(alone.alias("alone"), stamp.dt.truncate(step).alias("bin"))
    coarse = own.group_by("bin", maintain_order=True).agg(
        pl.len().alias("n"),
        pl.col("value").null_count().alias("nulls"),
        pl.col("value").mean(),
        pl.col("alone").first(),
        pl.col("series_id", "variable", "unit", "flag", "source", "fetched_at").first(),
    )
    whole = (pl.col("n") == step // finest) & (pl.col("nulls") == 0)
    return (
        coarse.filter(whole | pl.col("alone"))
        .rename({"bin": "start_utc"})
        .select(list(SERIES_SCHEMA))
    )


def regularise(frame: pl.DataFrame, step: timedelta) -> tuple[pl.DataFrame, GapReport]:
    """Put one series on the full grid from its first to its last row; absent rows are flagged ``missing``.

    Raises:
        DataError: more than one series, no row, or a stamp off the grid.
    """
    frame = validate_series(frame)
    if frame.height == 0:
        raise DataError("cannot regularise an empty series; read the source first")
    if frame.select("series_id", "variable").n_unique() != 1:
        raise DataError("regularise takes one series at a time; filter by series_id and variable")
    first, last = frame["start_utc"][0], frame["start_utc"][-1]
    assert isinstance(first, datetime) and isinstance(last, datetime)
    grid = pl.DataFrame(
        {
            "start_utc": pl.datetime_range(
                first, last, step, time_unit="us", time_zone="UTC", eager=True
            )
        }
    )
    off = frame.join(grid, on="start_utc", how="anti")
    if off.height:
        raise DataError(
            f"{off.height} stamp(s) of {frame['series_id'][0]} are off the {step} grid that starts {first}, "
            f"first {off['start_utc'][0]}; resample with to_step or correct the parser"
        )
    full = grid.join(frame, on="start_utc", how="left").with_columns(
        pl.col("flag").fill_null("missing"),
        *(
            pl.col(n).fill_null(strategy="forward")
            for n in ("series_id", "variable", "unit", "source", "fetched_at")
        ),
    )
    full = full.select(list(SERIES_SCHEMA)).sort("start_utc")
    return full, _gap_report(full)


def _gap_report(full: pl.DataFrame) -> GapReport:
    empty = full["value"].is_null()
    runs = empty.rle().struct.unnest() if full.height else None
    gaps = runs.filter(pl.col("value"))["len"].max() if runs is not None else 0
    return GapReport(
        rows=full.height,
        missing=int((full["flag"] == "missing").sum()),
        nulled=int(full["flag"].str.starts_with("nulled:").sum()),
        filled=int(full["flag"].str.starts_with("filled:").sum()),
        longest_gap_steps=int(gaps) if isinstance(gaps, int) else 0,
    )


def causal_fill(frame: pl.DataFrame, max_steps: int) -> pl.DataFrame:
    """Carry the last value forward over at most ``max_steps`` empty rows of one regular series.

    Filled rows are flagged ``filled:forward``; longer gaps keep their null from the ``max_steps`` + 1st row on.
    Nothing is ever filled from a later row.
    """
    if max_steps < 0:
        raise DataError(f"max_steps is {max_steps}; it must be 0 or more")
    if frame.select("series_id", "variable").n_unique() > 1:
        raise DataError("causal_fill takes one series at a time; filter by series_id and variable")
    if max_steps == 0:
        return frame
    carried = pl.col("value").fill_null(strategy="forward", limit=max_steps)
    return frame.with_columns(
        carried.alias("value"),
        pl.when(pl.col("value").is_null() & carried.is_not_null())
        .then(pl.lit("filled:forward"))
        .otherwise(pl.col("flag"))
        .alias("flag"),
    )
