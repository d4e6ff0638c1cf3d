"""Scores of issued forecasts by day, once the truth of the day is known.

What belongs here: which issued days can be scored, their rows, what persistence would have said,
and how a revised truth is noted. What does not: issuing (``compevo_core.issued``), metrics
(``evaluation.metrics``, ``evaluation.quantile_scores``), skill over many days
(``evaluation.skill``).

A row says how good one method was for one series on one day, known until one instant. Scoring again
changes nothing; where the truth was revised, the scores are new, ``revision`` counts it, and
``first_mae`` keeps what was first scored.

Shapes: H horizon (48), Q levels of quantiles.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.cutting import GriddedSeries, cut_targets, locate_origin
from compevo_core.data.schemas import UTC_US
from compevo_core.data.view import HORIZON, count_season_steps
from compevo_core.evaluation.metrics import score
from compevo_core.evaluation.quantile_scores import score_quantiles
from compevo_core.issued import BASE, FACTS_FILE, PUBLISHED, IssuedForecast, read_issued
from compevo_core.quantiles import LEVELS, drop_crossing

MIDNIGHT, ISSUE_TIME = "midnight", "issue-time"
PERSISTENCE, WEEKLY = "persistence", "weekly"
_WEEK = timedelta(days=7)

KEY = ("day", "entity", "known_to", "method")
"""Columns that identify a row."""

SCORED_SCHEMA: dict[str, pl.DataType] = {
    "day": pl.Date(),  # target day on the market's clock
    "entity": pl.String(),
    "known_to": pl.String(),  # midnight, or the issue time of the publisher's own forecast
    "method": pl.String(),
    "unit": pl.String(),
    "n_points": pl.Int64(),  # observed steps of the day
    "mae": pl.Float64(),
    "rmse": pl.Float64(),
    "pinball_10_50_90": pl.Float64(),  # null where a method has no such quantiles
    "coverage_80": pl.Float64(),
    "revision": pl.Int64(),  # how often a revised truth has changed the scores
    "first_mae": pl.Float64(),  # as it was scored first
    "truth_hash": pl.String(),  # of the day, and of what persistence repeats
    "forecast_hash": pl.String(),
    "artifact_hash": pl.String(),
    "information_until": UTC_US,
    "issued_at": UTC_US,
    "scored_at": UTC_US,
}
SCORES = ("n_points", "mae", "rmse", "pinball_10_50_90", "coverage_80")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """Rows of every issued day whose truth is known.

    Attributes:
        rows: of ``SCORED_SCHEMA``, in the order of ``KEY``.
        added: rows of days that were not scored before.
        revised: rows whose scores were changed by a revised truth.
        waiting: issued forecasts of one series whose day is not over in the stored data.
    """

    rows: pl.DataFrame
    added: int
    revised: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _DayTruth:
    """The truth (H,) of one series on one day, and what repeating the past would have said."""

    truth_H: FloatArray
    repeated: Mapping[str, FloatArray]

    @property
    def hash(self) -> str:
        parts = (self.truth_H, *self.repeated.values())
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def score_issued(
    root: Path,
    series_by_id: Mapping[str, GriddedSeries],
    before: pl.DataFrame | None,
    *,
    scored_at: datetime,
) -> ScoredRows:
    """Score every issued forecast of a data set whose day is over in the stored series.

    Args:
        root: folder of the data set's issued forecasts.
        series_by_id: the stored truth; a day counts once the series that was forecast reaches to
            its end. Another measure of the same entity is no truth of it.
        before: what was scored before; None where nothing was.
        scored_at: now, for rows that are new or changed.

    Raises:
        CheckpointMismatch: an issued forecast was altered since.
    """
    stored = pl.DataFrame(schema=SCORED_SCHEMA) if before is None else before
    known_hashes = _index_hashes(stored)
    made: list[dict[str, Any]] = []
    waiting = 0

    for folder in sorted(path.parent for path in root.glob(f"*/known-*/{FACTS_FILE}")):
        # Facts alone are read first: most days were scored before, and stay as they are.
        facts = json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))
        forecast: IssuedForecast | None = None
        for entity, series_id in map(_name_series, facts["series"]):
            truth = _find_truth(series_by_id.get(series_id), facts)
            if truth is None:
                waiting += 1
                continue
            key = (_name_day(facts), entity, name_known_to(facts))
            if known_hashes.get(key) == (truth.hash, facts["hash"]):
                continue
            forecast = forecast or read_issued(folder)
            made += _score_day(forecast, entity, truth, scored_at)

    rows, added, revised = _merge(stored, pl.DataFrame(made, schema=SCORED_SCHEMA))
    return ScoredRows(rows=rows, added=added, revised=revised, waiting=waiting)


def _index_hashes(stored: pl.DataFrame) -> dict[tuple[date, str, str], tuple[str, str]]:
    columns = stored.select("day", "entity", "known_to", "truth_hash", "forecast_hash")
    return {
        (day, entity, known_to): (truth, forecast)
        for day, entity, known_to, truth, forecast in columns.iter_rows()
    }


def _name_series(one: Mapping[str, Any]) -> tuple[str, str]:
    """Return the entity and the id of a series of an issued forecast."""
    # The data set, the series and the origin, as views are named.
    return str(one["entity"]), str(one["window_id"]).split("|")[1]


def _name_day(facts: Mapping[str, Any]) -> date:
    origin = datetime.fromisoformat(facts["origin_utc"])
    return (origin + timedelta(minutes=int(facts["clock_minutes"]))).date()


def name_known_to(facts: Mapping[str, Any]) -> str:
    """Return until when an issued forecast knew: midnight, or the publisher's time of issue."""
    return MIDNIGHT if facts["information_until"] == facts["origin_utc"] else ISSUE_TIME


