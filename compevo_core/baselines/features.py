"""What ridges and boosted trees see of a window: its day, the calendar, weather, known errors.

What belongs here: turning a view into numbers, with the scales and names of the train split, for
changes from the last season and for a published forecast's own error. What does not: any model; how
weather and errors come into a view (``data.context``).

Everything is in units of the entity's train standard deviation, so that a fit carries over to years
with another level and regions share one model. What was not known when a view was made is NaN here;
each model says what it does with it.

A covariate by step acts by its value, its square, and what lies more than a standard deviation
above and below the mean: cooling, heating, a promotion of zero or one. Without proof on the last
part of train the answer is zero: a column of noise changes no forecast.

Shapes: N windows, H horizon, C covariates, F features, B parts of the season, K forms.
"""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np

from compevo_core.baselines.base import TrainSpace, repeat_last_season, stack_published
from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.calendar import Calendar
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
from compevo_core.data.steps import WEEK
from compevo_core.data.view import (
    DEFAULT_STEPS,
    Window,
    WindowView,
    cover_horizon,
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


_PARTS = 8  # of a season, each with an answer of its own
_FORMS = 4
_PENALTY = 30.0  # steps without an answer, counted with those of train
_PROOF = 0.2  # last share of the train windows, on which an answer must help


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
        before_NH = (stack_by_step(views, self.name + _LAG) - self.mean) / self.spread
        # Changes are counted from one season, repeated over the horizon.
        season = views[0].reference_steps if views else 1
        before_NH = before_NH[:, np.arange(find_horizon(views)) % season]
        return _shape(now_NH) - _shape(before_NH)


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
        x_RK = change_NHK[:, part_H == part].reshape(-1, _FORMS)
        y_R = centred_NH[:, part_H == part].reshape(-1)
        is_known_R = np.isfinite(y_R) & np.isfinite(x_RK).all(axis=1)
        x, y = x_RK[is_known_R], y_R[is_known_R]
        gram = x.T @ x + _PENALTY * np.eye(_FORMS)
        weights.append(tuple(np.linalg.solve(gram, x.T @ y).tolist()))
    return replace(empty, weights=tuple(weights))


def _shape(z_NH: FloatArray) -> FloatArray:
    """Return the forms in which a covariate acts, (N, H, K)."""
    return np.stack([z_NH, z_NH**2, np.maximum(z_NH - 1, 0.0), np.maximum(-z_NH - 1, 0.0)], axis=-1)


def _find_parts(views: Sequence[WindowView], parts: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the part of the season of each target step (H,), from 0."""
    season = views[0].reference_steps if views else 1
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
            if np.isfinite(_stack_change(views, name))[has_truth_NH].mean() >= MIN_COVERAGE
        ]
        if not usual:
            return space
        return replace(space, steps=fit_responses(views, usual, space.scale_targets(train)))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; a space without own covariates by step has no key for them."""
        values = asdict(self)
        if not self.steps:
            del values["steps"]
        return values

    def extract_weather(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the covariates (N, C), NaN where a view lacks one."""
        # reshape() gives an empty list of views or covariates its two dimensions.
        rows = [[view.covariates.get(name, np.nan) for name in self.covariates] for view in views]
        return np.array(rows, dtype=np.float64).reshape(len(views), len(self.covariates))

    def has_weather(self, view: WindowView) -> bool:
        """Return whether a view has any covariate of the train split."""
        return any(name in view.covariates for name in self.covariates)

    @property
    def routes(self) -> tuple[int, ...]:
        """With weather and without; only without if no covariate is usual."""
        return (True, False) if self.covariates else (False,)

    def find_route(self, view: WindowView) -> int:
        """Return whether a view has weather."""
        return self.has_weather(view)

    def stack_references(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the last season of each input, repeated over the horizon, (N, H).

        Own covariates by step move it by what they change.
        """
        last_NH = stack_rows([repeat_last_season(view) for view in views])
        if not self.steps:
            return last_NH
        changes = [response.apply(views) for response in self.steps]
        return last_NH + self.scaler.stack_spreads(views) * np.sum(changes, axis=0)

    def compute_hinges(self, weather_NC: FloatArray) -> FloatArray:
        """Return kelvins above and below the two thresholds, (N, 2 x temperatures).

        Demand rises with heat and with cold; a linear map needs one column for each side.
        """
        columns = [i for i, name in enumerate(self.covariates) if TEMPERATURE_KEY in name]
        kelvin = weather_NC[:, columns]
        cooling = np.maximum(kelvin - COOLING_ABOVE_K, 0)
        heating = np.maximum(HEATING_BELOW_K - kelvin, 0)
        return np.concatenate([cooling, heating], axis=1)

    @property
    def change_names(self) -> tuple[str, ...]:
        """Stems of the covariates known for both of the last two days."""
        stems = (name.removesuffix("_lag1") for name in self.covariates if name.endswith("_lag1"))
        return tuple(stem for stem in stems if f"{stem}_lag2" in self.covariates)

    def compute_changes(self, weather_NC: FloatArray) -> FloatArray:
        """Return the change of ``change_names`` over the last two days, (N, names)."""
        # For the trees, which split on one column at a time and cannot subtract two of them.
        yesterday = [self.covariates.index(f"{stem}_lag1") for stem in self.change_names]
        day_before = [self.covariates.index(f"{stem}_lag2") for stem in self.change_names]
        return weather_NC[:, yesterday] - weather_NC[:, day_before]

    def scale_inputs(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the inputs (N, L), centred and in units of each entity's train deviation."""
        return stack_rows([self.scaler.scale(view.x, view.entity) for view in views])

    def scale_recent(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the scaled inputs that stand for the target steps one by one, oldest first."""
        recent = cover_horizon(views[0]) if views else DEFAULT_STEPS
        return self.scale_inputs(views)[:, -recent:]

    def summarize_seasons(self, views: Sequence[WindowView]) -> dict[str, FloatArray]:
        """Summarise the part of the inputs before ``scale_recent``, scaled, by name.

        ``season_mean`` (N, season) by place in the season, starting at the place of the first
        target step; ``season_levels`` (N, seasons), the mean of each, oldest first; ``last_week``
        (N, H) where steps are shorter than a day and ``scale_recent`` does not hold a week. Empty
        where inputs reach no further back.
        """
        if not views or views[0].lookback <= cover_horizon(views[0]):
            return {}

        first = views[0]
        z_NL, season = self.scale_inputs(views), first.shortest_season
        seasons_NRS = z_NL[:, len(z_NL[0]) % season :].reshape(len(views), -1, season)
        summaries = {
            "season_mean": seasons_NRS.mean(axis=1),
            "season_levels": seasons_NRS.mean(axis=2),
        }
        weeks = math.ceil(first.horizon * first.step / WEEK)
        back = weeks * (WEEK // first.step)
        if cover_horizon(first) < back <= first.lookback and first.season_steps > 1:
            start = first.lookback - back
            summaries["last_week"] = z_NL[:, start : start + first.horizon]
        return summaries


def list_own_covariates(windows: Sequence[Window]) -> list[str]:
    """Return the names of a user's own covariates by step, sorted."""
    names = {name for window in windows for name in window.view.step_covariates}
    return sorted(n for n in names if n.startswith(OWN) and not n.endswith(_LAG))


def encode_calendars(views: Sequence[WindowView]) -> FloatArray:
    """Return calendar features (N, len(CALENDAR_NAMES))."""
    rows = [_encode_calendar(view.calendar) for view in views]
    return np.array(rows).reshape(len(views), len(CALENDAR_NAMES))


def _encode_calendar(calendar: Calendar) -> list[float]:
    """Return the numbers of ``CALENDAR_NAMES``."""
    weekdays = [float(calendar.target_weekday == i) for i in range(7)]

    # The change into and out of days off matters by itself: the input is a day of the other kind.
    is_off = calendar.target_is_day_off
    was_off = calendar.previous_is_day_off
    flags = [
        bool(calendar.target_holiday),
        bool(calendar.previous_holiday),
        is_off,
        was_off,
        is_off > was_off,
        was_off > is_off,
    ]

    angle = 2 * np.pi * calendar.day_of_year / DAYS_OF_YEAR
    waves = [float(wave(k * angle)) for k in (1, 2) for wave in (np.sin, np.cos)]

    return [*weekdays, *map(float, flags), *waves]


LAST_ERROR = f"{PUBLISHED}_error_lag1"
ERRORS = (
    *(f"{PUBLISHED}_error_lag{lag}" for lag in ERROR_LAGS),
    *(f"{PUBLISHED}_error_mean{n}" for n in ERROR_MEANS),
)
PAST_NAMES = tuple(f"{PAST}_lag{lag}" for lag in PAST_LAGS)
PAST_REFERENCE = f"{PAST}{PAST_MEAN}"
LAST_KNOWN_STEPS = 6  # newest known values whose mean is a column: three hours of half-hours

FLAGS = tuple(name for name in CALENDAR_NAMES if not name.endswith("_year"))
"""Columns of the calendar: no yearly wave, which over less than a year is the date itself."""

_LAG = "_lag1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadSpace(TrainSpace):
    """Views have a route, and a model of their own, by their number of unknown steps."""

    leads: tuple[int, ...]  # numbers of unknown steps that the views of the train split have
    # Names of covariates by step that at least half of the windows of every lead know at each step,
    # of the season before as well: in the series' unit, as the power of rooftops, and in others
    covariates: tuple[str, ...]
    weather: tuple[str, ...] = ()

    @staticmethod
    @abstractmethod
    def knows(view: WindowView) -> bool:
        """Return whether a view holds what the model needs."""

    @classmethod
    def covers(cls, windows: WindowSet, train: WindowSet | None = None) -> bool:
        """Return whether train has days for all entities and leads of the windows."""
        views = windows.views()
        if not all(cls.knows(view) for view in views):
            return False
        if train is None:
            return True
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

    @staticmethod
    def knows(view: WindowView) -> bool:
        """Return whether a view has a published forecast, and a place for its known errors."""
        return view.published is not None and LAST_ERROR in view.step_covariates

    @classmethod
    def fit(cls, train: WindowSet) -> Self:
        """Fix names and scales on the train windows whose errors are known."""
        # A day without a publication has no error to learn from.
        windows = [window for window in train if cls.knows(window.view)]
        if not windows:
            raise DataError(
                f"{len(train)} train windows of {train.dataset} have no published forecast with "
                "its errors; use models of these errors for a data set whose views hold them "
                "(published_evidence)"
            )

        views = [window.view for window in windows]
        names = sorted({name for view in views for name in view.step_covariates})
        return cls(
            **describe_leads(windows),
            quantiles=tuple(name for name in names if name.startswith(f"{PUBLISHED}_q")),
            past=PAST_NAMES if all(knows_past(view) for view in views) else (),
        )

    def encode_steps(self, views: Sequence[WindowView]) -> dict[str, FloatArray]:
        """Return the columns (N, H) that differ between the steps of a window, by name."""
        published_NH = stack_published(views)
        columns = {
            PUBLISHED: published_NH,
            **{name: abs(stack_by_step(views, name) - published_NH) for name in self.quantiles},
            **{name: stack_by_step(views, name) for name in self.covariates},
            f"{PUBLISHED}_change": published_NH - stack_by_step(views, f"{PUBLISHED}{_LAG}"),
            **{f"{name}_change": _stack_change(views, name) for name in self.covariates},
            **{name: stack_by_step(views, name) for name in ERRORS},
        }
        spread_N1 = self.scaler.stack_spreads(views)
        return {name: column_NH / spread_N1 for name, column_NH in columns.items()}

    def encode_days(self, views: Sequence[WindowView]) -> dict[str, FloatArray]:
        """Return the columns (N, 1) that all steps of a window share, by name."""
        changes_NH = stack_published(views) - stack_by_step(views, f"{PUBLISHED}{_LAG}")
        columns = {
            **{f"{name}_mean": mean_known(stack_by_step(views, name), axis=1) for name in ERRORS},
            f"{PUBLISHED}_change_mean": mean_known(changes_NH, axis=1),
            "error_last_known": mean_last_known(stack_by_step(views, LAST_ERROR)),
            **{
                f"{name}_change_max": np.max(_stack_change(views, name), axis=1)
                for name in self.covariates
            },
        }
        spread_N1 = self.scaler.stack_spreads(views)
        scaled = {name: column_N[:, None] / spread_N1 for name, column_N in columns.items()}
        return scaled | encode_flags(views)

    def stack_references(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the published medians (N, H)."""
        return stack_published(views)


def name_columns(names: Iterable[str], values_NF: FloatArray) -> dict[str, FloatArray]:
    """Return the columns of an array, (N, 1) each, by name."""
    return {name: column_N[:, None] for name, column_N in zip(names, values_NF.T, strict=True)}


def encode_flags(views: Sequence[WindowView]) -> dict[str, FloatArray]:
    """Return the columns of the calendar (N, 1) without its yearly waves, by name."""
    flags = name_columns(CALENDAR_NAMES, encode_calendars(views))
    return {name: flags[name] for name in FLAGS}


def describe_leads(windows: Sequence[Window]) -> dict[str, Any]:
    """Return the fields of a :class:`LeadSpace` on train windows."""
    views = [window.view for window in windows]
    leads = tuple(sorted({view.unknown_steps for view in views}))
    by_lead = [[view for view in views if view.unknown_steps == lead] for lead in leads]

    names = sorted({name for view in views for name in view.step_covariates})
    usual = [
        name
        for name in names
        if PUBLISHED not in name
        and all(
            np.isfinite(_stack_change(views, name)).all(axis=1).mean() >= MIN_COVERAGE
            for views in by_lead
        )
    ]
    # A name ends with its unit, as rooftop_pv_mw does.
    is_scaled = {name: name.endswith(f"_{views[0].unit.lower()}") for name in usual}
    return {
        "scaler": Scaler.fit(windows),
        "entities": tuple(sorted({view.entity for view in views})),
        "leads": leads,
        "covariates": tuple(name for name in usual if is_scaled[name]),
        "weather": tuple(name for name in usual if not is_scaled[name]),
    }


def knows_past(view: WindowView) -> bool:
    """Whether a view has a mean of the last fortnight at every step."""
    mean_H = view.step_covariates.get(PAST_REFERENCE)
    return mean_H is not None and bool(np.isfinite(mean_H).all())


def _stack_change(views: Sequence[WindowView], name: str) -> FloatArray:
    return stack_by_step(views, name) - stack_by_step(views, f"{name}{_LAG}")


def mean_last_known(values_NH: FloatArray) -> FloatArray:
    """Return the mean of each row's last known values (N,), NaN where there is none."""
    # Counted from the end: how many known values come at or after each one.
    is_known = np.isfinite(values_NH)
    from_end = np.cumsum(is_known[:, ::-1], axis=1)[:, ::-1]
    return mean_known(np.where(from_end <= LAST_KNOWN_STEPS, values_NH, np.nan), axis=1)
