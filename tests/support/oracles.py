"""Networks with weights that are always the same, to compare with the libraries that provide them.

The forecasts of those libraries are in ``RECORDED``. They had our weights, and were changed where
ours differs on purpose, as the headers of ``compevo_core.paper.networks`` say. Shapes: B windows, L
input steps, M time features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.paper import networks
from tests.support.tiny_backbone import build_backbone

RECORDED = Path(__file__).parents[1] / "core" / "paper" / "networks" / "oracle_forecasts.json"

NEURALFORECAST = "neuralforecast 3.3.0"
TIME_SERIES_LIBRARY = "thuml/Time-Series-Library 4e938a1"
ONE_FITS_ALL = "DAMO-DI-ML/NeurIPS2023-One-Fits-All 9f3875d, Long-term_Forecasting"


@dataclass(frozen=True)
class Case:
    """A network of a library's version, ours, and whether theirs normalises its own input."""

    source: str
    make: Callable[[], networks.Network]
    normalises: bool = False

    def make_filled(self):
        network = self.make().eval()
        fill_weights(network)
        return network

    @torch.no_grad()
    def forecast(self, network, inputs):
        return networks.forecast_scaled(network, inputs) if self.normalises else network(inputs)


def draw_inputs(n=3):
    rng = np.random.default_rng(0)
    return networks.NetworkInputs(
        values_NL=_as_tensor(rng.normal(size=(n, DEFAULT_STEPS))),
        past_NLM=_as_tensor(rng.random((n, DEFAULT_STEPS, networks.TIME_FEATURES)) - 0.5),
        future_NHM=_as_tensor(rng.random((n, DEFAULT_STEPS, networks.TIME_FEATURES)) - 0.5),
    )


@torch.no_grad()
def fill_weights(network):
    """Give every weight a value that no version of torch draws another way."""
    rng = np.random.default_rng(1)
    for name, weight in network.named_parameters():
        drawn = _as_tensor(rng.normal(size=weight.shape))
        if weight.ndim > 1:
            weight.copy_(drawn / weight[0].numel() ** 0.5)
        else:
            # Norms and scales stay near one, biases near zero.
            weight.copy_(0.1 * drawn + float(name.endswith(("weight", "scale"))))

    if isinstance(network, networks.FEDformer):
        # The published code shares the mix of its encoder layers; that of the attention is divided
        # by so much that no forecast would show it.
        shared, other = (layer.block.mix for layer in network.encoder)
        other.load_state_dict(shared.state_dict())
        for weight in network.decoder.attention.mix.parameters():
            weight *= 128**2


CASES = {
    "dlinear": Case(NEURALFORECAST, networks.DLinear),
    "itransformer": Case(NEURALFORECAST, networks.ITransformer),
    "fedformer": Case(NEURALFORECAST, networks.FEDformer),
    "film": Case(TIME_SERIES_LIBRARY, lambda: networks.FiLM(coefficients=256), normalises=True),
    "pyraformer": Case(TIME_SERIES_LIBRARY, networks.Pyraformer),
    "gpt4ts": Case(
        ONE_FITS_ALL,
        lambda: networks.GPT4TS(build_backbone().decoder, layers=1),
        normalises=True,
    ),
}


def _as_tensor(values):
    return torch.tensor(values, dtype=torch.float32)
