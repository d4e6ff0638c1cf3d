"""A trained population as a forecaster: the public API for prediction.

What belongs here: loading a run, forecasting windows with what the forecast is made of (agents,
weights, news), taking note of errors that became known. What does not: training; weights, logics
and adapters stay as they are (decision 11).

    forecaster = CompEvoForecaster.load("runs/mine", NewsPool.read("news"))
    demand_NH = forecaster.predict(windows.views())
    forecaster.observe(windows)  # in daily use, once their truth is known

Shapes: A agents, N windows, B windows of a micro-batch, H horizon (48 steps).
"""

import dataclasses
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.selection import aggregate_forecasts
from compevo_core.baselines.known_errors import count_minutes
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import HORIZON, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, LeakageError
from compevo_core.lm.backbone import Backbone, load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.training.artifact import (
    load_model,
    read_config,
    read_inputs,
    read_logics,
    read_model_manifest,
)
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import PriorSet, make_view_examples
from compevo_core.training.run_folder import RunFolder


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Forecasts in the windows' own unit, and what they were made of.

    Attributes:
        aggregate: (N, H) the population's forecast, the weighted sum of the agents' (Eq. 6).
        agents: (A, N, H) each agent's own forecast, calibrated (decision 42).
        weights: (N, A) weight of each agent for each window (Eq. 5), or what the guard of the
            calibration put in its place; rows sum to 1.
        chosen_news: ids of the articles each agent read, by agent and window, best match first.
        bases: (A, N, H) the forecast that each agent corrects: its mixture of the numeric priors.
        levels: (A, N, H) the part of each agent's forecast that is its mean known error.
        prior: (N, H) the base that validated best, as it is; None without any prior.
        n_unparsed: number of answers of the text decoder that could not be parsed; the prior stands
            in for each. 0 for the head.
    """

    aggregate: FloatArray
    agents: FloatArray
    weights: FloatArray
    chosen_news: list[list[tuple[str, ...]]]
    bases: FloatArray
    levels: FloatArray
    prior: FloatArray | None
    n_unparsed: int

    @property
    def equal(self) -> FloatArray:
        """The plain mean of the agents' forecasts, (N, H)."""
        return np.asarray(self.agents.mean(axis=0))


