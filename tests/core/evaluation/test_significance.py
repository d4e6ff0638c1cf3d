"""The paired test and the bootstrap interval, by hand and by their properties."""

import numpy as np
import pytest

from compevo_core.errors import DataError
from compevo_core.evaluation.significance import bootstrap_interval, paired_test


def make_rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_smaller_errors_pair_by_pair_are_significant_in_one_direction_only():
    worse = make_rng().uniform(1, 2, 40)
    better = worse - 0.1
    assert paired_test(better, worse).p_value < 1e-6
    assert paired_test(worse, better).p_value > 0.99
    assert paired_test(better, worse).mean_difference == pytest.approx(-0.1)


def test_the_two_sided_test_names_the_direction():
    worse = make_rng().uniform(1, 2, 40)
    better = worse - 0.1
    found = [paired_test(a, b) for a, b in ((better, worse), (worse, better))]
    assert [test.rank_sign for test in found] == [-1, 1]
    assert found[0].p_two_sided == found[1].p_two_sided < 1e-6

    # By ranks and not by the mean: one large difference does not turn them around.
    outlier = better.copy()
    outlier[0] += 100.0
    test = paired_test(outlier, worse)
    assert test.mean_difference > 0
    assert test.rank_sign == -1


def test_a_known_small_case_has_its_exact_probability():
    a, b = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([2.0, 4.0, 6.0, 8.0, 10.0])
    assert paired_test(a, b).p_value == pytest.approx(1 / 32)
    assert paired_test(a, b).p_two_sided == pytest.approx(2 / 32)


def test_equal_methods_do_not_differ_and_masked_pairs_are_counted():
    errors = np.array([1.0, 2.0, np.nan])
    test = paired_test(errors, errors)
    assert (test.p_value, test.n, test.n_equal, test.n_left_out) == (1.0, 2, 2, 1)
    assert (test.p_two_sided, test.rank_sign) == (1.0, 0)


def test_pairs_must_match_and_exist():
    with pytest.raises(DataError, match="shapes"):
        paired_test(np.ones(3), np.ones(4))
    with pytest.raises(DataError, match="nothing to compare"):
        paired_test(np.full(3, np.nan), np.ones(3))


def test_the_interval_holds_the_mean_and_repeats_with_its_seed():
    errors = make_rng().exponential(100, 200)
    low, high = bootstrap_interval(errors, make_rng())
    assert low < errors.mean() < high
    assert bootstrap_interval(errors, make_rng()) == (low, high)
    narrow = bootstrap_interval(errors, make_rng(), level=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_days_that_move_together_make_the_interval_wider():
    day = np.repeat(make_rng().normal(100, 20, 20), 5)
    days = np.repeat(np.arange(20), 5).tolist()
    alone, together = (
        bootstrap_interval(day, make_rng()),
        bootstrap_interval(day, make_rng(), groups=days),
    )
    assert together[1] - together[0] > 1.5 * (alone[1] - alone[0])


def test_bad_levels_and_groups_are_refused():
    with pytest.raises(DataError, match="level is 95"):
        bootstrap_interval(np.ones(3), make_rng(), level=95)
    with pytest.raises(DataError, match="2 groups for 3 errors"):
        bootstrap_interval(np.ones(3), make_rng(), groups=[1, 2])
