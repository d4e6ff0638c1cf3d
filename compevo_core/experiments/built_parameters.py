"""Trainable parameters of the built systems, for any architecture, on the meta device.

What belongs here: building what a run trains (paper D.4, table "Multi-agent baseline
configurations") without downloading or allocating anything, and holding it against the arithmetic
by part. What does not: that arithmetic (``lm.parameter_counts``), the modules
(``training.modules``).

The decoder is left out, as the paper's agents answer in text: the numeric head has maps of its own,
which ``trainable_parameters`` in a run's rows counts as well.
"""

from collections.abc import Sequence
from typing import Any

import torch

from compevo_core.config import RunConfig
from compevo_core.distributed import AgentShards
from compevo_core.errors import ConfigError
from compevo_core.experiments.controls import configure_experiment
from compevo_core.lm.architectures import Architecture, load_architecture
from compevo_core.lm.backbone import Backbone
from compevo_core.lm.parameter_counts import (
    METHODS,
    PAPER_AGENTS,
    PAPER_RANK,
    build_meta_model,
    build_parameter_report,
)
from compevo_core.training.modules import build_modules


def count_built(architecture: Architecture, system: str, *, agents: int, rank: int) -> int:
    """Build a system on the meta device and return how many parameters it trains.

    Args:
        architecture: the backbone.
        system: one of ``population.system``.
        agents: population of the systems of several agents.
        rank: rank of the adapters.
    """
    settings = {"population.agents": agents, "population.rank": rank}
    config = configure_experiment(RunConfig().with_overrides(settings), system)

    with torch.device("meta"):
        model = build_meta_model(architecture)
        model.requires_grad_(False)
        backbone = Backbone(model, None, architecture.name, "")
        # Outside of the meta device: the soft prompt's start is measured, not only shaped.
        neutral_D = torch.zeros(architecture.hidden_size, device="cpu")
        shards = AgentShards(config.population.agents)
        return build_modules(config, backbone, shards, (), neutral_D).count_trainable()


def report_built_parameters(
    backbone: str,
    *,
    methods: Sequence[str] = METHODS,
    agents: int = PAPER_AGENTS,
    rank: int = PAPER_RANK,
) -> dict[str, Any]:
    """Build the JSON of ``compevo params``: counts of the built systems, and their parts.

    Args:
        backbone: see :func:`compevo_core.lm.architectures.load_architecture`.
        methods: the systems to count.
        agents: population of the systems of several agents.
        rank: rank of the adapters.

    Raises:
        ConfigError: an unknown backbone or system, or a built system has other parameters than its
            parts add up to.
    """
    architecture = load_architecture(backbone)
    report = build_parameter_report(backbone, methods=methods, agents=agents, rank=rank)
    for method in methods:
        built = count_built(architecture, method, agents=agents, rank=rank)
        found = report["methods"][method]
        if built != found["trainable_parameters"]:
            raise ConfigError(
                f"{architecture.name}: {method} as built trains {built} parameters, its parts add "
                f"up to {found['trainable_parameters']}; the list of its parts is out of date"
            )
    return report
