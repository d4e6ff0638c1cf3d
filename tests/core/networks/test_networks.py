"""What each network computes, against numbers that can be known without it."""

import numpy as np
import torch
from scipy.signal import cont2discrete
from scipy.special import eval_legendre

from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.networks.film import (
    build_memory,
    discretise_legendre,
    evaluate_legendre,
)
from compevo_core.networks.gpt4ts import GPT4TS, PatchNetwork
from compevo_core.networks.layers import NetworkInputs, SeriesDecomposition, count_trainable
from compevo_core.networks.library_networks import DLinear
from compevo_core.networks.pyraformer import find_neighbours


def make_inputs(n: int = 3, seed: int = 0) -> NetworkInputs:
    generator = torch.Generator().manual_seed(seed)
    return NetworkInputs(
        values_NL=torch.randn(n, 48, generator=generator),
        past_NLM=torch.rand(n, 48, 4, generator=generator) - 0.5,
        future_NHM=torch.rand(n, 48, 4, generator=generator) - 0.5,
    )


def test_the_trend_is_the_mean_of_25_steps_with_repeated_ends():
    x = np.random.default_rng(0).normal(size=48)
    remainder, trend = SeriesDecomposition()(torch.tensor(x).reshape(1, 48, 1))
    padded = np.concatenate([np.full(12, x[0]), x, np.full(12, x[-1])])
    expected = np.convolve(padded, np.full(25, 1 / 25), mode="valid")
    np.testing.assert_allclose(trend.flatten().numpy(), expected, atol=1e-12)
    np.testing.assert_allclose((remainder + trend).flatten().numpy(), x, atol=1e-12)


def test_dlinear_begins_as_the_mean_of_its_input():
    network = DLinear()
    for linear in (network.remainder, network.trend):
        torch.nn.init.zeros_(linear.bias)
    inputs = make_inputs()
    expected = inputs.values_NL.mean(dim=1, keepdim=True).expand(-1, 48)
    torch.testing.assert_close(network(inputs), expected)


def test_the_memory_of_film_is_the_discretised_recurrence():
    transition, drive = discretise_legendre(8, step=1 / 48)
    order = np.arange(8.0)
    row, column = np.meshgrid(order, order, indexing="ij")
    system = np.where(row < column, -1.0, (-1.0) ** (row - column + 1)) * (2 * row + 1)
    inlet = ((-1.0) ** order * (2 * order + 1))[:, None]
    known = cont2discrete((system, inlet, np.eye(8), np.zeros((8, 1))), 1 / 48, method="bilinear")
    np.testing.assert_allclose(transition, known[0], atol=1e-12)
    np.testing.assert_allclose(drive, known[1][:, 0], atol=1e-12)

    values, state, states = np.random.default_rng(1).normal(size=20), np.zeros(8), []
    for value in values:
        state = transition @ state + drive * value
        states.append(state)
    memory = build_memory(transition, drive, 20)
    np.testing.assert_allclose(np.einsum("l,tln->tn", values, memory), states, atol=1e-10)


def test_the_readout_of_film_gives_back_a_smooth_past_in_order():
    readout = evaluate_legendre(24, 48)
    np.testing.assert_allclose(readout[7, 5], eval_legendre(5, 1 - 2 * 7 / 48), atol=1e-12)

    transition, drive = discretise_legendre(24, step=1 / 48)
    past = np.sin(np.arange(200) / 15)
    state = np.einsum("l,ln->n", past[-150:], build_memory(transition, drive, 150)[-1])
    inner = slice(4, 44)  # the ends of a window are where Legendre polynomials ring
    assert np.abs(readout @ state - past[-48:])[inner].max() < 0.1


def test_a_node_of_the_pyramid_sees_two_on_either_side_its_parent_and_its_children():
    attends = find_neighbours()
    assert attends.shape == (48 + 12 + 3,) * 2 and bool((attends == attends.T).all())
    assert attends[10].nonzero().flatten().tolist() == [8, 9, 10, 11, 12, 48 + 2]
    assert attends[48 + 5].nonzero().flatten().tolist() == [
        *range(20, 24),
        *range(48 + 3, 48 + 8),
        60 + 1,
    ]


def test_gpt4ts_trains_norms_and_maps_and_leaves_the_backbone_it_copied():
    decoder = load_backbone(BackboneConfig(name_or_path=TINY), device="cpu").decoder
    layers = len(decoder.layers)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}

    network = GPT4TS(decoder, layers=1)
    trained = {name for name, p in network.named_parameters() if p.requires_grad}
    width = decoder.config.hidden_size
    assert {name for name in trained if name.startswith("decoder.")} == {
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.post_attention_layernorm.weight",
        "decoder.norm.weight",
    }
    assert count_trainable(network) == count_trainable(PatchNetwork(width=width)) + 3 * width

    network(make_inputs()).sum().backward()
    torch.optim.SGD(network.parameters(), lr=1.0).step()
    assert len(decoder.layers) == layers
    assert all(torch.equal(before[name], value) for name, value in decoder.state_dict().items())


def test_patches_cover_the_input_and_its_last_value_once_more():
    network = PatchNetwork(width=16)
    torch.nn.init.eye_(network.embedding.weight)
    torch.nn.init.zeros_(network.embedding.bias)
    values = torch.arange(48.0).reshape(1, 48)
    seen = []
    network.transform = lambda patches: seen.append(patches) or patches
    network(NetworkInputs(values_NL=values, past_NLM=values, future_NHM=values))
    assert seen[0].shape == (1, 6, 16)
    assert seen[0][0, 1].tolist() == list(range(8, 24))
    assert seen[0][0, 5].tolist() == [*range(40, 48), *[47.0] * 8]
