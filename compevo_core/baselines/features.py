"""What ridges and boosted trees see of a window: its day, the calendar, weather, own covariates.

What belongs here: turning a view into numbers, with the scales and names of the train split: for
changes from the last season, and for each number of unknown steps, on a published forecast's own
error or on the last fortnight. What does not: any model (``baselines.ridge``, ``baselines.gbm``);
how weather, past and errors come into a view (``data.context``).

Everything is in units of the entity's train standard deviation, so that a fit carries over to years
with another level and regions share one model. What was unknown when a view was made is NaN.

A covariate by step acts by its value, its square, and what lies more than a standard deviation
above and below the mean: cooling, heating, a promotion of zero or one. Without proof on the last
part of train the answer is zero: a column of noise changes no forecast.

The model of the last fortnight does not use what others forecast of the series, so its errors
differ from theirs: no published median, and no covariate in the unit of the series, such as the
operator's forecast of rooftop power. A day and the mean of the last fortnight follow one season.

Shapes: N windows, H horizon, C covariates, F features, B parts of season or horizon, K forms.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from compevo_core.baselines.base import (
    Columns,
    TrainSpace,
    is_published,
    raise_if_lacking,
    repeat_last_season,
    stack_published,
)
from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.context import (
    ERROR_LAGS,
    ERROR_MEANS,
    OWN,
    PAST,
    PAST_LAGS,
    PAST_MEAN,
    PUBLISHED,
)
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
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError

DAYS_OF_YEAR = 365.25  # the mean length, so that the yearly wave stays in phase over leap years
MIN_COVERAGE = 0.5  # share of train windows that must have a covariate for it to be used

# Temperatures in kelvin: above the first air conditioning adds to demand, below the second heating.
COOLING_ABOVE_K = 293.0
HEATING_BELOW_K = 288.0
TEMPERATURE_KEY = "_temp_k_lag"  # part of the key of every temperature covariate

_DAYS = ("holiday", "holiday_before", "day_off", "day_off_before", "into_day_off", "out_of_day_off")
FLAGS = (*(f"weekday_{i}" for i in range(7)), *_DAYS)
"""Columns of the calendar: no yearly wave, which over less than a year is the date itself."""
CALENDAR_NAMES = (*FLAGS, "sin_year", "cos_year", "sin_half_year", "cos_half_year")

NEIGHBOURS = (-4, -2, 0, 2, 4)  # steps around the target step whose inputs are columns of trees
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
        weights_HK = np.array(self.weights)[_find_parts(views, len(self.weights))]
        return np.asarray(np.einsum("nhk,hk->nh", np.nan_to_num(change_NHK), weights_HK))

    def encode(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the forms of the target steps minus the forms a season earlier (N, H, K)."""
        now_NH = (stack_by_step(views, self.name) - self.mean) / self.spread
        before_NH = (stack_by_step(views, self.name + LAG) - self.mean) / self.spread
        # Changes are counted from one season, repeated over the horizon.
        season = views[0].seasons.reference if views else 1
        before_NH = before_NH[:, np.arange(find_horizon(views)) % season]
        return np.stack([form(now_NH) - form(before_NH) for form in _FORMS], axis=2)


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
        if np.nanmean(np.abs(left_last_NH)) < np.nanmean(np.abs(left_NH[last])):
            responses.append(_fit(name, views, left_NH))
            left_NH = left_NH - responses[-1].apply(views)
    return tuple(responses)


