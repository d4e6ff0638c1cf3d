"""What agents ended as, and where their logics lie among all."""

import numpy as np
import polars as pl
import pytest

from compevo_core.agents.logic_grammar import SLOT_SEED_LOGICS, build_slots, find_topics
from compevo_core.diagnostics.plateau import measure_plateau
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.mechanism.logics import (
    LOGIC_SCHEMA,
    find_components,
    list_final_logics,
    place_logics,
)
from tests.core.mechanism.test_traces import IDENTITY
from tests.support.round_records import round_record


def final(texts, **changes):
    identity = IDENTITY.__class__(
        **{name: getattr(IDENTITY, name) for name in IDENTITY.__slots__} | changes
    )
    return list_final_logics([round_record(0, agents=len(texts), logics=texts)], identity)


def test_topics_are_those_of_the_grammar_in_every_sentence_it_can_write():
    verbs, topics, regions, times, signs = build_slots(["NSW1", "VIC1"])
    for number, topic in enumerate(topics):
        parts = (verbs, (topic,), regions, times, signs)
        sentence = "".join(slot[number % len(slot)] for slot in parts).strip()
        assert " and ".join(find_topics(sentence)) == topic.strip()
    assert find_topics(SLOT_SEED_LOGICS[2]) == ("public holidays",)
    for free in ("", "Track public holidays.", "Read news about storms in any region."):
        assert find_topics(free) == ()


def test_a_row_holds_the_last_logic_and_how_the_reward_moved():
    rewards = np.linspace(-1, 0, 40) ** 3
    records = [
        round_record(number, agents=1, logics=[f"logic {number}"], rewards=[reward])
        for number, reward in enumerate(rewards)
    ]
    (row,) = list_final_logics(records, IDENTITY).to_dicts()
    expected = measure_plateau(rewards, IDENTITY.seed)
    assert row["logic"] == "logic 39" and list(row) == list(LOGIC_SCHEMA)
    for name, value in (
        ("reward_change", expected.change),
        ("reward_slope", expected.slope),
        ("slope_low", expected.low),
        ("slope_high", expected.high),
    ):
        assert row[name] == pytest.approx(value, rel=1e-5)
    # A run that is too short for the test has none.
    assert final(["a", "b"])["reward_slope"].to_list() == [None, None]


def test_components_are_the_directions_of_most_variance_with_a_fixed_sign():
    # By hand: along the first axis, then the third; the second is constant.
    vectors = np.array([[3.0, 1, 0], [-3, 1, 0], [0, 1, 1], [0, 1, -1]])
    place, shown = find_components(vectors)
    assert np.allclose(place, [[3, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]])
    assert shown == pytest.approx(1.0)
    # Another order of the texts turns no axis over.
    turned, _ = find_components(vectors[::-1])
    assert np.allclose(turned[::-1], place)


def test_the_share_of_the_variance_counts_what_three_axes_leave_out():
    _, shown = find_components(np.eye(5))
    assert shown == pytest.approx(3 / 4)
    alike, shown = find_components(np.ones((3, 5)))
    assert not alike.any() and shown == 1.0
    alone, _ = find_components(np.ones((1, 5)))
    assert alone.shape == (1, 3)


def test_distances_are_to_the_other_agents_of_the_same_run_alone():
    rows = pl.concat(
        [
            final(["watch storms", "watch storms", "read policy"]),
            final(["watch storms"], method="sa"),
        ]
    )
    placed = place_logics(rows, HashingEncoder())
    # Texts without a word in common have the distance 1.
    assert placed["distance_to_others"].to_list() == [0.5, 0.5, 1.0, None]
    assert placed["encoder"].to_list() == ["hashing"] * 4
    assert placed["x"].n_unique() == 2 and placed["shown_variance"].to_list() == [1.0] * 4
