"""Forecast weather of the five regions as it was known, collected hour by hour by a stranger.

What belongs here: reading the two parts of the collection, which states of the forecast count, what
replaces forecasts on earlier days. What does not: variables, half-hours (``weather.forecast``).

``weather_forecasts.parquet`` holds Open-Meteo's forecasts with the time at which each was
collected; ``observed/`` its hourly reanalysis, known five days late. Two things are made of them:

- **Forecasts.** For each market day the newest state before 17:00 and before 24:00 of the day
  before. A forecast model and a reanalysis differ by place and hour (Hobart by 3 kelvin), so the
  mean difference over all hours whose reanalysis was known is taken off.
- **Substitutes** for the days before. A model cannot be trained on weather that it never has, so
  each day gets the reanalysis plus errors that a forecast of 17:00 had: on four days in February,
  drawn by day and region, all hours and variables together. They are errors against later states of
  the same model. On 13 February 2026, the one day on which both were known by the first test day,
  model and reanalysis differed by about as much again; so they count twice.

Substitutes end with the last day whose reanalysis was known on 18 February 2026, and the day
between them and the first forecast has no weather: no window of test or later holds one.
Data of Open-Meteo are CC BY 4.0.
"""

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray, IntArray
from compevo_core.data.schemas import STEP_COVARIATE_SCHEMA, UTC_US
from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import RawFile, read_product
from compevo_pipeline.sources.weather.forecast import VARIABLES, split_hours

SOURCE = "open_meteo_collected"
FORECASTS = "weather_forecasts.parquet"
SUBSTITUTE = "substitute"  # part of the `source` of rows that are not forecasts
CITIES = {
    "NSW1": "Sydney",
    "QLD1": "Brisbane",
    "SA1": "Adelaide",
    "TAS1": "Hobart",
    "VIC1": "Melbourne",
}
OBSERVED_AFTER = timedelta(days=5)  # how late the reanalysis of an hour is known
ERRORS_UNTIL = datetime(2026, 2, 18, 14, tzinfo=UTC)  # the last instant before the first test day
ERROR_SCALE = 2.0  # what errors of substitutes are multiplied with; the reason is above
SHRINKAGE_HOURS = 24.0  # known hours that a mean difference needs to count as much as none at all
SHRINKAGE_DAYS = 7.0  # the same for what an hour of the day has beyond the mean
_CUTS_UTC = (7, 14)  # 17:00 and 24:00 on the market's clock, by when views know
_FROM_DAY_BEFORE = timedelta(hours=17)  # from its midnight to 17:00
_TO_END = timedelta(hours=31)  # from 17:00 to the end of the next day
_HOURS_OF_ISSUE = 49  # stamps of both days
_HOURS_OF_STATE = 39  # stamps from midnight UTC, where a state begins, to the end of the next day
_FIRST_ISSUE = datetime(2025, 4, 27, 7, tzinfo=UTC)  # a fortnight before operational demand
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_SEED = 20260218
_DECIMALS = 2

read_files = functools.partial(
    read_product, source=SOURCE, folder="weather", files=[FORECASTS, "????-??.parquet"]
)
"""Yields both parts from an archive; there is no other mode."""

COLLECTED = tuple(
    # Wind was collected in km/h, Open-Meteo's default.
    replace(each, factor=each.factor / (3.6 if each.name == "wind_speed_m_s" else 1.0))
    for each in VARIABLES
    if each.name != "solar_radiation_w_m2"
)
_LIMITS = {
    "cloud_cover_pct": (0.0, 100.0),
    "wind_speed_m_s": (0.0, None),
    "sunshine_share": (0.0, 1.0),
}


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A forecast (V, n) of consecutive hours, the first ``first`` hours after the grid's start."""

    region: int
    known_at: datetime
    first: int
    values_Vn: FloatArray


