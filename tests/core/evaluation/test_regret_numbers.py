"""Regret of a mixture against the best expert and the best fixed mixture."""

import numpy as np
import pytest

from compevo_core.agents.online_selection import MlPolyState
from compevo_core.evaluation.regret import measure_regret


def test_the_best_fixed_mixture_may_lie_between_two_experts():
    truth_Dh = np.zeros((3, 2))
    experts_DAh = np.stack([np.full((3, 2), -1.0), np.full((3, 2), 1.0)], axis=1)
    regret = measure_regret("ml-poly", experts_DAh, np.full((3, 2), 0.5), truth_Dh, [0.5, 0.5])
    assert regret.days == 3
    assert regret.loss == pytest.approx(1.5)
    assert regret.best_expert == pytest.approx(3.0)
    assert regret.best_mixture == pytest.approx(0.0, abs=1e-9)


def test_unknown_truths_count_neither_as_days_nor_as_steps():
    truth_Dh = np.array([[0.0, np.nan], [np.nan, np.nan], [0.0, 0.0]])
    experts_DAh = np.ones((3, 1, 2))
    experts_DAh[0, 0, 1] = 50.0
    regret = measure_regret("equal", experts_DAh, experts_DAh[:, 0], truth_Dh, [1.0])
    assert (regret.days, regret.loss, regret.best_mixture) == (2, 2.0, pytest.approx(2.0))
    assert regret.bound is None


def test_polynomial_weights_stay_below_the_logged_promise():
    rng = np.random.default_rng(1)
    state = MlPolyState(3)
    truth_Dh = rng.normal(size=(200, 4))
    experts_DAh = (
        truth_Dh[:, None] + rng.normal(size=(200, 3, 4)) * np.array([2.0, 1.0, 3.0])[:, None]
    )
    mixture_Dh = np.empty_like(truth_Dh)
    for day in range(200):
        mixture_Dh[day] = state.weights() @ experts_DAh[day]
        state.observe(experts_DAh[day], mixture_Dh[day], truth_Dh[day])

    regret = measure_regret("ml-poly", experts_DAh, mixture_Dh, truth_Dh, [1 / 3] * 3)
    assert regret.best_mixture <= regret.best_expert
    assert regret.loss - regret.best_mixture <= regret.bound
