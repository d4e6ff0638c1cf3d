"""Priors: out-of-fold forecasts, shared fits, known errors."""

import numpy as np
import pytest

from compevo_core.baselines.known_errors import ErrorLevels
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.training.prior import PriorKey, forecast_out_of_fold
from compevo_core.training.training_data import TrainingData
from tests.support.population import tiny, windows
from tests.support.window_samples import make_window, make_window_set

DAYS = 60
FOLDS = 5
BLOCK = range(24, 36)  # the third of five blocks of twelve days
RIDGE = PriorKey("calendar-ridge")
POISON_MW = 1e6


def poison(train, days):
    """The same windows with the truth of some days moved far away."""
    truth_NH = train.truth()
    truth_NH[list(days)] += POISON_MW
    return train.with_truth(truth_NH)


def forecast_block(train, key=RIDGE):
    return forecast_out_of_fold(key, train, FOLDS)[list(BLOCK)]


@pytest.fixture(scope="module")
def train():
    return make_window_set(DAYS)


@pytest.fixture(scope="module")
def clean(train):
    return forecast_block(train)


def test_a_blocks_prior_has_not_seen_it(train, clean):
    poisoned = poison(train, BLOCK)
    assert np.array_equal(forecast_block(poisoned), clean)

    # The poison does act where the windows are in the fit: in sample, and on the other blocks.
    in_sample = forecast_out_of_fold(RIDGE, poisoned, 1)[list(BLOCK)]
    assert np.abs(in_sample - clean).max() > 0.01 * POISON_MW
    others = [day for day in range(DAYS) if day not in BLOCK]
    moved = forecast_out_of_fold(RIDGE, poisoned, FOLDS) - forecast_out_of_fold(RIDGE, train, FOLDS)
    assert (np.abs(moved[others]).max(axis=1) > 0.001 * POISON_MW).all()


@pytest.mark.parametrize(
    ("day", "is_in_the_fit"),
    [(BLOCK[0] - 1, False), (BLOCK[-1] + 1, False), (BLOCK[0] - 2, True), (BLOCK[-1] + 2, True)],
)
def test_overlapping_windows_are_in_no_fit(train, clean, day, is_in_the_fit):
    moved = not np.array_equal(forecast_block(poison(train, [day])), clean)
    assert moved == is_in_the_fit


def test_every_window_is_forecast_once_in_order(train):
    forecast_NH = forecast_out_of_fold(PriorKey("persistence"), train, FOLDS)
    assert np.array_equal(forecast_NH, np.stack([view.x for view in train.views()]))


def test_a_nearest_days_prior_saw_no_other(train):
    key = PriorKey("calendar-ridge", calibration_days=24)
    clean = forecast_block(train, key)
    # Twelve days on either side, after one that overlaps.
    far = [*range(BLOCK[0] - 13), *range(BLOCK[-1] + 14, DAYS)]
    assert np.array_equal(forecast_block(poison(train, [*far, *BLOCK]), key), clean)
    for near in (BLOCK[0] - 13, BLOCK[-1] + 13):
        assert not np.array_equal(forecast_block(poison(train, [near]), key), clean)


def test_blocks_without_enough_windows_are_refused(train):
    far_apart = WindowSet([train[0], train[20], train[40]], dataset=train.dataset)
    with pytest.raises(DataError, match=r"forecast\.prior_folds"):
        forecast_out_of_fold(PriorKey("persistence"), far_apart, FOLDS)

    # The last of five blocks holds 13 of the 65 windows, and so all five of the new region.
    newcomer = {"entity": "SA1", "series_id": "AEMO/HISTDEMAND/SA1"}
    late = [make_window(day, window_id=f"s{day}", **newcomer) for day in range(DAYS - 5, DAYS)]
    both = WindowSet([*train, *late], dataset=train.dataset)
    with pytest.raises(DataError, match=r"SA1 .* set forecast\.prior_folds to 1"):
        forecast_out_of_fold(RIDGE, both, FOLDS)

    # What it names as a way out is one, and a prior that needs no scale has no need of it.
    assert np.isfinite(forecast_out_of_fold(RIDGE, both, 1)).all()
    assert np.isfinite(forecast_out_of_fold(PriorKey("persistence"), both, FOLDS)).all()


TRAIN = windows("train", 40)
VAL = windows("val", 8, first_day=40)
TEST = windows("test", 2, first_day=48)
DRIFT_MW = 500.0


def _config(known_errors="mean"):
    priors = {"forecast__prior": "calendar-ridge", "forecast__prior_folds": 2}
    return tiny(forecast__known_errors=known_errors, **priors)


def _prepare(train, val, known_errors="mean"):
    return TrainingData.prepare(_config(known_errors), train, val)


def _bases(examples):
    return np.stack([example.priors_PH[0] for example in examples])


@pytest.fixture(scope="module")
def prepared():
    return _prepare(TRAIN, VAL)


def test_validation_truth_reaches_only_the_sealed_prior(prepared):
    drifted = _prepare(TRAIN, VAL.with_truth(VAL.truth() + DRIFT_MW))
    ours, theirs = (_bases(one.calibration_examples) for one in (drifted, prepared))
    assert np.array_equal(ours, theirs)

    # What is sealed knows of the drift: its forecasts of later days follow it, in part.
    moved = drifted.priors.forecast(TEST.views()) - prepared.priors.forecast(TEST.views())
    assert (moved > 0.1 * DRIFT_MW).all() and (moved < DRIFT_MW).all()


def test_the_validation_level_starts_out_of_fold(prepared):
    plain_priors = _prepare(TRAIN, VAL, "none").priors
    levels = ErrorLevels(prepared.priors.levels.rule, prepared.scaler, 1, TRAIN.horizon)
    levels.observe(TRAIN, plain_priors.forecast_train(TRAIN, _config().forecast.prior_folds))

    plain = plain_priors.forecast(VAL.views())
    forecast_NH = levels.apply(VAL.views(), plain)[:, 0]
    pairs = zip(forecast_NH, VAL.views(), strict=True)
    expected = [prepared.scaler.scale(forecast_H, view.entity) for forecast_H, view in pairs]
    assert np.allclose(_bases(prepared.calibration_examples), expected)


def test_train_examples_carry_only_earlier_levels():
    truth_NH = TRAIN.truth()
    origins = [view.origin_utc for view in TRAIN.views()]
    last = [i for i, origin in enumerate(origins) if origin == origins[-1]]
    truth_NH[last] = np.nan  # not known: neither a fit nor a level can use it
    truth_NH[last, 0] = TRAIN.truth()[last, 0]
    known = _prepare(TRAIN.with_truth(truth_NH), VAL)
    followed = _prepare(TRAIN.with_truth(truth_NH), VAL, "none")

    examples = known.train_examples
    is_first = [example.view.origin_utc == origins[0] for example in examples]
    ours, theirs = _bases(examples), _bases(followed.train_examples)
    assert any(is_first) and np.array_equal(ours[is_first], theirs[is_first])
    assert not np.array_equal(ours, theirs)


def test_overlapping_train_windows_stay_out_of_validation():
    late = windows("train", 42)  # two days more: their targets are in validation
    moved_NH = late.truth()
    inside = [i for i, v in enumerate(late.views()) if v.end_utc > VAL.views()[0].origin_utc]
    assert inside
    moved_NH[inside] = np.nan
    moved_NH[inside, -1] = late.truth()[inside, -1]  # keeps the windows; hardly any truth

    known = _prepare(late, VAL).priors.levels.weight_EH
    without = _prepare(late.with_truth(moved_NH), VAL).priors.levels.weight_EH
    assert np.array_equal(known, without)
