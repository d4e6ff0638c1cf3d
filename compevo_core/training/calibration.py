"""Forecasts of validation, what is fitted to them, and the fallback to a better base model.

Test windows never reach this module. Every choice is made on windows that the judged fit has not
seen; what is sealed is then fitted on all of validation (decisions 08-calibration, 16-daily-use)
and applied by ``agents.online_selection``.

Shapes: A agents (all of the run), B windows, E series, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.online_selection import Experience, PopulationWeights, mix_forecasts
from compevo_core.baselines.known_errors import split_by_time
from compevo_core.data.arrays import FloatArray, to_array
from compevo_core.data.view import replay_days
from compevo_core.errors import DataError
from compevo_core.training.ensemble import Ensemble

NEIGHBOUR_STEPS = 4
"""Steps on either side that a step's blend is pooled over, with weights that fall to zero: the
corrections of half hours two hours apart are almost equal."""

POOLED_WINDOWS = 30.0
"""Weight of the slope over all steps, in windows of one step with a mean squared correction.

A step's evidence is summed over its neighbours, whose weights add up to five (three at both ends of
the horizon). So it counts as much as the pooled slope at six windows (ten there)."""

Fallback = Literal["none", "equal", "best", "prior"]


@dataclasses.dataclass(frozen=True)
class AgentForecasts:
    """Forecasts of windows whose truth is known, scaled."""

    values_ABH: FloatArray
    base_ABH: FloatArray  # what the agents correct
    truth_BH: FloatArray  # NaN where missing; every window has a known target

    def blend(self, blend_AH: FloatArray) -> FloatArray:
        """Return the bases with a share of the corrections, (A, B, H)."""
        return self.base_ABH + blend_AH[:, None] * (self.values_ABH - self.base_ABH)

    def mix(self, weights_BA: FloatArray) -> "AgentForecasts":
        """Return the population as one agent whose base is the mixture of the bases."""
        values_1BH, base_1BH = (
            np.einsum("abh,ba->bh", of_ABH, weights_BA)[None]
            for of_ABH in (self.values_ABH, self.base_ABH)
        )
        return AgentForecasts(values_1BH, base_1BH, self.truth_BH)

    def select(self, windows: npt.NDArray[np.intp]) -> "AgentForecasts":
        """Return the forecasts of some of the windows."""
        return AgentForecasts(
            self.values_ABH[:, windows], self.base_ABH[:, windows], self.truth_BH[windows]
        )


def measure_validation(model: Ensemble, examples: Sequence[ForecastExample]) -> tuple[float, float]:
    """Return mean absolute errors over examples: of the population, and of the best agent's base.

    They are scaled. Without a base model the second is the error of the training mean. Validating
    changes no later round.
    """
    forecasts, weights_BA = forecast_examples(model, examples)
    return (
        aggregate_error(forecasts.values_ABH, weights_BA, forecasts.truth_BH),
        float(mean_errors(forecasts.base_ABH, forecasts.truth_BH).min()),
    )


def forecast_examples(
    model: Ensemble, examples: Sequence[ForecastExample]
) -> tuple[AgentForecasts, FloatArray]:
    """Return uncalibrated forecasts of all members, and their weights (B, A)."""
    found = model.forecast(examples)
    # Verifiers of a debate weigh each window, fitness weighs each series.
    weights_BA = found.weights_BA
    if weights_BA is None:
        weights_BA = model.selection.weights([example.view.entity for example in examples])
    forecasts = AgentForecasts(
        values_ABH=found.values_ABH.astype(np.float64),
        base_ABH=model.base_forecasts(examples).astype(np.float64),
        truth_BH=np.stack([np.asarray(example.truth_H) for example in examples]),
    )
    return forecasts, to_array(weights_BA).astype(np.float64)


def mean_errors(values_ABH: FloatArray, truth_BH: FloatArray) -> FloatArray:
    """Return each agent's mean absolute error (A,), mean over windows, without missing targets."""
    return np.asarray(np.nanmean(np.abs(values_ABH - truth_BH), axis=-1).mean(axis=-1))


def aggregate_error(values_ABH: FloatArray, weights_BA: FloatArray, truth_BH: FloatArray) -> float:
    """Return the mean absolute error of the weighted forecast."""
    return float(mean_errors(np.einsum("abh,ba->bh", values_ABH, weights_BA), truth_BH))


