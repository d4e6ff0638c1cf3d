"""Errors by their definitions, and counts of what is masked or left out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compevo_core.errors import DataError
from compevo_core.evaluation.metrics import measure_naive_error, measure_window_errors, score
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


@given(arrays(np.float64, (3, 4), elements=st.floats(-1e6, 1e6)))
def test_a_perfect_forecast_has_no_error(y):
    assert score(y, y).mae == score(y, y).rmse == 0.0


@given(arrays(np.float64, (3, 4), elements=st.floats(-1e3, 1e3)), st.integers(0, 5))
def test_the_order_of_windows_does_not_matter(y, seed):
    forecast = np.random.default_rng(seed).normal(size=y.shape)
    assert score(y[::-1], forecast[::-1]).mae == pytest.approx(score(y, forecast).mae)


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
