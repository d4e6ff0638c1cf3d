"""What ridge and boosted trees see of the weather."""

import numpy as np

from compevo_core.baselines.features import FeatureSpace
from compevo_core.data.scaling import Scaler


def make_space(*covariates: str) -> FeatureSpace:
    scaler = Scaler(mean={"NSW1": 0.0}, std={"NSW1": 1.0})
    return FeatureSpace(scaler=scaler, entities=("NSW1",), covariates=covariates)


def test_heat_and_cold_have_a_column_each_that_rises_with_them():
    space = make_space("max_temp_k_lag1", "rain_mm_lag1")
    hinges = space.compute_hinges(np.array([[300.0, 9.0], [290.0, 9.0], [280.0, 9.0]]))
    assert hinges.tolist() == [[7.0, 0.0], [0.0, 0.0], [0.0, 8.0]]


def test_a_change_is_yesterday_less_the_day_before():
    space = make_space("max_temp_k_lag1", "max_temp_k_lag2", "rain_mm_lag1")
    assert space.change_names == ("max_temp_k",)
    assert space.compute_changes(np.array([[300.0, 290.0, 1.0]])).tolist() == [[10.0]]