@dataclasses.dataclass(frozen=True)
class CalibrationReport:
    """What calibration did; errors are scaled mean absolute errors over validation windows."""

    windows: int
    prior_mae: float  # of the base that validated best, uncorrected
    raw_mae: float  # of the population before calibration
    # Of the ensemble as sealed; above ``prior_mae`` only for an online mixture of numeric methods,
    # which has no fallback
    calibrated_mae: float
    blend: tuple[float, ...]  # (A,) means over steps; 0 for an agent that has learnt nothing
    guard: Fallback
    """What forecasts: the selection's weights (none), equal weights (equal), the agent with the
    best validation error (best), or the best uncorrected base model (prior)."""


def calibrate(model: Ensemble, val_examples: Sequence[ForecastExample]) -> CalibrationReport:
    """Fit ``model.calibration`` on validation forecasts, without dropout or gradient."""
    if not val_examples:
        raise DataError(
            "there are no validation windows to calibrate on; give some, or leave calibration out"
        )

    config = model.config
    forecasts, weights_BA = forecast_examples(model, val_examples)
    prior_A = mean_errors(forecasts.base_ABH, forecasts.truth_BH)

    agents, _, steps = forecasts.values_ABH.shape
    is_joint = config.news.fit == "joint"
    blend_AH = np.ones((agents, steps))
    if config.calibration.blend:
        # Jointly fitted parts are shrunk together.
        judged = forecasts.mix(weights_BA) if is_joint else forecasts
        halves = split_by_time([example.view for example in val_examples])
        blend_AH = np.broadcast_to(fit_blend(judged, *halves), blend_AH.shape).copy()

    calibration = model.calibration
    calibration.override_A.fill(0.0)
    blended_ABH = forecasts.blend(blend_AH)
    backtest = backtest_validation(model, forecasts, blend_AH, val_examples, weights_BA)
    ensemble_mae = aggregate_error(blended_ABH, weights_BA, forecasts.truth_BH)
    if config.selection.online:  # such weights are judged by the backtest
        ensemble_mae = float(mean_errors(backtest.mixture_NH, backtest.truth_NH))

    # The best method in hindsight is seldom the best later, so methods stay mixed.
    guard: Fallback = "none"
    if config.has_agents or not config.selection.online:
        guard, calibration.override_A[:], ensemble_mae = _choose_fallback(
            forecasts, blended_ABH, ensemble_mae, is_joint=is_joint
        )
    # If no weighting is as good as the best base model, the latter is sealed without corrections.
    if guard == "prior":
        blend_AH = np.zeros_like(blend_AH)
    if guard != "none":  # all of validation is weighed by the fallback
        backtest = backtest_validation(model, forecasts, blend_AH, val_examples, weights_BA)

    calibration.blend_AH[:] = blend_AH
    calibration.best_prior.fill(int(prior_A.argmin()))
    model.experience = backtest
    return CalibrationReport(
        windows=len(val_examples),
        prior_mae=float(prior_A.min()),
        raw_mae=aggregate_error(forecasts.values_ABH, weights_BA, forecasts.truth_BH),
        calibrated_mae=ensemble_mae,
        blend=tuple(blend_AH.mean(1).tolist()),
        guard=guard,
    )


def _choose_fallback(
    forecasts: AgentForecasts, blended_ABH: FloatArray, learnt_mae: float, *, is_joint: bool
) -> tuple[Fallback, FloatArray, float]:
    """Return the first weighting that no base model beats, its override (A,), and its error.

    ``learnt_mae`` is the error under the learnt weights, the only ones for jointly fitted parts.
    """
    agents = len(blended_ABH)
    truth_BH = forecasts.truth_BH
    base_A, error_A = mean_errors(forecasts.base_ABH, truth_BH), mean_errors(blended_ABH, truth_BH)
    best_base_mae = float(base_A.min())
    if learnt_mae <= best_base_mae:
        return "none", np.zeros(agents), learnt_mae

    equal_A = np.full(agents, 1.0 / agents)
    equal_mae = aggregate_error(
        blended_ABH, np.broadcast_to(equal_A, (len(truth_BH), agents)), truth_BH
    )
    if equal_mae <= best_base_mae and not is_joint:
        return "equal", equal_A, equal_mae
    if error_A.min() <= best_base_mae and not is_joint:
        return "best", np.eye(agents)[error_A.argmin()], float(error_A.min())
    return "prior", np.eye(agents)[base_A.argmin()], best_base_mae


