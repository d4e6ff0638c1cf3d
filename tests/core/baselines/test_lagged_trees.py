"""Series joined from windows again, and trees that go on one step at a time."""

from dataclasses import replace

import numpy as np
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.base import History
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from tests.support.window_samples import make_window

RNG = np.random.default_rng(0)
DAYS = {"step_minutes": 1440, "dataset": "bitcoin", "horizon": 7}
LOOKBACK = 28


def cut(values, first, last, split="train", own=None):
    windows = []
    for i in range(first, last, 7):
        targets = slice(i + LOOKBACK, i + LOOKBACK + 7)
        fields = {"x": values[i : i + LOOKBACK], "y": values[targets], "split": split}
        if own is not None:
            known = {"own_promo": own[targets], "own_promo_lag1": own[targets] * 0}
            fields["step_covariates"] = known
        windows.append(make_window(i, **fields, **DAYS))
    return WindowSet(windows, dataset="bitcoin")


def test_windows_are_joined_to_their_series():
    values = RNG.normal(size=100)
    gap = values.copy()
    gap[50:52] = np.nan
    windows = list(cut(values, 0, 28))
    # A target that is missing, and then carried over.
    windows[3] = replace(windows[3], y=gap[49:56])
    history = History.from_windows(windows)
    np.testing.assert_array_equal(history.values_T[:50], values[:50])
    assert history.values_T[50] == history.values_T[51] == values[49]
    assert list(np.flatnonzero(~history.is_target_T)) == [*range(LOOKBACK), 50, 51]


def test_each_of_many_series_is_fitted(monkeypatch):
    monkeypatch.setattr("compevo_core.baselines.gbm.MOST_STEPS", 10)  # less than a look-back
    train = cut(np.tile([0.0, 5, 9, 4, 2, -8, -12], 20), 0, 100)
    assert np.isfinite(fit_baseline("lagged-gbm", train).predict(train.views())).all()


def test_windows_without_any_target_are_refused():
    unknown = cut(RNG.normal(size=200), 0, 7).with_truth(np.full((1, 7), np.nan))
    with pytest.raises(DataError, match="needs targets"):
        fit_baseline("lagged-gbm", unknown)


def test_an_unseen_weekly_level_continues():
    week = np.tile([0.0, 5, 9, 4, 2, -8, -12], 60)
    values = week + RNG.normal(0, 0.3, 420) + np.repeat(RNG.normal(0, 10, 60).cumsum(), 7)
    fitted = fit_baseline("lagged-gbm", cut(values, 0, 380))
    moved = cut(values + 500, 0, 7, split="test").views()
    level = moved[0].x[-7:].mean()
    # Of a week from -12 to 9.
    assert np.abs(fitted.predict(moved)[0] - level - week[:7]).mean() < 3


def test_what_is_known_ahead_is_used():
    promo = (RNG.random(420) < 0.3).astype(float)
    values = 100 + 20 * promo + RNG.normal(0, 1, 420)
    fitted = fit_baseline("lagged-gbm", cut(values, 0, 380, own=promo))
    planned = [cut(values, 70, 77, "test", own=np.full(420, share)) for share in (1.0, 0.0)]
    on, off = (fitted.predict(windows.views()).mean() for windows in planned)
    assert on - off > 15
