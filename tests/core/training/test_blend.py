"""How much a step's own evidence counts in its blend beside that of all steps."""

import numpy as np
import pytest

from compevo_core.training.agent_forecasts import AgentForecasts
from compevo_core.training.blend import fit_blend

NOTHING = np.array([], dtype=np.intp)


@pytest.mark.parametrize(("step", "windows"), [(12, 6), (35, 6), (0, 10), (47, 10)])
def test_a_step_counts_as_much_as_all_steps_at_six_windows_and_at_ten_at_the_ends(
    step: int, windows: int
) -> None:
    # All corrections are one. In the half of the horizon that has the step they are right, in the
    # other one nothing is to be corrected: slopes of 1 and 0, and of 0.5 over all steps.
    is_right_H = (np.arange(48) < 24) == (step < 24)
    base_1BH = np.zeros((1, windows, 48))
    truth_BH = np.tile(is_right_H.astype(float), (windows, 1))
    forecasts = AgentForecasts(base_1BH + 1.0, base_1BH, truth_BH)

    blend_1H = fit_blend(forecasts, NOTHING, NOTHING)
    assert blend_1H[0, step] == pytest.approx((1.0 + 0.5) / 2)
