"""What a benchmark runs on: a population off its start, the windows of its days, our round.

What belongs here: configuration, and our round with its samples kept. What does not: timing
(``cases``), other ways of doing a round (``peft``), the synthetic windows and news themselves
(``tests.support.population``).

Nothing is read but the models. They are on a GPU if there is one, as in the product; set
``CUDA_VISIBLE_DEVICES`` to nothing for the processor.

Shapes: A agents, G samples of an agent, B windows, N windows in all, P priors, H horizon,
T sampled tokens, D hidden.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.decoders import KINDS, BatchForecasts, ForecastExample
from compevo_core.agents.logic_writer import Proposal
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.observation import MOST_READ, observe
from compevo_core.agents.prompts import SEED_LOGICS, Observation, describe_recent
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.config.run import RunConfig
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import make_examples
from compevo_core.training.round import RoundState, RoundTrainer
from compevo_core.training.schedule import RunGenerators, RunSchedule
from tests.support.models import make_priors
from tests.support.population import TITLES, news_pool, windows

TRAIN_WINDOWS = 1975  # of the archive of electricity

REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")

_SCHEDULE_ROUNDS = 100  # length of the learning-rate schedule, of which few rounds are run

#: What is compared with other ways: free texts that a policy samples, one reading of each window.
_COMPARED = {
    "evolution.form": "free",
    "evolution.flat_share": 0.0,
    "evolution.cross_share": 0.0,
    "evolution.credit": "own",
    "grpo.carry": "best",
    "grpo.reward_windows": 0,
    "news.fit": "own",
    "news.linear": False,
    "news.dropout": 0.0,
    "run.fixed_logics": 0,  # comparators of the regret, which the other ways do not have
    "run.gradient": "joint",
    # What the preset leaves out: the other ways do it as well.
    "evolution.update": "three-stage",
    "grpo.enabled": True,
    "objective.lambda_div": 0.1,
    "objective.lambda_prune": 0.01,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What one process measures."""

    name: str  # of ``cases.MEASURES``
    agents: int = 1
    repeats: int = 3
    preset: str = "default"
    # Of ``backbone.dtype``; a case with one type times the first. Empty is each case's own.
    types: Sequence[str] = ()
    # By dotted name; they replace the case's own.
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def configure(self, *, dtype: str = "", settings: Mapping[str, Any] | None = None) -> RunConfig:
        """Build the preset's configuration for a number of agents; its members are repeated.

        Without ``dtype`` the chosen type is taken, or the type of the preset.
        """
        config = RunConfig.preset(self.preset)
        members = [member.model_dump() for member in config.population.members]
        fixed: dict[str, Any] = {
            "population.agents": self.agents,
            "population.members": [
                members[i % len(members)] for i in range(self.agents) if members
            ],
            "backbone.dtype": dtype or next(iter(self.types), config.backbone.dtype),
        }
        return config.with_overrides(fixed | dict(settings or {}) | dict(self.settings))

    def configure_compared(
        self, *, dtype: str = "float32", settings: Mapping[str, Any] | None = None
    ) -> RunConfig:
        """Build the configuration of what other libraries do as well.

        The group is the paper's, unless the backbone is the tiny one.
        """
        paper = {"grpo.group_size": 8, "evolution.max_new_tokens": 32}
        group = {} if self.preset == "tiny" else paper
        return self.configure(dtype=dtype, settings=_COMPARED | group | dict(settings or {}))


@dataclasses.dataclass
class Replay:
    """What our round sampled and scored, for another way of doing it to score the very same."""

    observed: Sequence[Observation]  # what the agents knew when they wrote
    proposal: Proposal
    previous_AD: Tensor  # candidate states of the round before
    # Windows that scored the group
    reward_examples: list[ForecastExample] = dataclasses.field(default_factory=list)


