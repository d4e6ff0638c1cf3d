"""Errors and regret by their definitions, and counts of what is masked or left out."""

import numpy as np
import pytest

from compevo_core.agents.online_selection import MlPolyState
from compevo_core.data.quantiles import LEVELS
from compevo_core.errors import DataError
from compevo_core.evaluation.metrics import (
    QUANTILE_COLUMNS,
    WQL_LEVELS,
    measure_naive_error,
    measure_window_errors,
    score,
    score_quantiles,
)
from compevo_core.evaluation.regret import measure_regret
from tests.support.window_samples import make_window

Y = np.array([[1.0, 2.0, 4.0], [10.0, 20.0, 40.0]])


def test_the_errors_are_those_of_their_definitions():
    scores = score(Y, Y + np.array([[1.0, -1.0, 2.0], [0.0, 2.0, -4.0]]))
    assert (scores.mae, scores.mse) == pytest.approx((10 / 6, 26 / 6))
    assert scores.rmse == pytest.approx((26 / 6) ** 0.5)
    assert scores.mape_pct == pytest.approx(100 * (1 + 0.5 + 0.5 + 0 + 0.1 + 0.1) / 6)
    assert scores.wape_pct == pytest.approx(100 * 10 / 77)
    assert (scores.n_windows, scores.n_points, scores.n_masked, scores.mape_skipped) == (2, 6, 0, 0)


def test_masked_truths_are_counted_and_zero_is_a_truth():
    y = Y.copy()
    y[0] = [0.0, np.nan, 4.0]
    scores = score(y, Y)
    assert (scores.n_points, scores.n_masked, scores.mape_skipped) == (5, 1, 1)
    assert scores.mae == pytest.approx(1.0 / 5)


def test_mape_leaves_out_truths_below_its_threshold_and_says_how_many():
    y = np.array([[-0.5, 0.0, 100.0, -50.0]])
    scores = score(y, y + 10, mape_threshold=1.0)
    assert (scores.mape_skipped, scores.mape_threshold) == (2, 1.0)
    assert scores.mape_pct == pytest.approx(100 * (0.1 + 0.2) / 2)


def test_percentages_that_do_not_exist_are_none_and_not_zero():
    scores = score(np.zeros((1, 3)), np.ones((1, 3)))
    assert (scores.mape_pct, scores.wape_pct, scores.mase) == (None, None, None)
    assert scores.mape_skipped == 3


def test_mase_divides_each_window_by_its_own_scale():
    scores = score(Y, Y + np.array([[2.0], [10.0]]), mase_scale_N=np.array([1.0, 20.0]))
    assert scores.mase == pytest.approx((2.0 + 0.5) / 2)
    assert score(Y, Y + 1, mase_scale_N=np.array([1.0, np.nan])).mase is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_forecast_that_is_not_finite_is_refused_even_where_the_truth_is_masked(bad):
    y, forecast = Y.copy(), Y.copy()
    y[1, 2], forecast[1, 2] = np.nan, bad
    with pytest.raises(DataError, match="window 1, step 2"):
        score(y, forecast)


def test_a_missing_window_is_refused_and_not_ignored():
    with pytest.raises(DataError, match=r"\(2, 3\) but the forecast is \(1, 3\)"):
        score(Y, Y[:1])
    with pytest.raises(DataError, match="nothing to score"):
        score(np.full((1, 3), np.nan), np.ones((1, 3)))


def test_the_naive_error_is_the_daily_difference_of_half_hours_on_train():
    one = make_window(0, x=[100.0] * 48, y=[103.0] * 47 + [float("nan")])
    assert measure_naive_error([one]) == {"NSW1": 3.0}
    with pytest.raises(DataError, match="split 'test'"):
        measure_naive_error([make_window(0, split="test")])