def _fit(name: str, views: Sequence[WindowView], target_NH: FloatArray) -> StepResponse:
    values = stack_by_step(views, name)
    known = values[np.isfinite(values)]
    mean, spread = float(known.mean()), float(known.std()) or 1.0
    empty = StepResponse(name=name, mean=mean, spread=spread, weights=())
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

    Views with weather (True) and without (False) have models of their own, of the same windows.
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
        # At weekends a table of business days has neither a value nor a covariate.
        has_truth_NH = np.isfinite([window.y for window in train])
        usual = [
            name
            for name in list_own_covariates(train)
            if np.isfinite(stack_change(views, name))[has_truth_NH].mean() >= MIN_COVERAGE
        ]
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

    def compute_changes(self, weather_NC: FloatArray) -> Columns:
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

    def build_features(self, views: Sequence[WindowView], route: int) -> FloatArray:
        """Return the columns (N, F) of a linear map, with weather on that route."""
        z_NH = self.scale_recent(views)
        level = z_NH.mean(axis=1, keepdims=True)

        # Shape and level are separate columns: the penalty may shrink one and leave the other.
        parts = [z_NH - level, level, encode_calendars(views)]
        parts += [part - level for part in self.summarize_seasons(views).values()]
        if all(map(knows_weeks, views)):
            # The parts of the last day's deviation from the usual week that surprise.
            left_NDS = [split_weeks(view.known, view.seasons.day)[1] for view in views]
            surprises_N2 = np.array(
                [measure_surprise(left_DS) * left_DS[-1].mean() for left_DS in left_NDS]
            )
            parts.append(surprises_N2 / self.scaler.stack_spreads(views))
        if route:
            weather_NC = self.extract_weather(views)
            parts += [weather_NC, self.compute_hinges(weather_NC)]
        return np.concatenate(parts, axis=1)

    def build_columns(self, views: Sequence[WindowView], route: int) -> Columns:
        """Return the columns of trees by name, (N, H) or (N, 1), with weather on that route."""
        z_NH = self.scale_recent(views)
        steps_H = np.arange(find_horizon(views))

        # At either end of the day the outermost input stands in for neighbours that do not exist.
        places = {at: np.clip(steps_H + at, 0, z_NH.shape[1] - 1) for at in NEIGHBOURS}
        columns = {f"input_{at:+d}": z_NH[:, place_H] for at, place_H in places.items()}
        # On a half-hourly day the thirds are night, midday and evening.
        thirds = zip(("night", "midday", "evening"), np.array_split(z_NH, 3, axis=1), strict=True)
        columns |= {
            "entity": self.encode_entities(views)[:, None].astype(np.float64),
            "day_mean": z_NH.mean(axis=1, keepdims=True),
            "day_min": z_NH.min(axis=1, keepdims=True),
            "day_max": z_NH.max(axis=1, keepdims=True),
            "day_last": z_NH[:, -1:],
            "day_change": z_NH[:, -1:] - z_NH[:, :1],
            **{name: part.mean(axis=1, keepdims=True) for name, part in thirds if part.shape[1]},
        }
        summaries = self.summarize_seasons(views)
        if summaries:
            season_NS, level_NR = summaries["season_mean"], summaries["season_levels"]
            columns["season_mean"] = season_NS[:, steps_H % season_NS.shape[1]]
            columns["level"] = level_NR.mean(axis=1, keepdims=True)
            columns["level_change"] = level_NR[:, -1:] - columns["level"]
        if "last_week" in summaries:
            columns["last_week"] = summaries["last_week"]
        columns |= name_columns(CALENDAR_NAMES, encode_calendars(views))
        for response in self.steps:
            columns[response.name] = stack_by_step(views, response.name)
            columns[f"{response.name}_change"] = stack_change(views, response.name)
        if route:
            weather_NC = self.extract_weather(views)
            columns |= name_columns(self.covariates, weather_NC) | self.compute_changes(weather_NC)
        return columns

    def summarize_seasons(self, views: Sequence[WindowView]) -> Columns:
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
        summaries = {"season_mean": seasons_NRS.mean(axis=1)}
        summaries["season_levels"] = seasons_NRS.mean(axis=2)
        back = math.ceil(first.horizon * first.step / WEEK) * (WEEK // first.step)
        if first.seasons.covering < back <= first.lookback and first.seasons.day > 1:
            start = first.lookback - back
            summaries["last_week"] = z_NL[:, start : start + first.horizon]
        return summaries


def knows_weeks(view: WindowView) -> bool:
    """Return whether the inputs hold two weeks of steps shorter than a day."""
    return view.step < DAY and view.lookback * view.step >= 2 * WEEK


def split_weeks(known_T: FloatArray, day: int) -> tuple[FloatArray, FloatArray]:
    """Return the usual week (W,), in which newer weeks count more, and what each day adds to it.

    ``day`` counts its steps. The week begins after the last value; days (D, day) are in order.
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

        # Days off are weekends and holidays. At either end the input is a day of the other kind.
        is_holiday, was_holiday = bool(calendar.target_holiday), bool(calendar.previous_holiday)
        is_off = is_holiday or calendar.target_weekday >= 5
        was_off = was_holiday or calendar.previous_weekday >= 5
        row[7:13] = is_holiday, was_holiday, is_off, was_off, is_off > was_off, was_off > is_off

        angle = 2 * np.pi * calendar.day_of_year / DAYS_OF_YEAR
        row[13:] = np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)
    return rows


def name_columns(names: Iterable[str], values_NF: FloatArray) -> Columns:
    """Return the columns of an array, (N, 1) each, by name."""
    return {name: column_N[:, None] for name, column_N in zip(names, values_NF.T, strict=True)}


def stack_change(views: Sequence[WindowView], name: str) -> FloatArray:
    """Return the change of a covariate by step since the season before (N, H)."""
    return stack_by_step(views, name) - stack_by_step(views, f"{name}{LAG}")


TEMPERATURE = "temperature_c"
COOLING_ABOVE_C = 22.0
HEATING_BELOW_C = 16.0
TRAILING_HOURS = 3.0  # walls and rooms follow the air by hours
SCALES = {
    TEMPERATURE: 5.0,
    "dew_point_c": 5.0,
    "cloud_cover_pct": 50.0,
    "sunshine_share": 0.5,
    "wind_speed_m_s": 3.0,
    "solar_radiation_w_m2": 250.0,
}
"""Divisors of weather in the ridge, which make its columns about as large as the demand columns."""

LAST_ERROR = f"{PUBLISHED}_error_lag1"
_WEEK_ERROR = f"{PUBLISHED}_error_mean{ERROR_MEANS[0]}"  # stands in for one not known yet
ERRORS = (
    *(f"{PUBLISHED}_error_lag{lag}" for lag in ERROR_LAGS),
    *(f"{PUBLISHED}_error_mean{n}" for n in ERROR_MEANS),
)
PAST_NAMES = tuple(f"{PAST}_lag{lag}" for lag in PAST_LAGS)
PAST_REFERENCE = f"{PAST}{PAST_MEAN}"
LAST_KNOWN_STEPS = 6  # newest known values whose mean is a column: three hours of half-hours


def knows_past(view: WindowView) -> bool:
    """Whether a view has a mean of the last fortnight at every step."""
    mean_H = view.step_covariates.get(PAST_REFERENCE)
    return mean_H is not None and bool(np.isfinite(mean_H).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadSpace(TrainSpace):
    """Views have a route, and a model of their own, by their number of unknown steps."""

    leads: tuple[int, ...]  # numbers of unknown steps that the views of the train split have
    # Names of covariates by step that at least half of the windows of every lead know at each step,
    # of the season before as well: in the series' unit, as the power of rooftops, and in others
    covariates: tuple[str, ...]
    weather: tuple[str, ...] = ()

    evidence: ClassVar[str]  # what views must hold, and the setting that adds it

    @staticmethod
    @abstractmethod
    def knows(view: WindowView) -> bool:
        """Return whether a view holds what the model needs."""

    @classmethod
    def fit(cls, train: WindowSet) -> Self:
        """Fix names and scales on the train windows that hold what the model needs."""
        windows = [window for window in train if cls.knows(window.view)]
        if not windows:
            raise DataError(
                f"no train window of {train.dataset} holds {cls.evidence}; use models of it for a "
                "data set whose views hold it"
            )

        views = [window.view for window in windows]
        leads = tuple(sorted({view.unknown_steps for view in views}))
        by_lead = [[view for view in views if view.unknown_steps == lead] for lead in leads]
        names = sorted({name for view in views for name in view.step_covariates})
        usual = [
            name
            for name in names
            if PUBLISHED not in name
            and all(
                np.isfinite(stack_change(views, name)).all(axis=1).mean() >= MIN_COVERAGE
                for views in by_lead
            )
        ]
        # A name ends with its unit, as rooftop_pv_mw does.
        is_scaled = {name: name.endswith(f"_{views[0].unit.lower()}") for name in usual}
        facts: dict[str, Any] = {
            "scaler": Scaler.fit(windows),
            "entities": tuple(sorted({view.entity for view in views})),
            "leads": leads,
            "covariates": tuple(name for name in usual if is_scaled[name]),
            "weather": tuple(name for name in usual if not is_scaled[name]),
        }
        return cls(**(facts | cls.choose(views)))

    @classmethod
    @abstractmethod
    def choose(cls, views: Sequence[WindowView]) -> dict[str, Any]:
        """Return further fields, or other values of these, by the views of train."""

    @classmethod
    def covers(cls, windows: WindowSet, train: WindowSet | None = None) -> bool:
        """Return whether train has days for all entities and leads of the windows."""
        views = windows.views()
        knows_all = all(map(cls.knows, views))
        if train is None or not knows_all:
            return knows_all
        fitted = [view for view in train.views() if cls.knows(view)]
        entities = {view.entity for view in fitted}
        leads = {view.unknown_steps for view in fitted}
        return all(view.entity in entities and view.unknown_steps in leads for view in views)

    @property
    def routes(self) -> tuple[int, ...]:
        """The leads of train."""
        return self.leads

    def find_route(self, view: WindowView) -> int:
        """Return the number of unknown steps; DataError if no train window has as many."""
        if view.unknown_steps not in self.leads:
            raise DataError(
                f"unknown_steps {view.unknown_steps} is not in the train split, which has "
                f"{list(self.leads)}; forecast windows of the data set that the model was fitted on"
            )
        return view.unknown_steps

    def select_train(self, train: WindowSet, route: int) -> Sequence[Window]:
        """Return the train windows of a lead that hold what the model needs."""
        return [w for w in train if w.view.unknown_steps == route and self.knows(w.view)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedErrorSpace(LeadSpace):
    """Scales and names fixed on the train split, for errors of the published forecast."""

    quantiles: tuple[str, ...]  # names of the published quantiles besides the median
    past: tuple[str, ...] = ()  # names of the series' own values of earlier days
    evidence = "a published forecast with its errors (published_evidence)"

    @staticmethod
    def knows(view: WindowView) -> bool:
        """Return whether a view has a published forecast, and a place for its known errors."""
        return is_published(view) and LAST_ERROR in view.step_covariates

    @classmethod
    def choose(cls, views: Sequence[WindowView]) -> dict[str, Any]:
        """Return the names of quantiles, and of the past where all views know it."""
        names = sorted({name for view in views for name in view.step_covariates})
        return {
            "quantiles": tuple(name for name in names if name.startswith(f"{PUBLISHED}_q")),
            "past": PAST_NAMES if all(knows_past(view) for view in views) else (),
        }

    def encode(self, views: Sequence[WindowView]) -> tuple[Columns, Columns]:
        """Return columns by step (N, H), and columns (N, 1) that all steps of a window share."""
        published_NH = stack_published(views)
        change_NH = published_NH - stack_by_step(views, f"{PUBLISHED}{LAG}")
        errors = {name: stack_by_step(views, name) for name in ERRORS}
        changes = {f"{name}_change": stack_change(views, name) for name in self.covariates}

        steps = {
            PUBLISHED: published_NH,
            **{name: abs(stack_by_step(views, name) - published_NH) for name in self.quantiles},
            **{name: stack_by_step(views, name) for name in self.covariates},
            f"{PUBLISHED}_change": change_NH,
            **changes,
            **errors,
        }
        days = {
            **{f"{name}_mean": mean_known(error_NH, axis=1) for name, error_NH in errors.items()},
            f"{PUBLISHED}_change_mean": mean_known(change_NH, axis=1),
            "error_last_known": mean_last_known(errors[LAST_ERROR]),
            **{f"{name}_max": np.max(own_NH, axis=1) for name, own_NH in changes.items()},
        }

        spread_N1 = self.scaler.stack_spreads(views)
        scaled = {name: column_N[:, None] / spread_N1 for name, column_N in days.items()}
        by_step = {name: column_NH / spread_N1 for name, column_NH in steps.items()}
        return by_step, scaled | encode_flags(views)

    def build_features(self, views: Sequence[WindowView], route: int) -> FloatArray:
        """Return the columns (N, F) of a linear map."""
        steps, days = self.encode(views)
        known_NH = np.where(np.isnan(steps[LAST_ERROR]), steps[_WEEK_ERROR], steps[LAST_ERROR])
        # Covariates enter only by day: at dawn, solar power hardly varies in winter, and a column
        # in units of that spread would run away in summer.
        parts = [np.nan_to_num(known_NH), steps[f"{PUBLISHED}_change"], *days.values()]
        return np.concatenate(parts, axis=1)

    def build_columns(self, views: Sequence[WindowView], route: int) -> Columns:
        """Return the columns of trees by name, (N, H) or (N, 1)."""
        steps, days = self.encode(views)
        entity_N1 = self.encode_entities(views)[:, None].astype(np.float64)
        columns = {**steps, "entity": entity_N1, **days}
        spread_N1, published_NH = self.scaler.stack_spreads(views), stack_published(views)
        for name in self.past:
            columns[name] = (stack_by_step(views, name) - published_NH) / spread_N1
        weather_steps, weather_days = encode_weather(views, self.weather)
        return columns | weather_steps | weather_days

    def stack_references(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the published medians (N, H)."""
        return stack_published(views)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSpace(LeadSpace):
    """Scales and names fixed on the train split, for changes from the last fortnight's mean."""

    evidence = "the series' own past (past_evidence)"
    knows = staticmethod(knows_past)

    @classmethod
    def choose(cls, views: Sequence[WindowView]) -> dict[str, Any]:
        """Return no covariates in the unit of the series: they are what others forecast of it."""
        return {"covariates": ()}

    def stack_references(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the means of the last fortnight (N, H); DataError if a view has none."""
        raise_if_lacking(views, knows_past, "value of the last fortnight at every step")
        return stack_by_step(views, PAST_REFERENCE)

    def encode(self, views: Sequence[WindowView]) -> tuple[Columns, Columns]:
        """Return columns by step (N, H), and columns (N, 1) that all steps of a window share."""
        spread_N1 = self.scaler.stack_spreads(views)
        reference_NH = self.stack_references(views)
        past = {n: (stack_by_step(views, n) - reference_NH) / spread_N1 for n in PAST_NAMES}
        weather_steps, weather_days = encode_weather(views, self.weather)

        columns = {f"{name}_mean": mean_known(values, axis=1) for name, values in past.items()}
        columns["level"] = (reference_NH / spread_N1).mean(axis=1)
        columns["past_last_known"] = mean_last_known(past[PAST_NAMES[0]])
        days = {name: column_N[:, None] for name, column_N in columns.items()}
        return past | weather_steps, days | weather_days | encode_flags(views)

    def build_features(self, views: Sequence[WindowView], route: int) -> FloatArray:
        """Return the columns (N, F) of a linear map, means over parts of the day."""
        steps, days = self.encode(views)
        # Half-hours that are not known yet are taken from the day before.
        yesterday_NH, before_NH, week_NH = (steps[name] for name in PAST_NAMES)
        known_NH = np.where(np.isnan(yesterday_NH), before_NH, yesterday_NH)

        parts = [average_blocks(known_NH, 12), average_blocks(week_NH, 6)]
        parts += [days[name] for name in ("level", "past_last_known", *FLAGS)]
        for name in self.weather:
            beyond_NH = steps[f"{name}_beyond"] / SCALES.get(name, 1.0)
            parts.append(beyond_NH.mean(axis=1, keepdims=True))
        if TEMPERATURE in self.weather:
            parts += encode_degree_blocks(views)
        return np.concatenate(parts, axis=1)

    def build_columns(self, views: Sequence[WindowView], route: int) -> Columns:
        """Return the columns of trees by name, (N, H) or (N, 1)."""
        steps, days = self.encode(views)
        return {"entity": self.encode_entities(views)[:, None].astype(np.float64), **steps, **days}


def average_blocks(values_NH: FloatArray, blocks: int) -> FloatArray:
    """Return means over equal parts of the horizon (N, B); NaN where a part has no value."""
    parts = np.array_split(values_NH, min(blocks, values_NH.shape[1]), axis=1)
    return np.stack([mean_known(part, axis=1) for part in parts], axis=1)


def encode_degree_blocks(views: Sequence[WindowView]) -> list[FloatArray]:
    """Return temperatures of today and yesterday beyond the last fortnight's (N, B), by part."""
    usual_NH = stack_by_step(views, f"{TEMPERATURE}{PAST_MEAN}")
    before_NH = stack_by_step(views, f"{TEMPERATURE}_lag1")
    parts = []
    for values_NH, blocks in ((read_today(views, TEMPERATURE), 6), (before_NH, 3)):
        beyond = [
            np.maximum(values_NH - COOLING_ABOVE_C, 0) - np.maximum(usual_NH - COOLING_ABOVE_C, 0),
            np.maximum(HEATING_BELOW_C - values_NH, 0) - np.maximum(HEATING_BELOW_C - usual_NH, 0),
        ]
        if blocks == 6:
            beyond.append(values_NH - usual_NH)
        parts += [average_blocks(column_NH / SCALES[TEMPERATURE], blocks) for column_NH in beyond]
    return parts


def _trail(views: Sequence[WindowView], values_NH: FloatArray) -> FloatArray:
    """Return the mean over the hours before and at each step of the day (N, H)."""
    steps = max(1, int(TRAILING_HOURS * 60 / views[0].step_minutes)) if views else 1
    sums_NH = np.cumsum(values_NH, axis=1)
    earlier_NH = np.zeros_like(sums_NH)
    earlier_NH[:, steps:] = sums_NH[:, :-steps]
    counts_H = np.minimum(np.arange(values_NH.shape[1]) + 1, steps)
    return np.asarray((sums_NH - earlier_NH) / counts_H)


def encode_weather(views: Sequence[WindowView], names: Sequence[str]) -> tuple[Columns, Columns]:
    """Return weather in its own units by step (N, H), and columns (N, 1) that all steps share."""
    steps: Columns = {}
    for name in names:
        today_NH = read_today(views, name)
        steps[name] = today_NH
        steps[f"{name}_change"] = today_NH - stack_by_step(views, f"{name}_lag1")
        steps[f"{name}_beyond"] = today_NH - stack_by_step(views, f"{name}{PAST_MEAN}")

    days = {f"{name}_mean": mean_known(steps[name], axis=1) for name in names}
    if TEMPERATURE in names:
        today_NH = steps[TEMPERATURE]
        steps["cooling"] = np.maximum(today_NH - COOLING_ABOVE_C, 0)
        steps["heating"] = np.maximum(HEATING_BELOW_C - today_NH, 0)
        steps[f"{TEMPERATURE}_trailing"] = _trail(views, today_NH)

        before_NH = stack_by_step(views, f"{TEMPERATURE}_lag1")
        for day, values_NH in (("", today_NH), ("_before", before_NH)):
            days[f"{TEMPERATURE}_max{day}"] = values_NH.max(axis=1)
            days[f"{TEMPERATURE}_min{day}"] = values_NH.min(axis=1)
        days[f"{TEMPERATURE}_mean_before"] = mean_known(before_NH, axis=1)
    return steps, {name: column_N[:, None] for name, column_N in days.items()}


def read_today(views: Sequence[WindowView], name: str) -> FloatArray:
    """Return a covariate (N, H), the last fortnight's mean where it was not known."""
    today_NH = stack_by_step(views, name)
    return np.where(np.isfinite(today_NH), today_NH, stack_by_step(views, f"{name}{PAST_MEAN}"))


def encode_flags(views: Sequence[WindowView]) -> Columns:
    """Return the columns of the calendar (N, 1) without its yearly waves, by name."""
    flags = name_columns(CALENDAR_NAMES, encode_calendars(views))
    return {name: flags[name] for name in FLAGS}


def mean_last_known(values_NH: FloatArray) -> FloatArray:
    """Return the mean of each row's last known values (N,), NaN where there is none."""
    # Counted from the end: how many known values come at or after each one.
    from_end = np.cumsum(np.isfinite(values_NH)[:, ::-1], axis=1)[:, ::-1]
    return mean_known(np.where(from_end <= LAST_KNOWN_STEPS, values_NH, np.nan), axis=1)
