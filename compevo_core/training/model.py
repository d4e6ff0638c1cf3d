"""The trainable modules of one run on one frozen backbone, for each system of agents (paper D.4).

``config.run`` has the settings that a system needs, ``training.checkpoint`` and
``training.ensemble`` the files.

Shapes: A agents, D hidden size.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents.debate import DebateExecutor, DebateHeads
from compevo_core.agents.decoders import DEBATE_KINDS, FORECAST, KINDS, LOGIC, ForecastExample
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.agents.logic_writer import EndpointWriter, FlatWriter, LogicWriter
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.selection import FitnessSelection
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.agents.text_decoder import TextDecoder
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.errors import ConfigError
from compevo_core.lm.model_sources import ENDPOINT, Transport
from compevo_core.lora import Backbone, Population
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.seeding import derive_seed
from compevo_core.training.ensemble import AgentEnsemble, add_prefix, name_agent


class SystemModules:
    """The modules of ``config.population.system``, sampled from ``config.run.seed`` (paper D.4).

    - compevo, the paper's method: competition, fused logics, fitness as weights.
    - sa: one agent with a forecast adapter, trained on its own error, that keeps its first logic.
    - mael, multi-agent ensemble learning: such agents in parallel, their forecasts averaged. The
      paper gives one sentence: "parallel-agent averaging without interaction or evolution".
    - mae-gpt, multi-agent evolution: this ensemble, with logics that a frozen language model
      mutates; each agent plays the fittest of a logic and its mutations (``agents.logic_writer``).
    - mad-rl, multi-agent debate with reinforcement learning: agents read each other's forecasts and
      revise their own, verified and weighed (``agents.debate``).

    The linear layers of the backbone, which may be on the meta device, are replaced. Every soft
    prompt starts near ``neutral_D``; fitness may be kept for each of ``entities``.
    """

    def __init__(
        self,
        config: RunConfig,
        backbone: Backbone,
        shards: AgentShards,
        entities: Sequence[str],
        neutral_D: Tensor,
    ) -> None:
        system = config.population.system
        kinds = {"compevo": KINDS, "mad-rl": DEBATE_KINDS}.get(system, (FORECAST,))

        # Every process samples the adapters of all agents, and keeps the local ones, so that an
        # agent starts alike on any process. The fusion is sampled after them.
        generator = torch.Generator().manual_seed(derive_seed(config.run.seed, "weights"))
        layers = config.forecast.layers or None
        # Logic adapters are always drawn, so that the others start alike in every system.
        depths = {FORECAST: layers, LOGIC: None if LOGIC in kinds else 0}
        depths |= {kind: layers for kind in kinds if kind not in depths}
        self.population = Population(
            backbone, config.population.shape, generator, shards.local_agents, depths=depths
        )
        self.selection = FitnessSelection.for_run(config, entities).to(backbone.device)
        self.fusion: StrategyFusion | None = None
        self.debate: DebateHeads | None = None
        if system == "compevo":
            fusion = StrategyFusion(config.population.agents, neutral_D, generator)
            self.fusion = fusion.to(backbone.device)
        else:
            self.selection.requires_grad_(False)  # no gate weighs the agents
        if system == "mad-rl":
            heads = DebateHeads(len(shards.local_agents), backbone.hidden_size)
            self.debate = heads.to(backbone.device)

    def count_trainable(self) -> int:
        """Return the parameters that training changes."""
        modules = (self.population.adapters, self.selection, self.fusion, self.debate)
        trained = nn.ModuleList(module for module in modules if module is not None)
        return sum(each.numel() for each in trained.parameters() if each.requires_grad)


class PopulationModel(AgentEnsemble):
    """All trainable modules of a run, initialised from ``config.run.seed``.

    Each process has the adapters and heads of its local agents. Gates and fusion, which belong to
    all, take the same steps on every process. The layers of the frozen backbone are replaced.
    """

    def __init__(
        self,
        config: RunConfig,
        backbone: Backbone,
        inputs: NumericInputs,
        shards: AgentShards | None = None,
    ) -> None:
        super().__init__(config, inputs, shards)
        self.device = str(backbone.device)
        self.backbone = backbone
        self.knowledge_cutoff = backbone.knowledge_cutoff
        is_debate = config.population.system == "mad-rl"
        if is_debate and len(self.shards.local_agents) < config.population.agents:
            raise ConfigError(
                "agents of 'mad-rl' read each other in every turn, so that processes would always "
                "wait for each other: train it in one process"
            )

        entities = sorted(self.scaler.mean)
        # Soft prompts start near a token without meaning.
        eos = torch.tensor([backbone.tokenizer.eos_token_id], device=backbone.device)
        embeds_1D: Tensor = backbone.model.get_input_embeddings()(eos)
        neutral_D = embeds_1D[0].detach().float().cpu()
        modules = SystemModules(config, backbone, self.shards, entities, neutral_D)
        self.population, self.selection = modules.population, modules.selection
        self.fusion, self.debate = modules.fusion, modules.debate
        self.decoder: HeadDecoder | TextDecoder = (
            HeadDecoder(self.population, config, inputs, self.local_mix_AP)
            if config.forecast.decoder == "head"
            else TextDecoder(self.population, config, self.scaler, self.local_mix_AP)
        )

        decoder = sum(parameter.numel() for parameter in self.decoder.module.parameters())
        self.trainable_parameters = modules.count_trainable() + decoder

    def base_forecasts(self, examples: Sequence[ForecastExample]) -> FloatArray:
        """Return the base of each agent, scaled, (A, B, H), as precise as what corrects it."""
        return super().base_forecasts(examples).astype(np.float32)

    def build_executor(
        self, news_retriever: NewsRetriever, train_examples: Sequence[ForecastExample] = ()
    ) -> StrategyExecutor:
        """Return the strategy execution of this population on a news pool (paper 4.1).

        With ``train_examples`` news is read by fits on them, otherwise by the sealed fits.
        """
        if self.debate is not None and isinstance(self.decoder, HeadDecoder):
            return DebateExecutor(
                self.config, self.population, self.decoder, news_retriever, self.debate
            )
        reader = self.find_reader(train_examples, news_retriever)
        return StrategyExecutor(self.config, self.population, self.decoder, news_retriever, reader)

    def writer(self, selector: Transport | None = None) -> LogicWriter | None:
        """Return what writes the agents' logics (paper 4.3); None if they keep theirs."""
        config, population, shards = self.config, self.population, self.shards
        entities = sorted(self.scaler.mean)
        if config.population.system == "mae-gpt":
            # The frozen backbone mutates logics, or a model elsewhere.
            if config.evolution.selector.startswith(ENDPOINT):
                return EndpointWriter(config, population, shards, selector)
            return LogicWriter(config, population, None, shards, entities, adapters=None)
        if self.fusion is None:
            return None
        if config.evolution.flat_share == 1.0:
            return FlatWriter(config, population, None, shards, entities, adapters=None)
        return LogicWriter(config, population, self.fusion, shards, entities)

    def interaction_weights(self) -> Tensor:
        """Return how much each agent attends to each other one (A, A); identity without fusion."""
        if self.fusion is None:
            return torch.eye(self.config.population.agents, device=self.backbone.device)
        return self.fusion.interaction_weights().detach()

    def adapter_parameters(self) -> list[nn.Parameter]:
        """Return all adapters but the logic adapters, which ``optim.forecast_lr`` trains."""
        kinds = [kind for kind in self.population.kinds if kind != LOGIC]
        return [p for kind in kinds for p in self.population.adapter_parameters(kind)]

    def head_parameters(self) -> list[nn.Parameter]:
        """Return numeric tokens, read-out and heads of a debate, trained at the same rate."""
        debate = [] if self.debate is None else list(self.debate.parameters())
        return [*self.decoder.module.parameters(), *debate]

    def gate_parameters(self) -> list[nn.Parameter]:
        """Return the gates of selection, which L_pred trains where the agents compete."""
        return [gate for gate in self.selection.parameters() if gate.requires_grad]

    @property
    def competes(self) -> bool:
        """Whether agents see each other in training: fused logics, gates, one gradient norm."""
        return self.fusion is not None

    def policy_adapter_parameters(self) -> list[nn.Parameter]:
        """Return what ``optim.policy_lr`` trains: the logic adapters."""
        return self.population.adapter_parameters(LOGIC)

    def fusion_parameters(self) -> list[nn.Parameter]:
        """Return interaction scores, fusion gates and soft prompt, which L_pg trains."""
        return [] if self.fusion is None else list(self.fusion.parameters())

    def policy_parameters(self) -> list[nn.Parameter]:
        """Return what L_pg trains: logic adapters and the fusion's parameters."""
        return [*self.policy_adapter_parameters(), *self.fusion_parameters()]

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return what all agents share; others have the local agents as first dimension."""
        return [*self.gate_parameters(), *self.fusion_parameters()]

    def save(self, folder: Path) -> None:
        """Write also each local agent's adapters, as PEFT saves them."""
        for agent in self.shards.written_agents:
            for kind in self.population.kinds:
                self.population.save_adapter(agent, kind, name_agent(folder, agent) / kind)
        super().save(folder)

    def restore(self, folder: Path) -> None:
        """Set every value to what :meth:`save` wrote for the same configuration."""
        for agent in self.shards.local_agents:
            for kind in self.population.kinds:
                self.population.load_adapter(agent, kind, name_agent(folder, agent) / kind)
        super().restore(folder)

    def agent_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the local agents by stored name, a row for each."""
        adapters = {
            f"adapters.{name}.{kind}.{part}": getattr(layer, part)[kind].detach()
            for name, layer in self.population.layers.items()
            for kind in layer.lora_a
            for part in ("lora_a", "lora_b")
        }
        # "answers" is what saved models and checkpoints call the decoder's module.
        heads = add_prefix("answers", self.decoder.module.state_dict())
        if self.debate is not None:
            heads |= add_prefix("debate", self.debate.state_dict())
        return adapters | heads | super().agent_tensors()

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return gates, fitness, fusion and what calibration shares, by stored name."""
        fusion = {} if self.fusion is None else add_prefix("fusion", self.fusion.state_dict())
        return super().shared_tensors() | fusion
