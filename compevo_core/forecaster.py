"""A trained population as a forecaster: the public API for prediction.

What belongs here: loading a run and predicting windows, with the reasons (agents, weights, news).
What does not: learning; weights, logics and adapters stay as they are (design decision 11).
Legend: A agents, N windows, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from compevo_core.agents.selection import aggregate
from compevo_core.agents.strategy import NewsChooser
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import FloatArray
from compevo_core.data.window import HORIZON, WindowView
from compevo_core.lm.backbone import Backbone, load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.training.artifact import (
    load_into,
    model_manifest,
    read_config,
    read_logics,
    read_scaler,
)
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import load_prior, make_view_tasks


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Forecasts in physical units and what they were made of.

    ``aggregate`` (N, H), ``agents`` (A, N, H), ``weights`` (A,), ``chosen[agent][window]`` article ids,
    ``prior`` (N, H) or None, ``unread`` answers that could not be parsed.
    """

    aggregate: FloatArray
    agents: FloatArray
    weights: FloatArray
    chosen: list[list[tuple[str, ...]]]
    prior: FloatArray | None
    unread: int


class CompEvoForecaster:
    """Predicts with a sealed model; use :meth:`load`."""

    name = "compevo"

    def __init__(self, run: Path, news: NewsPool, backbone: Backbone | None) -> None:
        self.manifest = model_manifest(run)
        self.config, self.logics = read_config(run), read_logics(run)
        self.prior = load_prior(run / "model")
        self._learner = PopulationModel(
            self.config, backbone or load_backbone(self.config.backbone), read_scaler(run)
        )
        load_into(self._learner, run)
        chooser = NewsChooser(news, load_encoder(self.config.news.encoder), self.config.news.top_k)
        self._executor = self._learner.executor(chooser)

    @classmethod
    def load(
        cls, run: Path, news: NewsPool, *, backbone: Backbone | None = None
    ) -> "CompEvoForecaster":
        """Loads ``run/model`` after checking every file of it.

        Raises:
            CheckpointMismatch: the model is unfinished or was altered.
        """
        return cls(run, news, backbone)

    @property
    def artifact_hash(self) -> str:
        """Sha256 over the hashes of the model's files, as sealed by the trainer."""
        return str(self.manifest["hash"])

    @property
    def knowledge_cutoff(self) -> str:
        """The backbone's stated end of training data."""
        return self._learner.backbone.knowledge_cutoff

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """The population's forecast (N, H) in the views' unit."""
        return self.predict_detailed(views).aggregate

    def predict_detailed(self, views: Sequence[WindowView]) -> Prediction:
        """The forecast with every agent's own, the weights and the news each agent chose."""
        agents, scaler = self.config.population.agents, self._learner.scaler
        prior = None if self.prior is None else self.prior.predict(views)
        tasks = make_view_tasks(views, prior, scaler)
        weights = self._learner.selection.weights().detach()
        total, single, unread = (
            np.empty((len(views), HORIZON)),
            np.empty((agents, len(views), HORIZON)),
            0,
        )
        for start in range(0, len(tasks), self.config.run.micro_windows):
            part = tasks[start : start + self.config.run.micro_windows]
            values, _, failed = self._executor.forecast(self.logics, part)
            unread += failed
            mean = aggregate(values, weights).cpu().numpy()
            for i, task in enumerate(part):
                total[start + i] = scaler.unscale(mean[i].astype(np.float64), task.view.entity)
                single[:, start + i] = scaler.unscale(
                    values[:, i].cpu().numpy().astype(np.float64), task.view.entity
                )
        return Prediction(
            total,
            single,
            weights.cpu().numpy().astype(np.float64),
            self._executor.chosen(self.logics, views),
            prior,
            unread,
        )
