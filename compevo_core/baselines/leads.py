"""What models see whose views know less of yesterday the earlier they are made.

What belongs here: the spaces of models for each number of unknown steps, on a published forecast's
own error and on the series itself, with the columns of weather, past and errors by step and by day.
What does not: any model (``baselines.ridge``, ``baselines.gbm``); changes from the last season
(``baselines.features``); how weather, past and errors come into a view (``data.context``).

The model of the series itself does not use what others forecast of it, so its errors differ from
theirs: no published median, and no covariate in the unit of the series, such as the operator's
forecast of rooftop power. It learns how a day differs from the mean of the last fortnight at each
step, since both follow the season. Weather unknown to a view is taken from the last fortnight.

Shapes: N windows, H horizon, B blocks of the horizon.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from compevo_core.baselines.base import TrainSpace, stack_published
from compevo_core.baselines.features import (
    CALENDAR_NAMES,
    LAG,
    MIN_COVERAGE,
    encode_calendars,
    name_columns,
    stack_change,
)
from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.context import ERROR_LAGS, ERROR_MEANS, PAST, PAST_LAGS, PAST_MEAN, PUBLISHED
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import Window, WindowView, stack_by_step
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError

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
ERRORS = (
    *(f"{PUBLISHED}_error_lag{lag}" for lag in ERROR_LAGS),
    *(f"{PUBLISHED}_error_mean{n}" for n in ERROR_MEANS),
)
PAST_NAMES = tuple(f"{PAST}_lag{lag}" for lag in PAST_LAGS)
PAST_REFERENCE = f"{PAST}{PAST_MEAN}"
LAST_KNOWN_STEPS = 6  # newest known values whose mean is a column: three hours of half-hours

FLAGS = tuple(name for name in CALENDAR_NAMES if not name.endswith("_year"))
"""Columns of the calendar: no yearly wave, which over less than a year is the date itself."""


Columns = dict[str, FloatArray]  # by name


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
    evidence = "a published forecast with its errors (published_evidence)"

    @staticmethod
    def knows(view: WindowView) -> bool:
        """Return whether a view has a published forecast, and a place for its known errors."""
        return view.published is not None and LAST_ERROR in view.step_covariates

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
        without = [view for view in views if not knows_past(view)]
        if without:
            raise DataError(
                f"{len(without)} of {len(views)} windows have no value of the last fortnight at "
                f"some step, first {without[0].window_id}; forecast days with a past"
            )
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


def average_blocks(values_NH: FloatArray, blocks: int) -> FloatArray:
    """Return means over equal parts of the horizon (N, B); NaN where a part has no value."""
    parts = np.array_split(values_NH, min(blocks, values_NH.shape[1]), axis=1)
    return np.stack([mean_known(part, axis=1) for part in parts], axis=1)


def encode_degree_blocks(views: Sequence[WindowView]) -> list[FloatArray]:
    """Return temperatures of today and yesterday beyond the last fortnight's (N, B), by part.

    Degrees above and below the thresholds have columns of their own, since a linear map needs one
    for each side.
    """
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


def encode_flags(views: Sequence[WindowView]) -> dict[str, FloatArray]:
    """Return the columns of the calendar (N, 1) without its yearly waves, by name."""
    flags = name_columns(CALENDAR_NAMES, encode_calendars(views))
    return {name: flags[name] for name in FLAGS}


def mean_last_known(values_NH: FloatArray) -> FloatArray:
    """Return the mean of each row's last known values (N,), NaN where there is none."""
    # Counted from the end: how many known values come at or after each one.
    is_known = np.isfinite(values_NH)
    from_end = np.cumsum(is_known[:, ::-1], axis=1)[:, ::-1]
    return mean_known(np.where(from_end <= LAST_KNOWN_STEPS, values_NH, np.nan), axis=1)
