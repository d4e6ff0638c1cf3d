"""The trainable modules of one run: adapters, heads, gates, fusion, on one frozen backbone.

What belongs here: construction from a configuration, groups of parameters, tensors in and out.
What does not: the training loop (``training.trainer``), files (``training.checkpoint``,
``training.artifact``).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from compevo_core.agents.calibration import ErrorCalibration
from compevo_core.agents.debate_executor import DebateExecutor
from compevo_core.agents.decoders import ForecastDecoder
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.agents.logic_writer import LogicWriter
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.prompt_mutation import build_mutation_writer
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.agents.text_decoder import TextDecoder
from compevo_core.chat_endpoint import Transport
from compevo_core.config import RunConfig
from compevo_core.distributed import AgentShards
from compevo_core.errors import CheckpointMismatch, ConfigError
from compevo_core.lm.adapter_routing import LOGIC
from compevo_core.lm.backbone import Backbone
from compevo_core.online.experience import Experience
from compevo_core.training.modules import build_modules
from compevo_core.training.prior import mix_priors
from compevo_core.training.systems import SYSTEMS


class PopulationModel:
    """All trainable modules of a run, initialised from ``config.run.seed``.

    Each process holds the adapters and heads of its local agents. Gates and fusion belong to all
    agents: every process holds them whole and takes the same steps with them.

    Args:
        config: the run's settings.
        backbone: a frozen language model without adapters; its linear layers are replaced.
        inputs: how windows become numbers, fitted on the train split.
        shards: which agents this process holds; all of them unless given.
    """

    def __init__(
        self,
        config: RunConfig,
        backbone: Backbone,
        inputs: NumericInputs,
        shards: AgentShards | None = None,
    ) -> None:
        agents = config.population.agents
        self.config = config
        self.system = SYSTEMS[config.population.system]
        self.backbone = backbone
        self.inputs = inputs
        self.scaler = inputs.scaler
        self.shards = shards or AgentShards(agents)
        if self.system.debates and len(self.shards.local_agents) < agents:
            raise ConfigError(
                "agents of 'mad-rl' read each other in every turn, and processes would wait for "
                "each other all the time: train it in one process"
            )

        entities = sorted(self.scaler.mean)
        self.modules = build_modules(
            config, backbone, self.shards, entities, _embed_end_of_text(backbone)
        )
        self.population = self.modules.population
        self.selection = self.modules.selection
        self.fusion = self.modules.fusion
        self.debate = self.modules.debate
        _, mix_AP = mix_priors(config)
        self.mix_AP = mix_AP[list(self.shards.local_agents)]
        self.decoder: ForecastDecoder = self._build_decoder()

        # Changes nothing until it is fitted, after training.
        self.calibration = ErrorCalibration(agents, entities, len(self.shards.local_agents)).to(
            backbone.device
        )

        # What it has forecast of days that are over; begins with validation.
        self.experience = Experience.start(entities, agents)

    def executor(self, news_retriever: NewsRetriever) -> StrategyExecutor:
        """Return the strategy execution of this population on a news pool (paper 4.1)."""
        if self.debate is not None and isinstance(self.decoder, HeadDecoder):
            return DebateExecutor(
                self.config,
                self.population,
                self.decoder,
                news_retriever,
                self.mix_AP,
                self.debate,
            )
        return StrategyExecutor(
            self.config, self.population, self.decoder, news_retriever, self.mix_AP
        )

    def writer(self, selector: Transport | None = None) -> LogicWriter | None:
        """Return what writes the agents' logics (paper 4.3); None if they keep theirs.

        Args:
            selector: asks the endpoint that ``evolution.selector`` names.
        """
        entities = sorted(self.scaler.mean)
        if self.system.mutates:
            return build_mutation_writer(
                self.config, self.population, self.shards, entities, selector
            )
        if self.fusion is None:
            return None
        return LogicWriter(self.config, self.population, self.fusion, self.shards, entities)

    @property
    def trainable_parameters(self) -> int:
        """How many numbers training changes, those of this process's agents."""
        decoder = sum(parameter.numel() for parameter in self.decoder.module.parameters())
        return self.modules.count_trainable() + decoder

    def interaction_weights(self) -> Tensor:
        """Return how much each agent draws on each other one (A, A); on itself alone if on none."""
        if self.fusion is None:
            return torch.eye(self.config.population.agents, device=self.backbone.device)
        return self.fusion.interaction_weights().detach()

    def adapter_parameters(self) -> list[nn.Parameter]:
        """Return what ``optim.forecast_lr`` trains: all adapters but those of logics."""
        kinds = [kind for kind in self.population.kinds if kind != LOGIC]
        return [p for kind in kinds for p in self.population.adapter_parameters(kind)]

    def head_parameters(self) -> list[nn.Parameter]:
        """Return what ``optim.head_lr`` trains: numeric tokens, read-out, heads of a debate."""
        debate = [] if self.debate is None else list(self.debate.parameters())
        return [*self.decoder.module.parameters(), *debate]

    def gate_parameters(self) -> list[nn.Parameter]:
        """Return the gates of selection, which L_pred trains where the agents compete."""
        return [gate for gate in self.selection.parameters() if gate.requires_grad]

    def policy_adapter_parameters(self) -> list[nn.Parameter]:
        """Return what ``optim.policy_lr`` trains: the logic adapters."""
        return self.population.adapter_parameters(LOGIC)

    def fusion_parameters(self) -> list[nn.Parameter]:
        """Return interaction scores, fusion gates and soft prompt, which L_pg trains."""
        return [] if self.fusion is None else list(self.fusion.parameters())

    def forecast_parameters(self) -> list[nn.Parameter]:
        """Return what L_pred trains: forecast adapters, numeric tokens and read-out, gates."""
        return [*self.adapter_parameters(), *self.head_parameters(), *self.gate_parameters()]

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return what L_pg trains: logic adapters and the fusion's parameters."""
        return [*self.policy_adapter_parameters(), *self.fusion_parameters()]

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return what every process holds whole.

        All other parameters have the local agents along their first dimension.
        """
        return [*self.gate_parameters(), *self.fusion_parameters()]

    def tensors(self) -> dict[str, Tensor]:
        """Return every learned or running tensor by its stored name, detached."""
        return self.agent_tensors() | self.shared_tensors()

    def agent_tensors(self) -> dict[str, Tensor]:
        """Return what an agent has of its own by stored name, local agents first."""
        adapters = {
            f"adapters.{name}.{kind}.{part}": getattr(layer, part)[kind].detach()
            for name, layer in self.population.layers.items()
            for kind in layer.lora_a
            for part in ("lora_a", "lora_b")
        }
        # "answers" is what saved models and checkpoints call the decoder's module.
        heads = _name_tensors("answers", self.decoder.module)
        if self.debate is not None:
            heads |= _name_tensors("debate", self.debate)
        return adapters | heads | _add_prefix("calibration", self.calibration.agent_state())

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return gates, fitness, fusion and what calibration shares, by stored name."""
        modules = _name_tensors("selection", self.selection)
        if self.fusion is not None:
            modules |= _name_tensors("fusion", self.fusion)
        return modules | _add_prefix("calibration", self.calibration.shared_state())

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Set every tensor of :meth:`tensors`.

        Raises:
            CheckpointMismatch: a name or a shape differs from this configuration's.
        """
        current = self.tensors()
        if differing := sorted(current.keys() ^ tensors.keys()):
            raise CheckpointMismatch(
                f"{len(differing)} tensor names differ, the first is {differing[0]}: the tensors "
                "are of another configuration; load them with the one they were saved with"
            )

        for name, value in current.items():
            if value.shape != tensors[name].shape:
                raise CheckpointMismatch(
                    f"{name} has shape {tuple(tensors[name].shape)}, expected "
                    f"{tuple(value.shape)}: the tensors are of another configuration"
                )
            value.copy_(tensors[name])

    def _build_decoder(self) -> ForecastDecoder:
        if self.config.forecast.decoder == "head":
            return HeadDecoder(self.population, self.config, self.inputs, self.mix_AP)
        return TextDecoder(self.population, self.config, self.scaler, self.mix_AP)


def _embed_end_of_text(backbone: Backbone) -> Tensor:
    """Return the embedding of a token that means nothing, which soft prompts start near, (D,)."""
    eos = torch.tensor([backbone.tokenizer.eos_token_id], device=backbone.device)
    embeds_1D: Tensor = backbone.model.get_input_embeddings()(eos)
    return embeds_1D[0].detach().float().cpu()


def _name_tensors(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return _add_prefix(prefix, module.state_dict())


def _add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value.detach() for name, value in tensors.items()}
