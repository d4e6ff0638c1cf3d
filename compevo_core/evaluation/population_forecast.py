"""What a population forecasts for one scope, with progress lines.

What belongs here: forecasting the windows of a scope in batches, counting what could not be
parsed, the names of a population's parts. What does not: how a population forecasts
(``forecaster``), scores (``evaluation.scoring``).

Shapes: A agents, N windows of a scope, H horizon (48).
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import WindowSet
from compevo_core.durations import format_duration
from compevo_core.evaluation.scopes import Scope
from compevo_core.prediction import Prediction

if TYPE_CHECKING:
    from compevo_core.forecaster import CompEvoForecaster

BATCH_SIZE = 10
"""Windows between two progress lines."""
FOLLOWED_BATCH = 100
"""The same where every day is a batch of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationForecast:
    """Forecasts of every window of a scope.

    Attributes:
        values_NH: the population's forecast in physical units.
        agents_ANH: each agent's own forecast.
        quantiles_NQH: at ``quantiles.LEVELS``; NaN where too few errors were known.
        prior_NH: the prior that validated best, alone; None for a population without priors.
        chosen: for each window, the ids of the articles that any agent read, without repetition.
        n_answers: forecasts that were asked for: one an agent and window.
        n_parse_failures: answers that could not be parsed; each was scored by the fallback.
        seconds: time that forecasting took.
    """

    values_NH: FloatArray
    agents_ANH: FloatArray
    quantiles_NQH: FloatArray
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


def forecast_scopes(
    forecaster: "CompEvoForecaster", scopes: Sequence[Scope], log: logging.Logger
) -> list[PopulationForecast]:
    """Forecast every window of some scopes; progress lines say how long the rest will take.

    A population that moves on with known errors forecasts the days of a scope in the order of time
    and observes each when it is over. Scopes of the same days share one such pass.
    """
    if not forecaster.is_daily:
        return [_forecast_frozen(forecaster, scope, log) for scope in scopes]

    passes: dict[str, tuple[Prediction, float]] = {}
    forecasts = []
    for scope in scopes:
        days = scope.days or scope.windows
        if days.hash not in passes:
            passes[days.hash] = _follow(forecaster, days, log)
        prediction, seconds = passes[days.hash]

        row_of = {view.window_id: row for row, view in enumerate(days.views())}
        rows = [row_of[view.window_id] for view in scope.windows.views()]
        # Answers that could not be read are counted over the pass, so the others are as well.
        n_answers = prediction.agents.shape[0] * len(days)
        share = len(rows) / len(days)
        forecasts.append(_collect(prediction.take(rows), seconds * share, n_answers))
    return forecasts


def _follow(
    forecaster: "CompEvoForecaster", days: WindowSet, log: logging.Logger
) -> tuple[Prediction, float]:
    started = time.monotonic()
    shown = 0

    def report(n_done: int) -> None:
        nonlocal shown
        if n_done - shown >= FOLLOWED_BATCH or n_done == len(days):
            shown = n_done
            _log_progress(log, "day by day", n_done, len(days), started)

    prediction = forecaster.follow(days, report)
    return prediction, time.monotonic() - started


def _forecast_frozen(
    forecaster: "CompEvoForecaster", scope: Scope, log: logging.Logger
) -> PopulationForecast:
    views = scope.windows.views()
    parts = []

    # Progress by batch: a language model takes minutes for what a baseline does in a second.
    started = time.monotonic()
    for start in range(0, len(views), BATCH_SIZE):
        rows = range(start, min(start + BATCH_SIZE, len(views)))
        batch = views[start : start + BATCH_SIZE]
        parts.append((rows, forecaster.predict_by_agent(batch)))
        _log_progress(log, scope.subset, rows.stop, len(views), started)
    seconds = time.monotonic() - started
    n_answers = forecaster.config.population.agents * len(views)
    return _collect(Prediction.join(parts), seconds, n_answers)


def _log_progress(
    log: logging.Logger, name: str, n_done: int, n_windows: int, started: float
) -> None:
    seconds_left = (time.monotonic() - started) / n_done * (n_windows - n_done)
    log.info(f"{name}: {n_done}/{n_windows} windows, {format_duration(seconds_left)} left")


def _collect(prediction: Prediction, seconds: float, n_answers: int) -> PopulationForecast:
    n_windows = len(prediction.aggregate)
    return PopulationForecast(
        values_NH=prediction.aggregate,
        agents_ANH=prediction.agents,
        quantiles_NQH=prediction.quantiles,
        prior_NH=prediction.prior,
        chosen=[_merge_choices(prediction.chosen_news, n) for n in range(n_windows)],
        n_answers=n_answers,
        n_parse_failures=prediction.n_unparsed,
        seconds=seconds,
    )


def _merge_choices(by_agent: list[list[tuple[str, ...]]], window: int) -> tuple[str, ...]:
    # A dict and not a set: the panels must show the articles in the same order in every process.
    return tuple(dict.fromkeys(article for agent in by_agent for article in agent[window]))
