"""Building what a system of agents trains beside its decoder: adapters, weights, fusion.

What belongs here: one construction, for training and for counting parameters on the meta device.
What does not: which system has what (``training.systems``), the decoder's own maps
(``agents.head_decoder``), groups of parameters and their names (``training.model``).

Shapes: A agents, D hidden.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from compevo_core.agents.debate import DebateHeads
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.selection import FitnessSelection
from compevo_core.config import RunConfig
from compevo_core.distributed import AgentShards
from compevo_core.lm.backbone import Backbone
from compevo_core.lm.population import Population
from compevo_core.training.systems import SYSTEMS


@dataclasses.dataclass(frozen=True)
class SystemModules:
    """The modules of a system.

    Attributes:
        population: the adapters.
        selection: weights of the agents; its gates are trained where agents compete.
        fusion: exchange of logic states; None where agents do not compete.
        debate: value and verifier heads; None where agents do not debate.
    """

    population: Population
    selection: FitnessSelection
    fusion: StrategyFusion | None
    debate: DebateHeads | None

    def count_trainable(self) -> int:
        """Return the parameters that training changes."""
        modules = (self.population.adapters, self.selection, self.fusion, self.debate)
        return sum(
            parameter.numel()
            for module in modules
            if module is not None
            for parameter in module.parameters()
            if parameter.requires_grad
        )


def build_modules(
    config: RunConfig,
    backbone: Backbone,
    shards: AgentShards,
    entities: Sequence[str],
    neutral_D: Tensor,
) -> SystemModules:
    """Build the modules of ``config.population.system``, drawn from ``config.run.seed``.

    Args:
        config: the run's settings.
        backbone: a frozen language model without adapters; its linear layers are replaced.
        shards: which agents this process holds.
        entities: the series that fitness may be kept for.
        neutral_D: embedding that every soft prompt starts near.
    """
    agents = config.population.agents
    system = SYSTEMS[config.population.system]

    # The adapters of all agents are drawn on every process, and those of others thrown away: an
    # agent starts alike whoever holds it. The fusion draws after them.
    generator = torch.Generator().manual_seed(config.run.seed)
    population = Population(
        backbone,
        config.population,
        generator,
        shards.local_agents,
        forecast_layers=config.forecast.layers,
        kinds=system.adapters,
    )
    selection = FitnessSelection(agents, config.selection, entities).to(backbone.device)
    if not system.competes:
        selection.requires_grad_(False)  # no gate weighs the agents
        debate = None
        if system.debates:
            debate = DebateHeads(len(shards.local_agents), backbone.hidden_size)
            debate = debate.to(backbone.device)
        return SystemModules(population, selection, None, debate)

    fusion = StrategyFusion(agents, neutral_D, generator).to(backbone.device)
    return SystemModules(population, selection, fusion, None)
