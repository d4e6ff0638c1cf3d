"""What ridges and boosted trees see of a window: its day, the calendar, weather, own covariates.

What belongs here: turning a view into numbers, with the scales and names of the train split, for
changes from the last season. What does not: any model; errors of a published forecast, and a longer
past (``baselines.leads``); how weather comes into a view (``data.context``).

Everything is in units of the entity's train standard deviation, so that a fit carries over to years
with another level and regions share one model. What was not known when a view was made is NaN here;
each model says what it does with it.

A covariate by step acts by its value, its square, and what lies more than a standard deviation
above and below the mean: cooling, heating, a promotion of zero or one. Without proof on the last
part of train the answer is zero: a column of noise changes no forecast.

Shapes: N windows, H horizon, C covariates, F features, B parts of the season, K forms.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from compevo_core.baselines.base import TrainSpace, repeat_last_season
from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.context import OWN
from compevo_core.data.scaling import Scaler
from compevo_core.data.steps import DAY, WEEK
from compevo_core.data.view import (
    DEFAULT_STEPS,
    Window,
    WindowView,
    find_horizon,
    stack_by_step,
    stack_rows,
)

DAYS_OF_YEAR = 365.25  # the mean length, so that the yearly wave stays in phase over leap years
MIN_COVERAGE = 0.5  # share of train windows that must have a covariate for it to be used

# Temperatures in kelvin: above the first air conditioning adds to demand, below the second heating.
COOLING_ABOVE_K = 293.0
HEATING_BELOW_K = 288.0
TEMPERATURE_KEY = "_temp_k_lag"  # part of the key of every temperature covariate

CALENDAR_NAMES = (
    *(f"weekday_{i}" for i in range(7)),
    "holiday",
    "holiday_before",
    "day_off",
    "day_off_before",
    "into_day_off",
    "out_of_day_off",
    "sin_year",
    "cos_year",
    "sin_half_year",
    "cos_half_year",
)


LAG = "_lag1"  # what the name of a covariate ends with, of the season before
_PARTS = 8  # of a season, each with an answer of its own
_FORMS: tuple[Callable[[FloatArray], FloatArray], ...] = (
    lambda z_NH: z_NH,
    lambda z_NH: z_NH**2,
    lambda z_NH: np.maximum(z_NH - 1, 0.0),
    lambda z_NH: np.maximum(-z_NH - 1, 0.0),
)
"""The forms in which a covariate acts."""
_PENALTY = 30.0  # steps without an answer, counted with those of train
_PROOF = 0.2  # last share of the train windows, on which an answer must help

_WEEK_WEIGHT = 0.7  # of a week in the usual one, as a share of the week after it
_SURPRISES = (2.0, 4.0)  # standard deviations beyond which a jump has a slope of its own
_NORMAL = 1.4826  # the standard deviation over the median size, of normal values


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResponse:
    """The answer to one covariate; ``weights`` (B, K) in units of the series' train deviation."""

    name: str
    mean: float
    spread: float
    weights: tuple[tuple[float, ...], ...]

    def apply(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the change since the season before (N, H); zero where a value is unknown."""
        change_NHK = self.encode(views)
        part_H = _find_parts(views, len(self.weights))
        weights_HK = np.array(self.weights)[part_H]
        return np.asarray(np.einsum("nhk,hk->nh", np.nan_to_num(change_NHK), weights_HK))

    def encode(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the forms of the target steps minus the forms a season earlier (N, H, K)."""
        now_NH = (stack_by_step(views, self.name) - self.mean) / self.spread
        before_NH = (stack_by_step(views, self.name + LAG) - self.mean) / self.spread
        # Changes are counted from one season, repeated over the horizon.
        season = views[0].seasons.reference if views else 1
        before_NH = before_NH[:, np.arange(find_horizon(views)) % season]
        change_NHK = np.empty((*now_NH.shape, len(_FORMS)))
        for k, form in enumerate(_FORMS):
            change_NHK[:, :, k] = form(now_NH) - form(before_NH)
        return change_NHK


def fit_responses(
    views: Sequence[WindowView], names: Sequence[str], target_NH: FloatArray
) -> tuple[StepResponse, ...]:
    """Fit the answers to covariates one after the other, each to what those before it leave.

    ``target_NH`` is the scaled change since the season before, NaN where masked. One that does not
    lower the absolute error of the last train windows is left out.
    """
    responses, left_NH = [], target_NH
    # Targets of windows a step apart overlap: one that reaches into the proof would know it.
    start_utc = sorted(view.origin_utc for view in views)[int(len(views) * (1 - _PROOF))]
    first = [i for i, view in enumerate(views) if view.end_utc <= start_utc]
    last = [i for i, view in enumerate(views) if view.origin_utc >= start_utc]

    for name in names if first else ():
        response = _fit(name, [views[i] for i in first], left_NH[first])
        left_last_NH = left_NH[last] - response.apply([views[i] for i in last])
        if not np.nanmean(np.abs(left_last_NH)) < np.nanmean(np.abs(left_NH[last])):
            continue
        response = _fit(name, views, left_NH)
        left_NH = left_NH - response.apply(views)
        responses.append(response)
    return tuple(responses)


def _fit(name: str, views: Sequence[WindowView], target_NH: FloatArray) -> StepResponse:
    values = stack_by_step(views, name)
    known = values[np.isfinite(values)]
    empty = StepResponse(
        name=name, mean=float(known.mean()), spread=float(known.std()) or 1.0, weights=()
    )
    part_H = _find_parts(views, _PARTS)
    change_NHK = empty.encode(views)
    # The level of a change belongs to the models that come after.
    centred_NH = target_NH - mean_known(target_NH, axis=0)

    weights = []
    for part in range(int(part_H.max()) + 1):
        x_RK = change_NHK[:, part_H == part].reshape(-1, len(_FORMS))
        y_R = centred_NH[:, part_H == part].reshape(-1)
        is_known_R = np.isfinite(y_R + x_RK[:, 0])  # an unknown value has no form
        x, y = x_RK[is_known_R], y_R[is_known_R]
        gram = x.T @ x + _PENALTY * np.eye(len(_FORMS))
        weights.append(tuple(np.linalg.solve(gram, x.T @ y).tolist()))
    return replace(empty, weights=tuple(weights))


def _find_parts(views: Sequence[WindowView], parts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the part of the season of each target step (H,), from 0."""
    season = views[0].seasons.reference if views else 1
    place_H = np.arange(find_horizon(views)) % season
    return np.asarray(place_H * min(parts, season) // season, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpace(TrainSpace):
    """Scales and names fixed on the train split, for changes from the last season.

    Views with weather (True) and views without any (False) have models of their own, which are
    fitted on the same windows.
    """

    covariates: tuple[str, ...]  # the keys that at least half of the train windows have
    # The user's own covariates by step that are known at half of the train targets or more
    steps: tuple[StepResponse, ...] = ()

    @classmethod
    def fit(cls, train: Sequence[Window]) -> Self:
        """Fix names, scales and the responses to own covariates by step on train windows."""
        counts = Counter(name for window in train for name in window.view.covariates)
        fewest = MIN_COVERAGE * len(train)
        space = cls(
            scaler=Scaler.fit(train),
            entities=tuple(sorted({window.view.entity for window in train})),
            covariates=tuple(sorted(name for name, count in counts.items() if count >= fewest)),
        )
        views = [window.view for window in train]
        own_names = list_own_covariates(train)
        # At weekends a table of business days has neither a value nor a covariate.
        has_truth_NH = np.isfinite([window.y for window in train])
        usual = [
            name
            for name in own_names
            if np.isfinite(stack_change(views, name))[has_truth_NH].mean() >= MIN_COVERAGE
        ]
        if not usual:
            return space
        return replace(space, steps=fit_responses(views, usual, space.scale_targets(train)))

    def extract_weather(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the covariates (N, C), NaN where a view lacks one."""
        # reshape() gives an empty list of views or covariates its two dimensions.
        rows = [[view.covariates.get(name, np.nan) for name in self.covariates] for view in views]
        return np.array(rows, dtype=np.float64).reshape(len(views), len(self.covariates))

    @property
    def routes(self) -> tuple[int, ...]:
        """With weather and without; only without if no covariate is usual."""
        return (True, False) if self.covariates else (False,)

    def find_route(self, view: WindowView) -> int:
        """Return whether a view has weather: any covariate of the train split."""
        return any(name in view.covariates for name in self.covariates)

    def stack_references(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the last season of each input, repeated over the horizon, (N, H).

        Own covariates by step move it by what they change.
        """
        last_NH = stack_rows([repeat_last_season(view) for view in views])
        if not self.steps:
            return last_NH
        change_NH: FloatArray = np.sum([response.apply(views) for response in self.steps], axis=0)
        return last_NH + self.scaler.stack_spreads(views) * change_NH

    def compute_hinges(self, weather_NC: FloatArray) -> FloatArray:
        """Return kelvins above and below the two thresholds, (N, 2 x temperatures).

        Demand rises with heat and with cold; a linear map needs one column for each side.
        """
        columns = [i for i, name in enumerate(self.covariates) if TEMPERATURE_KEY in name]
        kelvin = weather_NC[:, columns]
        cooling = np.maximum(kelvin - COOLING_ABOVE_K, 0)
        heating = np.maximum(HEATING_BELOW_K - kelvin, 0)
        return np.concatenate([cooling, heating], axis=1)

    def compute_changes(self, weather_NC: FloatArray) -> dict[str, FloatArray]:
        """Return the changes (N, 1) of covariates known for both of the last two days, by name.

        For the trees, which split on one column at a time and cannot subtract two of them.
        """
        columns = name_columns(self.covariates, weather_NC)
        stems = (name.removesuffix("_lag1") for name in self.covariates if name.endswith("_lag1"))
        return {
            f"{stem}_change": columns[f"{stem}_lag1"] - columns[f"{stem}_lag2"]
            for stem in stems
            if f"{stem}_lag2" in columns
        }

    def scale_inputs(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the inputs (N, L), centred and in units of each entity's train deviation."""
        return stack_rows([self.scaler.scale(view.x, view.entity) for view in views])

    def scale_recent(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the scaled inputs that stand for the target steps one by one, oldest first."""
        recent = views[0].seasons.covering if views else DEFAULT_STEPS
        return self.scale_inputs(views)[:, -recent:]

    def summarize_seasons(self, views: Sequence[WindowView]) -> dict[str, FloatArray]:
        """Summarise the part of the inputs before ``scale_recent``, scaled, by name.

        ``season_mean`` (N, season) by place in the season, starting at the place of the first
        target step; ``season_levels`` (N, seasons), the mean of each, oldest first; ``last_week``
        (N, H) where steps are shorter than a day and ``scale_recent`` does not hold a week. Empty
        where inputs reach no further back.
        """
        if not views or views[0].lookback <= views[0].seasons.covering:
            return {}

        first = views[0]
        z_NL, season = self.scale_inputs(views), first.seasons.shortest
        seasons_NRS = z_NL[:, len(z_NL[0]) % season :].reshape(len(views), -1, season)
        summaries = {
            "season_mean": seasons_NRS.mean(axis=1),
            "season_levels": seasons_NRS.mean(axis=2),
        }
        weeks = math.ceil(first.horizon * first.step / WEEK)
        back = weeks * (WEEK // first.step)
        if first.seasons.covering < back <= first.lookback and first.seasons.day > 1:
            start = first.lookback - back
            summaries["last_week"] = z_NL[:, start : start + first.horizon]
        return summaries


def knows_weeks(view: WindowView) -> bool:
    """Return whether the inputs hold two weeks of steps shorter than a day."""
    return view.step < DAY and view.lookback * view.step >= 2 * WEEK


def split_weeks(known_T: FloatArray, day: int) -> tuple[FloatArray, FloatArray]:
    """Return the usual week (W,), in which newer weeks count more, and what each day adds to it.

    ``day`` is the number of steps of a day. The week begins with the step after the last value; the
    days (D, day) are in the order of time.
    """
    week_NW = known_T[len(known_T) % (7 * day) :].reshape(-1, 7 * day)
    weight_N = _WEEK_WEIGHT ** np.arange(len(week_NW))[::-1]
    usual_W = weight_N @ week_NW / weight_N.sum()
    return usual_W, (week_NW - usual_W).reshape(-1, day)


def measure_surprise(left_DS: FloatArray) -> FloatArray:
    """Return the shares (2,) of the last day's jump beyond two and four standard deviations.

    A jump is the change of a day's mean from the median of the three days before it. A heat wave
    comes by degrees and stays; a holiday or a fault jumps and is over.
    """
    level_D = left_DS.mean(axis=1)
    before = np.lib.stride_tricks.sliding_window_view(level_D[:-1], 3)
    jump_D = np.abs(level_D[3:] - np.median(before, axis=1))
    beyond = np.maximum(jump_D[-1] - np.array(_SURPRISES) * _NORMAL * np.median(jump_D), 0.0)
    return np.asarray(beyond / (jump_D[-1] or 1.0))


def list_own_covariates(windows: Sequence[Window]) -> list[str]:
    """Return the names of a user's own covariates by step, sorted."""
    names = {name for window in windows for name in window.view.step_covariates}
    return sorted(n for n in names if n.startswith(OWN) and not n.endswith(LAG))


def encode_calendars(views: Sequence[WindowView]) -> FloatArray:
    """Return calendar features (N, len(CALENDAR_NAMES))."""
    rows = np.zeros((len(views), len(CALENDAR_NAMES)))
    for row, view in zip(rows, views, strict=True):
        calendar = view.calendar
        row[calendar.target_weekday] = 1.0

        # Days off are weekends and holidays. The change into and out of them matters by itself: the
        # input is a day of the other kind.
        is_holiday, was_holiday = bool(calendar.target_holiday), bool(calendar.previous_holiday)
        is_off = is_holiday or calendar.target_weekday >= 5
        was_off = was_holiday or calendar.previous_weekday >= 5
        row[7:13] = is_holiday, was_holiday, is_off, was_off, is_off > was_off, was_off > is_off

        angle = 2 * np.pi * calendar.day_of_year / DAYS_OF_YEAR
        row[13:] = np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)
    return rows


def name_columns(names: Iterable[str], values_NF: FloatArray) -> dict[str, FloatArray]:
    """Return the columns of an array, (N, 1) each, by name."""
    return {name: column_N[:, None] for name, column_N in zip(names, values_NF.T, strict=True)}


def stack_change(views: Sequence[WindowView], name: str) -> FloatArray:
    """Return the change of a covariate by step since the season before (N, H)."""
    return stack_by_step(views, name) - stack_by_step(views, f"{name}{LAG}")
