"""One round on the tiny backbone, from a population away from its trivial start."""

import numpy as np
import torch

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.strategy import NewsChooser
from compevo_core.data.scaling import Scaler
from compevo_core.diagnostics.regret import RegretBook
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.lm.population import KINDS
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import make_tasks
from compevo_core.training.round import RoundState, RoundTrainer
from tests.support.population import news_pool, tiny, windows


def round_player(
    rounds: int = 100, **overrides: object
) -> tuple[RoundTrainer, RoundState, list[ForecastExample]]:
    """A player whose adapters, heads and fitness are seeded and not zero, its first state, and two tasks."""
    config = tiny(**overrides)
    drawn = windows("train", 1)
    scaler = Scaler.fit(windows("train", 4))
    learner = PopulationModel(config, load_backbone(config.backbone, device="cpu"), scaler)
    generator = torch.Generator().manual_seed(1)
    for kind in KINDS:
        for parameter in learner.population.parameters_of(kind):
            parameter.data.normal_(0, 0.05, generator=generator)
    for parameter in learner.answers.module.parameters():
        parameter.data.normal_(0, 0.05, generator=generator)
    learner.selection.fitness_A.copy_(-torch.linspace(0.1, 1.0, config.population.agents))
    chooser = NewsChooser(news_pool(), HashingEncoder(), config.news.top_k)
    player = RoundTrainer(learner, learner.executor(chooser), rounds)
    logics = list(SEED_LOGICS[: config.population.agents])
    zeros = [0.0] * len(logics)
    tasks = make_tasks(drawn, np.stack([view.x for view in drawn.views()]), scaler)
    book = RegretBook.start(len(logics), config.run.fixed_logics)
    return player, RoundState(0, logics, zeros, player.writer.encode_texts(logics), book), tasks


def step(
    player: RoundTrainer, state: RoundState, tasks: list[ForecastExample]
) -> dict[str, object]:
    """One round with fresh seeded generators."""
    sampling = [torch.Generator().manual_seed(5 + agent) for agent in range(len(state.logics))]
    return player.step(state, tasks, sampling, np.random.default_rng(6))
