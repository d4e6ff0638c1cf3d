"""The training of agents that read only by ridges: a search for logics, without a language model.

What belongs here: the rounds of the search, the model and what forecasts by it. What does not: the
turns of a round (``agents.joint_reader``), checkpoints and validation (``training.loop``).

A round is one rewriting: each agent draws G logics by chance, and plays the best of its record.

Shapes: A agents, G logics that an agent draws.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.logics import SlotDraws
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.observation import sample_peers
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.selection import FitnessSelection
from compevo_core.agents.strategy import ReadingExecutor
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.ensemble import AgentEnsemble
from compevo_core.training.loop import TrainingLoop
from compevo_core.training.round import RoundState, describe_start
from compevo_core.training.round_record import RoundResult
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.schedule import EVOLUTION, RunGenerators
from compevo_core.training.training_data import RunSetup, TrainingData

_TEXTS = ("empty_logics", "unread_answers", "equal_groups", "answers")
_UPDATES = ("grad_norm", "kl", "gradient_conflict", "gradient_margin", "clip_fraction")
_LOSSES = ("loss", "loss_pred", "loss_tokens", "loss_pg", "loss_div", "loss_prune")
_NO_LANGUAGE_MODEL: dict[str, Any] = dict.fromkeys(_TEXTS + _UPDATES + _LOSSES, 0)
"""What a round measures only of a language model."""


class ReadingModel(AgentEnsemble):
    """Agents that read by ridges: their fitness and the fits of the logics that they play."""

    def __init__(
        self, config: RunConfig, inputs: NumericInputs, shards: AgentShards | None = None
    ) -> None:
        super().__init__(config, inputs, shards)
        if self.shards.processes > 1:
            raise ConfigError(
                "agents without a language model are trained in one process, in which a search "
                "takes seconds: start it without torchrun"
            )
        selection = FitnessSelection.for_run(config, sorted(self.scaler.mean))
        self.selection = selection.requires_grad_(False)

    def build_executor(
        self, retriever: NewsRetriever, train_examples: Sequence[ForecastExample] = ()
    ) -> ReadingExecutor:
        """Return what forecasts by fits on train examples, or by those that were sealed."""
        reader = self.find_reader(train_examples, retriever)
        agents = range(self.config.population.agents)
        return ReadingExecutor(self.config, agents, self.mix_AP, retriever, reader)


class SearchLoop(TrainingLoop):
    """The rewritings of a run's schedule."""

    model: ReadingModel
    checkpoint_every = 1

    def __init__(
        self, setup: RunSetup, folder: RunFolder, data: TrainingData, *, rounds: int | None = None
    ) -> None:
        config, plan = setup.config, setup.schedule
        rewritings = sum(map(plan.rewrites, range(plan.total_rounds)))
        schedule = dataclasses.replace(
            plan, supervised_rounds=0, evolution_rounds=rewritings, every=1
        )
        super().__init__(setup, schedule, folder, data, rounds=rounds, layers=1)
        self.model = ReadingModel(config, self.inputs, setup.shards)
        self.model.executor = self.model.build_executor(self.retriever, data.train_examples)
        self._draws = SlotDraws(config, sorted(self.model.scaler.mean))
        agents = range(config.population.agents)
        self.generators = RunGenerators.from_seed(config.run.seed, agents, torch.device("cpu"))

    def start_agents(self, logics: Sequence[str]) -> Tensor:
        """Return no states, (A, 0): nothing reads a logic."""
        return torch.zeros(len(logics), 0)

    def play(self, state: RoundState) -> RoundResult:
        """Let each agent draw logics and choose; what only a language model has is 0 or empty."""
        selection, grpo = self.model.selection, self.config.grpo
        start = describe_start(state, selection)
        rng = self.generators.numpy_rng
        members = self.config.population.list_members()
        peers = sample_peers(len(members), self.config.population.exposed_peers, rng)
        groups = [
            []
            if members[agent].reads == "everything"
            else self._draws.draw(grpo.group_size, state.logics, agent, peers[agent], generator)
            for agent, generator in enumerate(self.generators.agents)
        ]
        news = self.model.read_news(self.data.train_examples, self.retriever)
        turns = news.score(state.logics, groups, state.records, rng)
        turns.pay(selection)
        state.logics, state.records = turns.logics, turns.records
        state.round += 1

        return RoundResult(
            **_NO_LANGUAGE_MODEL,
            **start,
            **turns.describe(grpo.group_size),
            stage=EVOLUTION,
            interaction=np.eye(len(members)).tolist(),
            group_logics=groups,
            candidates=[],
            unique_news=[],
        )
