"""Unread articles: those of the acting topics come first, with what they would have changed."""

import numpy as np
import torch

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.linear_reader import FittedReader
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.unread_news import UnreadNews
from compevo_core.config.sections import MOST_ARTICLES
from compevo_core.paper.planted_news import HEADLINES, SIGNS, measure_residuals
from tests.support.planted import base_windows, planted_world, sentence_encoder

ACTING = [template.split("{place}") for topic in SIGNS for template in HEADLINES[topic]]


def _acts(title):
    return any(all(part in title for part in parts) for parts in ACTING)


def test_the_articles_that_act_come_first_and_what_was_read_does_not_come():
    world = planted_world()
    train = world.split("train")
    sizes = measure_residuals(base_windows().split("train"))
    rng = np.random.default_rng(0)
    examples = [
        ForecastExample(
            w.view,
            np.zeros((1, 48)),
            world.effects[w.view.window_id] / sizes[w.view.entity] + rng.normal(size=48),
        )
        for w in train
    ]
    retriever = NewsRetriever(world.news, sentence_encoder(), MOST_ARTICLES)
    unread = UnreadNews(FittedReader(examples, retriever, ["all"], np.ones((1, 1))), "mse")

    # Windows on which one acting topic alone is in the news: it explains the whole error.
    batch = [e for e in examples if world.effects[e.view.window_id]][:8]
    values_BH = torch.zeros(8, 48)
    found = unread.list_best(0, batch, [()] * 8, values_BH, np.random.default_rng(0), 4)
    assert len(found) == 4 and all(_acts(title) for title, _ in found)
    changes = [change for _, change in found]
    assert changes == sorted(changes) and changes[0] < -0.5

    # What an agent has read is not unread; where it read all, nothing is left.
    everything = [example.view.candidate_ids for example in batch]
    assert not unread.list_best(0, batch, everything, values_BH, np.random.default_rng(0), 4)
