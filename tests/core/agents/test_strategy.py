"""Strategy execution: a logic chooses the news an agent reads, and reading once gives what reading G times gives."""

from dataclasses import replace

import numpy as np
import torch

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.strategy import NewsChooser
from compevo_core.lm.encoder import HashingEncoder
from tests.support.population import TITLES, article_ids, news_pool, windows
from tests.support.rounds import round_player

VIEW = windows("train", 1).views()[0]


def test_a_logic_chooses_the_articles_nearest_to_it_from_the_candidates_alone() -> None:
    encoder = HashingEncoder()
    chooser = NewsChooser(news_pool(), encoder, 2)
    for logic in (TITLES[3], TITLES[1], SEED_LOGICS[0]):
        near = encoder.encode(TITLES) @ encoder.encode([logic])[0]
        expected = [article_ids()[i] for i in np.argsort(-near, kind="stable")[:2]]
        assert list(chooser.choose(logic, VIEW)) == expected
    assert chooser.choose(TITLES[3], VIEW)[0] == article_ids()[3]
    without = replace(
        VIEW, candidate_ids=tuple(i for i in VIEW.candidate_ids if i != article_ids()[3])
    )
    assert article_ids()[3] not in chooser.choose(TITLES[3], without)


def test_two_logics_read_different_news_of_the_same_pool() -> None:
    chooser = NewsChooser(news_pool(), HashingEncoder(), 1)
    assert chooser.choose(TITLES[0], VIEW) != chooser.choose(TITLES[2], VIEW)
    assert NewsChooser(news_pool(), HashingEncoder(), 0).choose(TITLES[0], VIEW) == ()


def test_every_logic_of_a_group_is_scored_by_the_forecast_it_alone_would_give() -> None:
    player, state, tasks = round_player(backbone__context_tokens=1024)
    groups = [[logic, SEED_LOGICS[5 + agent]] for agent, logic in enumerate(state.logics)]
    found, _ = player.executor.forecast_groups(groups, tasks)
    assert found.shape == (3, 2, 2, 48)
    for member in range(2):
        alone = player.executor.forecast([group[member] for group in groups], tasks)[0]
        assert torch.allclose(found[:, member], alone, atol=1e-5)
    assert not torch.allclose(found[:, 0], found[:, 1], atol=1e-5)
