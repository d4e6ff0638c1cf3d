"""Worlds with planted news: which topics act, what is known when, what stays as it was."""

import numpy as np
import pytest

from compevo_core.agents.logics import TOPICS
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.planted_news import (
    DISTRACTORS,
    EVENTS,
    HEADLINES,
    WORLDS,
    PlantedNews,
    list_headlines,
    measure_residuals,
    plant_news,
)
from tests.support.planted import base_windows, planted_world

SIGNS = {"power outages": -1, "rooftop solar": 1}


def _topics_of(title):
    """Return the topics whose headlines, without the place, begin or end as a title does."""
    return {
        topic
        for topic, templates in HEADLINES.items()
        for template in templates
        if all(part in title for part in template.split("{place}"))
    }


def test_every_topic_of_a_logic_has_headlines_that_no_other_topic_shares():
    assert set(HEADLINES) == set(TOPICS)
    for topic, templates in HEADLINES.items():
        for template in templates:
            assert _topics_of(template.format(place="Tasmania")) == {topic}
    assert not any(_topics_of(title.format(place="Tasmania")) for title in DISTRACTORS)


def test_a_target_moves_by_the_acting_topics_of_its_own_articles_and_inputs_stay():
    world, before = planted_world(), base_windows()
    size_of = measure_residuals(before.split("train"))
    for old, new in zip(before, world.windows, strict=True):
        titles = [world.news.get_title(name) for name in new.view.candidate_ids]
        topics = set().union(*map(_topics_of, titles))
        expected = 3.0 * size_of[new.view.entity] * sum(SIGNS.get(topic, 0) for topic in topics)
        np.testing.assert_allclose(new.y - old.y, expected)
        assert world.effects[new.view.window_id] == pytest.approx(expected)
        assert np.array_equal(new.view.x, old.view.x)
        assert all(world.news.get_date(n) < new.view.known_before for n in new.view.candidate_ids)


def test_articles_name_their_region_and_other_regions_are_candidates_in_a_regional_world():
    plain, regional = planted_world(), planted_world(is_regional=True)
    window = next(w for w in plain.windows if w.view.entity == "SA1")
    titles = [plain.news.get_title(name) for name in window.view.candidate_ids]
    assert all("South Australia" in title for title in titles)

    other = next(w for w in regional.windows if w.view.window_id == window.view.window_id)
    assert len(other.view.candidate_ids) > len(titles)
    assert any(
        "New South Wales" in regional.news.get_title(name) for name in other.view.candidate_ids
    )
    # The draws are the same: more candidates change no effect.
    assert regional.effects == plain.effects


@pytest.mark.slow
def test_without_an_effect_the_news_change_nothing_and_another_seed_draws_others():
    silent, other = planted_world(0.0), planted_world(seed=1)
    assert np.array_equal(silent.windows.truth(), base_windows().truth())
    assert other.effects != planted_world().effects


def test_a_hundred_topics_have_headlines_of_their_own_and_three_of_them_act():
    topics = WORLDS["many-topics"]["topics"]
    assert len(set(topics)) == 100
    headlines = {title for topic in topics for title in list_headlines(topic)}
    assert len(headlines) == 400 and all("{place}" in title for title in headlines)
    assert not any("{topic}" in title for title in headlines)
    acting = set(WORLDS["many-topics"]["signs"])
    assert len(acting) == 3 and acting < set(topics)


def test_an_event_is_told_in_three_lengths_and_moves_the_day_in_each():
    planted, before = PlantedNews(effect=3.0, **WORLDS["events"]), base_windows()
    world = plant_news(before, planted, load_encoder("hashing"))  # nobody reads it here
    size_of = measure_residuals(before.split("train"))
    lengths = set()
    for old, new in zip(before, world.windows, strict=True):
        titles = [world.news.get_title(name) for name in new.view.candidate_ids]
        signs = 0
        for topic, sign in EVENTS.items():
            parts = [max(text.split("{place}"), key=len) for text in list_headlines(topic)]
            told = [title for title in titles if any(part in title for part in parts)]
            assert len(told) <= 1
            lengths |= {(title.count("."), topic) for title in told}
            signs += sign * len(told)
        np.testing.assert_allclose(new.y - old.y, 3.0 * size_of[new.view.entity] * signs)
    # A title; with a sentence on the event; between two titles of no topic.
    assert lengths == {(dots, topic) for dots in (0, 2, 4) for topic in EVENTS}
