"""The world a benchmark runs in: synthetic windows, headlines, and a population that is not at its trivial start.

What belongs here: building a configuration, its tasks, and our own round with what it sampled kept aside.
What does not: timing (``engine``, ``cases``), the other way of doing a round (``straightforward``).
Everything is seeded; nothing is read but the packaged models. Legend: A agents, B windows, H horizon, D hidden.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.logic_writer import LogicWriter, Observation, Proposal, agent_generators
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.strategy import NewsChooser, StrategyExecutor
from compevo_core.config import RunConfig
from compevo_core.data.calendar import Place, calendar_for
from compevo_core.data.news import ARTICLE_SCHEMA
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import HORIZON, Window, WindowSet, WindowView
from compevo_core.diagnostics.regret import RegretBook
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import load_encoder
from compevo_core.lm.population import KINDS
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import make_tasks
from compevo_core.training.round import RoundState, RoundTrainer

START = datetime(2019, 1, 1, 14, tzinfo=UTC)
PLACE = Place(timezone="Australia/Sydney", country="AU", subdivision="NSW")
LEVELS_MW = {"NSW1": 8000.0, "QLD1": 6200.0, "SA1": 1400.0, "TAS1": 1100.0, "VIC1": 5200.0}
COVARIATES = {
    "afternoon_humidity_lag1": 41.0,
    "afternoon_temp_lag1": 28.4,
    "max_temp_lag2": 31.2,
    "min_temp_lag2": 17.9,
    "morning_temp_lag1": 21.3,
}
TITLES = (
    "Heatwave to push electricity demand to a record across the eastern states this week",
    "Central bank holds interest rates as inflation slows for a third straight quarter",
    "Smelter restarts its second potline after months of closure and repair work",
    "Storm damage leaves thousands without power as crews work through the night",
    "Rooftop solar sets a midday record and drives wholesale prices below zero",
    "Travel surges before the long weekend with airports expecting a million passengers",
    "Coal unit trips without warning, operator calls on reserves in the evening peak",
    "Schools return on Tuesday after the longest summer break in a decade",
    "Desalination plant ordered to full output as dams fall below half",
    "Steel maker cuts shifts as export orders weaken and freight costs rise",
    "Cool change arrives early, ending four days above thirty-five degrees",
    "Grand final crowds expected to lift evening use in the inner suburbs",
)
_ADAPTER_SPREAD, _HEAD_SPREAD = 0.02, 0.01
_SCHEDULE_ROUNDS = 100
_GROUP = {"grpo.group_size": 8, "evolution.logic_tokens": 32}
#: The tiny backbone reads and writes bytes: these prompts do not fit in its preset's context, and logics of 8 bytes are
#: too short to count, so that without this all logics of a group would be read alike.
_QUICK = {"backbone.context_tokens": 1024, "evolution.logic_tokens": 24}


def configuration(agents: int, *, quick: bool, dtype: str = "float32") -> RunConfig:
    """The preset ``default`` with the paper's group and no comparators of regret; ``tiny`` for a quick look."""
    config = RunConfig.preset("tiny" if quick else "default")
    fixed = {"population.agents": agents, "run.fixed_logics": 0, "backbone.dtype": dtype}
    fixed |= _QUICK if quick else _GROUP
    return config.with_overrides(fixed)


def news_pool(encoder: Any) -> NewsPool:
    """The headlines above, one an hour, all before the first origin."""
    count = len(TITLES)
    seen = [START - timedelta(days=2) + timedelta(hours=i) for i in range(count)]
    rows = {
        "article_id": _article_ids(),
        "url": [f"https://example.org/{i}" for i in range(count)],
        "title": list(TITLES),
        "body": [""] * count,
        "domain": ["example.org"] * count,
        "language": ["English"] * count,
        "country": [None] * count,
        "published_at": seen,
        "seen_at": seen,
        "available_at": seen,
        "source": ["sample:benchmark"] * count,
        "fetched_at": seen,
    }
    return NewsPool(pl.DataFrame(rows, schema=ARTICLE_SCHEMA), encoder.encode(TITLES), encoder.name)


def windows(days: int, entities: int) -> WindowSet:
    """Train windows of the first ``entities`` regions on consecutive days."""
    rng, out = np.random.default_rng(0), []
    for day in range(days):
        for entity, level in list(LEVELS_MW.items())[:entities]:
            shape = 1.0 + 0.2 * np.sin(2 * np.pi * (np.arange(HORIZON) - 14) / HORIZON)
            x, y = (level * shape * (1 + 0.03 * rng.normal(size=HORIZON)) for _ in range(2))
            origin = START + timedelta(days=day)
            out.append(
                Window(
                    y=y,
                    view=WindowView(
                        window_id=f"benchmark-{entity}-{day}",
                        dataset="electricity",
                        series_id=f"BENCHMARK/{entity}",
                        entity=entity,
                        variable="demand_mw",
                        unit="MW",
                        step_minutes=30,
                        origin_utc=origin,
                        x=x,
                        calendar=calendar_for(origin, PLACE),
                        covariates=COVARIATES,
                        split="train",
                        candidate_ids=tuple(_article_ids()),
                    ),
                )
            )
    return WindowSet(out, dataset="electricity")


