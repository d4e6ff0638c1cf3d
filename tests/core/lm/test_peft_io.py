"""Adapters as PEFT folders: in, out, and through a process that holds some of the agents."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from compevo_core.config.sections import BackboneConfig, PopulationConfig
from compevo_core.errors import CheckpointMismatch
from compevo_core.lm.adapters import FORECAST, LOGIC
from compevo_core.lm.architectures import LORA_TARGETS
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.peft_io import load_adapter, save_adapter
from compevo_core.lm.population import Population
from tests.support.tiny_backbone import build_backbone, build_population

CONFIG = PopulationConfig(agents=2, rank=4, alpha=8.0, dropout=0.0)


def _backbone():
    return load_backbone(BackboneConfig(name_or_path="tiny-random"), device="cpu")


def _made_by_peft(folder, seed, **settings):
    """A LoRA adapter by PEFT alone, with both factors away from zero, saved by PEFT."""
    wanted = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": list(LORA_TARGETS),
        "task_type": "CAUSAL_LM",
    } | settings
    model = get_peft_model(_backbone().model, LoraConfig(**wanted))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.1, generator=generator)
    model.save_pretrained(folder)
    return model.eval()


def test_an_adapter_goes_through_a_population_unchanged_and_the_frozen_weights_stay(tmp_path):
    population = Population(_backbone(), CONFIG, torch.Generator().manual_seed(1))
    frozen = {
        n: p.clone() for n, p in population.backbone.model.named_parameters() if "lora_" not in n
    }
    _made_by_peft(tmp_path / "in", seed=3)
    load_adapter(population, 1, LOGIC, tmp_path / "in")
    save_adapter(population, 1, LOGIC, tmp_path / "out")
    before, after = (
        load_file(tmp_path / side / "adapter_model.safetensors") for side in ("in", "out")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(
        torch.equal(p, frozen[n])
        for n, p in population.backbone.model.named_parameters()
        if n in frozen
    )
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 4, 8.0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"r": 8}, "rank 8"),
        ({"lora_alpha": 16}, "alpha 16"),
        ({"use_rslora": True}, "set population.rank"),
        ({"target_modules": ["q_proj", "v_proj"]}, "differ in"),
        ({"use_dora": True}, "not one plain LoRA"),
        ({"alpha_pattern": {"q_proj": 64}}, "not one plain LoRA"),
        ({"rank_pattern": {"q_proj": 8}}, "not one plain LoRA"),
    ],
)
def test_adapters_of_another_shape_are_refused(settings, says, tmp_path):
    _made_by_peft(tmp_path, seed=0, **settings)
    with pytest.raises(CheckpointMismatch, match=says):
        load_adapter(
            Population(_backbone(), CONFIG, torch.Generator().manual_seed(1)), 0, LOGIC, tmp_path
        )


SHARD_CONFIG = PopulationConfig(agents=3, rank=4, alpha=8.0, dropout=0.0)


@pytest.mark.parametrize("agent", [1, 2])
def test_an_adapter_goes_through_a_process_that_holds_the_later_agents(agent, tmp_path):
    save_adapter(build_population(), agent, FORECAST, tmp_path / "whole")

    later = Population(build_backbone(), SHARD_CONFIG, torch.Generator(), local_agents=range(1, 3))
    load_adapter(later, agent, FORECAST, tmp_path / "whole")
    rows = [layer.lora_b[FORECAST].abs().sum((1, 2)) for layer in later.layers.values()]
    assert all(bool(row[agent - 1] > 0) and bool(row[2 - agent] == 0) for row in rows)

    save_adapter(later, agent, FORECAST, tmp_path / "part")
    files = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "part")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
