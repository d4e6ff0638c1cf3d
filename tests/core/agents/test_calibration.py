"""Applying the calibration, and moving its levels on."""

import numpy as np
import pytest

from compevo_core.agents.calibration import ErrorCalibration
from compevo_core.baselines.known_errors import LevelRule
from compevo_core.errors import DataError

SERIES = ("NSW1", "SA1")
DAY = 1440


def _forecasts(agents=2):
    values, base = np.random.default_rng(0).normal(size=(2, agents, 3, 48)).astype(np.float32)
    return values, base, ["NSW1", "SA1", "NSW1"]


def test_unfitted_it_returns_every_forecast_and_weight_to_the_last_bit():
    calibration = ErrorCalibration(2, SERIES)
    values, base, entities = _forecasts()
    weights = np.random.default_rng(1).random((3, 2))
    assert np.array_equal(calibration(values, base, entities), values)
    assert calibration.weigh(weights) is weights


def test_a_forecast_is_base_plus_the_blended_correction_plus_the_level_of_its_series():
    calibration = ErrorCalibration(1, SERIES)
    calibration.blend_AH.fill(0.25)
    calibration.level_AEH[0, 1] = 10.0
    found = calibration(np.full((1, 2, 48), 8.0), np.full((1, 2, 48), 4.0), ["NSW1", "SA1"])
    assert found[0, :, 0].tolist() == [5.0, 15.0]


def test_levels_move_on_with_every_day_that_becomes_known():
    calibration = ErrorCalibration(1, SERIES)
    calibration.start_levels(LevelRule("mean", 1.0))
    calibration.observe([0], ["NSW1"], np.full((1, 1, 48), 4.0))
    assert calibration.level_AEH[0, 0, 0].item() == pytest.approx(4.0)
    calibration.observe([DAY], ["NSW1"], np.full((1, 1, 48), 1.0))
    assert calibration.level_AEH[0, 0, 0].item() == pytest.approx(2.0)
    with pytest.raises(DataError, match="order of time"):
        calibration.observe([0], ["NSW1"], np.zeros((1, 1, 48)))


def test_a_loaded_state_goes_on_as_the_one_that_was_saved():
    saved, loaded = (ErrorCalibration(2, SERIES) for _ in range(2))
    saved.start_levels(LevelRule("kalman", 30.0))
    error = np.random.default_rng(0).normal(size=(2, 2, 48))
    saved.observe([0, 0], SERIES, error)
    loaded.load_state(saved.agent_state() | saved.shared_state())
    for calibration in (saved, loaded):
        calibration.observe([DAY, DAY], SERIES, -error)
    assert np.array_equal(saved.level_AEH, loaded.level_AEH)


def test_the_state_is_split_into_what_agents_own_and_what_they_share():
    calibration = ErrorCalibration(5, SERIES, local_agents=2)
    own, shared = calibration.agent_state(), calibration.shared_state()
    assert {value.shape[0] for value in own.values()} == {2}
    assert not own.keys() & shared.keys()
    assert own.keys() | shared.keys() == vars(calibration).keys() - {"entities"}