class CompEvoForecaster:
    """Forecasts windows with the sealed model of a run; use :meth:`load`.

    Attributes:
        name: name of the method in result tables.
        config: the configuration it was trained with.
        logics: (A,) text that each agent chooses and reads news by.
        manifest: how the model was made, and the hash of each of its files.
        priors: the numeric priors fitted on the whole train split.
    """

    name = "compevo"

    def __init__(self, run: Path, news: NewsPool, backbone: Backbone | None) -> None:
        folder = RunFolder(run)
        self.manifest = read_model_manifest(run)  # first: an altered file must not be loaded
        self.config = read_config(run)
        self.logics = read_logics(run)
        inputs = read_inputs(run)
        self.priors = PriorSet.load(self.config, folder.model, inputs.scaler)

        backbone = backbone or load_backbone(self.config.backbone)
        self._model = PopulationModel(self.config, backbone, inputs)
        load_model(folder, self._model)

        encoder = load_encoder(self.config.news.encoder)
        retriever = NewsRetriever(news, encoder, self.config.news.top_k)
        self._executor = self._model.executor(retriever)
        self._known_until: datetime | None = None  # end of what `observe` has seen

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        news: NewsPool,
        *,
        backbone: Backbone | None = None,
    ) -> Self:
        """Load the sealed model of a run after checking every file of it.

        Args:
            run: the run folder.
            news: every article that a window to predict names as a candidate, with embeddings of
                the encoder that the run was trained with.
            backbone: an already loaded frozen language model without adapters; loaded as the
                configuration says unless given.

        Raises:
            CheckpointMismatch: the model is unfinished or was altered.
        """
        return cls(Path(run), news, backbone)

    @property
    def artifact_hash(self) -> str:
        """Sha256 over the hashes of the model's files, as the trainer sealed it."""
        return str(self.manifest["hash"])

    @property
    def knowledge_cutoff(self) -> str:
        """Stated end of the backbone's training data; scores before it may be memorised."""
        return self._model.backbone.knowledge_cutoff

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecast windows.

        Args:
            views: N windows of the data set that the run was trained on, as ``windows.views()``.

        Returns:
            the population's forecast (N, H) in the views' unit; column h is the mean over the
            interval that starts h steps after ``origin_utc``.

        Raises:
            DataError: a view's entity was not in the train split, or an article is missing.
            LeakageError: a window begins before the end of one that was observed.
        """
        return self.predict_by_agent(views).aggregate

    def predict_by_agent(self, views: Sequence[WindowView]) -> Prediction:
        """Forecast windows and say how: each agent's forecast, the weights, the news it chose.

        The forecast of a window does not depend on which others are asked for with it.

        Args:
            views: N windows, as for :meth:`predict`.
        """
        self._refuse_observed(views)
        calibration = self._model.calibration
        examples = self._make_examples(views)
        entities = [view.entity for view in views]
        weights_NA = calibration.weigh(self._model.selection.weights(entities).detach())

        aggregate_NH = np.empty((len(views), HORIZON))
        agents_ANH = np.empty((self.config.population.agents, len(views), HORIZON))
        n_unparsed = 0

        size = self.config.run.micro_batch_size
        for start in range(0, len(examples), size):
            part = slice(start, start + size)
            forecasts = self._executor.forecast(self.logics, examples[part])
            base_ABH = self._executor.base_forecasts(examples[part])
            values_ABH = calibration(forecasts.values_ABH, base_ABH, entities[part])
            mean_BH = aggregate_forecasts(values_ABH, weights_NA[part])

            aggregate_NH[part] = self._unscale(mean_BH[None], views[part])[0]
            agents_ANH[:, part] = self._unscale(values_ABH, views[part])
            n_unparsed += forecasts.n_unparsed

        bases_ANH = self._unscale(self._executor.base_forecasts(examples), views)
        level_ANH = calibration.level_AEH[:, calibration.find_rows(entities)]
        zero_ANH = self._unscale(torch.zeros_like(level_ANH), views)
        return Prediction(
            aggregate=aggregate_NH,
            agents=agents_ANH,
            weights=weights_NA.cpu().numpy().astype(np.float64),
            chosen_news=self._executor.retrieve_news(self.logics, views),
            bases=bases_ANH,
            levels=self._unscale(level_ANH, views) - zero_ANH,
            prior=bases_ANH[int(calibration.best_prior)] if self.priors.fitted else None,
            n_unparsed=n_unparsed,
        )

    def select_unobserved(self, windows: WindowSet, until: datetime) -> WindowSet:
        """Return the windows whose errors are known by an instant, and were not observed yet.

        Args:
            windows: of the data set, with their truth.
            until: latest instant that a truth may be known at.
        """
        last = max(int(self._model.calibration.minute), self.priors.levels.minute)
        later = [
            window
            for window, minute in zip(windows, count_minutes(windows.views()), strict=True)
            if minute > last and window.view.end_utc <= until
        ]
        return WindowSet(later, dataset=windows.dataset)

    def observe(self, windows: WindowSet) -> int:
        """Take note of the errors of windows whose truth is known: later forecasts start from them.

        For daily use; experiments forecast with the levels as they were at the end of validation.
        The levels of this object move on, the run folder on disk stays as it is. Give all series
        of a day in one call, days in the order of time.

        Args:
            windows: their target lies in the past; steps that are not known yet are NaN.

        Returns:
            the number of windows whose errors were added: 0 for a model without known errors.

        Raises:
            DataError: a window begins before or with the last one that was seen, in validation or
                by an earlier call.
        """
        calibration = self._model.calibration
        known = [window for window in windows if np.isfinite(window.y).any()]
        levels = self.priors.levels
        if not known or (calibration.level_rule.form, levels.rule.form) == ("none", "none"):
            return 0

        views = [window.view for window in known]
        minutes = count_minutes(views)
        if min(minutes) <= max(int(calibration.minute), levels.minute):
            raise DataError(
                f"{views[int(np.argmin(minutes))].window_id} does not lie after the last window "
                "that was seen; give each window once, and all series of a day together"
            )

        # Before any level moves: an error is that of the forecast as it was.
        if calibration.level_rule.form != "none":
            truth_NH = np.stack([self._model.scaler.scale(w.y, w.view.entity) for w in known])
            blended_ANH = self._forecast_blended(self._make_examples(views))
            entities = [view.entity for view in views]
            calibration.observe(minutes, entities, truth_NH - blended_ANH)
        self.priors.observe(known)

        end_utc = max(view.end_utc for view in views)
        self._known_until = max(end_utc, self._known_until or end_utc)
        return len(known)

    def _forecast_blended(self, examples: Sequence[ForecastExample]) -> FloatArray:
        """Return the agents' scaled forecasts (A, N, H) with their blend and without level."""
        parts = []
        size = self.config.run.micro_batch_size
        for start in range(0, len(examples), size):
            part = examples[start : start + size]
            values_ABH = self._executor.forecast(self.logics, part).values_ABH
            base_ABH = self._executor.base_forecasts(part)
            blended_ABH = self._model.calibration.blend(values_ABH, base_ABH)
            parts.append(blended_ABH.cpu().numpy().astype(np.float64))
        return np.concatenate(parts, axis=1)

    def _make_examples(self, views: Sequence[WindowView]) -> list[ForecastExample]:
        return make_view_examples(views, self.priors.forecast(views), self._model.scaler)

    def _refuse_observed(self, views: Sequence[WindowView]) -> None:
        """Refuse windows that begin before the end of what was observed: truth of theirs is in."""
        early = [
            view
            for view in views
            if self._known_until and view.information_until < self._known_until
        ]
        if early:
            raise LeakageError(
                f"what {early[0].window_id} may know ends before {self._known_until}, up to which "
                "errors were "
                "observed; load the model again to forecast the past"
            )

    def _unscale(self, values_ABH: Tensor, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts in the views' unit; each entity has a scale of its own."""
        scaled_ABH = values_ABH.cpu().numpy().astype(np.float64)
        rows = [
            self._model.scaler.unscale(scaled_ABH[:, b], view.entity)
            for b, view in enumerate(views)
        ]
        return np.stack(rows, axis=1)
