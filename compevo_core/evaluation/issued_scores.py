"""Scores of issued forecasts: by day and by step, skill over the last days, alarms of daily use.

What belongs here: which issued days can be scored, their rows, persistence as a reference, how a
revised truth is noted; skill by series and pooled; tests for errors that drift and for a band that
covers too much or too little. What does not: issuing (``forecast.issued``), metrics
(``evaluation.metrics``), what an alarm does (the asset checks).

A row has the scores of one method for one series, day and cutoff, from the sealed record and the
series as stored now. If the truth was revised, the scores are new, ``revision`` counts it, and
``first_mae`` keeps the first score. Skill is 1 - MAE / MAE of the reference, over what both have.

Drift is looked for with a self-starting CUSUM chart (Hawkins 1987, The Statistician 36, 299-315):
each day is compared with the mean and deviation of the days before it, and the sums of Page (1954,
Biometrika 41, 100-115) show when errors have grown.

Shapes: D days, H horizon, Q levels of quantiles.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.cutting import GriddedSeries, locate_origin
from compevo_core.data.quantiles import LEVELS, drop_crossing
from compevo_core.data.schemas import UTC_US
from compevo_core.data.steps import count_steps
from compevo_core.data.view import count_season_steps
from compevo_core.evaluation.metrics import score, score_quantiles
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast import issued
from compevo_core.forecast.explain import BAND_80, find_band

MIDNIGHT, ISSUE_TIME = "midnight", "issue-time"
PERSISTENCE, WEEKLY = "persistence", "weekly"
TRUTH = "truth"
DayTruth = Mapping[str, FloatArray]
"""The truth (H,) of one series on one day, and what repeating the past would have forecast."""

MIDNIGHT_GRACE = timedelta(hours=3)
"""How long after midnight a forecast that knows to midnight is on time; at least one step."""

KEY = ("day", "entity", "known_to", "issue", "method")  # columns that identify a row

SCORED_SCHEMA: dict[str, pl.DataType] = {
    "day": pl.Date(),  # target day on the market's clock
    "entity": pl.String(),
    "known_to": pl.String(),  # midnight, or the issue time of the publisher's own forecast
    "issue": pl.Int64(),  # 1 for the first; a later one supersedes those before it
    "method": pl.String(),
    "is_on_time": pl.Boolean(),  # whether it was issued in time, and not filled in later
    "unit": pl.String(),
    "n_points": pl.Int64(),  # observed steps of the day
    **dict.fromkeys(("mae", "rmse"), pl.Float64()),
    # Null where a method has no such quantiles
    **dict.fromkeys(("pinball_10_50_90", "coverage_80"), pl.Float64()),
    "mean_inside_80": pl.Boolean(),  # whether the day's mean was in its own band; null without one
    "peak_inside_80": pl.Boolean(),  # and the day's highest step; only of the issued forecast
    "revision": pl.Int64(),  # how often a revised truth has changed the scores
    "first_mae": pl.Float64(),  # as it was scored first
    # The first covers the day's truth and what persistence repeats
    **dict.fromkeys(("truth_hash", "forecast_hash", "artifact_hash"), pl.String()),
    **dict.fromkeys(("information_until", "issued_at", "scored_at"), UTC_US),
}
SCORES = (
    "n_points",
    "mae",
    "rmse",
    "pinball_10_50_90",
    "coverage_80",
    "mean_inside_80",
    "peak_inside_80",
)

BEST_MEMBER = "best member"
"""The member with the smallest error on the days of the row itself, known only in hindsight."""

_TIMING = ["known_to", "is_on_time"]
_GROUP = [*_TIMING, "span_days", "entity"]
SKILL_SCHEMA: dict[str, pl.DataType] = {
    "known_to": pl.String(),
    "is_on_time": pl.Boolean(),  # days that were filled in later are a separate group
    "span_days": pl.Int64(),
    **dict.fromkeys(("entity", "reference"), pl.String()),  # a series, or all pooled
    "n_days": pl.Int64(),  # days behind the numbers; fewer than the span where days are missing
    **dict.fromkeys(("mae", "reference_mae", "skill"), pl.Float64()),
    "last_day": pl.Date(),
}

ALLOWANCE = 0.5
"""Half of the shift that the test must find soonest, in standard deviations of a day."""
LIMIT = 11.0
"""A false alarm in about one year in 25, with days as alike as the days of 2025.

