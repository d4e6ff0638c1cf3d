"""A process that holds some of the agents writes and reads the adapters of those it names."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from compevo_core.config_sections import PopulationConfig
from compevo_core.lm.adapter_routing import FORECAST
from compevo_core.lm.peft_io import load_adapter, save_adapter
from compevo_core.lm.population import Population
from tests.support.tiny_backbone import build_backbone, build_population

CONFIG = PopulationConfig(agents=3, rank=4, alpha=8.0, dropout=0.0)


@pytest.mark.parametrize("agent", [1, 2])
def test_an_adapter_goes_through_a_process_that_holds_the_later_agents(
    agent: int, tmp_path: Path
) -> None:
    save_adapter(build_population(), agent, FORECAST, tmp_path / "whole")

    later = Population(build_backbone(), CONFIG, torch.Generator(), local_agents=range(1, 3))
    load_adapter(later, agent, FORECAST, tmp_path / "whole")
    rows = [layer.lora_b[FORECAST].abs().sum((1, 2)) for layer in later.layers.values()]
    assert all(bool(row[agent - 1] > 0) and bool(row[2 - agent] == 0) for row in rows)

    save_adapter(later, agent, FORECAST, tmp_path / "part")
    files = [load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "part")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])
