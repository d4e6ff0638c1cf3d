"""A forecast that is read after the first layers: exact, with adapters in these layers alone."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, Phi3Config, Qwen2Config

from compevo_core.config.sections import PopulationConfig
from compevo_core.errors import ConfigError
from compevo_core.lm.adapters import FORECAST, LOGIC
from compevo_core.lm.backbone import Backbone
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population
from tests.support.tiny_backbone import CONFIG, build_backbone, build_gemma, build_population

ROWS = [[5, 6, 7, 8], [9, 10], [11, 12, 13]]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def _packed(population):
    return population.pack([[PromptGroup(row)] for row in ROWS])


def _build(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    return Backbone(model.eval().requires_grad_(False), build_backbone().tokenizer, "test", "none")


def _qwen():
    return _build(Qwen2Config(num_hidden_layers=2, use_sliding_window=False, **SIZES))


@pytest.mark.parametrize("build", [build_backbone, build_gemma, _qwen])
def test_the_state_after_the_first_layer_is_the_backbones_own(build):
    plain = build()
    population = Population(build(), CONFIG, torch.Generator().manual_seed(0))

    with torch.no_grad():
        states = population.read_out(_packed(population), layers=1)
        for row, found in zip(ROWS, states[:, 0, 0], strict=True):
            own = plain.decoder(input_ids=torch.tensor([row]), output_hidden_states=True)
            assert torch.allclose(found, own.hidden_states[1][0, -1], atol=1e-6)


def test_reading_fewer_layers_changes_nothing_that_another_forward_pass_sees():
    population = build_population()
    packed, decoder = _packed(population), population.backbone.decoder
    settings, layers = copy.deepcopy(decoder.config.to_dict()), list(decoder.layers)
    norm, before = decoder.norm, population.read_out(packed).detach()

    population.read_out(packed, layers=1)

    assert decoder.config.to_dict() == settings
    assert list(decoder.layers) == layers
    assert decoder.norm is norm
    assert torch.equal(population.read_out(packed), before)


def test_adapters_of_a_layer_start_alike_at_any_depth():
    whole, first = (
        Population(
            build_backbone(), CONFIG, torch.Generator().manual_seed(1), forecast_layers=layers
        )
        for layers in (0, 1)
    )
    for kind, count in ((LOGIC, 28), (FORECAST, 14)):
        pairs = zip(
            whole.adapter_parameters(kind)[:count], first.adapter_parameters(kind), strict=True
        )
        assert all(torch.equal(one, other) for one, other in pairs)


def test_layers_without_forecast_adapters_are_not_read_as_if_they_had_them():
    population = build_population(forecast_layers=1)
    with (
        population.use_adapters(FORECAST),
        pytest.raises(ConfigError, match=r"forecast\.layers = 0"),
    ):
        population.read_out(_packed(population))


def test_more_layers_than_the_backbone_has_are_refused():
    with pytest.raises(ConfigError, match=r"forecast\.layers = 3.*has 2 layers"):
        build_population(forecast_layers=3)
    with pytest.raises(ConfigError, match="at most 2"):
        population = build_population()
        population.read_out(_packed(population), layers=3)


def test_a_backbone_that_has_adapters_already_is_refused():
    backbone = build_backbone()
    Population(backbone, CONFIG, torch.Generator().manual_seed(0))
    with pytest.raises(ConfigError, match="load it anew"):
        Population(backbone, CONFIG, torch.Generator().manual_seed(0))


def test_blocks_of_other_linear_layers_are_refused_and_stay_as_they_were():
    backbone = _build(Phi3Config(num_hidden_layers=2, **SIZES))
    names = [name for name, _ in backbone.model.named_parameters()]
    with pytest.raises(ConfigError, match=r"missing: q_proj.*others: .*qkv_proj"):
        Population(backbone, CONFIG, torch.Generator().manual_seed(0))
    assert [name for name, _ in backbone.model.named_parameters()] == names


def test_a_block_with_a_matrix_besides_the_seven_is_refused():
    backbone = build_backbone()
    backbone.decoder.layers[1].router = torch.nn.Linear(32, 4, bias=False)
    with pytest.raises(ConfigError, match=r"layer 1.*others: router\.weight"):
        Population(backbone, PopulationConfig(agents=1), torch.Generator())