See decision 16-daily-use.
"""
LEARNING_DAYS = 14  # days that only make the first mean and deviation

BAND = 0.8
COVERAGE_DAYS = 28
COVERAGE_ERROR = 0.05  # chance of an alarm on a day whose band is right

_LARGEST_SCORE = 4.0  # a single day, even a very bad one, is not a drift


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRows:
    """Rows of every issued day whose truth is known."""

    rows: pl.DataFrame  # of ``SCORED_SCHEMA``, in the order of ``KEY``
    added: int  # rows of days that were not scored before
    revised: int  # rows whose scores were changed by a revised truth
    waiting: int  # issued forecasts of one series whose day is not over in the stored data


def score_issued(
    root: Path,
    series_by_id: Mapping[str, GriddedSeries],
    before: pl.DataFrame | None,
    *,
    scored_at: datetime,
) -> ScoredRows:
    """Score every issued forecast below ``root`` whose day is over in the stored series.

    A day counts once the series that was forecast reaches its end: another measure of the same
    entity is not its truth. Rows that are new or differ from ``before`` get the time
    ``scored_at``. CheckpointMismatch if a forecast was altered since it was issued.
    """
    stored = pl.DataFrame(schema=SCORED_SCHEMA) if before is None else before
    hash_columns = stored.select(*KEY[:4], "truth_hash", "forecast_hash")
    known_hashes = {row[:4]: row[4:] for row in hash_columns.iter_rows()}
    rows: list[dict[str, Any]] = []
    waiting = 0

    chain = issued.read_chain(root)
    for folder in issued.list_records(root, chain):
        # Only facts are read first: most days were scored before, and do not change.
        facts = json.loads((folder / issued.FACTS_FILE).read_text(encoding="utf-8"))
        forecast = issued.IssuedForecast(rows=pl.DataFrame(), facts=facts)
        for series in facts["series"]:
            truth = _find_truth(_find_series(series_by_id, series), facts)
            if truth is None:
                waiting += 1
                continue
            day, entity = forecast.origin.date(), str(series["entity"])
            key = (day, entity, name_known_to(facts), issued.count_issue(folder))
            if known_hashes.get(key) == (_hash_truth(truth), facts["hash"]):
                continue
            if forecast.rows.is_empty():
                forecast = issued.read_issued(folder, chain)
            issue = dict(zip(KEY, key, strict=False)) | {"scored_at": scored_at}
            rows += [issue | row for row in _score_day(forecast, series, truth)]

    merged, added, revised = _merge(stored, pl.DataFrame(rows, schema=SCORED_SCHEMA))
    return ScoredRows(rows=merged, added=added, revised=revised, waiting=waiting)


def name_known_to(facts: Mapping[str, Any]) -> str:
    """Return the cutoff of an issued forecast: midnight, or the publisher's time of issue."""
    return MIDNIGHT if facts["information_until"] == facts["origin_utc"] else ISSUE_TIME


