"""Forecasts of a population whose truth is known, in the order of time.

The first ones belong to the validation windows of training, each made when only earlier days were
known; every observed day adds some. Weights (``agents.online_selection``) and quantiles
(``data.quantiles``) follow from it.

Shapes: A agents, N windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import load_file, save_file

from compevo_core.baselines.known_errors import NOT_STARTED
from compevo_core.data.arrays import FloatArray, IntArray
from compevo_core.data.quantiles import PastErrors, find_scale, measure_spread
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import WindowView, count_minutes


@dataclasses.dataclass(frozen=True)
class Experience:
    """Forecasts of N windows and their truth, scaled by the train split; instants in minutes."""

    entities: tuple[str, ...]
    entity_N: IntArray
    origin_N: IntArray
    until_N: IntArray  # latest instant that its view knew of
    end_N: IntArray  # end of the target
    unknown_N: IntArray  # steps before the origin not yet measured when it was forecast
    agents_NAH: FloatArray  # calibrated
    mixture_NH: FloatArray  # the population's forecast
    truth_NH: FloatArray  # NaN where missing
    scale_NH: FloatArray  # expected size of the errors as the publisher states it, or NaN
    spread_N: FloatArray  # standard deviation of the view's inputs, in the series' unit

    @classmethod
    def start(cls, entities: Sequence[str], agents: int, horizon: int) -> Self:
        """Return no experience."""
        nothing_NH = np.empty((0, horizon))
        nothing = cls.of(entities, [], np.empty((0, agents, horizon)), nothing_NH, nothing_NH)
        return dataclasses.replace(nothing, scale_NH=nothing_NH)

    @classmethod
    def of(
        cls,
        entities: Sequence[str],
        views: Sequence[WindowView],
        agents_NAH: FloatArray,
        mixture_NH: FloatArray,
        truth_NH: FloatArray,
    ) -> Self:
        """Return the experience of some windows of a run's series, in the order given."""
        number = {entity: i for i, entity in enumerate(entities)}
        return cls(
            tuple(entities),
            entity_N=np.array([number[view.entity] for view in views], dtype=np.int64),
            origin_N=count_minutes(views),
            until_N=count_minutes(views, "information_until"),
            end_N=count_minutes(views, "end_utc"),
            unknown_N=np.array([view.unknown_steps for view in views], dtype=np.int64),
            agents_NAH=agents_NAH,
            mixture_NH=mixture_NH,
            truth_NH=truth_NH,
            scale_NH=find_scale(views),
            spread_N=measure_spread(views),
        )

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.entity_N)

    @property
    def minute(self) -> int:
        """Origin of the last window, in minutes since 1970."""
        return int(self.origin_N.max()) if len(self) else NOT_STARTED

    def join(self, *later: Self) -> Self:
        """Return this experience followed by later ones of the same series."""
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(part, name) for part in [self, *later]])
            for name in _ARRAYS
        }
        return dataclasses.replace(self, **joined)

    def select_from(self, first: int) -> Self:
        """Return the windows from a position on."""
        rows: dict[str, Any] = {name: getattr(self, name)[first:] for name in _ARRAYS}
        return dataclasses.replace(self, **rows)

    def rescale(self, before: Scaler, after: Scaler) -> Self:
        """Return the experience in another scale; the forecasts stay what they were."""
        entities = [self.entities[i] for i in self.entity_N]
        shift = np.array([(before.mean[e] - after.mean[e]) / after.std[e] for e in entities])
        factor = np.array([before.std[e] / after.std[e] for e in entities])
        shift_N1, factor_N1 = shift.reshape(-1, 1), factor.reshape(-1, 1)
        return dataclasses.replace(
            self,
            agents_NAH=self.agents_NAH * factor_N1[..., None] + shift_N1[..., None],
            mixture_NH=self.mixture_NH * factor_N1 + shift_N1,
            truth_NH=self.truth_NH * factor_N1 + shift_N1,
        )

    def errors(self, scaler: Scaler) -> PastErrors:
        """Return the population's errors in the series' units, from which quantiles follow."""
        names = [self.entities[i] for i in self.entity_N]
        std_N1 = np.array([scaler.std[name] for name in names]).reshape(-1, 1)
        mean_N1 = np.array([scaler.mean[name] for name in names]).reshape(-1, 1)
        return PastErrors(
            entities=tuple(names),
            until_N=self.until_N,
            end_N=self.end_N,
            unknown_N=self.unknown_N,
            error_NH=(self.truth_NH - self.mixture_NH) * std_N1,
            forecast_NH=self.mixture_NH * std_N1 + mean_N1,
            scale_NH=self.scale_NH,
            spread_N=self.spread_N,
        )

    def save(self, file: Path) -> None:
        """Write the arrays; the run itself stores the names of the series."""
        save_file({name: np.ascontiguousarray(getattr(self, name)) for name in _ARRAYS}, file)

    @classmethod
    def load(cls, entities: Sequence[str], file: Path) -> Self:
        """Read what :meth:`save` wrote."""
        return cls(tuple(entities), **load_file(file))


_ARRAYS = [field.name for field in dataclasses.fields(Experience) if field.name != "entities"]
