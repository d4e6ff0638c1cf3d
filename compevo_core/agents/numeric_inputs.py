"""The numbers that the head decoder reads of a window, with their means and spreads over train.

Statistics are fixed before the first round: a token's scale must not move while what reads it
learns. ``baselines.features`` gives calendar and weather columns.

Shapes: B windows, C context columns, S input steps, P base models, H horizon.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from compevo_core.agents.decoders import ForecastExample
from compevo_core.baselines.base import repeat_last_season
from compevo_core.baselines.features import FeatureSpace, encode_calendars
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import DEFAULT_STEPS, Window, WindowView, find_horizon, find_shared

_SMALLEST_SPREAD = 1e-6  # a column with less is constant on train and becomes zero


@dataclasses.dataclass(frozen=True)
class NumericInputs:
    """How windows of one train split become numbers."""

    space: FeatureSpace
    context_mean_C: FloatArray
    context_spread_C: FloatArray  # 1 where the column is constant
    spread_of_priors: float  # typical difference between two base models, in scaled units
    article_size: int
    lookback: int = DEFAULT_STEPS
    horizon: int = DEFAULT_STEPS

    @classmethod
    def fit(cls, train: Sequence[Window], priors_NPH: FloatArray, article_size: int) -> Self:
        """Fix scales and statistics on the train split, with out-of-fold base forecasts."""
        space = FeatureSpace.fit(train)
        views = [window.view for window in train]
        context_NC = _extract_context(space, views)

        # A column that is missing everywhere has no mean; it is zero for every window then.
        known_NC = np.ma.masked_invalid(context_NC)
        mean_C = known_NC.mean(0).filled(0.0)
        spread_C = known_NC.std(0).filled(0.0)

        # The spread is 1 for one base model, and for base models that never differ.
        spread = 0.0
        if priors_NPH.shape[1] > 1 and len(priors_NPH):
            scale_N = np.array([space.scaler.std[view.entity] for view in views])
            scaled_NPH = priors_NPH / scale_N[:, None, None]
            spread = float((scaled_NPH - scaled_NPH.mean(axis=1, keepdims=True)).std())

        return cls(
            space=space,
            context_mean_C=np.asarray(mean_C),
            context_spread_C=np.where(spread_C > _SMALLEST_SPREAD, spread_C, 1.0),
            spread_of_priors=spread if spread > _SMALLEST_SPREAD else 1.0,
            article_size=article_size,
            lookback=find_shared(views, "lookback"),
            horizon=find_horizon(views),
        )

    @property
    def scaler(self) -> Scaler:
        """The scale of every series, fitted on train."""
        return self.space.scaler

    def extract(self, examples: Sequence[ForecastExample]) -> tuple[FloatArray, ...]:
        """Return context (B, C), input (B, S), its last season (B, H), base models (B, P, H).

        All are standardised, base models like the target; missing weather is the train mean.
        """
        views = [example.view for example in examples]
        # First, as the scaler's error names a series that train did not have.
        season = [self.scaler.scale(repeat_last_season(view), view.entity) for view in views]

        context_BC = _extract_context(self.space, views)
        standardised_BC = (context_BC - self.context_mean_C) / self.context_spread_C
        priors_BPH = np.stack([example.priors_PH for example in examples])
        context_BC = np.nan_to_num(standardised_BC)
        return context_BC, self.space.scale_inputs(views), np.stack(season), priors_BPH

    def to_json(self) -> str:
        """Return text that :meth:`from_json` reads back exactly."""
        values: dict[str, Any] = {
            "space": self.space.to_dict(),
            "context_mean": self.context_mean_C.tolist(),
            "context_spread": self.context_spread_C.tolist(),
            "spread_of_priors": self.spread_of_priors,
            "article_size": self.article_size,
        }
        if (self.lookback, self.horizon) != (DEFAULT_STEPS, DEFAULT_STEPS):
            # Only then: models that were sealed before grids could vary keep their file, and hash.
            values["grid"] = [self.lookback, self.horizon]
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what :meth:`to_json` wrote."""
        values = json.loads(text)
        lookback, horizon = values.get("grid", (DEFAULT_STEPS, DEFAULT_STEPS))
        return cls(
            space=FeatureSpace.from_dict(values["space"]),
            context_mean_C=np.array(values["context_mean"]),
            context_spread_C=np.array(values["context_spread"]),
            spread_of_priors=float(values["spread_of_priors"]),
            article_size=int(values["article_size"]),
            lookback=lookback,
            horizon=horizon,
        )


def _extract_context(space: FeatureSpace, views: Sequence[WindowView]) -> FloatArray:
    """Return calendar, series and weather columns (B, C), NaN where weather is missing."""
    entity_B = space.encode_entities(views)
    series_BE = np.eye(len(space.entities))[entity_B]

    # Without weather the columns are the train mean; a flag keeps that apart from a mean day.
    weather_BW = space.extract_weather(views)
    has_weather_B1 = np.array([[float(space.find_route(view))] for view in views])

    columns = [
        encode_calendars(views),
        series_BE.reshape(len(views), len(space.entities)),
        has_weather_B1,
        weather_BW,
        space.compute_hinges(weather_BW),
    ]
    return np.concatenate(columns, axis=1)
