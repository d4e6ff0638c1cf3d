"""The libraries that provide our networks, and what they forecast with our weights.

What belongs here: the networks compared, which of their weights is which of ours, what of theirs is
changed because ours differs on purpose, as the headers of ``compevo_core.paper.networks`` say, and
the file of forecasts with which they are compared where a library is missing; ``python -m
tests.support.oracles`` writes those of the libraries that are at hand. What does not: the
comparison (``tests/core/paper/networks/test_oracles.py``). Shapes: B windows, L input steps, T
steps of input and horizon, V variates, M time features.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.paper.networks.forecaster import DLinear, ITransformer, forecast_scaled
from compevo_core.paper.networks.frequency import FREQUENCIES, FEDformer, FiLM
from compevo_core.paper.networks.gpt4ts import GPT4TS, PATCH_STEPS, PATCH_STRIDE
from compevo_core.paper.networks.layers import TIME_FEATURES, Network, NetworkInputs
from compevo_core.paper.networks.pyraformer import Pyraformer
from tests.support.tiny_backbone import build_backbone

PROJECTIONS = ("query", "key", "value")


@torch.no_grad()
def read_weights(network):
    """Return our weights by name; joint projections of attention are three, complex parts one."""
    weights = {}
    for name, weight in network.named_parameters():
        layer, _, last = name.rpartition(".")
        if last.startswith("in_proj_"):
            kind = last.removeprefix("in_proj_")
            for part, own in zip(PROJECTIONS, weight.chunk(3), strict=True):
                weights[f"{layer}.{part}.{kind}"] = own
        elif last == "real":
            weights[layer] = torch.complex(weight, network.get_parameter(f"{layer}.imaginary"))
        elif last != "imaginary":
            weights[name] = weight.detach()
    return weights


@torch.no_grad()
def copy_weights(theirs, network, names, *, unread=(), extra="-"):
    """Give a network our weights; all of theirs and of ours are in it, or are named.

    Args:
        theirs: the other library's network; it ends in evaluation mode.
        network: ours.
        names: from names of their layers or weights to ours.
        unread: words in names of theirs that no forecast reads.
        extra: a word in names of ours that they lack.
    """
    weights, taken = read_weights(network), set()
    # A layer that theirs shares has several names.
    for name, weight in theirs.named_parameters(remove_duplicate=False):
        layer, _, last = name.rpartition(".")
        ours = names.get(name) or (f"{names[layer]}.{last}" if layer in names else None)
        if ours is None:
            assert any(word in name for word in unread), f"{name} is nothing of ours"
            continue
        weight.copy_(weights[ours].reshape(weight.shape))
        taken.add(ours)

    assert {name for name in weights if extra not in name} == taken
    return theirs.eval()


def name_attention(theirs, ours):
    parts = {f"{theirs}.{part}_projection": f"{ours}.{part}" for part in PROJECTIONS}
    return parts | {f"{theirs}.out_projection": f"{ours}.out_proj"}


Forecast = Callable[[NetworkInputs], Tensor]


def adopt_dlinear(network):
    from neuralforecast.models import DLinear as Theirs

    names = {"linear_season": "remainder", "linear_trend": "trend"}
    theirs = copy_weights(Theirs(h=DEFAULT_STEPS, input_size=DEFAULT_STEPS), network, names)
    return lambda inputs: theirs({"insample_y": inputs.values_NL.unsqueeze(-1)}).squeeze(-1)


def adopt_itransformer(network):
    from neuralforecast.models import iTransformer as Theirs

    theirs = Theirs(
        h=DEFAULT_STEPS,
        input_size=DEFAULT_STEPS,
        n_series=1 + TIME_FEATURES,
        hidden_size=128,
        d_ff=256,
        use_norm=False,
    )
    names = {
        "enc_embedding.value_embedding": "embedding",
        "encoder.norm": "encoder.norm",
        "projector": "projection",
    }
    for i in range(2):
        layer, ours = f"encoder.attn_layers.{i}", f"encoder.layers.{i}"
        names |= name_attention(f"{layer}.attention", f"{ours}.self_attn") | {
            f"{layer}.conv1": f"{ours}.linear1",
            f"{layer}.conv2": f"{ours}.linear2",
            f"{layer}.norm1": f"{ours}.norm1",
            f"{layer}.norm2": f"{ours}.norm2",
        }
    copy_weights(theirs, network, names)

    def forecast(inputs):
        variates_BLV = torch.cat([inputs.values_NL.unsqueeze(-1), inputs.past_NLM], dim=-1)
        return theirs({"insample_y": variates_BLV})[..., 0]

    return forecast


def adopt_fedformer(network):
    from neuralforecast.models import FEDformer as Theirs

    theirs = Theirs(
        h=DEFAULT_STEPS,
        input_size=DEFAULT_STEPS,
        futr_exog_list=[f"time_{i}" for i in range(TIME_FEATURES)],
        modes=FREQUENCIES,
        conv_hidden_size=256,
    )
    names = {
        "encoder.norm.layernorm": "encoder_norm.norm",
        "decoder.norm.layernorm": "decoder_norm.norm",
        "decoder.layers.0.projection": "decoder.trend",
        "decoder.projection": "projection",
    }
    for short, embedding in {"enc": "encoder_embedding", "dec": "decoder_embedding"}.items():
        names[f"{short}_embedding.value_embedding.tokenConv"] = f"{embedding}.values"
        names[f"{short}_embedding.temporal_embedding.embed"] = f"{embedding}.marks"

    encoder, decoder = "encoder.attn_layers", "decoder.layers.0"
    for layer, ours in {f"{encoder}.0": "encoder.0", f"{encoder}.1": "encoder.1"}.items():
        names |= _name_fourier(f"{layer}.attention", f"{ours}.block")
        names |= {f"{layer}.conv1": f"{ours}.inner.0", f"{layer}.conv2": f"{ours}.inner.3"}
    names |= _name_fourier(f"{decoder}.self_attention", "decoder.block")
    names |= _name_fourier(f"{decoder}.cross_attention", "decoder.attention")
    names |= {f"{decoder}.cross_attention.key_projection": "decoder.attention.key"}
    names |= {f"{decoder}.conv1": "decoder.inner.0", f"{decoder}.conv2": "decoder.inner.3"}

    # Fourier blocks read only queries, the attention queries and keys.
    unread = ("key_projection", "value_projection")
    copy_weights(theirs, network, names, unread=unread)
    _use_our_frequencies(theirs, network)
    _put_heads_in_order(theirs)

    def forecast(inputs):
        marks_BTM = torch.cat([inputs.past_NLM, inputs.future_NHM], dim=1)
        batch = {"insample_y": inputs.values_NL.unsqueeze(-1), "futr_exog": marks_BTM}
        with mock.patch.object(torch.Tensor, "tanh", _take_tanh_of_parts):
            return theirs(batch).squeeze(-1)

    return forecast


def adopt_film(network):
    from models.FiLM import Model

    theirs = Model(_describe(e_layers=2))
    names = {"affine_weight": "scale", "affine_bias": "shift", "mlp": "mix"}
    for i in range(3):
        names[f"spec_conv_1.{i}.weights_real"] = f"memories.{i}.filter_real"
        names[f"spec_conv_1.{i}.weights_imag"] = f"memories.{i}.filter_imaginary"

    copy_weights(theirs, network, names)
    return lambda inputs: theirs.forecast(inputs.values_NL.unsqueeze(-1), *[None] * 3).squeeze(-1)


def adopt_pyraformer(network):
    from layers.Embed import TimeFeatureEmbedding
    from models.Pyraformer import Model

    theirs = Model(_describe(d_model=128, d_ff=256, n_heads=8, e_layers=2, dropout=0.1))
    encoder = theirs.encoder
    # It looks time features up in tables of whole hours, days and months.
    encoder.enc_embedding.temporal_embedding = TimeFeatureEmbedding(d_model=128)

    names = {
        "encoder.enc_embedding.value_embedding.tokenConv": "embedding.values",
        "encoder.enc_embedding.temporal_embedding.embed": "embedding.marks",
        "projection": "projection",
    }
    for part in ("down", "up", "norm"):
        names[f"encoder.conv_layers.{part}"] = f"pyramid.{part}"
    for i in range(2):
        names[f"encoder.conv_layers.conv_layers.{i}.downConv"] = f"pyramid.convolutions.{i}.0"
        names[f"encoder.conv_layers.conv_layers.{i}.norm"] = f"pyramid.convolutions.{i}.1"
        layer, ours = f"encoder.layers.{i}", f"encoder.layers.{i}"
        names |= name_attention(f"{layer}.slf_attn", f"{ours}.self_attn") | {
            f"{layer}.pos_ffn.w_1": f"{ours}.linear1",
            f"{layer}.pos_ffn.w_2": f"{ours}.linear2",
            f"{layer}.pos_ffn.layer_norm": f"{ours}.norm2",
        }
    copy_weights(theirs, network, names, extra="norm1")

    # The paper's encoder adds its input to what attention gives and norms the sum; theirs does not.
    for layer, ours in zip(encoder.layers, network.encoder.layers, strict=True):
        layer.pos_ffn.layer_norm.eps = ours.norm2.eps
        layer.slf_attn.register_forward_hook(
            lambda _, given, out, norm=ours.norm1: (norm(given[0] + out[0]), None)
        )

    def forecast(inputs):
        values_BL1 = inputs.values_NL.unsqueeze(-1)
        return theirs.long_forecast(values_BL1, inputs.past_NLM, None, None).squeeze(-1)

    return forecast


def adopt_gpt4ts(network):
    import models.GPT4TS
    from transformers import GPT2Config

    settings = _describe(
        is_gpt=True,
        pretrain=False,
        freeze=False,
        gpt_layers=1,
        d_model=network.embedding.out_features,
        patch_size=PATCH_STEPS,
        stride=PATCH_STRIDE,
    )
    # Our layers take the place of GPT-2's, which need not be large.
    small = GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8)
    with mock.patch.object(models.GPT4TS, "GPT2Config", lambda: small):
        theirs = models.GPT4TS.GPT4TS(settings, "cpu")
    theirs.gpt2 = network.decoder

    names = {"in_layer": "embedding", "out_layer": "projection"}
    copy_weights(theirs, network, names, unread=("gpt2.",), extra="decoder.")
    return lambda inputs: theirs(inputs.values_NL.unsqueeze(-1), 0).squeeze(-1)


def _describe(**settings):
    common = {
        "seq_len": DEFAULT_STEPS,
        "label_len": DEFAULT_STEPS // 2,
        "pred_len": DEFAULT_STEPS,
        "enc_in": 1,
    }
    return SimpleNamespace(task_name="long_term_forecast", **common, **settings)


def _name_fourier(theirs, ours):
    return {
        f"{theirs}.inner_correlation.weights1": f"{ours}.mix",
        f"{theirs}.query_projection": f"{ours}.query",
        f"{theirs}.out_projection": f"{ours}.out",
    }


def _use_our_frequencies(theirs, network):
    """Give the other library's blocks the frequencies that ours drew."""
    decoder = theirs.decoder.layers[0]
    blocks = [layer.attention.inner_correlation for layer in theirs.encoder.attn_layers]
    ours = [layer.block for layer in network.encoder]
    for block, own in zip(
        [*blocks, decoder.self_attention.inner_correlation],
        [*ours, network.decoder.block],
        strict=True,
    ):
        block.index = own.frequencies.tolist()

    attention = decoder.cross_attention.inner_correlation
    attention.index_q = network.decoder.attention.query_frequencies.tolist()
    attention.index_kv = network.decoder.attention.key_frequencies.tolist()


