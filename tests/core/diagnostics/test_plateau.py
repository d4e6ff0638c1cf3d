"""Whether a reward still moves: by hand, and on made-up rewards."""

import numpy as np
import pytest

from compevo_core.diagnostics.plateau import MIN_ROUNDS, measure_plateau, theil_sen_slope
from compevo_core.errors import DataError


def noise(rounds, seed=0):
    return np.random.default_rng(seed).normal(0, 0.05, rounds)


def test_a_slope_is_the_median_over_pairs_by_hand():
    # Pairs: 1, 1, 3, 1, 4, 7 over the rounds between them.
    assert theil_sen_slope(np.array([0.0, 1.0, 2.0, 9.0])) == pytest.approx(2.0)
    # One outlier of nine moves the mean slope and not this one.
    assert theil_sen_slope(np.array([0, 1, 2, 3, 90, 5, 6, 7, 8.0])) == pytest.approx(1.0)


def test_change_is_the_last_quarter_minus_the_first_and_the_slope_that_of_the_last_half():
    reward = np.concatenate([np.full(10, -1.0), np.full(10, -0.7), np.arange(20) * 0.01])
    plateau = measure_plateau(reward, 0)
    assert plateau.change == pytest.approx(np.arange(10, 20).mean() * 0.01 + 1.0)
    assert plateau.slope == pytest.approx(0.01) and plateau.n_rounds == 20
    assert plateau.low == pytest.approx(0.01) == plateau.high


def test_a_reward_that_rises_first_and_then_stands_is_flat_and_one_that_goes_on_is_not():
    rounds = np.arange(120)
    settled = measure_plateau(-np.exp(-rounds / 10) + noise(120), 1)
    rising = measure_plateau(0.005 * rounds + noise(120), 1)
    falling = measure_plateau(-0.005 * rounds + noise(120), 1)
    assert settled.is_flat and settled.low < settled.slope < settled.high
    assert settled.change > 0.2
    assert not rising.is_flat and rising.low > 0
    assert not falling.is_flat and falling.high < 0


def test_blocks_make_the_interval_wider_where_neighbours_agree():
    # Ten rounds at a time in common: as if there were a tenth of them.
    steady = np.repeat(noise(16), 10)
    shuffled = np.random.default_rng(3).permutation(steady)
    apart, together = measure_plateau(shuffled, 0), measure_plateau(steady, 0)
    assert together.high - together.low > 1.5 * (apart.high - apart.low)


def test_a_short_run_has_no_test_and_the_same_run_the_same_interval():
    assert measure_plateau(noise(MIN_ROUNDS - 1), 0) is None
    assert measure_plateau(noise(MIN_ROUNDS), 4) == measure_plateau(noise(MIN_ROUNDS), 4)
    with pytest.raises(DataError):
        measure_plateau([float("nan")] * 40, 0)
