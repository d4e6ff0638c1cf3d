"""What a logic selects: place, age, country and number, and the topic that articles are near to."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch

from compevo_core.agents import retrieval
from compevo_core.agents.logics import build_slots, find_topics, read_query
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.config.sections import MemberConfig
from compevo_core.lm.encoder import HashingEncoder
from tests.support.planted import planted_world, sentence_encoder
from tests.support.population import TITLES, article_ids, news_pool, windows
from tests.support.rounds import build_round_trainer

LOGIC = "Track news about power outages in {place},{rest} at any time of day, as a sign of x."


def write_logic(place="any region", rest=""):
    return LOGIC.format(place=place, rest=rest)


def _retriever(top_k=64, *, selects=True):
    world = planted_world(is_regional=True)
    return retrieval.NewsRetriever(world.news, sentence_encoder(), top_k, selects=selects)


def _view():
    world = planted_world(is_regional=True)
    return next(w.view for w in world.windows if w.view.entity == "SA1")


def _titles(retriever, logic, view=None):
    return [retriever.pool.get_title(name) for name in retriever.rank(logic, view or _view())]


def test_the_home_region_is_the_series_region():
    places = ("the home region", "New South Wales", "any region")
    home, named, either = (_titles(_retriever(), write_logic(place)) for place in places)
    # Without selection every logic ranks all articles.
    unselected = _titles(_retriever(selects=False), write_logic("the home region"))

    assert home and all("South Australia" in title for title in home)
    assert named and all("New South Wales" in title for title in named)
    assert sorted(either) == sorted([*home, *named]) == sorted(unselected)


def test_age_country_and_number_select():
    view, retriever = _view(), _retriever(top_k=8)
    young = write_logic(rest=" at most a day old,")
    late = replace(view, origin_utc=view.origin_utc + timedelta(days=2))
    local = write_logic(rest=" from papers of its country,")
    few = write_logic(rest=" three articles at a time,")

    assert _titles(retriever, young) and not _titles(retriever, young, late)
    assert len(_titles(retriever, local)) == len(view.candidate_ids)
    assert len(retriever.retrieve(few, view)) == 3
    assert len(retriever.retrieve(young, view)) == 8
    # A logic may ask for fewer articles than an agent reads, not for more.
    assert len(_retriever(top_k=1).retrieve(few, view)) == 1
    assert len(_retriever(top_k=0).retrieve(few, view)) == 0


@pytest.mark.parametrize("selects", [False, True])
def test_many_windows_are_ranked_as_one_by_one(monkeypatch, *, selects):
    monkeypatch.setattr(retrieval, "_RANKED", 50)  # two windows at a time
    views = list(planted_world(is_regional=True).windows.views()[:9])
    views[3] = replace(views[3], candidate_ids=())
    views[5] = replace(views[5], candidate_ids=views[5].candidate_ids[2:])
    retriever = _retriever(top_k=3, selects=selects)
    logic = write_logic("the home region")

    read = retriever.retrieve_for(MemberConfig(), logic, views)

    assert read == [retriever.retrieve(logic, view) for view in views]
    assert read[3] == () and len(set(read)) > 4


@pytest.mark.parametrize("selects", [False, True])
def test_every_sentence_of_the_slots_is_read_back(*, selects):
    slots = build_slots(["SA1"], ["tides", "ferries"], selects=selects, top_k=8)
    assert len(slots) == (8 if selects else 5)
    last = "".join(texts[-1] for texts in slots).strip()
    assert find_topics(last) == ("tides", "ferries")
    query = read_query(last)
    assert query.region == "South Australia" and not query.is_home
    expected = (3, 3, True) if selects else (None, None, False)
    assert (query.most, query.days, query.is_local) == expected


def test_free_text_selects_by_what_it_mentions():
    query = read_query("Look for storms in Victoria, at most a day old.")
    assert query.topics == ("Look for storms in Victoria, at most a day old.",)
    assert (query.region, query.days, query.is_home) == ("Victoria", 1, False)


VIEW = windows("train", 1).views()[0]


def test_a_logic_retrieves_only_its_nearest_candidates():
    encoder = HashingEncoder()
    retriever = retrieval.NewsRetriever(news_pool(), encoder, 2)
    for logic in (TITLES[3], TITLES[1], SEED_LOGICS[0]):
        similarity = encoder.encode(TITLES) @ encoder.encode([logic])[0]
        expected = [article_ids()[i] for i in np.argsort(-similarity, kind="stable")[:2]]
        assert list(retriever.retrieve(logic, VIEW)) == expected

    nearest = article_ids()[3]
    assert retriever.retrieve(TITLES[3], VIEW)[0] == nearest
    without = replace(VIEW, candidate_ids=tuple(i for i in VIEW.candidate_ids if i != nearest))
    assert nearest not in retriever.retrieve(TITLES[3], without)
    assert retrieval.NewsRetriever(news_pool(), encoder, 0).retrieve(TITLES[3], VIEW) == ()


def test_an_agents_scope_limits_its_candidates():
    pool = news_pool()
    titles = ["Sydney storm cuts power", "Brisbane heat record", *TITLES[2:]]
    pool.articles = pool.articles.with_columns(title=np.array(titles))
    retriever = retrieval.NewsRetriever(pool, HashingEncoder(), len(TITLES))

    def retrieve(view, scope):
        return retriever.retrieve_for(MemberConfig(news_scope=scope), "heat", [view])[0]

    assert set(retrieve(VIEW, "all")) == set(article_ids())
    assert retrieve(VIEW, "none") == ()
    own = replace(VIEW, entity="NSW1", dataset="electricity")
    assert retrieve(own, "place") == (article_ids()[0],)
    # Another region chooses among the same candidates again.
    northern = replace(own, entity="QLD1")
    assert retrieve(northern, "place") == (article_ids()[1],)


def test_logic_embeddings_are_cached_within_a_limit(monkeypatch, spy):
    monkeypatch.setattr(retrieval, "_KEPT_EMBEDDINGS", 2)
    retriever = retrieval.NewsRetriever(news_pool(), HashingEncoder(), 1)
    calls = spy(retriever.encoder, "encode")
    for logic in ("heat", "heat", "storm", "heat", "travel", "storm"):
        retriever.retrieve(logic, VIEW)
    encoded = [text for (texts,), _ in calls for text in texts]
    assert encoded == ["heat", "storm", "travel", "storm"]  # two are kept, the last ones used


@pytest.mark.parametrize("form", ["text", "token"])
def test_each_logic_is_scored_by_its_own_forecast(form):
    trainer, state, examples = build_round_trainer(news__form=form, backbone__context_length=1024)
    groups = [[logic, SEED_LOGICS[5 + agent]] for agent, logic in enumerate(state.logics)]
    together = trainer.executor.forecast_groups(groups, examples).values_ABH
    assert together.shape == (3, 2, 2, 48)

    for member in range(2):
        logics = [group[member] for group in groups]
        alone = trainer.executor.play(logics, examples).values_ABH
        assert torch.allclose(together[:, member], alone, atol=1e-5)

    # The logics matter at all: two of a group do not forecast the same.
    assert not torch.allclose(together[:, 0], together[:, 1], atol=1e-5)
