"""The libraries that provide our networks, and what they forecast with our weights.

What belongs here: the networks compared, their weights and inputs, and the file of forecasts with
which they are compared where a library is missing; ``python -m tests.support.oracles`` writes those
of the libraries that are at hand. What does not: their code with our weights
(``oracle_networks``), the comparison (``tests/core/networks/test_oracles.py``).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from compevo_core.config.sections import BackboneConfig
from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.networks.fitting import forecast_scaled
from compevo_core.networks.forecaster import DLinear, ITransformer
from compevo_core.networks.frequency import FEDformer, FiLM
from compevo_core.networks.gpt4ts import GPT4TS
from compevo_core.networks.layers import TIME_FEATURES, Network, NetworkInputs
from compevo_core.networks.pyraformer import Pyraformer
from tests.support import oracle_networks as networks
from tests.support.oracle_networks import Forecast

RECORDED = Path(__file__).parents[1] / "core" / "networks" / "oracle_forecasts.json"

NEURALFORECAST = "neuralforecast 3.3.0"
TIME_SERIES_LIBRARY = "thuml/Time-Series-Library 4e938a1"
ONE_FITS_ALL = "DAMO-DI-ML/NeurIPS2023-One-Fits-All 9f3875d, Long-term_Forecasting"


@dataclass(frozen=True)
class Case:
    """A network, and how the library that provides it forecasts with its weights.

    Attributes:
        source: the library and its version.
        module: what is imported of it.
        make: makes our network.
        adopt: makes theirs with the weights of ours.
        normalises: whether theirs normalises its input itself.
    """

    source: str
    module: str
    make: Callable[[], Network]
    adopt: Callable[[Network], Forecast]
    normalises: bool = False

    @property
    def is_at_hand(self):
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def make_filled(self):
        network = self.make().eval()
        fill_weights(network)
        return network

    @torch.no_grad()
    def forecast(self, network, inputs):
        return forecast_scaled(network, inputs) if self.normalises else network(inputs)


def draw_inputs(n=3, seed=0):
    rng = np.random.default_rng(seed)
    return NetworkInputs(
        values_NL=_as_tensor(rng.normal(size=(n, DEFAULT_STEPS))),
        past_NLM=_as_tensor(rng.random((n, DEFAULT_STEPS, TIME_FEATURES)) - 0.5),
        future_NHM=_as_tensor(rng.random((n, DEFAULT_STEPS, TIME_FEATURES)) - 0.5),
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

    if isinstance(network, FEDformer):
        # The published code shares the mix of its encoder layers; that of the attention is divided
        # by so much that no forecast would show it.
        shared, other = (layer.block.mix for layer in network.encoder)
        other.load_state_dict(shared.state_dict())
        for weight in network.decoder.attention.mix.parameters():
            weight *= 128**2


def _make_gpt4ts():
    backbone = load_backbone(BackboneConfig(name_or_path=TINY), device="cpu")
    return GPT4TS(backbone.decoder, layers=1)


CASES = {
    "dlinear": Case(NEURALFORECAST, "neuralforecast", DLinear, networks.adopt_dlinear),
    "itransformer": Case(
        NEURALFORECAST, "neuralforecast", ITransformer, networks.adopt_itransformer
    ),
    "fedformer": Case(NEURALFORECAST, "neuralforecast", FEDformer, networks.adopt_fedformer),
    "film": Case(
        TIME_SERIES_LIBRARY,
        "models.FiLM",
        lambda: FiLM(coefficients=256),
        networks.adopt_film,
        normalises=True,
    ),
    "pyraformer": Case(
        TIME_SERIES_LIBRARY, "models.Pyraformer", Pyraformer, networks.adopt_pyraformer
    ),
    "gpt4ts": Case(
        ONE_FITS_ALL, "models.GPT4TS", _make_gpt4ts, networks.adopt_gpt4ts, normalises=True
    ),
}


def _as_tensor(values):
    return torch.tensor(values, dtype=torch.float32)


def record():
    """Write the forecasts of the libraries that are at hand; those of others stay."""
    recorded = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    for name, case in CASES.items():
        if case.is_at_hand:
            with torch.no_grad():
                forecast_BH = case.adopt(case.make_filled())(draw_inputs())
            rounded = [round(value, 6) for value in forecast_BH[0].tolist()]
            recorded[name] = {"source": case.source, "forecast": rounded}

    lines = (f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in recorded.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
