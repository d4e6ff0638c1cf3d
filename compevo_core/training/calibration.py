"""Fitting the calibration on validation, and the guard that no prior beats the sealed population.

What belongs here: the order of calibration, the choice of how errors are remembered, the guard
(decision 42). What does not: applying it (``agents.calibration``), the blend (``training.blend``),
the arithmetic of known errors (``baselines.known_errors``).

Test windows have no way in here. Each choice is made on windows that the fit it judges has not
seen; what is sealed is then fitted on all of validation.

Shapes: A agents (all of the run), B windows, E series, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.baselines.known_errors import (
    NO_LEVEL,
    RULE_GRID,
    LevelRule,
    count_minutes,
    split_by_time,
)
from compevo_core.config import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError
from compevo_core.online.experience import Experience
from compevo_core.training.agent_forecasts import (
    AgentForecasts,
    aggregate_error,
    forecast_examples,
    mean_error,
    mean_errors,
    weigh_examples,
)
from compevo_core.training.blend import fit_blend
from compevo_core.training.experience import follow_validation
from compevo_core.training.model import PopulationModel
from compevo_core.training.window_errors import WindowErrors

Guard = Literal["none", "equal", "best", "prior"]


@dataclasses.dataclass(frozen=True)
class CalibrationReport:
    """What calibration did; errors are scaled mean absolute errors over validation windows.

    Attributes:
        windows: number of validation windows.
        prior_mae: of the base that validated best, as it is.
        raw_mae: of the population before calibration.
        calibrated_mae: of the population as sealed; never above ``prior_mae``.
        blend: (A,) mean over steps of each agent's blend; 0 for one that has learnt nothing.
        known_errors: form of the level.
        half_life_days: half-life of known errors; None without a level.
        history_windows: number of windows before validation whose errors are in the level.
        guard: what weighs the agents: ``none``: the selection; ``equal``: all alike; ``best``: the
            agent that validated best, alone; ``prior``: the best base, without any correction.
    """

    windows: int
    prior_mae: float
    raw_mae: float
    calibrated_mae: float
    blend: tuple[float, ...]
    known_errors: str
    half_life_days: float | None
    history_windows: int
    guard: Guard


@dataclasses.dataclass(frozen=True)
class _Fitted:
    """How forecasts are corrected: blend, memory of errors, the earlier errors that count."""

    blend_AH: FloatArray
    rule: LevelRule
    earlier: WindowErrors | None

    def follow(
        self,
        model: PopulationModel,
        config: RunConfig,
        forecasts: AgentForecasts,
        errors: WindowErrors,
        own_weights_BA: FloatArray | None = None,
    ) -> Experience:
        """Return validation as the population would have lived through it, so corrected."""
        blended_ABH = forecasts.blend(self.blend_AH)
        return follow_validation(
            model, config, blended_ABH, errors, self.rule, self.earlier, own_weights_BA
        )


def calibrate(
    model: PopulationModel,
    executor: StrategyExecutor,
    logics: Sequence[str],
    val_examples: Sequence[ForecastExample],
    config: RunConfig,
    *,
    history: Sequence[ForecastExample] = (),
) -> CalibrationReport:
    """Fit ``model.calibration`` on validation forecasts, without dropout or gradient.

    Args:
        model: the population as it will be sealed; its calibration alone is changed.
        executor: forecasts with it.
        logics: (A,) logics of all agents.
        val_examples: validation windows with their truth.
        config: ``config.calibration`` says what is fitted.
        history: train windows with out-of-fold priors, whose errors may begin the level; those that
            reach into validation are left out. 'validated' uses them where that does better.

    Returns:
        what was fitted, the same on every process.

    Raises:
        DataError: there is no validation window.
    """
    if not val_examples:
        raise DataError(
            "there are no validation windows to calibrate on; give some, or leave calibration out"
        )

    forecasts = forecast_examples(model, executor, logics, val_examples)
    weights_BA = weigh_examples(model, val_examples, forecasts)
    prior_A = mean_errors(forecasts.base_ABH, forecasts.truth_BH)

    fitted = _fit(model, executor, logics, forecasts, weights_BA, val_examples, history, config)
    errors = _collect_errors(model, forecasts, fitted.blend_AH, val_examples)

    # Judged with all windows: the choices are made.
    known = errors.after(fitted.earlier)
    level_ABH = known.level(fitted.rule, errors.rows, max(known.rows) + 1)
    sealed_ABH = forecasts.blend(fitted.blend_AH) + level_ABH
    learnt = aggregate_error(sealed_ABH, weights_BA, forecasts.truth_BH)
    if config.selection.online:
        # Weights that go on are judged as they went on through validation.
        lived = fitted.follow(model, config, forecasts, errors)
        learnt = mean_error(lived.mixture_NH, lived.truth_NH)
    guard, override_A, sealed = _guard(forecasts, sealed_ABH, learnt)

    # Where no weighting is as good as the best prior, that is sealed without any correction.
    if guard == "prior":
        fitted = _Fitted(np.zeros_like(fitted.blend_AH), NO_LEVEL, None)
        errors = _collect_errors(model, forecasts, fitted.blend_AH, val_examples)
        override_A = np.eye(len(prior_A))[prior_A.argmin()]

    _store(model, fitted.blend_AH, override_A, int(prior_A.argmin()))
    _remember(model, fitted.rule, known)
    model.experience = fitted.follow(model, config, forecasts, errors, forecasts.weights_BA)
    return CalibrationReport(
        windows=len(val_examples),
        prior_mae=float(prior_A.min()),
        raw_mae=aggregate_error(forecasts.values_ABH, weights_BA, forecasts.truth_BH),
        calibrated_mae=sealed,
        blend=tuple(fitted.blend_AH.mean(1).tolist()),
        known_errors=fitted.rule.form,
        half_life_days=None if fitted.rule.form == "none" else fitted.rule.half_life_days,
        history_windows=0 if fitted.earlier is None else len(fitted.earlier.examples),
        guard=guard,
    )


def restart_levels(
    model: PopulationModel,
    executor: StrategyExecutor,
    logics: Sequence[str],
    examples: Sequence[ForecastExample],
) -> None:
    """Estimate the levels of a fitted calibration anew; rule, blend and guard stay.

    For a population that was trained once more on train and validation: the levels of the first one
    are the errors of another model.

    Args:
        model: the population, with the calibration of the first training.
        executor: forecasts with it.
        logics: (A,) logics of all agents.
        examples: windows with their truth and out-of-fold priors.
    """
    rule = model.calibration.level_rule
    if rule.form == "none":
        return

    forecasts = forecast_examples(model, executor, logics, examples)
    local_AH = model.calibration.blend_AH
    blend_AH = model.shards.all_gather(local_AH, "forecasts").cpu().numpy().astype(np.float64)
    known = _collect_errors(model, forecasts, blend_AH, examples)
    _remember(model, rule, known)


def _fit(
    model: PopulationModel,
    executor: StrategyExecutor,
    logics: Sequence[str],
    forecasts: AgentForecasts,
    weights_BA: FloatArray,
    val_examples: Sequence[ForecastExample],
    history: Sequence[ForecastExample],
    config: RunConfig,
) -> _Fitted:
    """Fit the blend, then the level of what the blend lets through."""
    halves = split_by_time([example.view for example in val_examples])
    agents, _, steps = forecasts.values_ABH.shape
    is_blended = config.calibration.blend
    blend_AH = fit_blend(forecasts, *halves) if is_blended else np.ones((agents, steps))

    earlier = None
    if config.calibration.known_errors != "none":
        earlier = _forecast_history(model, executor, logics, blend_AH, val_examples, history)
    errors = _collect_errors(model, forecasts, blend_AH, val_examples)
    return _Fitted(blend_AH, *_find_rule(config, errors, earlier, weights_BA, halves))


def _find_rule(
    config: RunConfig,
    errors: WindowErrors,
    earlier: WindowErrors | None,
    weights_BA: FloatArray,
    halves: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]],
) -> tuple[LevelRule, WindowErrors | None]:
    """Return how errors are remembered, and which earlier ones: as set, or what does best."""
    form = config.calibration.known_errors
    if form == "validated":
        return _choose_rule(errors, earlier, weights_BA, halves)
    return LevelRule(form, config.calibration.half_life_days), earlier


def _choose_rule(
    errors: WindowErrors,
    earlier: WindowErrors | None,
    weights_BA: FloatArray,
    halves: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]],
) -> tuple[LevelRule, WindowErrors | None]:
    """Return how errors are remembered, and which earlier ones: what does best as it will be used.

    That use is imitated: the level at the middle of validation, frozen, on the second half. It is
    the population's error that counts, as the population is what is sealed.
    """
    first, second = halves
    judged = errors.take(second)
    begun = [None] if earlier is None else [None, earlier]
    options = [(rule, start) for rule in RULE_GRID for start in begun]
    if not first.size and earlier is None:
        return NO_LEVEL, None

    found = []
    for rule, start in options:
        known = errors.take(first).after(start)
        level_ABH = known.level(rule, judged.rows, max(errors.rows + known.rows) + 1)
        # An error less its level is the error of the forecast with the level.
        left_BH = np.einsum("abh,ba->bh", judged.error_ABH - level_ABH, weights_BA[second])
        found.append(float(np.nanmean(np.abs(left_BH), axis=1).mean()))

    rule, start = options[int(np.argmin(found))]
    return rule, None if rule.form == "none" else start


def _guard(
    forecasts: AgentForecasts, sealed_ABH: FloatArray, learnt: float
) -> tuple[Guard, FloatArray, float]:
    """Return the first weighting that no prior beats, its override (A,), and its error.

    Args:
        forecasts: of validation.
        sealed_ABH: the same, calibrated.
        learnt: error of the population under the weights that were learnt.
    """
    agents = len(sealed_ABH)
    truth_BH = forecasts.truth_BH
    prior = float(mean_errors(forecasts.base_ABH, truth_BH).min())

    if learnt <= prior:
        return "none", np.zeros(agents), learnt

    equal_A = np.full(agents, 1.0 / agents)
    weights_BA = np.broadcast_to(equal_A, (len(truth_BH), agents))
    equal = aggregate_error(sealed_ABH, weights_BA, truth_BH)
    if equal <= prior:
        return "equal", equal_A, equal

    error_A = mean_errors(sealed_ABH, truth_BH)
    best = int(error_A.argmin())
    if error_A[best] <= prior:
        return "best", np.eye(agents)[best], float(error_A[best])
    return "prior", np.zeros(agents), prior


def _forecast_history(
    model: PopulationModel,
    executor: StrategyExecutor,
    logics: Sequence[str],
    blend_AH: FloatArray,
    val_examples: Sequence[ForecastExample],
    history: Sequence[ForecastExample],
) -> WindowErrors | None:
    """Return the errors of the windows that ended before validation began; None without any."""
    begin_utc = min(example.view.origin_utc for example in val_examples)
    earlier = [example for example in history if example.view.end_utc <= begin_utc]
    if not earlier:
        return None

    forecasts = forecast_examples(model, executor, logics, earlier)
    return _collect_errors(model, forecasts, blend_AH, earlier)


def _collect_errors(
    model: PopulationModel,
    forecasts: AgentForecasts,
    blend_AH: FloatArray,
    examples: Sequence[ForecastExample],
) -> WindowErrors:
    views = [example.view for example in examples]
    return WindowErrors(
        examples,
        model.calibration.find_rows([view.entity for view in views]),
        count_minutes(views),
        forecasts.truth_BH - forecasts.blend(blend_AH),
    )


@torch.no_grad()
def _store(
    model: PopulationModel, blend_AH: FloatArray, override_A: FloatArray, best_prior: int
) -> None:
    calibration = model.calibration
    calibration.blend_AH.copy_(torch.from_numpy(model.shards.local(blend_AH)))
    calibration.override_A.copy_(torch.from_numpy(override_A))
    calibration.best_prior.fill_(best_prior)


def _remember(model: PopulationModel, rule: LevelRule, known: WindowErrors) -> None:
    model.calibration.start_levels(rule)
    local_ABH = model.shards.local(known.error_ABH)
    model.calibration.observe(known.minutes, known.entities, local_ABH)
