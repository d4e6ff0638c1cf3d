"""One series cut into windows: what is filled, what is masked, what is dropped."""

import pytest

from compevo_core.data.cutting import cut_inputs, grid_series
from tests.support.window_samples import HALF_HOUR, make_series

GAP = 3


@pytest.fixture
def series():
    values = [float(i) for i in range(96)]
    values[10 : 10 + GAP] = [None] * GAP
    values[60] = None
    return grid_series(make_series(values), HALF_HOUR, max_fill_steps=6)


def test_a_window_may_have_exactly_as_many_filled_inputs_as_are_allowed(series):
    inputs = cut_inputs(series, 48, GAP, lookback=48)
    assert inputs.n_filled == GAP
    assert inputs.x[9:13].tolist() == [9.0, 9.0, 9.0, 9.0]
    assert cut_inputs(series, 48, GAP - 1, lookback=48) == "too many filled inputs"


def test_inputs_reach_to_the_end_of_a_series_and_not_beyond(series):
    assert cut_inputs(series, 96, GAP, lookback=48).x.tolist()[-1] == 95.0
    assert cut_inputs(series, 97, GAP, lookback=48) == "the series does not reach over the inputs"
    # Where the newest steps were not measured yet, the day before stands in for them.
    assert cut_inputs(series, 97, GAP, unknown_steps=1, lookback=48).x[-1] == 48.0
    assert cut_inputs(series, 47, GAP, lookback=48) == "the series does not reach over the inputs"
