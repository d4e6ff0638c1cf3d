"""One series cut into windows: what is filled, what is masked, what is dropped."""

import numpy as np
import pytest

from compevo_core.data.cutting import DroppedOrigins, cut_window, grid_series
from tests.support.window_samples import HALF_HOUR, make_series

GAP = 3


@pytest.fixture
def series():
    values = [float(i) for i in range(96)]
    values[10 : 10 + GAP] = [None] * GAP
    values[60] = None
    return grid_series(make_series(values), HALF_HOUR, max_fill_steps=6)


def test_a_window_may_have_exactly_as_many_filled_inputs_as_are_allowed(series):
    dropped = DroppedOrigins()
    window = cut_window(series, 48, GAP, dropped)
    assert window is not None and window.n_filled == GAP
    assert window.x[9:13].tolist() == [9.0, 9.0, 9.0, 9.0]

    assert cut_window(series, 48, GAP - 1, dropped) is None
    assert dropped.counts == {"too many filled inputs": 1}


def test_a_target_that_was_not_measured_is_masked_and_not_filled(series):
    window = cut_window(series, 48, GAP, DroppedOrigins())
    assert np.flatnonzero(np.isnan(window.y)).tolist() == [12]
    assert window.y[[0, 47]].tolist() == [48.0, 95.0]
