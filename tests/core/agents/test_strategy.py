"""A logic retrieves the nearest of its window's articles, and a group of logics is read once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.agents import retrieval
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.lm.encoder import HashingEncoder
from tests.support.population import TITLES, article_ids, news_pool, windows
from tests.support.rounds import build_round_trainer

VIEW = windows("train", 1).views()[0]


def test_a_logic_retrieves_the_articles_nearest_to_it_from_the_candidates_alone():
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
    assert NewsRetriever(news_pool(), encoder, 0).retrieve(TITLES[3], VIEW) == ()


def test_an_agents_scope_limits_its_candidates():
    pool = news_pool()
    titles = ["Sydney storm cuts power", "Brisbane heat record", *TITLES[2:]]
    pool.articles = pool.articles.with_columns(title=np.array(titles))
    retriever = NewsRetriever(pool, HashingEncoder(), len(TITLES))

    assert set(retriever.retrieve("heat", VIEW, "all")) == set(article_ids())
    assert retriever.retrieve("heat", VIEW, "none") == ()
    own = replace(VIEW, entity="NSW1", dataset="electricity")
    assert retriever.retrieve("heat", own, "place") == (article_ids()[0],)
    # The same candidates are chosen anew for another region.
    northern = replace(own, entity="QLD1")
    assert retriever.retrieve("heat", northern, "place") == (article_ids()[1],)


def test_every_agent_retrieves_within_its_own_scope():
    members = [{"news_scope": scope} for scope in ("all", "none", "all")]
    trainer, state, _ = build_round_trainer(population__members=members)
    news = trainer.executor.retrieve_news(state.logics, [VIEW])
    assert [bool(by_window[0]) for by_window in news] == [True, False, True]


def test_a_logic_is_embedded_once_and_not_for_ever(monkeypatch):
    encoded = []

    class CountingEncoder(HashingEncoder):
        def encode(self, texts):
            encoded.extend(texts)
            return super().encode(texts)

    monkeypatch.setattr(retrieval, "_KEPT_EMBEDDINGS", 2)
    retriever = NewsRetriever(news_pool(), CountingEncoder(), 1)
    for logic in ("heat", "heat", "storm", "heat", "travel", "storm"):
        retriever.retrieve(logic, VIEW)
    assert encoded == ["heat", "storm", "travel", "storm"]  # two are kept, the last ones used


@pytest.mark.parametrize("form", ["text", "token"])
def test_every_logic_of_a_group_is_scored_by_the_forecast_it_alone_would_give(form):
    trainer, state, examples = build_round_trainer(news__form=form, backbone__context_length=1024)
    groups = [[logic, SEED_LOGICS[5 + agent]] for agent, logic in enumerate(state.logics)]
    together = trainer.executor.forecast_groups(groups, examples).values_AGBH
    assert together.shape == (3, 2, 2, 48)

    for member in range(2):
        logics = [group[member] for group in groups]
        alone = trainer.executor.forecast(logics, examples).values_ABH
        assert torch.allclose(together[:, member], alone, atol=1e-5)

    # The logics matter at all: two of a group do not forecast the same.
    assert not torch.allclose(together[:, 0], together[:, 1], atol=1e-5)
