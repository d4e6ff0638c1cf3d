"""Populations on the tiny random backbone whose adapters are all away from their start."""

import torch

from compevo_core.config import BackboneConfig, PopulationConfig
from compevo_core.lm.adapter_routing import KINDS
from compevo_core.lm.backbone import Backbone, load_backbone
from compevo_core.lm.population import Population

CONFIG = PopulationConfig(agents=3, rank=4, alpha=8.0, dropout=0.0)
_ADAPTER_SPREAD = 0.1


def build_backbone(*, checkpointing: bool = False) -> Backbone:
    return load_backbone(
        BackboneConfig(name_or_path="tiny-random", gradient_checkpointing=checkpointing),
        device="cpu",
    )


def build_population(
    config: PopulationConfig = CONFIG, *, checkpointing: bool = False
) -> Population:
    population = Population(
        build_backbone(checkpointing=checkpointing), config, torch.Generator().manual_seed(1)
    )

    # B starts at zero, where no adapter changes an output.
    generator = torch.Generator().manual_seed(2)
    for kind in KINDS:
        for parameter in population.adapter_parameters(kind):
            parameter.data.normal_(0, _ADAPTER_SPREAD, generator=generator)
    return population
