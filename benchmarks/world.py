"""What a benchmark runs on: a population that is not at its trivial start, its examples, our round.

What belongs here: the configuration, the examples of each day, and our round with its samples kept.
What does not: the data (``synthetic_data``), timing (``engine``, ``cases``), other ways of doing a
round (``peft_population``, ``trl_step``).

Everything is seeded; nothing is read but the packaged models.

Shapes: A agents, G samples of an agent, B windows, T sampled tokens, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.synthetic_data import LEVELS_MW, build_news_pool, build_windows
from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.logic_writer import LogicWriter, Proposal, seed_agent_generators
from compevo_core.agents.observation import Observation
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.strategy import GroupForecasts, NewsRetriever, StrategyExecutor
from compevo_core.config import RunConfig
from compevo_core.data.scaling import Scaler
from compevo_core.diagnostics.regret import RegretTracker
from compevo_core.lm.adapter_routing import KINDS
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.training.generators import RunGenerators
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import make_examples
from compevo_core.training.round import RoundTrainer
from compevo_core.training.round_state import RoundState
from compevo_core.training.schedule import RunSchedule

# Standard deviations of adapters and heads. At their own start both ways would forecast the prior.
_ADAPTER_SPREAD = 0.02
_HEAD_SPREAD = 0.01
_SCHEDULE_ROUNDS = 100  # length of the learning-rate schedule, of which one round is run

_PAPER_GROUP = {"grpo.group_size": 8, "evolution.max_new_tokens": 32}
# The tiny backbone reads and writes bytes. These prompts do not fit in its preset's context, and
# logics of 8 bytes are too short to count: all logics of a group would be replaced by one fallback.
_TINY_LENGTHS = {"backbone.context_length": 1024, "evolution.max_new_tokens": 24}


def build_config(agents: int, *, quick: bool, dtype: str = "float32") -> RunConfig:
    """Build the configuration of a benchmark.

    Args:
        agents: their number.
        quick: whether to take the preset ``tiny`` in place of ``default`` with the paper's group.
        dtype: ``backbone.dtype``.
    """
    config = RunConfig.preset("tiny" if quick else "default")

    fixed = {
        "population.agents": agents,
        "run.fixed_logics": 0,  # comparators of the regret, which the other ways do not have
        "backbone.dtype": dtype,
    }
    return config.with_overrides(fixed | (_TINY_LENGTHS if quick else _PAPER_GROUP))


@dataclasses.dataclass
class Replay:
    """What our round sampled and scored, so that another way of doing it can score the very same.

    Attributes:
        observation: what the agents knew when they wrote.
        candidates: one text an agent.
        group_logics: G texts an agent.
        ids_AGT: token ids of the group.
        reward_examples: windows that scored the group.
        previous_AD: candidate states of the round before.
    """

    observation: Observation
    candidates: list[str]
    group_logics: list[list[str]]
    ids_AGT: Tensor
    reward_examples: list[ForecastExample]
    previous_AD: Tensor


class _FixedLengthWriter(LogicWriter):
    """Never end a sample early, so that both ways generate the same number of tokens."""

    replay: Replay

    def __init__(self, config: RunConfig, model: PopulationModel) -> None:
        super().__init__(config, model.population, model.fusion, model.shards)
        self._stop_ids = []

    def propose(
        self,
        observation: Observation,
        previous_AD: Tensor,
        generators: Sequence[torch.Generator],
    ) -> Proposal:
        """Propose as the core's writer does, and keep the samples."""
        proposal = super().propose(observation, previous_AD, generators)

        self.replay = Replay(
            observation,
            proposal.candidates,
            proposal.group_logics,
            proposal.ids_AGT,
            [],
            previous_AD.detach(),
        )
        return proposal


class _RecordingExecutor(StrategyExecutor):
    """Keep which windows scored the group."""

    reward_examples: list[ForecastExample]

    def forecast_groups(
        self, groups: Sequence[Sequence[str]], examples: Sequence[ForecastExample]
    ) -> GroupForecasts:
        """Forecast as the core's executor does, and keep the windows."""
        self.reward_examples = list(examples)
        return super().forecast_groups(groups, examples)