def _put_heads_in_order(theirs):
    """Hand over heads and steps in the order in which the published code then reads them."""
    # The encoder's layers share theirs, which is changed once.
    blocks = {m.inner_correlation for m in theirs.modules() if hasattr(m, "inner_correlation")}
    for block in blocks:
        block.register_forward_hook(
            lambda _, __, out: (out[0].permute(0, 3, 1, 2).contiguous(), None)
        )


def _take_tanh_of_parts(scores):
    return torch.complex(torch.tanh(scores.real), torch.tanh(scores.imag))


RECORDED = Path(__file__).parents[1] / "core" / "paper" / "networks" / "oracle_forecasts.json"

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


CASES = {
    "dlinear": Case(NEURALFORECAST, "neuralforecast", DLinear, adopt_dlinear),
    "itransformer": Case(NEURALFORECAST, "neuralforecast", ITransformer, adopt_itransformer),
    "fedformer": Case(NEURALFORECAST, "neuralforecast", FEDformer, adopt_fedformer),
    "film": Case(
        TIME_SERIES_LIBRARY,
        "models.FiLM",
        lambda: FiLM(coefficients=256),
        adopt_film,
        normalises=True,
    ),
    "pyraformer": Case(TIME_SERIES_LIBRARY, "models.Pyraformer", Pyraformer, adopt_pyraformer),
    "gpt4ts": Case(
        ONE_FITS_ALL,
        "models.GPT4TS",
        lambda: GPT4TS(build_backbone().decoder, layers=1),
        adopt_gpt4ts,
        normalises=True,
    ),
}


def _as_tensor(values):
    return torch.tensor(values, dtype=torch.float32)


def record():
    """Write the forecasts of the libraries that are at hand; those of others stay."""
    recorded = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    for name, case in CASES.items():
        with contextlib.suppress(ModuleNotFoundError), torch.no_grad():
            forecast_BH = case.adopt(case.make_filled())(draw_inputs())
            rounded = [round(value, 6) for value in forecast_BH[0].tolist()]
            recorded[name] = {"source": case.source, "forecast": rounded}

    lines = (f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in recorded.items())
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    record()
