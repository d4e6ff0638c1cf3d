"""What each network computes, against numbers that can be known without it."""

import torch

from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import TINY, load_backbone
from compevo_core.networks.gpt4ts import GPT4TS, PatchNetwork
from compevo_core.networks.layers import NetworkInputs, count_trainable


def make_inputs(n=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return NetworkInputs(
        values_NL=torch.randn(n, 48, generator=generator),
        past_NLM=torch.rand(n, 48, 4, generator=generator) - 0.5,
        future_NHM=torch.rand(n, 48, 4, generator=generator) - 0.5,
    )


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