def _find_truth(series: GriddedSeries | None, facts: Mapping[str, Any]) -> DayTruth | None:
    """Return the truth of a day; None if the day is not over, or none of it was measured."""
    truth_H, horizon = _cut_truth(series, facts), int(facts["horizon"])
    if series is None or truth_H.size < horizon or np.isnan(truth_H).all():
        return None

    origin_utc = datetime.fromisoformat(facts["origin_utc"])
    until = datetime.fromisoformat(facts["information_until"])
    position = locate_origin(series, origin_utc)
    known_end = position - count_steps(until, origin_utc, series.step)
    week = max(1, timedelta(days=7) // series.step)
    periods = {PERSISTENCE: count_season_steps(series.step), WEEKLY: week}
    repeated = {
        name: repeat_known(series, position, known_end, period, horizon)
        for name, period in periods.items()
    }
    whole = {name: values for name, values in repeated.items() if np.isfinite(values).all()}
    return {TRUTH: truth_H, **whole}


def _hash_truth(truth: DayTruth) -> str:
    return hashlib.sha256(b"".join(part.tobytes() for part in truth.values())).hexdigest()


def _cut_truth(series: GriddedSeries | None, facts: Mapping[str, Any]) -> FloatArray:
    """Return what was measured at the steps of a forecast, as far as the series reaches."""
    if series is None:
        return np.empty(0)
    position = locate_origin(series, datetime.fromisoformat(facts["origin_utc"]))
    return series.observed[position:][: facts["horizon"]] if position >= 0 else np.empty(0)


def _find_series(
    series_by_id: Mapping[str, GriddedSeries], entry: Mapping[str, Any]
) -> GriddedSeries | None:
    """Return what is stored of a series in facts: a window id is data set, series and origin."""
    return series_by_id.get(str(entry["window_id"]).split("|")[1])


def repeat_known(
    series: GriddedSeries, position: int, known_end: int, period_steps: int, horizon: int
) -> FloatArray:
    """Return the newest known values (H,) that are whole periods before the target steps.

    ``position`` is the first target step, ``known_end`` the first one that was not known when the
    forecast was made; a period is a season, or a week for weekly persistence.
    """
    targets_H = np.arange(position, position + horizon)
    periods_H = (targets_H - known_end) // period_steps + 1
    sources_H = targets_H - period_steps * np.maximum(periods_H, 1)
    # A series may be closed from its last value until the forecast begins: it is carried over.
    values_H = series.filled[np.clip(sources_H, 0, len(series) - 1)]
    return np.where(sources_H >= 0, values_H, np.nan)


def _score_day(
    forecast: issued.IssuedForecast, series: Mapping[str, Any], truth: DayTruth
) -> Iterator[dict[str, Any]]:
    """Yield a row for every method of an issued forecast, and for repeating the past."""
    facts, entity = forecast.facts, str(series["entity"])
    shared = {
        "unit": forecast.unit,
        "revision": 0,
        "truth_hash": _hash_truth(truth),
        "forecast_hash": forecast.hash,
        "artifact_hash": str(facts["artifact_hash"]),
        "information_until": datetime.fromisoformat(facts["information_until"]),
        "issued_at": datetime.fromisoformat(facts["issued_at"]),
        "is_on_time": is_on_time(forecast),
    }
    by_level = {level: forecast.select_points(entity, level) for level in LEVELS}
    truth_H = truth[TRUTH]
    points = forecast.select_points(entity) | {k: v for k, v in truth.items() if k != TRUTH}
    # Whether mean and peak of the day were in their bands; None where either is unknown.
    inside: dict[str, Any] = {}
    for name, value in (("mean", truth_H.mean()), ("peak", truth_H.max())):
        low, high = find_band(series, name) or (np.nan, np.nan)
        is_known = bool(np.isfinite([low, high, value]).all())
        inside[f"{name}_inside_80"] = bool(low <= value <= high) if is_known else None

    for method, values_H in points.items():
        # A prior that one agent corrects is not a forecast for use by itself.
        if method.startswith(issued.BASE):
            continue
        errors = score(truth_H[None], values_H[None])
        unknown_H = np.full(len(truth_H), np.nan)
        quantiles_1QH = np.stack([by_level[q].get(method, unknown_H) for q in LEVELS])[None]
        if method == issued.PUBLISHED:
            quantiles_1QH = drop_crossing(quantiles_1QH)
        bands = score_quantiles(truth_H[None], quantiles_1QH)
        of_method = inside if method == issued.METHOD else dict.fromkeys(inside)
        named = {"method": method, "first_mae": errors.mae}
        yield shared | asdict(errors) | bands | of_method | named


def is_on_time(forecast: issued.IssuedForecast) -> bool:
    """Whether a forecast was issued in time: one that knows to midnight has a period of grace.

    One with an earlier cutoff must be issued before the day begins.
    """
    delay = datetime.fromisoformat(forecast.facts["issued_at"]) - forecast.origin
    knows_to_midnight = name_known_to(forecast.facts) == MIDNIGHT
    return delay <= (max(MIDNIGHT_GRACE, forecast.step) if knows_to_midnight else timedelta(0))


def _merge(stored: pl.DataFrame, scored: pl.DataFrame) -> tuple[pl.DataFrame, int, int]:
    """Put new rows in the place of stored ones; return all rows, how many are new, and revised."""
    earlier = stored.select(*KEY, *SCORES, "revision", "first_mae", "scored_at")
    pairs = scored.join(earlier, on=list(KEY), how="left", suffix="_before")
    is_new = pl.col("revision_before").is_null()
    is_revised = ~is_new & pl.any_horizontal(
        pl.col(name).ne_missing(pl.col(f"{name}_before")) for name in SCORES
    )

    # Values that persistence repeats may be revised: other methods of the day do not change.
    noted = pairs.with_columns(
        revision=pl.col("revision_before").fill_null(0) + is_revised,
        first_mae=pl.coalesce("first_mae_before", "first_mae"),
        scored_at=pl.when(is_new | is_revised).then("scored_at").otherwise("scored_at_before"),
    )

    others = stored.join(scored, on=list(KEY), how="anti")
    replaced = noted.select(pl.col(name).cast(kind) for name, kind in SCORED_SCHEMA.items())
    added, revised = pairs.select(is_new.sum().alias("new"), is_revised.sum()).row(0)
    return pl.concat([others, replaced]).sort(KEY), int(added), int(revised)


def select_standing(rows: pl.DataFrame, *within: str) -> pl.DataFrame:
    """Return the rows of the newest issue of each forecast, among rows that agree ``within``.

    ``rows`` follow ``SCORED_SCHEMA``.
    """
    newest = pl.col("issue").max().over("day", "entity", "known_to", *within)
    return rows.filter(pl.col("issue") == newest)


def measure_skill(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the skill of the forecasts over the last days, against each reference that was scored.

    ``rows`` follow ``SCORED_SCHEMA``, the result ``SKILL_SCHEMA``; a span ends with the last scored
    day of its ``known_to``. Of several issues the newest counts, on time and filled in later apart.
    """
    pairs = _pair_days(select_standing(rows, "is_on_time"))
    ours = pairs.filter(pl.col("reference") == issued.METHOD)
    last_days = ours.group_by(_TIMING).agg(last_day=pl.col("day").max())
    both = pl.concat([pairs, pairs.with_columns(entity=pl.lit(POOLED))])
    recent = (
        both.join(last_days, on=_TIMING)
        .join(pl.DataFrame({"span_days": [7, 28, 365]}), how="cross")
        .filter(pl.col("last_day") - pl.col("day") < pl.duration(days="span_days"))
    )

    # By points: a day with half of its values counts half.
    weight = pl.col("n_points")
    mae, reference_mae = (
        (pl.col(name) * weight).sum() / weight.sum() for name in ("mae", "reference_mae")
    )
    means = recent.group_by(*_GROUP, "reference").agg(
        n_days=pl.col("day").n_unique().cast(pl.Int64),
        mae=mae,
        reference_mae=reference_mae,
        skill=1 - mae / reference_mae,
        last_day=pl.col("last_day").first(),
    )
    # A member that lacks days is not compared with the members that have them.
    best = (
        means.filter(pl.col("reference").str.starts_with(issued.MEMBER))
        .sort("n_days", "reference_mae", "reference", descending=[True, False, False])
        .unique(_GROUP, keep="first", maintain_order=True)
        .with_columns(reference=pl.lit(BEST_MEMBER))
    )
    is_shown = pl.col("reference").is_in([PERSISTENCE, issued.PUBLISHED, issued.EQUAL])
    skill = pl.concat([means.filter(is_shown), best])
    return skill.select(list(SKILL_SCHEMA)).sort(*_TIMING, "span_days", "reference", "entity")


def _pair_days(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the errors of the forecast and of each method on the same days, by its name."""
    keys = [*_TIMING, "day", "entity"]
    errors = rows.filter(pl.col("method") == issued.METHOD).select(*keys, "n_points", "mae")
    others = rows.select(*keys, reference="method", reference_mae="mae")
    return errors.join(others, on=keys).sort(keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """State of the chart after the last day."""

    n_days: int  # days on the chart
    sum: float  # the sum after the last day, in deviations of a day
    since: date | None  # day on which the sum left zero for the last time; None where it is zero
    is_alarm: bool  # whether the sum is above ``LIMIT``


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Share of the last days' truths in the band, and the limits of the share."""

    n_days: int  # days behind it
    share: float | None  # the share; None where no day has a band
    low: float  # smallest share that raises no alarm
    high: float  # largest share that raises no alarm

    @property
    def is_alarm(self) -> bool:
        """Whether the share is outside its limits."""
        return self.share is not None and not self.low <= self.share <= self.high


def find_drift(rows: pl.DataFrame, known_to: str, reference: str) -> Drift:
    """Look for a growth of the forecasts' error relative to a reference on the same days.

    Only the days of the model that issued last are on the chart: another model is another level.
    ``rows`` follow ``SCORED_SCHEMA``; the errors of ``reference`` show how hard a day was.
    """
    rows = select_standing(rows).filter(known_to=known_to)
    ours = rows.filter(method=issued.METHOD)
    newest = ours.sort("day").tail(1)["artifact_hash"]
    same_model = ours.filter(pl.col("artifact_hash").is_in(newest.implode()))
    pairs = _pair_days(rows).filter(reference=reference)
    pairs = pairs.join(same_model.select("day", "entity"), on=["day", "entity"])

    # First for each series: a large one would hide the drift of a small one.
    ratio = (pl.col("mae") / pl.col("reference_mae")).log()
    daily = pairs.group_by("day").agg(ratio.mean().alias("ratio")).sort("day")
    finite = daily.filter(pl.col("ratio").is_finite())
    sums = chart_growth(finite["ratio"].to_numpy())
    last = float(sums[-1]) if sums.size else 0.0
    first = int(np.flatnonzero(sums == 0).max(initial=-1)) + 1
    since = finite["day"][first] if last > 0 else None
    return Drift(n_days=sums.size, sum=last, since=since, is_alarm=last > LIMIT)


def chart_growth(values_D: FloatArray) -> FloatArray:
    """Return the upper sum (D,) of a self-starting CUSUM chart.

    Days with a sum above the limit are out of control: later days are not compared with them.
    """
    from scipy import stats

    sums_D = np.zeros(values_D.size)
    count, mean, squares, total = 0, 0.0, 0.0, 0.0

    for day, value in enumerate(values_D):
        if count >= LEARNING_DAYS and squares > 0:
            scaled = sqrt(count / (count + 1)) * (value - mean) / sqrt(squares / (count - 1))
            # The standard normal score of a value of Student's t.
            chance = float(stats.t.cdf(scaled, count - 1))
            normal = NormalDist().inv_cdf(chance) if 0 < chance < 1 else np.copysign(np.inf, scaled)
            bounded = float(np.clip(normal, -_LARGEST_SCORE, _LARGEST_SCORE))
            total = max(0.0, total + bounded - ALLOWANCE)
            sums_D[day] = total
        if total <= LIMIT:
            # Welford's update of mean and sum of squares.
            count += 1
            step = value - mean
            mean += step / count
            squares += step * (value - mean)
    return sums_D


def measure_coverage(rows: pl.DataFrame, known_to: str) -> Coverage:
    """Return how much of the last days the forecasts' 80 % band covered, and the share's limits.

    Half-hours and series of a day are alike, so a day counts as one trial: the limits belong to a
    binomial share of as many trials as there are days. ``rows`` follow ``SCORED_SCHEMA``.
    """
    from scipy import stats

    ours = select_standing(rows).filter(known_to=known_to, method=issued.METHOD)
    ours = ours.drop_nulls("coverage_80")
    days = ours["day"].unique().sort().tail(COVERAGE_DAYS)
    recent = ours.filter(pl.col("day").is_in(days.implode()))
    if not days.len():
        return Coverage(n_days=0, share=None, low=0.0, high=1.0)

    points = recent["n_points"].to_numpy()
    share = float((recent["coverage_80"].to_numpy() * points).sum() / points.sum())
    low, high = stats.binom.interval(1 - COVERAGE_ERROR, days.len(), BAND)
    return Coverage(
        n_days=days.len(), share=share, low=float(low) / days.len(), high=float(high) / days.len()
    )


#: Scores by step.

OPERATOR_SCHEMA: dict[str, pl.DataType] = {
    "month": pl.String(),  # YYYY-MM on the market's clock
    "entity": pl.String(),
    "at": pl.String(),  # start of the step on the market's clock; the date of steps of a day
    "known_to": pl.String(),
    "is_on_time": pl.Boolean(),  # whether it was issued in time, and not filled in later
    "method": pl.String(),
    "unit": pl.String(),
    "n_points": pl.Int64(),
    **dict.fromkeys(("mae", "bias"), pl.Float64()),  # the bias is the mean of forecast minus truth
    "n_banded": pl.Int64(),  # points with a band
    **dict.fromkeys(("coverage_80", "width_80"), pl.Float64()),  # null without a band
}
_STEP_GROUP = list(OPERATOR_SCHEMA)[:7]


def score_by_step(root: Path, series_by_id: Mapping[str, GriddedSeries]) -> pl.DataFrame:
    """Return the scores of the issued forecasts in a folder, in rows of ``OPERATOR_SCHEMA``.

    Of several issues of a forecast the newest counts. A step without a truth counts nowhere.
    CheckpointMismatch if a record was altered since it was issued.
    """
    chain = issued.read_chain(root)
    newest: dict[tuple[str, str], Path] = {}
    for folder in issued.list_records(root, chain):
        # Later issues have a number behind the name and come after the first.
        newest[folder.parent.name, "-".join(folder.name.split("-")[:2])] = folder
    parts = [
        _list_steps(issued.read_issued(folder, chain), series_by_id) for folder in newest.values()
    ]
    if not parts:
        return pl.DataFrame(schema=OPERATOR_SCHEMA)

    error, has_band = pl.col("value") - pl.col("truth"), pl.col("low").is_not_null()
    is_inside = pl.col("truth").is_between("low", "high")
    return (
        pl.concat(parts)
        .group_by(_STEP_GROUP)
        .agg(
            n_points=pl.len().cast(pl.Int64),
            mae=error.abs().mean(),
            bias=error.mean(),
            n_banded=has_band.sum().cast(pl.Int64),
            coverage_80=is_inside.mean(),
            width_80=(pl.col("high") - pl.col("low")).mean(),
        )
        .select(list(OPERATOR_SCHEMA))
        .sort(_STEP_GROUP)
    )


def _list_steps(
    record: issued.IssuedForecast, series_by_id: Mapping[str, GriddedSeries]
) -> pl.DataFrame:
    """Return value, band and truth of each series and method at the steps whose truth is known."""
    starts = record.rows["start_utc"].unique().sort()
    truths = [
        pl.DataFrame({"start_utc": starts[: truth.size], "truth": truth}).with_columns(
            entity=pl.lit(str(series["entity"]))
        )
        for series in record.facts["series"]
        for truth in [_cut_truth(_find_series(series_by_id, series), record.facts)]
    ]
    line = ["entity", "method", "start_utc"]
    is_shown = pl.col("quantile").is_null() & ~pl.col("method").str.starts_with(issued.BASE)
    steps = record.rows.filter(is_shown)
    for name, level in zip(("low", "high"), BAND_80, strict=True):
        ends = record.rows.filter(quantile=level).select(*line, pl.col("value").alias(name))
        steps = steps.join(ends, on=line, how="left")

    local = pl.col("start_utc").dt.offset_by(f"{record.facts['clock_minutes']}m").dt
    is_band = pl.col("low") <= pl.col("high")
    return (
        steps.join(pl.concat(truths), on=["entity", "start_utc"], how="left")
        .filter(pl.col("truth").is_finite())
        .with_columns(
            pl.when(is_band).then(pl.col("low", "high")),
            month=local.strftime("%Y-%m"),
            at=local.strftime("%H:%M" if record.step < timedelta(days=1) else "%d"),
            known_to=pl.lit(name_known_to(record.facts)),
            is_on_time=pl.lit(is_on_time(record)),
        )
    )