def parse_all(raw_files: Sequence[RawFile]) -> pl.DataFrame:
    """Parse both parts into ``STEP_COVARIATE_SCHEMA``, by half-hour."""
    forecasts = [raw for raw in raw_files if raw.name == FORECASTS]
    months = [raw for raw in raw_files if raw.name != FORECASTS]
    if not forecasts or not months:
        raise SourceAbsent(
            f"the collected weather needs {FORECASTS} and, next to it, observed/*.parquet; add the "
            "missing part"
        )

    hourly = pl.concat([_read(raw, "time") for raw in months]).unique(["city", "hour"])
    table = _read(forecasts[0], "valid_time_utc", "known_at_utc")
    hours = pl.concat([hourly["hour"], table["hour"]]).sort().to_list()
    start: datetime = hours[0]
    n_hours = (hours[-1] - start) // _HOUR + 1

    observed_RVT = np.full((len(CITIES), len(COLLECTED), n_hours), np.nan)
    for region, city in enumerate(CITIES.values()):
        part = hourly.filter(city=city)
        observed_RVT[region][:, _count_hours(part["hour"], start)] = _stack(part)

    regions = {city: region for region, city in enumerate(CITIES.values())}
    states = []
    by_state = table.sort("known_at_utc", "city", "hour").partition_by(
        "known_at_utc", "city", as_dict=True, maintain_order=True
    )
    for (known_at, city), part in by_state.items():
        if city not in regions:
            continue
        if (part["hour"].diff().drop_nulls() != _HOUR).any():
            raise SchemaDrift(f"{FORECASTS}: the state of {known_at} for {city} has a hole")
        first = int(_count_hours(part["hour"], start)[0])
        states.append(_State(regions[str(city)], known_at, first, _stack(part)))
    # The newest state of each region before each instant by which views know.
    newest = {(state.region, _find_cut(state.known_at)): state for state in states}
    selected = [
        replace(state, values_Vn=state.values_Vn[:, :_HOURS_OF_STATE]) for state in newest.values()
    ]
    errors = _find_errors(selected, states, start, n_hours)
    # A state of 17:00 for each day before the first forecast.
    rng = np.random.default_rng(_SEED)
    substitutes = []
    issue = max(_FIRST_ISSUE, start.replace(hour=_CUTS_UTC[0]) + _DAY)
    while issue + _TO_END <= ERRORS_UNTIL - OBSERVED_AFTER:
        first = (issue - _FROM_DAY_BEFORE - start) // _HOUR
        for region, observed_VT in enumerate(observed_RVT):
            error_Vn = errors[int(rng.integers(len(errors)))]
            values_Vn = observed_VT[:, first : first + _HOURS_OF_ISSUE] + ERROR_SCALE * error_Vn
            substitutes.append(_State(region, issue, first, values_Vn))
        issue += _DAY

    # Without what was known of the mean difference from the reanalysis.
    difference_RVT = _analyse(states, n_hours, start) - observed_RVT
    corrected = []
    for state in selected:
        n_known = max(0, (state.known_at - OBSERVED_AFTER - start) // _HOUR + 1)
        bias_VD = _estimate_bias(difference_RVT[state.region][:, :n_known], start.hour)
        of_day = (start.hour + state.first + np.arange(state.values_Vn.shape[1])) % 24
        corrected.append(replace(state, values_Vn=state.values_Vn - bias_VD[:, of_day]))

    label = forecasts[0].label
    parts = [
        _make_rows(substitutes, start, label.replace(FORECASTS, SUBSTITUTE)),
        _make_rows(corrected, start, label),
    ]
    frame = pl.concat(part for part in parts if part.height).filter(pl.col("value").is_finite())
    ordered = frame.sort("entity", "name", "start_utc", "available_at")
    return ordered.select(pl.col(name).cast(kind) for name, kind in STEP_COVARIATE_SCHEMA.items())


def _read(raw: RawFile, hour: str, *others: str) -> pl.DataFrame:
    """Return city, hour (UTC) and the variables in their units."""
    try:
        table = pl.read_parquet(io.BytesIO(raw.content))
        columns = [
            (pl.col(each.published).cast(pl.Float64) * each.factor).alias(each.name)
            for each in COLLECTED
        ]
        return table.select("city", *others, pl.col(hour).cast(UTC_US).alias("hour"), *columns)
    except pl.exceptions.PolarsError as error:
        raise SchemaDrift(f"{raw.name} is not a table of the collected weather: {error}") from error


def _stack(part: pl.DataFrame) -> FloatArray:
    """Return the variables (V, n) of rows."""
    return part.select(variable.name for variable in COLLECTED).to_numpy().T


def _count_hours(hours: pl.Series, start: datetime) -> IntArray:
    return (hours - start).dt.total_hours().to_numpy()


def _find_cut(known_at: datetime) -> datetime:
    """Return the first instant after a state by which a view knows it."""
    day = known_at.replace(hour=0, minute=0, second=0, microsecond=0)
    cuts = [day + days * _DAY + hour * _HOUR for days in (0, 1) for hour in _CUTS_UTC]
    return min(cut for cut in cuts if cut > known_at)


def _analyse(states: Sequence[_State], n_hours: int, start: datetime) -> FloatArray:
    """Return the last value (R, V, T) that states gave each hour before or as it came."""
    analysis_RVT = np.full((len(CITIES), len(COLLECTED), n_hours), np.nan)
    for state in states:
        n_past = int((state.known_at - start) / _HOUR) + 2 - state.first
        past_Vn = state.values_Vn[:, : max(0, n_past)]
        hours = slice(state.first, state.first + past_Vn.shape[1])
        analysis_RVT[state.region][:, hours] = past_Vn
    return analysis_RVT


def _estimate_bias(difference_VT: FloatArray, first_hour: int) -> FloatArray:
    """Return the mean known difference by hour of the day (V, 24), drawn towards none."""
    is_known = np.isfinite(difference_VT)
    known_VT = np.where(is_known, difference_VT, 0.0)
    mean_V1 = (known_VT.sum(axis=1) / (is_known.sum(axis=1) + SHRINKAGE_HOURS))[:, None]

    bias_VD = np.repeat(mean_V1, 24, axis=1)
    for hour in range(24):
        at = slice((hour - first_hour) % 24, None, 24)
        beyond_Vn = np.where(is_known[:, at], known_VT[:, at] - mean_V1, 0.0)
        bias_VD[:, hour] += beyond_Vn.sum(axis=1) / (is_known[:, at].sum(axis=1) + SHRINKAGE_DAYS)
    return bias_VD


def _find_errors(
    kept: Sequence[_State], states: Sequence[_State], start: datetime, n_hours: int
) -> list[FloatArray]:
    """Return the errors (V, 49) of states of 17:00 from the day before to the end of the target.

    Only later states that were known by ``ERRORS_UNTIL`` say what the weather became.
    """
    in_time = [state for state in states if state.known_at <= ERRORS_UNTIL]
    analysis_RVT = _analyse(in_time, n_hours, start)
    errors = []
    for state in kept:
        cut = _find_cut(state.known_at)
        if cut.hour != _CUTS_UTC[0] or cut + _TO_END > ERRORS_UNTIL:
            continue
        # What a state no longer holds had come true.
        error_VT = np.zeros((len(COLLECTED), n_hours))
        at = slice(state.first, state.first + state.values_Vn.shape[1])
        error_VT[:, at] = np.nan_to_num(state.values_Vn - analysis_RVT[state.region][:, at])
        first = (cut - _FROM_DAY_BEFORE - start) // _HOUR
        errors.append(error_VT[:, first : first + _HOURS_OF_ISSUE])

    if not errors:
        raise SchemaDrift(
            f"{FORECASTS} has no day before {ERRORS_UNTIL} with both forecast and weather, which "
            "show how forecasts err; take the whole collection"
        )
    return errors


def _make_rows(states: Sequence[_State], start: datetime, source: str) -> pl.DataFrame:
    """Return the half-hours of states, with values clipped to their limits."""
    names = [variable.name for variable in COLLECTED]
    regions = list(CITIES)
    hours = pl.concat(
        pl.DataFrame(state.values_Vn.T, schema=names).select(
            *(pl.col(name).clip(*_LIMITS.get(name, (None, None))) for name in names),
            entity=pl.lit(regions[state.region]),
            available_at=pl.lit(state.known_at),
            stamp=pl.lit(start) + pl.duration(hours=state.first + pl.int_range(pl.len())),
        )
        for state in states
    )
    by = ["entity", "available_at"]
    ends = {"first": pl.col("stamp").min().over(by), "last": pl.col("stamp").max().over(by)}
    rows = split_hours(hours.with_columns(**ends), COLLECTED, [*by, *ends])
    within = rows.filter(pl.col("start_utc").is_between("first", "last", closed="left"))
    return within.select(
        "entity",
        "name",
        "start_utc",
        pl.col("value").round(_DECIMALS),
        "available_at",
        source=pl.lit(source),
    )
