"""Ridges judged on blocks of time: both forms are one, and no block knows its own truth."""

import numpy as np
import pytest

from compevo_core.agents.ridge import PENALTIES, fit_ridge, hold_out_by_kernel, measure_later

ALL = np.ones(60, dtype=bool)
_days = np.arange(60)
_parts = np.array_split(_days, 5)
# Blocks of windows, with those within two of each left out of its fit.
FOLDS = [(np.isin(_days, p), (_days < p[0] - 2) | (_days > p[-1] + 2)) for p in _parts]


def _sample(columns, effect=1.0):
    rng = np.random.default_rng(columns)
    x_NK = rng.normal(size=(60, columns))
    return x_NK, effect * x_NK[:, :1] + rng.normal(size=(60, 3))


def _hold_out(x_NK, y_NH):
    """Held-out residuals of both forms."""
    held_out_NH = fit_ridge(x_NK, y_NH, FOLDS, ALL).hold_out(x_NK, FOLDS)
    return y_NH - held_out_NH, hold_out_by_kernel(x_NK @ x_NK.T, y_NH, FOLDS, PENALTIES)


@pytest.mark.parametrize("columns", [4, 90])
def test_added_gram_matrices_equal_joined_columns(columns):
    x_NK, y_NH = _sample(columns)
    joined, added = _hold_out(x_NK, y_NH)
    half = columns // 2
    parts = sum(part @ part.T for part in (x_NK[:, :half], x_NK[:, half:]))
    split_NH = hold_out_by_kernel(parts, y_NH, FOLDS, PENALTIES)

    np.testing.assert_allclose(added, joined, atol=1e-6)
    np.testing.assert_allclose(split_NH, joined, atol=1e-6)
    assert (joined**2).sum() < (y_NH**2).sum()


def test_a_block_is_read_without_its_own_truth():
    x_NK, y_NH = _sample(8)
    rows = np.flatnonzero(FOLDS[2][0])
    changed_NH = y_NH.copy()
    changed_NH[rows] = 50 * np.random.default_rng(1).permutation(y_NH[rows])
    for before, after in zip(_hold_out(x_NK, y_NH), _hold_out(x_NK, changed_NH), strict=True):
        read, read_after = y_NH - before, changed_NH - after
        np.testing.assert_allclose(read_after[rows], read[rows], atol=1e-9)
        assert np.abs(read_after - read).max() > 0.1


def test_noise_reads_as_zero_under_any_penalty():
    x_NK, y_NH = _sample(30, effect=0.0)
    fit = fit_ridge(x_NK, y_NH, FOLDS, ALL, np.array([1e-3]))
    assert not fit.weights_KH.any()
    assert not fit.held_out_BKH.any()
    residual_NH = hold_out_by_kernel(x_NK @ x_NK.T, y_NH, FOLDS, np.array([1e-3]))
    np.testing.assert_array_equal(residual_NH, y_NH)


def test_equal_errors_choose_no_unjudged_penalty():
    x_NK, y_NH = _sample(4)
    x_NK[:48] = 0.0  # all but the last block
    assert not fit_ridge(x_NK, y_NH, FOLDS, ALL).weights_KH.any()
    np.testing.assert_allclose(_hold_out(x_NK, y_NH), [y_NH, y_NH], atol=1e-9)


def test_columns_that_drift_apart_are_not_read():
    at = np.linspace(-1, 1, 60)
    # Up to the last fifth the target follows the column, and then it does not.
    y_NH = np.where(at < 0.6, at, 0.0)[:, None]
    is_last, is_before = FOLDS[-1]
    *errors_P, zero = measure_later(at[:, None], y_NH, is_before, is_last)
    assert min(errors_P) > zero
    assert not fit_ridge(at[:, None], y_NH, FOLDS, ALL).weights_KH.any()
    assert fit_ridge(at[:, None], at[:, None], FOLDS, ALL).weights_KH.any()


def test_rows_that_are_not_usable_change_nothing():
    x_NK, y_NH = _sample(5)
    usable_N = ALL.copy()
    usable_N[10:14] = False
    y_NH[10:14] = 1e3
    first = fit_ridge(x_NK, y_NH, FOLDS, usable_N)
    y_NH[10:14] = -1e3
    second = fit_ridge(x_NK, y_NH, FOLDS, usable_N)
    np.testing.assert_array_equal(first.weights_KH, second.weights_KH)
