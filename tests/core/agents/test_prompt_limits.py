"""The edges of what an agent is shown: the oldest step of its lookback, the last article cut."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.agents.head_decoder import HeadDecoder, _PromptLayout
from compevo_core.agents.strategy import StrategyExecutor
from tests.support.models import build_executor, build_model, make_batch
from tests.support.population import article_ids, tiny

LOOKBACKS = (48, 12, 1)


def build_decoder(**overrides: object) -> tuple[StrategyExecutor, HeadDecoder]:
    executor = build_executor(build_model(tiny(**overrides)))
    assert isinstance(executor.decoder, HeadDecoder)
    return executor, executor.decoder


@pytest.mark.parametrize(
    ("step", "sees"),
    [
        (0, (True, False, False)),
        (35, (True, False, False)),
        (36, (True, True, False)),
        (46, (True, True, False)),
        (47, (True, True, True)),
    ],
)
def test_the_oldest_step_of_a_lookback_is_seen_and_the_one_before_is_not(
    step: int, sees: tuple[bool, ...]
) -> None:
    members = [{"lookback_steps": steps} for steps in LOOKBACKS]
    _, decoder = build_decoder(population__members=members)
    example = make_batch(decoder.config)[0]
    x = example.view.x.copy()
    x[step] *= 2.0
    moved = replace(example, view=replace(example.view, x=x))

    history = slice(1, 13)  # the tokens between context and target day
    before, after = (
        decoder._embed_numbers([one], slice(None), None).detach()[:, history]
        for one in (example, moved)
    )
    differs = tuple(not torch.equal(before[agent], after[agent]) for agent in range(3))
    assert differs == sees


@pytest.mark.parametrize("form", ["text", "token"])
def test_of_three_articles_the_best_match_is_the_last_to_go(form: str) -> None:
    executor, decoder = build_decoder(news__form=form)
    ids = article_ids()[:3]
    news = executor.news_retriever.resolve(ids)
    layout = _PromptLayout(decoder, 1, ids)

    # As tokens, no news takes as much room as one article.
    fewest = 0 if form == "text" else 1
    for kept in range(3, fewest - 1, -1):
        expected = layout._write_evidence("Watch heat.", news[:kept])
        assert layout._fit_evidence("Watch heat.", news, "", len(expected)) == expected
    assert layout.n_cut == 3 - fewest


def test_an_article_has_the_same_place_whatever_else_is_read() -> None:
    executor, decoder = build_decoder(news__form="token")
    articles = executor.news_retriever.resolve(article_ids()[:2])
    tokens = decoder._embed_articles({a.article_id: a for a in articles}, slice(None)).detach()
    alone = decoder._embed_articles({articles[1].article_id: articles[1]}, slice(None)).detach()
    assert np.allclose(tokens[:, 1], alone[:, 0]) and np.allclose(tokens[:, 2], alone[:, 1])
