"""How good a publisher's forecast is by month, series and time of the day, beside every method's.

What belongs here: errors, bias and coverage of sealed forecasts step by step, and their means. What
does not: scores by day and skill (``evaluation.issued_scores``), the page (``report.tomorrow``).

Everything is computed from the sealed records and from the series as they are stored now, so anyone
who has both gets the same table.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.cutting import GriddedSeries, locate_origin
from compevo_core.data.schemas import UTC_US
from compevo_core.evaluation.issued_scores import find_grace, name_known_to
from compevo_core.forecast.issued import BASE, IssuedForecast, list_records, read_chain, read_issued

LOW, HIGH = 0.1, 0.9
"""Quantiles that bound a band of 80 %; of AEMO's forecast POE90 and POE10."""

OPERATOR_SCHEMA: dict[str, pl.DataType] = {
    "month": pl.String(),  # YYYY-MM on the market's clock
    "entity": pl.String(),
    "at": pl.String(),  # start of the step on the market's clock; the date of steps of a day
    "known_to": pl.String(),
    "is_on_time": pl.Boolean(),  # whether it was issued in time, and not filled in later
    "method": pl.String(),
    "unit": pl.String(),
    "n_points": pl.Int64(),
    "mae": pl.Float64(),
    "bias": pl.Float64(),  # mean of forecast minus truth
    "n_banded": pl.Int64(),  # points with a band
    "coverage_80": pl.Float64(),  # null without a band
    "width_80": pl.Float64(),
}
_GROUP = [*list(OPERATOR_SCHEMA)[:7]]


def score_by_step(root: Path, series_by_id: Mapping[str, GriddedSeries]) -> pl.DataFrame:
    """Return the scores of the issued forecasts in a folder, in rows of ``OPERATOR_SCHEMA``.

    Of several issues of a forecast the newest counts. A step without a truth counts nowhere.
    CheckpointMismatch if a record was altered since it was issued.
    """
    chain = read_chain(root)
    newest: dict[tuple[str, str], Path] = {}
    for folder in list_records(root, chain):
        # Later issues have a number behind the name and come after the first.
        newest[folder.parent.name, "-".join(folder.name.split("-")[:2])] = folder
    parts = [_score_steps(read_issued(folder, chain), series_by_id) for folder in newest.values()]
    rows = pl.concat([pl.DataFrame(schema=_STEP_SCHEMA), *parts])

    error, has_band = pl.col("value") - pl.col("truth"), pl.col("low").is_not_null()
    is_inside = (pl.col("low") <= pl.col("truth")) & (pl.col("truth") <= pl.col("high"))
    return (
        rows.group_by(_GROUP)
        .agg(
            n_points=pl.len().cast(pl.Int64),
            mae=error.abs().mean(),
            bias=error.mean(),
            n_banded=has_band.sum().cast(pl.Int64),
            coverage_80=is_inside.mean(),
            width_80=(pl.col("high") - pl.col("low")).mean(),
        )
        .select(list(OPERATOR_SCHEMA))
        .sort(_GROUP)
    )


_STEP_SCHEMA = {name: OPERATOR_SCHEMA[name] for name in _GROUP} | dict.fromkeys(
    ("value", "low", "high", "truth"), pl.Float64()
)


def _score_steps(issued: IssuedForecast, series_by_id: Mapping[str, GriddedSeries]) -> pl.DataFrame:
    """Return value, band and truth of every method at each step whose truth is known."""
    keys = ["entity", "method", "start_utc"]
    rows = issued.rows.filter(~pl.col("method").str.starts_with(BASE))
    low, high = (
        rows.filter(pl.col("quantile") == level).select(*keys, pl.col("value").alias(name))
        for level, name in ((LOW, "low"), (HIGH, "high"))
    )
    band = low.join(high, on=keys).filter(pl.col("low") <= pl.col("high"))
    points = rows.filter(pl.col("quantile").is_null()).join(band, on=keys, how="left")

    starts = issued.starts
    is_within = issued.step < timedelta(days=1)
    local = [start.astimezone(issued.zone) for start in starts]
    clock = pl.DataFrame(
        {
            "start_utc": starts,
            "month": [f"{start:%Y-%m}" for start in local],
            "at": [f"{start:{'%H:%M' if is_within else '%d'}}" for start in local],
        },
        schema_overrides={"start_utc": UTC_US},
    )
    delay = datetime.fromisoformat(issued.facts["issued_at"]) - issued.origin
    return (
        points.join(_read_truth(issued, series_by_id), on=["entity", "start_utc"])
        .join(clock, on="start_utc")
        .with_columns(
            known_to=pl.lit(name_known_to(issued.facts)),
            is_on_time=pl.lit(delay <= find_grace(issued)),
        )
        .select(pl.col(name).cast(kind) for name, kind in _STEP_SCHEMA.items())
    )


def _read_truth(issued: IssuedForecast, series_by_id: Mapping[str, GriddedSeries]) -> pl.DataFrame:
    """Return what was measured at the steps of a forecast, by series."""
    frames = [
        pl.DataFrame(schema={"entity": pl.String(), "start_utc": UTC_US, "truth": pl.Float64()})
    ]

    for facts in issued.facts["series"]:
        # A window id is data set, series and origin.
        grid = series_by_id.get(str(facts["window_id"]).split("|")[1])
        if grid is None:
            continue
        first = locate_origin(grid, issued.starts[0])
        values = grid.observed[first : first + len(issued.starts)] if first >= 0 else np.empty(0)
        known = [
            (str(facts["entity"]), start, float(value))
            for start, value in zip(issued.starts, values, strict=False)
            if np.isfinite(value)
        ]
        frames.append(pl.DataFrame(known, schema=frames[0].schema, orient="row"))

    return pl.concat(frames)