def backtest_validation(
    model: Ensemble,
    forecasts: AgentForecasts,
    blend_AH: FloatArray,
    examples: Sequence[ForecastExample],
    weights_BA: FloatArray,
) -> Experience:
    """Run a rolling backtest of the ensemble over validation, day by day.

    Online weights of a day use only earlier days; without online weights ``weights_BA`` are used.
    """
    agents_BAH = forecasts.blend(blend_AH).swapaxes(0, 1).copy()
    truth_BH = forecasts.truth_BH
    mixture_BH = np.empty_like(truth_BH)
    views = [example.view for example in examples]
    weighting = PopulationWeights(model.config, model.selection, model.calibration)
    entities = model.calibration.entities
    parts: list[Experience] = []
    for ended, today in replay_days(views):
        if ended:
            ended_views = [views[i] for i in ended]
            known = agents_BAH[ended], mixture_BH[ended], truth_BH[ended]
            parts.append(Experience.of(entities, ended_views, *known))
            weighting.observe(parts[-1])

        if today:
            agents_BAH[today] = model.scaler.keep_bounds(
                [views[i] for i in today], agents_BAH[today]
            )
            weights_BAH = weighting.weights([views[i] for i in today], weights_BA[today])
            mixture_BH[today] = mix_forecasts(agents_BAH[today], weights_BAH)

    return parts[0].join(*parts[1:])


def fit_blend(
    forecasts: AgentForecasts, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> FloatArray:
    """Return the shrinkage factors (A, H), zero for an agent whose correction does not help.

    An agent keeps its factors only if it beats the base on the windows of the fit, and on the two
    halves of validation taken together (windows ``first`` and ``second``, if neither is empty),
    each forecast with the factors that were fitted on the other half.
    """
    blend_AH = _least_squares(forecasts)
    truth_BH = forecasts.truth_BH
    base_A = mean_errors(forecasts.base_ABH, truth_BH)
    has_learnt_A = mean_errors(forecasts.blend(blend_AH), truth_BH) < base_A

    if first.size and second.size:
        held_out_ABH = np.concatenate(
            [
                forecasts.select(judged).blend(_least_squares(forecasts.select(fitted)))
                for fitted, judged in ((second, first), (first, second))
            ],
            axis=1,
        )
        both = np.concatenate([first, second])
        base_A = mean_errors(forecasts.base_ABH[:, both], truth_BH[both])
        has_learnt_A &= mean_errors(held_out_ABH, truth_BH[both]) < base_A

    return np.asarray(np.where(has_learnt_A[:, None], blend_AH, 0.0))


def _least_squares(forecasts: AgentForecasts) -> FloatArray:
    """Return the slope (A, H) of truth minus base on the correction, pooled, within [0, 1]."""
    is_known_BH = np.isfinite(forecasts.truth_BH)
    correction_ABH = forecasts.values_ABH - forecasts.base_ABH
    residual_ABH = np.where(is_known_BH, forecasts.truth_BH - forecasts.base_ABH, 0.0)

    square_AH = np.where(is_known_BH, correction_ABH**2, 0.0).sum(axis=1)
    product_AH = (correction_ABH * residual_ABH).sum(axis=1)

    # The slope over all steps has the weight of so many windows of one step, without neighbours.
    total_A1 = square_AH.sum(axis=1, keepdims=True)
    slope_A1 = product_AH.sum(axis=1, keepdims=True) / np.where(total_A1 > 0, total_A1, 1.0)
    pooled_A1 = POOLED_WINDOWS * total_A1 / is_known_BH.sum()

    # Weights fall from 1 to zero beyond the neighbours; they are not normalised.
    steps_H = np.arange(square_AH.shape[1])
    distance_HH = np.abs(steps_H[:, None] - steps_H)
    kernel_HH = np.maximum(0.0, 1.0 - distance_HH / (NEIGHBOUR_STEPS + 1))
    numerator_AH = product_AH @ kernel_HH + pooled_A1 * slope_A1
    denominator_AH = square_AH @ kernel_HH + pooled_A1

    # An agent that corrects nothing has no slope.
    safe_AH = np.where(denominator_AH > 0, denominator_AH, 1.0)
    return np.asarray(np.clip(numerator_AH / safe_AH, 0.0, 1.0))
