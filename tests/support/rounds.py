"""One round on the tiny backbone, from a population away from its trivial start."""

import numpy as np
import torch

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.paper.changes import find_variant
from compevo_core.training.diagnostics import RegretTracker
from compevo_core.training.round import RoundState, RoundTrainer
from compevo_core.training.schedule import RunGenerators, RunSchedule
from tests.support.models import build_executor, build_model, fill_with_noise, make_batch
from tests.support.population import tiny


def build_round_trainer(rounds=100, supervised=0, system="compevo", **overrides):
    """A trainer with seeded noise in adapters, heads and fitness; its first state; a batch."""
    config = find_variant(system).configure(tiny(**overrides))
    model = build_model(config)
    fill_with_noise(model)
    schedule = RunSchedule(
        supervised_rounds=supervised,
        evolution_rounds=rounds,
        every=config.evolution.every,
        warmup_ratio=config.optim.warmup_ratio,
    )
    trainer = RoundTrainer(model, build_executor(model), schedule)
    state = start_state(trainer, SEED_LOGICS[: config.population.agents])
    return trainer, state, make_batch(config)


def start_state(trainer, logics):
    writer, none = trainer.writer, torch.zeros(len(logics), 0)
    return RoundState(
        round=0,
        logics=list(logics),
        rewards=[0.0] * len(logics),
        previous_AD=none if writer is None else writer.encode_logics(logics),
        regret=RegretTracker.start(len(logics), trainer.config.run.fixed_logics),
    )


def run_step(trainer, state, examples):
    agents = [torch.Generator().manual_seed(5 + agent) for agent in range(len(state.logics))]
    generators = RunGenerators(agents, np.random.default_rng(6), np.random.default_rng(7))
    return trainer.step(state, examples, generators)
