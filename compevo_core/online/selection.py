"""Weights that go on after training with every error that has become known (decision 59).

What belongs here: which errors move which weights. What does not: what a rule does with an error
(``online.rules``), when a truth becomes known (``data.replay``), the weights that training learns
(``agents.selection``).

A weight belongs to a series, to what a view knew (midnight or the hour of issue), and to a part of
the day: an agent that reads this morning well is worth more where the morning is known.

Shapes: A agents, N windows, P parts of a day, H horizon, h steps of a part.
"""

from collections.abc import Sequence

import numpy as np
import torch

from compevo_core.agents.calibration import ErrorCalibration
from compevo_core.agents.selection import FitnessSelection
from compevo_core.config import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON, WindowView
from compevo_core.online.experience import Experience
from compevo_core.online.paper_rule import PaperState
from compevo_core.online.rules import RuleState, build_state

_Scope = tuple[str, int, int]  # series, unknown steps, part of the day


class OnlineSelection:
    """The weights of a population in daily use.

    Args:
        config: the run's settings; ``selection`` and the metric of ``objective``.
        trained: the weights as training left them, which the paper's rule begins with.
    """

    def __init__(self, config: RunConfig, trained: FitnessSelection) -> None:
        self._config = config
        self._trained = trained
        self._states: dict[_Scope, RuleState] = {}

    def weights(self, views: Sequence[WindowView]) -> FloatArray:
        """Return the weights (N, A, H) of each agent at each step, with a sum of 1."""
        by_view = []
        for view in views:
            by_part = [
                self._state(view.entity, view.unknown_steps, part).weights()
                for part in range(self._parts)
            ]
            by_view.append(np.repeat(np.stack(by_part, axis=1), self._steps, axis=1))
        return np.stack(by_view)

    def observe(
        self,
        views: Sequence[WindowView],
        agents_NAH: FloatArray,
        mixture_NH: FloatArray,
        truth_NH: FloatArray,
    ) -> None:
        """Take note of forecasts whose truth has become known, in the order of time.

        Args:
            views: N windows.
            agents_NAH: what the agents forecast, scaled.
            mixture_NH: what the population forecast, scaled.
            truth_NH: scaled; steps that are NaN move nothing.
        """
        for view, agents_AH, mixture_H, truth_H in zip(
            views, agents_NAH, mixture_NH, truth_NH, strict=True
        ):
            self._observe_one(view.entity, view.unknown_steps, agents_AH, mixture_H, truth_H)

    def replay(self, experience: Experience) -> None:
        """Take note of all windows of an experience."""
        for i in range(len(experience)):
            self._observe_one(
                experience.entities[experience.entity_N[i]],
                int(experience.unknown_N[i]),
                experience.agents_NAH[i],
                experience.mixture_NH[i],
                experience.truth_NH[i],
            )

    def _observe_one(
        self,
        entity: str,
        unknown_steps: int,
        agents_AH: FloatArray,
        mixture_H: FloatArray,
        truth_H: FloatArray,
    ) -> None:
        for part in range(self._parts):
            steps = np.arange(part * self._steps, (part + 1) * self._steps)
            known = steps[np.isfinite(truth_H[steps])]
            if known.size:
                state = self._state(entity, unknown_steps, part)
                state.observe(agents_AH[:, known], mixture_H[known], truth_H[known])

    @property
    def _parts(self) -> int:
        return self._config.selection.parts

    @property
    def _steps(self) -> int:
        return HORIZON // self._parts

    def _state(self, entity: str, unknown_steps: int, part: int) -> RuleState:
        by_series = self._config.selection.scope == "series"
        scope = (entity if by_series else "", unknown_steps, part)
        if scope not in self._states:
            self._states[scope] = build_state(
                self._config.selection,
                self._config.population.agents,
                lambda: PaperState.continue_training(
                    self._trained, entity, self._config.objective.metric
                ),
            )
        return self._states[scope]


class PopulationWeights:
    """What weighs the agents of a population: the guard, daily use, or training.

    Args:
        config: the run's settings.
        trained: the weights as training left them.
        calibration: whose guard may have put other weights in their place.
    """

    def __init__(
        self, config: RunConfig, trained: FitnessSelection, calibration: ErrorCalibration
    ) -> None:
        self._trained = trained
        self._calibration = calibration
        self._online = OnlineSelection(config, trained) if config.selection.online else None

    @torch.no_grad()
    def weights(self, views: Sequence[WindowView], own_NA: FloatArray | None = None) -> FloatArray:
        """Return the weights (N, A, H) of each agent at each step.

        Args:
            views: N windows.
            own_NA: weights that the forecasts come with, in place of those of training.
        """
        if self._online is not None and not self._calibration.override_A.any():
            return self._online.weights(views)

        if own_NA is None:
            trained_NA = self._trained.weights([view.entity for view in views])
        else:
            trained_NA = torch.from_numpy(own_NA)
        weights_NA = self._calibration.weigh(trained_NA).cpu().numpy().astype(np.float64)
        return np.repeat(weights_NA[:, :, None], HORIZON, axis=2)

    def observe(
        self,
        views: Sequence[WindowView],
        agents_NAH: FloatArray,
        mixture_NH: FloatArray,
        truth_NH: FloatArray,
    ) -> None:
        """Let the weights go on, where they do; see :meth:`OnlineSelection.observe`."""
        if self._online is not None:
            self._online.observe(views, agents_NAH, mixture_NH, truth_NH)

    def replay(self, experience: Experience) -> None:
        """Observe what a population was sealed with."""
        if self._online is not None:
            self._online.replay(experience)


def mix_forecasts(agents_NAH: FloatArray, weights_NAH: FloatArray) -> FloatArray:
    """Return the population's forecast (N, H), the weighted sum of the agents' (Eq. 6)."""
    return np.asarray((agents_NAH * weights_NAH).sum(axis=1))
