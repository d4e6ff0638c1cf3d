"""What models of a published forecast's own error see: its known errors, its spread, its changes.

What belongs here: turning a view into numbers, with the scales and covariate names of the train
split. What does not: any model. How errors come into a view is ``data.step_values``.

Everything in physical units is in units of the entity's train standard deviation, so that regions
share one model. A value that was not known when a view was made is NaN; each model says what it
does with it.

Shapes: N windows, H horizon (48), F features.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from compevo_core.baselines.base import stack_published, stack_rows
from compevo_core.baselines.features import CALENDAR_NAMES, encode_calendars
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.step_values import ERROR_LAGS, ERROR_MEANS, PUBLISHED
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
class PublishedErrorSpace:
    """Scales and names fixed on the train split.

    Attributes:
        scaler: of each entity's values.
        entities: names of the train split.
        quantiles: names of the published quantiles besides the median.
        covariates: names of covariates by step that at least half of the windows of every lead know
            at each step, of the season before as well.
        leads: numbers of unknown steps that the views of the train split have.
    """

    scaler: Scaler
    entities: tuple[str, ...]
    quantiles: tuple[str, ...]
    covariates: tuple[str, ...]
    leads: tuple[int, ...]

    @classmethod
    def fit(cls, train: WindowSet) -> Self:
        """Fix names and scales on train windows that :func:`choose_published` returned."""
        views = train.views()
        names = sorted({name for view in views for name in view.step_covariates})
        leads = tuple(sorted({view.unknown_steps for view in views}))
        by_lead = [[view for view in views if view.unknown_steps == lead] for lead in leads]
        return cls(
            scaler=Scaler.fit(train),
            entities=train.entities,
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
        columns += [abs(_take(views, name) - published_NH) for name in self.quantiles]
        columns += [_take(views, name) for name in self.covariates]
        columns += [published_NH - _take(views, f"{PUBLISHED}{_LAG}")]
        columns += [_take(views, name) - _take(views, f"{name}{_LAG}") for name in self.covariates]
        columns += [_take(views, name) for name in ERRORS]
        return np.stack(columns, axis=2) / self._spread(views)[:, :, None]

    def encode_days(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the columns that all steps of a window share, (N, F)."""
        changes_NH = stack_published(views) - _take(views, f"{PUBLISHED}{_LAG}")
        columns = [_mean_known(_take(views, name)) for name in ERRORS]
        columns += [_mean_known(changes_NH), _mean_last_known(_take(views, LAST_ERROR))]
        columns += [
            np.max(_take(views, name) - _take(views, f"{name}{_LAG}"), axis=1)
            for name in self.covariates
        ]
        scaled = np.stack(columns, axis=1) / self._spread(views)
        return np.concatenate([scaled, encode_calendars(views)[:, : len(_FLAGS)]], axis=1)

    def encode_entities(self, views: Sequence[WindowView]) -> npt.NDArray[np.int64]:
        """Return the position of each view's entity; another method refuses unknown ones."""
        return np.array([self.entities.index(view.entity) for view in views], dtype=np.int64)

    def route_by_lead(self, views: Sequence[WindowView]) -> dict[int, list[int]]:
        """Return the positions of the views by their number of unknown steps.

        Raises:
            DataError: the train split had no window with so many.
        """
        _refuse_unknown("unknown_steps", {view.unknown_steps for view in views}, self.leads)
        return {
            lead: [i for i, view in enumerate(views) if view.unknown_steps == lead]
            for lead in self.leads
        }

    def scale_targets(self, windows: Sequence[Window]) -> FloatArray:
        """Return the scaled error of the published forecast (N, H), NaN where masked."""
        views = [window.view for window in windows]
        truth_NH = stack_rows([window.y for window in windows])
        return np.asarray((truth_NH - stack_published(views)) / self._spread(views))

    def add_errors(self, views: Sequence[WindowView], error_NH: FloatArray) -> FloatArray:
        """Return forecasts (N, H) in each view's unit from scaled errors."""
        return np.asarray(stack_published(views) + self._spread(views) * error_NH)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values that :meth:`from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        lists = {name: tuple(value) for name, value in raw.items() if name != "scaler"}
        return cls(scaler=Scaler.from_json(json.dumps(raw["scaler"])), **lists)

    def _spread(self, views: Sequence[WindowView]) -> FloatArray:
        _refuse_unknown("entity", {view.entity for view in views}, self.entities)
        return np.array([[self.scaler.std[view.entity]] for view in views]).reshape(len(views), 1)


def knows_published_errors(view: WindowView) -> bool:
    """Whether a view has a published forecast, and a place for what is known of its errors."""
    return view.published is not None and LAST_ERROR in view.step_covariates


def choose_published(train: WindowSet) -> WindowSet:
    """Return the train windows that models of a published forecast's errors are fitted on.

    A day without a publication has no error to learn from.

    Raises:
        DataError: no window has a published forecast with its errors.
    """
    chosen = [window for window in train if knows_published_errors(window.view)]
    if not chosen:
        raise DataError(
            f"{len(train)} train windows of {train.dataset} have no published forecast with its "
            "errors; use models of these errors for a data set whose views hold them "
            "(published_evidence)"
        )
    return WindowSet(chosen, dataset=train.dataset)


def _is_usual(views: Sequence[WindowView], name: str) -> bool:
    """Whether at least half of the views know a covariate at every step, today and yesterday."""
    # A column that few windows have is the mean in all others: it would tell them apart, no more.
    known_NH = np.isfinite(_take(views, name)) & np.isfinite(_take(views, f"{name}{_LAG}"))
    return bool(known_NH.all(axis=1).mean() >= 0.5)


def _take(views: Sequence[WindowView], name: str) -> FloatArray:
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


def _refuse_unknown(what: str, given: Iterable[object], known: Sequence[object]) -> None:
    unknown = [each for each in given if each not in known]
    if unknown:
        raise DataError(
            f"{what} {unknown[0]!r} is none of the train split's, {list(known)}; forecast windows "
            "of the data set that the model was fitted on"
        )
