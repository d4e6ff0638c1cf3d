"""A linear probe of news: is there anything in the headlines that a forecast does not know yet?

What belongs here: a ridge from headline embeddings to the error of a numeric forecast. What does
not: readings and effects (``experiments.news_audit``), populations.

It takes seconds, needs no trained population, and cannot be blamed on a language model: what a line
through 16 components finds in no series, agents have little to learn from. The penalty is chosen on
validation; the test split is forecast once.

Shapes: N windows, D embedding size, C components, H horizon (48).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.base import Forecaster
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.training.prior import PriorKey, forecast_out_of_fold

BASE = "calendar-ridge"
"""The forecast whose errors are explained."""

COMPONENTS = 16
FOLDS = 5
PENALTIES = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
"""Of the squared weights; validation chooses one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsProbe:
    """A fitted probe.

    Attributes:
        base: the numeric forecast.
        scaler: of the train split.
        news: the articles that windows name.
        mean_D: mean of the train windows' headline means.
        axes_CD: their principal axes.
        weights: by series, from components to scaled errors (C, H).
        penalty: the chosen one.
    """

    base: Forecaster
    scaler: Scaler
    news: NewsPool
    mean_D: FloatArray
    axes_CD: FloatArray
    weights: dict[str, FloatArray]
    penalty: float

    @classmethod
    def fit(cls, train: WindowSet, val: WindowSet, news: NewsPool) -> Self:
        """Fit on train; validation chooses the penalty.

        Raises:
            DataError: hardly any train window has news.
        """
        scaler = Scaler.fit(train)
        base = fit_baseline(BASE, train)
        # Out of fold: errors that the base made on its own train days are too small to learn from.
        base_NH = forecast_out_of_fold(PriorKey(BASE), train, FOLDS)
        known = [window for window in train if window.view.candidate_ids]
        if len(known) <= COMPONENTS:
            raise DataError(
                f"{len(known)} train windows have news, too few for {COMPONENTS} components: "
                "read more news, or forecast without it"
            )

        means_ND = np.stack([average_news(window.view, news) for window in known])
        mean_D = means_ND.mean(axis=0)
        axes_CD = np.linalg.svd(means_ND - mean_D, full_matrices=False)[2][:COMPONENTS]
        probe = cls(
            base=base,
            scaler=scaler,
            news=news,
            mean_D=mean_D,
            axes_CD=axes_CD,
            weights={},
            penalty=0.0,
        )

        # The one choice there is, made on validation: the test split is forecast by the winner.
        tried = [
            replace(probe, weights=probe._fit_weights(train, base_NH, one), penalty=one)
            for one in PENALTIES
        ]
        return min(tried, key=lambda one: one._measure(val))

    def _measure(self, windows: WindowSet) -> float:
        return float(np.nanmean(np.abs(self.predict(windows.views()) - windows.truth())))

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H): the base, and what the headlines say about its error."""
        forecast_NH = self.base.predict(views)
        features_NC = self._features(views)
        for row, view in enumerate(views):
            # A series that train lacks keeps its base.
            if view.entity in self.weights:
                scaled_H = features_NC[row] @ self.weights[view.entity]
                forecast_NH[row] += scaled_H * self.scaler.std[view.entity]
        return forecast_NH

    def _features(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the components (N, C); all zero without news, so that the base stands alone."""
        rows = [
            self.axes_CD @ (average_news(view, self.news) - self.mean_D)
            if view.candidate_ids
            else np.zeros(len(self.axes_CD))
            for view in views
        ]
        return np.stack(rows)

    def _fit_weights(
        self, train: WindowSet, base_NH: FloatArray, penalty: float
    ) -> dict[str, FloatArray]:
        features_NC = self._features(train.views())
        weights = {}
        for entity in train.entities:
            rows = [i for i, view in enumerate(train.views()) if view.entity == entity]
            residual_NH = (train.truth()[rows] - base_NH[rows]) / self.scaler.std[entity]
            # A masked truth says nothing about the error.
            residual_NH = np.nan_to_num(residual_NH - np.nanmean(residual_NH, axis=0))
            # No intercept: a constant would be drift, which news does not explain.
            x_NC = features_NC[rows]
            gram_CC = x_NC.T @ x_NC + penalty / len(train.entities) * np.eye(x_NC.shape[1])
            weights[entity] = np.linalg.solve(gram_CC, x_NC.T @ residual_NH)
        return weights


def average_news(view: WindowView, news: NewsPool) -> FloatArray:
    """Return the mean embedding (D,) of a view's candidates."""
    rows = news.find_rows(view.candidate_ids)
    return np.asarray(news.embeddings[rows].mean(axis=0), dtype=np.float64)
