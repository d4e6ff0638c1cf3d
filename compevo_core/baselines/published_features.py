"""What models of a published forecast's own error see: its known errors, its spread, its changes.

What belongs here: turning a view into numbers, with the scales and covariate names of the train
split. What does not: any model. How errors come into a view is ``data.context``.

Everything in physical units is in units of the entity's train standard deviation, so that regions
share one model. A value that was not known when a view was made is NaN; each model says what it
does with it.

Shapes: N windows, H horizon (48), F features.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from compevo_core.baselines.base import TrainSpace, stack_published, stack_rows
from compevo_core.baselines.features import CALENDAR_NAMES, encode_calendars
from compevo_core.data.arrays import FloatArray
from compevo_core.data.context import ERROR_LAGS, ERROR_MEANS, PUBLISHED
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import HORIZON, Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError

LAST_ERROR = f"{PUBLISHED}_error_lag1"
ERRORS = (
    *(f"{PUBLISHED}_error_lag{lag}" for lag in ERROR_LAGS),
    *(f"{PUBLISHED}_error_mean{n}" for n in ERROR_MEANS),
)
LAST_KNOWN_STEPS = 6
"""Newest known errors whose mean is a column: three hours of half-hours."""

_FLAGS = tuple(name for name in CALENDAR_NAMES if not name.endswith("_year"))
"""Columns of the calendar: no yearly wave, which over less than a year is the date itself."""

_LAG = "_lag1"
_QUANTILE = f"{PUBLISHED}_q"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedErrorSpace(TrainSpace):
    """Scales and names fixed on the train split, for errors of the published forecast.

    Views have a route, and a model of their own, by their number of unknown steps.
    """

    quantiles: tuple[str, ...]  # names of the published quantiles besides the median
    # Names of covariates by step that at least half of the windows of every lead know at each step,
    # of the season before as well
    covariates: tuple[str, ...]
    leads: tuple[int, ...]  # numbers of unknown steps that the views of the train split have

    @classmethod
    def fit(cls, train: WindowSet) -> Self:
        """Fix names and scales on the train windows whose errors are known."""
        # A day without a publication has no error to learn from.
        windows = _select_published(train)
        if not windows:
            raise DataError(
                f"{len(train)} train windows of {train.dataset} have no published forecast with "
                "its errors; use models of these errors for a data set whose views hold them "
                "(published_evidence)"
            )

        views = [window.view for window in windows]
        names = sorted({name for view in views for name in view.step_covariates})
        leads = tuple(sorted({view.unknown_steps for view in views}))
        by_lead = [[view for view in views if view.unknown_steps == lead] for lead in leads]
        return cls(
            scaler=Scaler.fit(windows),
            entities=tuple(sorted({view.entity for view in views})),
            quantiles=tuple(name for name in names if name.startswith(_QUANTILE)),
            covariates=tuple(
                name
                for name in names
                if PUBLISHED not in name and all(_is_usual(views, name) for views in by_lead)
            ),
            leads=leads,
        )

    @property
    def step_names(self) -> tuple[str, ...]:
        """Names of the columns of :meth:`encode_steps`."""
        changes = (f"{name}_change" for name in (PUBLISHED, *self.covariates))
        return (PUBLISHED, *self.quantiles, *self.covariates, *changes, *ERRORS)

    @property
    def day_names(self) -> tuple[str, ...]:
        """Names of the columns of :meth:`encode_days`."""
        means = (f"{name}_mean" for name in (*ERRORS, f"{PUBLISHED}_change"))
        largest = (f"{name}_change_max" for name in self.covariates)
        return (*means, "error_last_known", *largest, *_FLAGS)

    def encode_steps(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the columns that differ between the steps of a window, (N, H, F)."""
        published_NH = stack_published(views)
        columns = [published_NH]
        columns += [abs(_stack_column(views, name) - published_NH) for name in self.quantiles]
        columns += [_stack_column(views, name) for name in self.covariates]
        columns += [published_NH - _stack_column(views, f"{PUBLISHED}{_LAG}")]
        columns += [
            _stack_column(views, name) - _stack_column(views, f"{name}{_LAG}")
            for name in self.covariates
        ]
        columns += [_stack_column(views, name) for name in ERRORS]
        return np.stack(columns, axis=2) / self._spread(views)[:, :, None]

    def encode_days(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the columns that all steps of a window share, (N, F)."""
        changes_NH = stack_published(views) - _stack_column(views, f"{PUBLISHED}{_LAG}")
        columns = [_mean_known(_stack_column(views, name)) for name in ERRORS]
        columns += [_mean_known(changes_NH), _mean_last_known(_stack_column(views, LAST_ERROR))]
        columns += [
            np.max(_stack_column(views, name) - _stack_column(views, f"{name}{_LAG}"), axis=1)
            for name in self.covariates
        ]
        scaled = np.stack(columns, axis=1) / self._spread(views)
        return np.concatenate([scaled, encode_calendars(views)[:, : len(_FLAGS)]], axis=1)

    @property
    def routes(self) -> tuple[int, ...]:
        """The leads of train."""
        return self.leads

    def route(self, views: Sequence[WindowView]) -> dict[int, list[int]]:
        """Return the positions of the views by their number of unknown steps."""
        _raise_if_unknown("unknown_steps", {view.unknown_steps for view in views}, self.leads)
        return {
            lead: [i for i, view in enumerate(views) if view.unknown_steps == lead]
            for lead in self.leads
        }

    def select_train(self, train: WindowSet, route: int) -> Sequence[Window]:
        """Return the train windows of a lead whose errors are known."""
        return [w for w in _select_published(train) if w.view.unknown_steps == route]

    def scale_targets(self, windows: Sequence[Window]) -> FloatArray:
        """Return the scaled error of the published forecast (N, H), NaN where masked."""
        views = [window.view for window in windows]
        truth_NH = stack_rows([window.y for window in windows])
        return np.asarray((truth_NH - stack_published(views)) / self._spread(views))

    def unscale(self, views: Sequence[WindowView], output_NH: FloatArray) -> FloatArray:
        """Return forecasts (N, H) in each view's unit from scaled errors."""
        return np.asarray(stack_published(views) + self._spread(views) * output_NH)

    def _spread(self, views: Sequence[WindowView]) -> FloatArray:
        _raise_if_unknown("entity", {view.entity for view in views}, self.entities)
        return np.array([[self.scaler.std[view.entity]] for view in views]).reshape(len(views), 1)


def knows_published_errors(view: WindowView) -> bool:
    """Whether a view has a published forecast, and a place for what is known of its errors."""
    return view.published is not None and LAST_ERROR in view.step_covariates


def _select_published(train: WindowSet) -> list[Window]:
    return [window for window in train if knows_published_errors(window.view)]


def _is_usual(views: Sequence[WindowView], name: str) -> bool:
    """Whether at least half of the views know a covariate at every step, today and yesterday."""
    # A column that few windows have is the mean in all others: it would tell them apart, no more.
    known_NH = np.isfinite(_stack_column(views, name)) & np.isfinite(
        _stack_column(views, f"{name}{_LAG}")
    )
    return bool(known_NH.all(axis=1).mean() >= 0.5)


def _stack_column(views: Sequence[WindowView], name: str) -> FloatArray:
    unknown_H = np.full(HORIZON, np.nan)
    return stack_rows([view.step_covariates.get(name, unknown_H) for view in views])


def _mean_known(values_NH: FloatArray) -> FloatArray:
    """Return the mean of each row's known values (N,), NaN where there is none."""
    is_known = np.isfinite(values_NH)
    total = np.where(is_known, values_NH, 0.0).sum(axis=1)
    count = is_known.sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _mean_last_known(values_NH: FloatArray) -> FloatArray:
    """Return the mean of each row's last known values (N,), NaN where there is none."""
    # Counted from the end: how many known values come at or after each one.
    is_known = np.isfinite(values_NH)
    from_end = np.cumsum(is_known[:, ::-1], axis=1)[:, ::-1]
    return _mean_known(np.where(from_end <= LAST_KNOWN_STEPS, values_NH, np.nan))


def _raise_if_unknown(what: str, given: Iterable[object], known: Sequence[object]) -> None:
    unknown = [each for each in given if each not in known]
    if unknown:
        raise DataError(
            f"{what} {unknown[0]!r} is not in the train split, which has {list(known)}; forecast "
            "windows of the data set that the model was fitted on"
        )
