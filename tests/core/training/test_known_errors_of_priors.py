"""Agents correct priors whose own known errors are added already: what is known when."""

import numpy as np
import pytest

from compevo_core.baselines.error_levels import ErrorLevels
from compevo_core.config import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.training.prior import forecast_train, read_rule
from compevo_core.training.training_data import TrainingData
from tests.support.population import tiny, windows

TRAIN = windows("train", 40)
VAL = windows("val", 8, first_day=40)
TEST = windows("test", 2, first_day=48)
DRIFT_MW = 500.0


def _config(known_errors: str = "mean") -> RunConfig:
    return tiny(
        forecast__prior="calendar-ridge",
        forecast__prior_folds=2,
        forecast__known_errors=known_errors,
    )


def _prepare(train: WindowSet, val: WindowSet, known_errors: str = "mean") -> TrainingData:
    return TrainingData.prepare(_config(known_errors), train, val, 8)


def _bases(examples: list) -> np.ndarray:
    return np.stack([example.priors_PH[0] for example in examples])


@pytest.fixture(scope="module")
def clean() -> TrainingData:
    return _prepare(TRAIN, VAL)


def test_validation_truth_reaches_the_sealed_prior_and_no_validation_forecast(
    clean: TrainingData,
) -> None:
    drifted = _prepare(TRAIN, VAL.with_truth(VAL.truth() + DRIFT_MW))
    assert np.array_equal(_bases(drifted.calibration_examples), _bases(clean.calibration_examples))

    # What is sealed knows of the drift: its forecasts of later days follow it, in part.
    moved = drifted.priors.forecast(TEST.views()) - clean.priors.forecast(TEST.views())
    assert (moved > 0.1 * DRIFT_MW).all() and (moved < DRIFT_MW).all()


def test_the_level_at_the_start_of_validation_is_that_of_the_errors_out_of_fold(
    clean: TrainingData,
) -> None:
    config = _config()
    levels = ErrorLevels(read_rule(config), clean.inputs.scaler, 1)
    levels.observe(TRAIN, forecast_train(config, TRAIN))

    plain = _prepare(TRAIN, VAL, "none").priors.forecast(VAL.views())
    expected = [
        clean.inputs.scaler.scale(forecast_PH[0], view.entity)
        for forecast_PH, view in zip(levels.apply(VAL.views(), plain), VAL.views(), strict=True)
    ]
    assert np.allclose(_bases(clean.calibration_examples), expected)


def test_train_examples_carry_the_level_of_the_days_before_them_alone() -> None:
    truth_NH = TRAIN.truth()
    last = [
        i for i, view in enumerate(TRAIN.views()) if view.origin_utc == TRAIN.views()[-1].origin_utc
    ]
    truth_NH[last] = np.nan  # not known: neither a fit nor a level can use it
    truth_NH[last, 0] = TRAIN.truth()[last, 0]
    known = _prepare(TRAIN.with_truth(truth_NH), VAL)
    followed = _prepare(TRAIN.with_truth(truth_NH), VAL, "none")

    first = [
        i
        for i, e in enumerate(known.train_examples)
        if e.view.origin_utc == TRAIN.views()[0].origin_utc
    ]
    assert np.array_equal(
        _bases([known.train_examples[i] for i in first]),
        _bases([followed.train_examples[i] for i in first]),
    )
    assert not np.array_equal(_bases(known.train_examples), _bases(followed.train_examples))


def test_train_windows_that_end_in_validation_say_nothing_about_its_first_forecast() -> None:
    late = windows("train", 42)  # two days more: their targets lie in validation
    moved_NH = late.truth()
    inside = [i for i, v in enumerate(late.views()) if v.end_utc > VAL.views()[0].origin_utc]
    assert inside
    moved_NH[inside] = np.nan
    moved_NH[inside, -1] = late.truth()[inside, -1]  # keeps the windows; hardly any truth

    known = _prepare(late, VAL).priors.levels.evidence.weight_EH
    without = _prepare(late.with_truth(moved_NH), VAL).priors.levels.evidence.weight_EH
    assert np.array_equal(known, without)


def test_the_same_drift_is_not_added_twice() -> None:
    with pytest.raises(ConfigError, match="twice"):
        _config().with_overrides({"calibration.known_errors": "validated"})
