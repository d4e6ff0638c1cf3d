"""How much of each agent's correction has proved its worth (decision 42).

What belongs here: the least-squares blend of base and correction, by agent and step, and the test
whether there is anything to blend. What does not: applying it (``agents.calibration``), the order
of calibration (``training.calibration``).

Shapes: A agents, B validation windows, H horizon.
"""

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.training.agent_forecasts import AgentForecasts, mean_errors

NEIGHBOUR_STEPS = 4
"""Steps on either side that a step's blend is pooled over, with weights that fall to zero: the
corrections of half hours two hours apart are nearly the same forecast."""

POOLED_WINDOWS = 30.0
"""Weight of the slope over all steps, in windows of one step with a mean squared correction.

A step's own evidence is the sum over its neighbours, whose weights add up to five, and to three at
both ends of the horizon. It therefore counts as much as the pooled slope at six windows, at ten
there, and of a few dozen windows most is its own."""


def fit_blend(
    forecasts: AgentForecasts, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]
) -> FloatArray:
    """Return the blend (A, H), zero for an agent whose correction has not proved its worth.

    It has where the blended error is below that of the base twice: on the windows of the fit, and
    on each part under the blend of the other part. Any correction fits some of the windows that its
    blend was fitted on; one that is noise does not fit others.

    Args:
        forecasts: of all validation windows.
        first: windows of the first part of the validation span.
        second: windows of the second part; without either the second test is left out.
    """
    blend_AH = _least_squares(forecasts)
    truth_BH = forecasts.truth_BH
    base_A = mean_errors(forecasts.base_ABH, truth_BH)
    has_learnt_A = mean_errors(forecasts.blend(blend_AH), truth_BH) < base_A

    if first.size and second.size:
        held_out_ABH = np.concatenate(
            [
                forecasts.take(judged).blend(_least_squares(forecasts.take(fitted)))
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

    # The slope over all steps stands for so many windows of one step, without its neighbours.
    total_A1 = square_AH.sum(axis=1, keepdims=True)
    slope_A1 = product_AH.sum(axis=1, keepdims=True) / np.where(total_A1 > 0, total_A1, 1.0)
    pooled_A1 = POOLED_WINDOWS * total_A1 / is_known_BH.sum()

    kernel_HH = _neighbour_weights(square_AH.shape[1])
    numerator_AH = product_AH @ kernel_HH + pooled_A1 * slope_A1
    denominator_AH = square_AH @ kernel_HH + pooled_A1

    # An agent that corrects nothing has no slope.
    safe_AH = np.where(denominator_AH > 0, denominator_AH, 1.0)
    return np.asarray(np.clip(numerator_AH / safe_AH, 0.0, 1.0))


def _neighbour_weights(steps: int) -> FloatArray:
    """Return weights (H, H) that fall from 1 to zero beyond ``NEIGHBOUR_STEPS``.

    They are no mean: those of a step add up to five, to three at both ends.
    """
    distance = np.abs(np.arange(steps)[:, None] - np.arange(steps))
    return np.asarray(np.maximum(0.0, 1.0 - distance / (NEIGHBOUR_STEPS + 1)))