def _find_truth(series: GriddedSeries | None, facts: Mapping[str, Any]) -> _DayTruth | None:
    """Return the truth of a day; None where the day is not over, or nothing of it was measured."""
    if series is None:
        return None
    origin_utc = datetime.fromisoformat(facts["origin_utc"])
    position = locate_origin(series, origin_utc)
    truth_H = cut_targets(series, position)
    if position < 0 or truth_H.size < HORIZON or np.isnan(truth_H).all():
        return None

    until = datetime.fromisoformat(facts["information_until"])
    known_end = position - (origin_utc - until) // series.step
    season = count_season_steps(series.step)
    repeated = {
        PERSISTENCE: repeat_known(series, position, known_end, season),
        WEEKLY: repeat_known(series, position, known_end, max(1, _WEEK // series.step)),
    }
    complete = {name: values for name, values in repeated.items() if np.isfinite(values).all()}
    return _DayTruth(truth_H=truth_H, repeated=complete)


def repeat_known(
    series: GriddedSeries, position: int, known_end: int, period_steps: int
) -> FloatArray:
    """Return the newest known values (H,) that lie whole periods before the target steps.

    Args:
        series: the stored series; gaps are filled from the past.
        position: first target step.
        known_end: first step that was not known when the forecast was made.
        period_steps: a season for persistence, a week for weekly persistence.
    """
    targets_H = np.arange(position, position + HORIZON)
    periods_H = (targets_H - known_end) // period_steps + 1
    sources_H = targets_H - period_steps * np.maximum(periods_H, 1)
    values_H = series.filled[np.maximum(sources_H, 0)]
    return np.where(sources_H >= 0, values_H, np.nan)


def _score_day(
    forecast: IssuedForecast, entity: str, truth: _DayTruth, scored_at: datetime
) -> Iterator[dict[str, Any]]:
    """Yield a row for every method of an issued forecast, and for repeating the past."""
    facts = forecast.facts
    shared = {
        "day": _name_day(facts),
        "entity": entity,
        "known_to": name_known_to(facts),
        "unit": forecast.unit,
        "revision": 0,
        "truth_hash": truth.hash,
        "forecast_hash": forecast.hash,
        "artifact_hash": str(facts["artifact_hash"]),
        "information_until": datetime.fromisoformat(facts["information_until"]),
        "issued_at": datetime.fromisoformat(facts["issued_at"]),
        "scored_at": scored_at,
    }
    by_level = {level: forecast.select_points(entity, level) for level in LEVELS}
    points = {**forecast.select_points(entity), **truth.repeated}
    y_1H = truth.truth_H[None]

    for method, values_H in points.items():
        # A prior that one agent corrects is no forecast that anybody would use by itself.
        if method.startswith(BASE):
            continue
        errors = score(y_1H, values_H[None])
        unknown_H = np.full(HORIZON, np.nan)
        quantiles_QH = np.stack([by_level[level].get(method, unknown_H) for level in LEVELS])
        quantiles_1QH = quantiles_QH[None]
        if method == PUBLISHED:
            quantiles_1QH = drop_crossing(quantiles_1QH)
        bands = score_quantiles(y_1H, quantiles_1QH)
        yield shared | {
            "method": method,
            "n_points": errors.n_points,
            "mae": errors.mae,
            "rmse": errors.rmse,
            "pinball_10_50_90": bands["pinball_10_50_90"],
            "coverage_80": bands["coverage_80"],
            "first_mae": errors.mae,
        }


def _merge(stored: pl.DataFrame, made: pl.DataFrame) -> tuple[pl.DataFrame, int, int]:
    """Put new rows in the place of stored ones; return all rows, how many are new, and revised."""
    earlier = stored.select(*KEY, *SCORES, "revision", "first_mae", "scored_at")
    pairs = made.join(earlier, on=list(KEY), how="left", suffix="_before")
    is_new = pl.col("revision_before").is_null()
    is_revised = ~is_new & pl.any_horizontal(
        pl.col(name).ne_missing(pl.col(f"{name}_before")) for name in SCORES
    )
    # What persistence repeats may be revised alone: the other methods of the day stay as they are.
    is_kept = ~is_new & ~is_revised
    noted = pairs.with_columns(
        pl.when(is_new).then(0).otherwise(pl.col("revision_before") + is_revised).alias("revision"),
        pl.coalesce("first_mae_before", "first_mae").alias("first_mae"),
        pl.when(is_kept).then("scored_at_before").otherwise("scored_at").alias("scored_at"),
    )
    rows = pl.concat(
        [
            stored.join(made, on=list(KEY), how="anti"),
            noted.select(pl.col(name).cast(kind) for name, kind in SCORED_SCHEMA.items()),
        ]
    )
    counts = pairs.select(is_new.sum().alias("new"), is_revised.sum().alias("revised")).row(0)
    return rows.sort(KEY), int(counts[0]), int(counts[1])
