"""One round on the tiny backbone, from a population away from its trivial start."""

import numpy as np
import torch

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.strategy import NewsRetriever
from compevo_core.data.scaling import Scaler
from compevo_core.diagnostics.regret import RegretTracker
from compevo_core.lm.adapter_routing import KINDS
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.training.generators import RunGenerators
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import make_examples
from compevo_core.training.round import RoundTrainer
from compevo_core.training.round_record import RoundResult
from compevo_core.training.round_state import RoundState
from tests.support.population import news_pool, tiny, windows


def build_round_trainer(
    rounds: int = 100, **overrides: object
) -> tuple[RoundTrainer, RoundState, list[ForecastExample]]:
    """A trainer with seeded noise in adapters, heads and fitness; its first state; a batch."""
    config = tiny(**overrides)
    batch = windows("train", 1)
    scaler = Scaler.fit(windows("train", 4))
    model = PopulationModel(config, load_backbone(config.backbone, device="cpu"), scaler)
    _fill_with_noise(model)

    retriever = NewsRetriever(news_pool(), HashingEncoder(), config.news.top_k)
    trainer = RoundTrainer(model, model.executor(retriever), rounds)

    logics = list(SEED_LOGICS[: config.population.agents])
    state = RoundState(
        round=0,
        logics=logics,
        rewards=[0.0] * len(logics),
        previous_AD=trainer.writer.encode_logics(logics),
        regret=RegretTracker.start(len(logics), config.run.fixed_logics),
    )
    # The prior is persistence: each window's own input.
    prior_NH = np.stack([view.x for view in batch.views()])
    return trainer, state, make_examples(batch, prior_NH, scaler)


def run_step(
    trainer: RoundTrainer, state: RoundState, examples: list[ForecastExample]
) -> RoundResult:
    """One round with fresh seeded generators."""
    agents = [torch.Generator().manual_seed(5 + agent) for agent in range(len(state.logics))]
    return trainer.step(state, examples, RunGenerators(agents, np.random.default_rng(6)))


def _fill_with_noise(model: PopulationModel) -> None:
    generator = torch.Generator().manual_seed(1)
    for kind in KINDS:
        for parameter in model.population.adapter_parameters(kind):
            parameter.data.normal_(0, 0.05, generator=generator)
    for parameter in model.decoder.module.parameters():
        parameter.data.normal_(0, 0.05, generator=generator)
    model.selection.fitness_EA.copy_(-torch.linspace(0.1, 1.0, model.config.population.agents))
