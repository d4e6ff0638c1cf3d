"""How a series answers to covariates that are known for every step ahead, such as temperature.

What belongs here: the change since the season before that a change of a covariate brings, pooled
over windows and series, by part of the season. What does not: the models that learn what it leaves
(``baselines.ridge``, ``baselines.gbm``), when a value was known (``data.context``).

A covariate acts by its value, its square, and what lies more than a standard deviation above and
below the mean: cooling, heating, a promotion of zero or one. Without proof on the last part of
train the answer is zero: a column of noise changes no forecast.

Shapes: N windows, H horizon, B parts of the season, K forms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from compevo_core.data.arrays import FloatArray, mean_known
from compevo_core.data.view import WindowView, find_horizon, stack_by_step

_PARTS = 8  # of a season, each with an answer of its own
_FORMS = 4
_PENALTY = 30.0  # steps without an answer, counted with those of train
_PROOF = 0.2  # last share of the train windows, on which an answer must help
_LAG = "_lag1"


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

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Read what JSON made of it."""
        return cls(**{**raw, "weights": tuple(tuple(row) for row in raw["weights"])})


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
