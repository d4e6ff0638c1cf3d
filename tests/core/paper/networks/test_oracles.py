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


@pytest.mark.parametrize("name", CASES)
def test_a_network_agrees_with_an_installed_original(name):
    case = CASES[name]
    reason = f"{case.source} is not here: see docs/how-to/add-a-baseline.md"
    pytest.importorskip(case.module, reason=reason)
    network, inputs = case.make_filled(), draw_inputs(5, seed=7)
    with torch.no_grad():
        expected = case.adopt(network)(inputs)
    torch.testing.assert_close(case.forecast(network, inputs), expected, atol=1e-5, rtol=1e-5)
