"""Untrained populations on the tiny backbone, and examples for them.

What belongs here: what tests of agents, training and benchmarks build their models from. What does
not: the windows and articles themselves (``tests.support.population``), a whole round
(``tests.support.rounds``).
"""

import numpy as np
import torch

from compevo_core.agents.decoders import KINDS
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import make_examples, mix_priors
from tests.support.population import news_pool, windows

ARTICLE_SIZE = HashingEncoder.dimension


def make_priors(batch, config):
    """Return made-up forecasts (N, P, 48) of every prior of a run, all different."""
    keys, _ = mix_priors(config)
    forecasts = [(1.0 + 0.02 * n) * view.x for view in batch.views() for n in range(len(keys))]
    return np.reshape(forecasts, (len(batch), len(keys), 48))


def fit_inputs(config, train=None):
    train = train or windows("train", 4)
    return NumericInputs.fit(train, make_priors(train, config), ARTICLE_SIZE)


def build_model(config):
    """Return a population as it starts, on a backbone of its own."""
    return PopulationModel(config, load_backbone(config.backbone, device="cpu"), fit_inputs(config))


def build_executor(model):
    retriever = NewsRetriever(news_pool(), HashingEncoder(), model.config.news.top_k)
    return model.build_executor(retriever)


def make_batch(config, batch=None):
    batch = batch or windows("train", 1)
    return make_examples(batch, make_priors(batch, config), fit_inputs(config).scaler)


def fill_with_noise(model, scale=0.05):
    """Move a population away from its trivial start: seeded noise, different for every agent."""
    generator = torch.Generator().manual_seed(1)
    for kind in KINDS:
        for parameter in model.population.adapter_parameters(kind):
            parameter.data.normal_(0, scale, generator=generator)
    for parameter in model.decoder.module.parameters():
        parameter.data.normal_(0, scale, generator=generator)

    levels = -torch.linspace(0.1, 1.0, model.config.population.agents)
    model.selection.fitness_EA.copy_(levels.expand_as(model.selection.fitness_EA))


def move_heads(by):
    """Return a class of models whose heads start so far from what is right."""

    class Moved(PopulationModel):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            for parameter in self.head_parameters():
                parameter.data.add_(by)

    return Moved
