"""All that learns in one run, in one object: adapters, heads, gates, fusion, and the backbone they stand on.

What belongs here: construction from a configuration, parameter groups, tensors in and out.
What does not: the training loop (``trainer``), files (``checkpoint``, ``artifact``).
"""

import torch
from torch import Tensor, nn

from compevo_core.agents.decoders import ForecastDecoder, HeadDecoder, TextDecoder
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.logic_writer import LogicWriter
from compevo_core.agents.selection import FitnessSelection
from compevo_core.agents.strategy import NewsChooser, StrategyExecutor
from compevo_core.config import RunConfig
from compevo_core.data.scaling import Scaler
from compevo_core.distributed import AgentShards
from compevo_core.errors import CheckpointMismatch
from compevo_core.lm.backbone import Backbone
from compevo_core.lm.population import FORECAST, KINDS, LOGIC, Population


class PopulationModel:
    """The trainable system of one configuration, started from ``config.run.seed``.

    Adapters and heads are those of the exchange's own agents (all, if none is given); gates and fusion are everyone's,
    and every process makes the same steps with them.
    """

    def __init__(
        self,
        config: RunConfig,
        backbone: Backbone,
        scaler: Scaler,
        shards: AgentShards | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(config.run.seed)
        agents, device = config.population.agents, backbone.device
        self.config, self.backbone, self.scaler = config, backbone, scaler
        self.shards = shards or AgentShards(agents)
        self.population = Population(
            backbone, config.population, generator, self.shards.local_agents
        )
        self.answers: ForecastDecoder = (
            HeadDecoder(self.population)
            if config.forecast.decoder == "head"
            else TextDecoder(self.population, scaler, has_prior=config.forecast.prior != "none")
        )
        self.selection = FitnessSelection(agents, config.selection).to(device)
        eos = torch.tensor([backbone.tokenizer.eos_token_id], device=device)
        neutral = self.population.embed(eos)[0].detach().float().cpu()
        self.fusion = StrategyFusion(agents, neutral, generator).to(device)

    def executor(self, chooser: NewsChooser) -> StrategyExecutor:
        """The strategy execution of this population on a news pool."""
        return StrategyExecutor(self.config, self.population, self.answers, chooser, self.scaler)

    def writer(self) -> LogicWriter:
        """The logic generation of this population."""
        return LogicWriter(self.config, self.population, self.fusion, self.shards)

    def forecast_parameters(self) -> list[nn.Parameter]:
        """Trained at ``optim.forecast_lr``: forecast adapters, heads, gates."""
        return [
            *self.population.parameters_of(FORECAST),
            *self.answers.module.parameters(),
            *self.selection.parameters(),
        ]

    def policy_parameters(self) -> list[nn.Parameter]:
        """Trained at ``optim.policy_lr``: logic adapters, fusion gates, interaction scores, soft prompt."""
        return [*self.population.parameters_of(LOGIC), *self.fusion.parameters()]

    def shared_parameters(self) -> list[nn.Parameter]:
        """Those that every process holds whole; all others have the own agents along their first dimension."""
        return [*self.selection.parameters(), *self.fusion.parameters()]

    def tensors(self) -> dict[str, Tensor]:
        """Every learned or running tensor by a stable name, detached."""
        return self.agent_tensors() | self.shared_tensors()

    def agent_tensors(self) -> dict[str, Tensor]:
        """Adapters and heads, each (own agents, ...)."""
        out = {
            f"adapters.{name}.{kind}.{part}": getattr(layer, part)[kind].detach()
            for name, layer in self.population.layers.items()
            for kind in KINDS
            for part in ("lora_a", "lora_b")
        }
        return out | _named("answers", self.answers.module)

    def shared_tensors(self) -> dict[str, Tensor]:
        """Gates, fitness and fusion."""
        return _named("selection", self.selection) | _named("fusion", self.fusion)

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Sets every tensor of :meth:`tensors`.

        Raises:
            CheckpointMismatch: a name or shape differs from this configuration's.
        """
        own = self.tensors()
        if wrong := sorted(own.keys() ^ tensors.keys()):
            raise CheckpointMismatch(
                f"{len(wrong)} tensor names differ, first {wrong[0]}: another configuration's"
            )
        for name, value in own.items():
            if value.shape != tensors[name].shape:
                raise CheckpointMismatch(
                    f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(value.shape)}"
                )
            value.copy_(tensors[name])


def _named(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value.detach() for name, value in module.state_dict().items()}
