"""Scales per entity, from the train split alone."""

import numpy as np
import pytest

from compevo_core.data.scaling import Scaler
from compevo_core.errors import DataError
from tests.support.window_samples import make_window, make_window_set


def test_scaling_and_back_gives_the_same_numbers_and_survives_json():
    scaler = Scaler.from_json(Scaler.fit(make_window_set()).to_json())
    x = np.linspace(-5.0, 2000.0, 48)
    np.testing.assert_allclose(scaler.unscale(scaler.scale(x, "NSW1"), "NSW1"), x, rtol=1e-12)


def test_each_entity_has_its_own_scale_in_its_own_unit():
    big = make_window(0, x=[10.0, 30.0] * 24, y=[10.0, 30.0] * 24)
    small = make_window(1, x=[1.0, 3.0] * 24, y=[1.0, 3.0] * 24, entity="SA1")
    scaler = Scaler.fit([big, small])
    assert scaler.mean == {"NSW1": 20.0, "SA1": 2.0}
    assert scaler.std == {"NSW1": 10.0, "SA1": 1.0}


def test_masked_targets_do_not_enter_the_scale():
    masked = make_window(0, x=[1.0, 3.0] * 24, y=[np.nan] * 48)
    assert Scaler.fit([masked]).mean["NSW1"] == 2.0


@pytest.mark.parametrize("split", ["val", "test", "inference"])
def test_a_window_of_another_split_is_refused(split):
    with pytest.raises(DataError, match=split):
        Scaler.fit([make_window(0), make_window(1, split=split)])


def test_an_entity_that_was_not_in_train_is_refused_by_name():
    with pytest.raises(DataError, match=r"'QLD1'.*known: NSW1"):
        Scaler.fit(make_window_set()).scale(np.zeros(48), "QLD1")


@pytest.mark.parametrize("level", [0.0, 0.1, 5.0])
def test_a_constant_series_is_scaled_by_one(level):
    scaler = Scaler.fit([make_window(0, x=[level] * 48, y=[level] * 48)])
    assert scaler.std["NSW1"] == 1.0
    assert scaler.scale(np.array(level + 2), "NSW1") == pytest.approx(2.0)
