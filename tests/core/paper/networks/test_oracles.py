"""Every network forecasts what the library that provides it does with the same weights."""

import json

import pytest
import torch

from tests.support.oracles import CASES, RECORDED, draw_inputs

FORECASTS = json.loads(RECORDED.read_text())


@pytest.mark.parametrize("name", CASES)
def test_a_network_forecasts_as_its_recorded_original(name):
    case, recorded = CASES[name], FORECASTS[name]
    assert recorded["source"] == case.source
    found = case.forecast(case.make_filled(), draw_inputs())[0]
    torch.testing.assert_close(found, torch.tensor(recorded["forecast"]), atol=1e-5, rtol=1e-5)
