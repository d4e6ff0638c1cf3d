"""What a population forecasts for one scope, with progress lines.

What belongs here: forecasting the windows of a scope in batches, counting what could not be
parsed, the names of a population's parts. What does not: how a population forecasts
(``forecaster``), scores (``evaluation.scoring``).

Shapes: A agents, N windows of a scope, H horizon (48).
"""

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.durations import format_duration
from compevo_core.evaluation.scopes import Scope

if TYPE_CHECKING:
    from compevo_core.forecaster import CompEvoForecaster

BATCH_SIZE = 10
"""Windows between two progress lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationForecast:
    """Forecasts of every window of a scope.

    Attributes:
        values_NH: the population's forecast in physical units.
        agents_ANH: each agent's own forecast.
        prior_NH: the prior that validated best, alone; None for a population without priors.
        chosen: for each window, the ids of the articles that any agent read, without repetition.
        n_answers: forecasts that were asked for: one an agent and window.
        n_parse_failures: answers that could not be parsed; each was scored by the fallback.
        seconds: time that forecasting took.
    """

    values_NH: FloatArray
    agents_ANH: FloatArray
    prior_NH: FloatArray | None
    chosen: list[tuple[str, ...]]
    n_answers: int
    n_parse_failures: int
    seconds: float

    def name_parts(self, method: str) -> dict[str, FloatArray]:
        """Return what the population is made of, (N, H) by method name.

        They say whether the whole is worth more than its parts: the plain mean of the agents, each
        agent alone, the prior alone. Without a second inference: an agent's forecast is the same
        whoever else is asked.
        """
        parts: dict[str, FloatArray] = {}
        # The mean of one agent, and that agent, are the population.
        if len(self.agents_ANH) > 1:
            parts[f"{method}-equal"] = np.asarray(self.agents_ANH.mean(axis=0))
            parts |= {f"{method}-agent-{i}": own for i, own in enumerate(self.agents_ANH)}
        if self.prior_NH is not None:
            parts[f"{method}-prior"] = self.prior_NH
        return parts

    @property
    def parse_failure_rate(self) -> float:
        """Share of the answers that could not be parsed."""
        return self.n_parse_failures / self.n_answers


def forecast_scope(
    forecaster: "CompEvoForecaster", scope: Scope, log: logging.Logger
) -> PopulationForecast:
    """Forecast every window of a scope; each progress line says how long the rest will take."""
    views = scope.windows.views()
    values: list[FloatArray] = []
    agents: list[FloatArray] = []
    priors: list[FloatArray] = []
    chosen: list[tuple[str, ...]] = []
    n_parse_failures = 0

    # Progress by batch: a language model takes minutes for what a baseline does in a second.
    started = time.monotonic()
    for start in range(0, len(views), BATCH_SIZE):
        prediction = forecaster.predict_by_agent(views[start : start + BATCH_SIZE])
        values.append(prediction.aggregate)
        agents.append(prediction.agents)
        if prediction.prior is not None:
            priors.append(prediction.prior)
        n_parse_failures += prediction.n_unparsed
        chosen += [
            _merge_choices(prediction.chosen_news, n) for n in range(len(prediction.aggregate))
        ]

        n_done = min(start + BATCH_SIZE, len(views))
        seconds_left = (time.monotonic() - started) / n_done * (len(views) - n_done)
        log.info(
            f"{scope.subset}: {n_done}/{len(views)} windows, {format_duration(seconds_left)} left"
        )

    return PopulationForecast(
        values_NH=np.concatenate(values),
        agents_ANH=np.concatenate(agents, axis=1),
        prior_NH=np.concatenate(priors) if priors else None,
        chosen=chosen,
        n_answers=forecaster.config.population.agents * len(views),
        n_parse_failures=n_parse_failures,
        seconds=time.monotonic() - started,
    )


def _merge_choices(by_agent: list[list[tuple[str, ...]]], window: int) -> tuple[str, ...]:
    # A dict and not a set: the panels must show the articles in the same order in every process.
    return tuple(dict.fromkeys(article for agent in by_agent for article in agent[window]))