class World:
    """One configuration's population, its examples by day, and our way of doing a round.

    Attributes:
        model: the population.
        days: examples of each day, one batch a round.
        logics: one for each agent.
    """

    def __init__(self, config: RunConfig, rounds: int) -> None:
        torch.manual_seed(0)
        self.config = config

        batch = config.run.batch_size
        windows = build_windows(rounds, min(batch, len(LEVELS_MW)))
        self.scaler = Scaler.fit(windows)
        # The day before stands in for a prior, whose fit would cost the same both ways.
        prior_NH = np.stack([view.x for view in windows.views()])
        examples = make_examples(windows, prior_NH, self.scaler)
        self.days = [examples[i * batch : (i + 1) * batch] for i in range(rounds)]

        encoder = load_encoder(config.news.encoder)
        self.news_retriever = NewsRetriever(build_news_pool(encoder), encoder, config.news.top_k)
        self.model = PopulationModel(
            config, load_backbone(config.backbone, device="cpu"), self.scaler
        )
        self.logics = list(SEED_LOGICS[: config.population.agents])

        # Adapters are drawn anew at each reset; everything else is small enough to copy.
        self._initial = {
            name: value.clone()
            for name, value in self.model.tensors().items()
            if not name.startswith("adapters.")
        }

    def reset(self) -> RoundTrainer:
        """Set all learned tensors to the same seeded values; return a trainer without history."""
        tensors = self.model.tensors()
        for name, value in self._initial.items():
            tensors[name].copy_(value)

        generator = torch.Generator().manual_seed(1)
        for kind in KINDS:
            for parameter in self.model.population.adapter_parameters(kind):
                parameter.data.normal_(0, _ADAPTER_SPREAD, generator=generator)
                parameter.grad = None
        for parameter in self.model.decoder.module.parameters():
            parameter.data.normal_(0, _HEAD_SPREAD, generator=generator)

        # Unequal weights, so that a mistake in an agent's share shows in the loss.
        fitness_A = -torch.linspace(0.1, 1.0, self.config.population.agents)
        self.model.selection.fitness_EA.copy_(fitness_A.expand_as(self.model.selection.fitness_EA))

        executor = _RecordingExecutor(
            self.config,
            self.model.population,
            self.model.decoder,
            self.news_retriever,
            self.scaler,
        )
        writer = _FixedLengthWriter(self.config, self.model)
        schedule = RunSchedule(
            supervised_rounds=0,
            evolution_rounds=_SCHEDULE_ROUNDS,
            every=1,
            warmup_ratio=self.config.optim.warmup_ratio,
        )
        return RoundTrainer(self.model, executor, schedule, writer=writer)

    def start_state(self, trainer: RoundTrainer) -> RoundState:
        """Return the state before round 0."""
        agents = len(self.logics)
        return RoundState(
            0,
            list(self.logics),
            [0.0] * agents,
            trainer.writer.encode_logics(self.logics),
            RegretTracker.start(agents, self.config.run.fixed_logics),
        )

    def step(self, trainer: RoundTrainer, state: RoundState, day: int) -> dict[str, Any]:
        """Do our round on the windows of one day; return its record."""
        agent_generators = seed_agent_generators(
            100 + day, self.model.shards.local_agents, self.model.backbone.device
        )
        generators = RunGenerators(
            agent_generators, np.random.default_rng([day, 2]), np.random.default_rng([day, 4])
        )
        return trainer.step(state, self.days[day], generators).to_dict()

    @staticmethod
    def get_replay(trainer: RoundTrainer) -> Replay:
        """Return what the last round of a trainer sampled and scored."""
        writer = trainer.writer
        executor = trainer.executor
        if not isinstance(writer, _FixedLengthWriter) or not isinstance(
            executor, _RecordingExecutor
        ):
            raise TypeError("only a trainer from World.reset keeps its samples")

        return dataclasses.replace(writer.replay, reward_examples=executor.reward_examples)
