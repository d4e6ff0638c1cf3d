"""Priors out of fold: no window's forecast is made of its own truth, nor of what overlaps it."""

import numpy as np
import pytest

from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.training.prior import PriorKey, forecast_out_of_fold
from tests.support.window_samples import make_window, make_window_set

DAYS = 60
FOLDS = 5
BLOCK = range(24, 36)  # the third of five blocks of twelve days
RIDGE = PriorKey("calendar-ridge")
POISON_MW = 1e6


def poison(train: WindowSet, days: range | list[int]) -> WindowSet:
    """The same windows with the truth of some days moved far away."""
    truth_NH = train.truth()
    truth_NH[list(days)] += POISON_MW
    return train.with_truth(truth_NH)


def forecast_block(train: WindowSet, key: PriorKey = RIDGE) -> FloatArray:
    return forecast_out_of_fold(key, train, FOLDS)[list(BLOCK)]


@pytest.fixture(scope="module")
def train() -> WindowSet:
    return make_window_set(DAYS)


@pytest.fixture(scope="module")
def clean(train: WindowSet) -> FloatArray:
    return forecast_block(train)


def test_a_block_is_forecast_by_a_prior_that_has_not_seen_its_truth(
    train: WindowSet, clean: FloatArray
) -> None:
    poisoned = poison(train, BLOCK)
    assert np.array_equal(forecast_block(poisoned), clean)

    # The poison does act where the windows are in the fit: in sample, and on the other blocks.
    in_sample = forecast_out_of_fold(RIDGE, poisoned, 1)[list(BLOCK)]
    assert np.abs(in_sample - clean).max() > 0.01 * POISON_MW
    others = [day for day in range(DAYS) if day not in BLOCK]
    moved = forecast_out_of_fold(RIDGE, poisoned, FOLDS) - forecast_out_of_fold(RIDGE, train, FOLDS)
    assert (np.abs(moved[others]).max(axis=1) > 0.001 * POISON_MW).all()


@pytest.mark.parametrize("neighbour", [BLOCK[0] - 1, BLOCK[-1] + 1])
def test_a_window_that_shares_a_value_with_the_block_is_in_no_fit_for_it(
    train: WindowSet, clean: FloatArray, neighbour: int
) -> None:
    assert np.array_equal(forecast_block(poison(train, [neighbour])), clean)


@pytest.mark.parametrize("day", [BLOCK[0] - 2, BLOCK[-1] + 2])
def test_the_nearest_window_that_shares_nothing_with_the_block_is_in_the_fit(
    train: WindowSet, clean: FloatArray, day: int
) -> None:
    assert not np.array_equal(forecast_block(poison(train, [day])), clean)


def test_every_window_is_forecast_once_in_the_order_of_the_windows(train: WindowSet) -> None:
    forecast_NH = forecast_out_of_fold(PriorKey("persistence"), train, FOLDS)
    assert np.array_equal(forecast_NH, np.stack([view.x for view in train.views()]))


def test_a_prior_of_the_nearest_days_has_seen_no_other_day(train: WindowSet) -> None:
    key = PriorKey("calendar-ridge", calibration_days=24)
    clean = forecast_block(train, key)
    # Twelve days on either side, after one that overlaps.
    far = [*range(BLOCK[0] - 13), *range(BLOCK[-1] + 14, DAYS)]
    assert np.array_equal(forecast_block(poison(train, [*far, *BLOCK]), key), clean)
    for near in (BLOCK[0] - 13, BLOCK[-1] + 13):
        assert not np.array_equal(forecast_block(poison(train, [near]), key), clean)


def test_more_blocks_than_windows_are_refused(train: WindowSet) -> None:
    far_apart = WindowSet([train[0], train[20], train[40]], dataset=train.dataset)
    with pytest.raises(
        DataError, match=r"cannot be cut into 5 blocks; lower forecast\.prior_folds"
    ):
        forecast_out_of_fold(PriorKey("persistence"), far_apart, FOLDS)


def test_a_series_in_one_block_alone_is_refused_with_what_to_do(train: WindowSet) -> None:
    # The last of five blocks holds 13 of the 65 windows, and so all five of the new region.
    newcomer = {"entity": "SA1", "series_id": "AEMO/HISTDEMAND/SA1"}
    late = [make_window(day, window_id=f"s{day}", **newcomer) for day in range(DAYS - 5, DAYS)]
    both = WindowSet([*train, *late], dataset=train.dataset)
    with pytest.raises(
        DataError,
        match=r"all train windows of SA1 lie in one block .* set forecast\.prior_folds to 1",
    ):
        forecast_out_of_fold(RIDGE, both, FOLDS)

    # What it names as a way out is one, and a prior that needs no scale has no need of it.
    assert np.isfinite(forecast_out_of_fold(RIDGE, both, 1)).all()
    assert np.isfinite(forecast_out_of_fold(PriorKey("persistence"), both, FOLDS)).all()