def test_window_errors_are_means_over_known_steps():
    y = Y.copy()
    y[0, 0], y[1] = np.nan, np.nan
    scores = measure_window_errors(y, Y + 2)
    assert scores[0] == 2.0
    assert np.isnan(scores[1])


RNG = np.random.default_rng(0)


def make(by_level, windows=1, steps=4):
    """Return constant quantiles (N, Q, H); NaN at the levels that are not given."""
    found = np.full((windows, len(LEVELS), steps), np.nan)
    for level, value in by_level.items():
        found[:, LEVELS.index(level)] = value
    return found


def test_pinball_coverage_and_width_are_those_worked_by_hand():
    # Truths 80, 100, 130 and one that is missing; quantiles 90, 100 and 120 at 0.1, 0.5 and 0.9.
    truth = np.array([[80.0, 100.0, 130.0, np.nan]])
    found = score_quantiles(truth, make({0.1: 90.0, 0.5: 100.0, 0.9: 120.0}))

    # At 0.1: 0.9 * 10 below, 0.1 * 10 and 0.1 * 40 above: 9 + 1 + 4 over three points.
    assert found["pinball_q10"] == pytest.approx(14 / 3)
    # At 0.5: half of 20, 0 and 30. At 0.9: 0.1 * 40, 0.1 * 20, 0.9 * 10.
    assert found["pinball_q50"] == pytest.approx(25 / 3)
    assert found["pinball_q90"] == pytest.approx(15 / 3)
    assert found["pinball_10_50_90"] == pytest.approx((14 + 25 + 15) / 9)
    assert found["coverage_80"] == pytest.approx(1 / 3)
    assert found["width_80"] == 30.0
    # A truth at its quantile is at or below it.
    assert [found[f"below_{q}"] for q in ("q10", "q50", "q90")] == pytest.approx(
        [1 / 3, 2 / 3, 2 / 3]
    )


def test_what_needs_a_level_that_is_not_there_is_none_and_not_a_score_of_fewer():
    truth = np.full((1, 4), 100.0)
    found = score_quantiles(truth, make({0.1: 90.0, 0.5: 100.0, 0.9: 120.0}))
    assert set(found) == set(QUANTILE_COLUMNS)
    empty = {name for name, value in found.items() if value is None}
    assert {"wql", "coverage_95", "width_95", "pinball_q05", "below_q975"} <= empty
    assert not {"pinball_10_50_90", "coverage_80", "width_80", "pinball_q50"} & empty

    # One window without the level: no score, since it would be one of other windows.
    partly = make({0.5: 100.0}, windows=2)
    partly[1] = np.nan
    assert set(score_quantiles(np.full((2, 4), 100.0), partly).values()) == {None}


def test_the_weighted_quantile_loss_is_that_of_its_formula():
    truth = RNG.normal(0, 50, (5, 4))
    truth[0, 0] = np.nan
    quantiles = np.sort(RNG.normal(0, 50, (5, len(LEVELS), 4)), axis=1)

    # GluonTS: sum of 2 |(q - y) ((y <= q) - level)| over sum of |y|, the mean over levels.
    losses = []
    for level in WQL_LEVELS:
        q = quantiles[:, LEVELS.index(level)]
        loss = 2 * np.abs((q - truth) * ((truth <= q) - level))
        losses.append(np.nansum(loss) / np.nansum(np.abs(truth)))
    assert score_quantiles(truth, quantiles)["wql"] == pytest.approx(np.mean(losses))
    assert score_quantiles(truth * 0, quantiles)["wql"] is None


def test_crossing_quantiles_and_other_shapes_are_refused():
    truth = np.full((1, 4), 100.0)
    crossing = make({0.1: 120.0, 0.9: 90.0})
    with pytest.raises(DataError, match="window 0, step 0 cross"):
        score_quantiles(truth, crossing)
    with pytest.raises(DataError, match=r"a quantile at each of 0\.025"):
        score_quantiles(truth, np.zeros((1, 3, 4)))


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
