"""Strategy execution: a logic retrieves the news an agent reads, and a group is read once."""

from dataclasses import replace

import numpy as np
import torch

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.lm.encoder import HashingEncoder
from tests.support.population import TITLES, article_ids, news_pool, windows
from tests.support.rounds import build_round_trainer

VIEW = windows("train", 1).views()[0]


def test_a_logic_retrieves_the_articles_nearest_to_it_from_the_candidates_alone() -> None:
    encoder = HashingEncoder()
    retriever = NewsRetriever(news_pool(), encoder, 2)
    for logic in (TITLES[3], TITLES[1], SEED_LOGICS[0]):
        similarity = encoder.encode(TITLES) @ encoder.encode([logic])[0]
        expected = [article_ids()[i] for i in np.argsort(-similarity, kind="stable")[:2]]
        assert list(retriever.retrieve(logic, VIEW)) == expected

    nearest = article_ids()[3]
    assert retriever.retrieve(TITLES[3], VIEW)[0] == nearest
    without = replace(VIEW, candidate_ids=tuple(i for i in VIEW.candidate_ids if i != nearest))
    assert nearest not in retriever.retrieve(TITLES[3], without)


def test_two_logics_read_different_news_of_the_same_pool() -> None:
    retriever = NewsRetriever(news_pool(), HashingEncoder(), 1)
    assert retriever.retrieve(TITLES[0], VIEW) != retriever.retrieve(TITLES[2], VIEW)
    assert NewsRetriever(news_pool(), HashingEncoder(), 0).retrieve(TITLES[0], VIEW) == ()


def test_every_logic_of_a_group_is_scored_by_the_forecast_it_alone_would_give() -> None:
    trainer, state, examples = build_round_trainer(backbone__context_length=1024)
    groups = [[logic, SEED_LOGICS[5 + agent]] for agent, logic in enumerate(state.logics)]
    together = trainer.executor.forecast_groups(groups, examples).values_AGBH
    assert together.shape == (3, 2, 2, 48)

    for member in range(2):
        logics = [group[member] for group in groups]
        alone = trainer.executor.forecast(logics, examples).values_ABH
        assert torch.allclose(together[:, member], alone, atol=1e-5)

    # The logics matter at all: two of a group do not forecast the same.
    assert not torch.allclose(together[:, 0], together[:, 1], atol=1e-5)