@dataclasses.dataclass
class Replay:
    """What our round sampled and scored, so that another way of doing the round can score the very same."""

    seen: Observation
    candidates: list[str]
    texts: list[list[str]]
    ids_AGT: Tensor
    scored: list[ForecastExample]
    previous_AD: Tensor


class _FixedLengthWriter(LogicWriter):
    """Never stops a sample early, so that both ways generate the same number of tokens; keeps what it sampled."""

    replay: Replay

    def __init__(self, config: RunConfig, learner: PopulationModel) -> None:
        super().__init__(config, learner.population, learner.fusion, learner.shards)
        self._stop = []

    def propose(
        self, seen: Observation, previous_AD: Tensor, generators: Sequence[torch.Generator]
    ) -> Proposal:
        """As the writer of the core, with the samples kept."""
        out = super().propose(seen, previous_AD, generators)
        self.replay = Replay(seen, out.candidates, out.texts, out.ids_AGT, [], previous_AD.detach())
        return out


class _KeepingExecutor(StrategyExecutor):
    """Keeps which windows scored the group."""

    scored: list[ForecastExample]

    def forecast_groups(
        self, groups: Sequence[Sequence[str]], tasks: Sequence[ForecastExample]
    ) -> tuple[Tensor, int]:
        """As the executor of the core, with the windows kept."""
        self.scored = list(tasks)
        return super().forecast_groups(groups, tasks)


class World:
    """One configuration's population, its tasks by round, and our way to play a round."""

    def __init__(self, config: RunConfig, rounds: int) -> None:
        torch.manual_seed(0)
        batch = config.run.batch_windows
        drawn = windows(rounds, min(batch, len(LEVELS_MW)))
        self.config, self.scaler = config, Scaler.fit(drawn)
        tasks = make_tasks(drawn, np.stack([view.x for view in drawn.views()]), self.scaler)
        self.tasks = [tasks[i * batch : (i + 1) * batch] for i in range(rounds)]
        encoder = load_encoder(config.news.encoder)
        self.chooser = NewsChooser(news_pool(encoder), encoder, config.news.top_k)
        self.learner = PopulationModel(
            config, load_backbone(config.backbone, device="cpu"), self.scaler
        )
        self._small = {
            k: v.clone() for k, v in self.learner.tensors().items() if not k.startswith("adapters.")
        }
        self.logics = list(SEED_LOGICS[: config.population.agents])

    def start_over(self) -> RoundTrainer:
        """Sets every learned tensor to the same seeded values, away from zero, and gives a fresh optimiser."""
        generator, own = torch.Generator().manual_seed(1), self.learner.tensors()
        for name, value in self._small.items():
            own[name].copy_(value)
        for kind in KINDS:
            for parameter in self.learner.population.parameters_of(kind):
                parameter.data.normal_(0, _ADAPTER_SPREAD, generator=generator)
                parameter.grad = None
        for parameter in self.learner.answers.module.parameters():
            parameter.data.normal_(0, _HEAD_SPREAD, generator=generator)
        fitness = -torch.linspace(0.1, 1.0, self.config.population.agents)
        self.learner.selection.fitness_A.copy_(fitness)
        executor = _KeepingExecutor(
            self.config, self.learner.population, self.learner.answers, self.chooser, self.scaler
        )
        player = RoundTrainer(self.learner, executor, _SCHEDULE_ROUNDS)
        player.writer = _FixedLengthWriter(self.config, self.learner)
        return player

    def state(self, player: RoundTrainer) -> RoundState:
        """Where round 0 begins."""
        zeros = [0.0] * len(self.logics)
        return RoundState(
            0,
            list(self.logics),
            zeros,
            player.writer.encode_texts(self.logics),
            RegretBook.start(len(self.logics), self.config.run.fixed_logics),
        )

    def step(self, player: RoundTrainer, state: RoundState, number: int) -> dict[str, Any]:
        """Our round on the windows of day ``number``."""
        sampling = agent_generators(
            100 + number, self.learner.shards.local_agents, self.learner.backbone.device
        )
        return player.step(state, self.tasks[number], sampling, np.random.default_rng([number, 2]))

    @staticmethod
    def replay(player: RoundTrainer) -> Replay:
        """What the last round of a player sampled and scored."""
        if not isinstance(player.writer, _FixedLengthWriter) or not isinstance(
            player.executor, _KeepingExecutor
        ):
            raise TypeError("only a player made by World.start_over keeps its samples")
        return dataclasses.replace(player.writer.replay, scored=player.executor.scored)


def _article_ids() -> list[str]:
    return [hashlib.sha256(t.encode()).hexdigest()[:32] for t in TITLES]