class World:
    """One configuration's population, its examples by day, and our way of doing a round.

    Attributes:
        model: the population.
        days: examples of each round, one batch each.
        logics: one for each agent.
        replay: what the last round of a trainer from :meth:`build_replay_trainer` sampled.
    """

    replay: Replay

    def __init__(self, config: RunConfig, rounds: int) -> None:
        torch.manual_seed(0)
        self.config = config

        batch = config.run.batch_size
        # Statistics of the numeric inputs are fitted on all days, and need four.
        days = max(4, math.ceil(rounds * batch / len(REGIONS)))
        train = windows("train", days, entities=REGIONS)
        encoder = load_encoder(config.news.encoder)
        pool = news_pool(encoder)
        self.news_retriever = NewsRetriever(pool, encoder, config.news.top_k)

        # Made-up priors: fitting real ones would cost the same both ways.
        priors_NPH = make_priors(train, config)
        inputs = NumericInputs.fit(train, priors_NPH, pool.embeddings.shape[1])
        self.examples = make_examples(train, priors_NPH, inputs.scaler)
        self.days = [self.examples[i * batch : (i + 1) * batch] for i in range(rounds)]

        backbone = load_backbone(config.backbone)
        self.model = PopulationModel(config, backbone, inputs)
        self.logics = list(SEED_LOGICS[: config.population.agents])
        self._leave_the_start()

    def reset(self) -> None:
        """Set all learned tensors to the same seeded values."""
        tensors = self.model.tensors()
        for name, value in self._initial.items():
            tensors[name].copy_(value)
        self._draw_adapters()

    def build_trainer(self, *, rewrites: bool) -> RoundTrainer:
        """Reset; return a trainer whose rounds all rewrite the logics, or none of them."""
        self.reset()
        executor = self.model.build_executor(self.news_retriever)
        plan = self._plan(rewrites=rewrites)
        return RoundTrainer(self.model, executor, plan, train_examples=self.examples)

    def build_replay_trainer(self) -> RoundTrainer:
        """Reset; return a trainer that keeps what it samples and the windows that score it.

        No sample ends early, so that both ways generate the same number of tokens.
        """
        self.reset()
        executor, writer = self.model.build_executor(self.news_retriever), self.model.writer()
        propose, forecast_groups = writer.propose, executor.forecast_groups

        def keep_proposal(
            observed: Sequence[Observation],
            previous_AD: Tensor,
            generators: Sequence[torch.Generator],
        ) -> Proposal:
            proposal = propose(observed, previous_AD, generators)
            self.replay = Replay(observed, proposal, previous_AD.detach())
            return proposal

        def keep_examples(
            groups: Sequence[Sequence[str]], examples: Sequence[ForecastExample], **options: bool
        ) -> BatchForecasts:
            self.replay.reward_examples = list(examples)
            return forecast_groups(groups, examples, **options)

        writer._stop_ids = []
        writer.propose, executor.forecast_groups = keep_proposal, keep_examples
        return RoundTrainer(self.model, executor, self._plan(rewrites=True), writer=writer)

    def observe(self) -> list[Observation]:
        """Make up an observation of the usual size: each agent sees those that follow it."""
        agents = self.config.population.agents
        peers = min(self.config.population.exposed_peers, agents - 1)
        return observe(
            self.logics,
            [-0.5 - 0.01 * agent for agent in range(agents)],
            [[(agent + step) % agents for step in range(1, peers + 1)] for agent in range(agents)],
            [TITLES[:MOST_READ]] * agents,
            describe_recent([example.view for example in self.days[0]]),
        )

    def step(self, trainer: RoundTrainer, state: RoundState, day: int) -> dict[str, Any]:
        """Do our round on the windows of one day; return its record."""
        agent_generators = RunGenerators.from_seed(
            100 + day, self.model.shards.local_agents, self.model.backbone.device
        ).agents
        generators = RunGenerators(
            agent_generators, np.random.default_rng([day, 2]), np.random.default_rng([day, 4])
        )
        return trainer.step(state, self.days[day], generators).to_dict()

    def _leave_the_start(self) -> None:
        """Move adapters, read-out and fitness away from where training begins."""
        self._draw_adapters()
        executor = self.model.build_executor(self.news_retriever)
        executor.centre_readout(self.logics, self.days[0])
        generator = torch.Generator(self.model.backbone.device).manual_seed(2)
        for name, parameter in self.model.decoder.module.named_parameters():
            if name.startswith("readout."):
                parameter.data.normal_(0, 0.01, generator=generator)

        # Unequal weights, so that a mistake in an agent's share shows in the loss.
        fitness_A = -torch.linspace(0.1, 1.0, self.config.population.agents)
        self.model.selection.fitness_EA.copy_(fitness_A.expand_as(self.model.selection.fitness_EA))

        # Adapters are sampled again at each reset; everything else is small enough to copy.
        self._initial = {
            name: value.clone()
            for name, value in self.model.tensors().items()
            if not name.startswith("adapters.")
        }

    def _draw_adapters(self) -> None:
        # At their start both ways would forecast the base.
        generator = torch.Generator(self.model.backbone.device).manual_seed(1)
        for kind in KINDS:
            for parameter in self.model.population.adapter_parameters(kind):
                parameter.data.normal_(0, 0.02, generator=generator)
                parameter.grad = None

    def _plan(self, *, rewrites: bool) -> RunSchedule:
        return RunSchedule(
            supervised_rounds=0 if rewrites else _SCHEDULE_ROUNDS,
            evolution_rounds=_SCHEDULE_ROUNDS,
            every=1,
            warmup_ratio=self.config.optim.warmup_ratio,
        )
