"""Logics with slots: the one kind of sentence that a small backbone may write (decision 39).

What belongs here: the texts of the slots, the regions of a data set, seed logics in this form. What
does not: tokens and probabilities of a grammar (``lm.grammar``), logics in free text
(``agents.logic_text``).

Every sentence names who should look for what, where and when, and what it would mean:

    Prioritize news about extreme weather and power outages in Victoria, above all in the
    afternoon, as a sign of higher values.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from compevo_core.agents.prompts import SEED_LOGICS

_VERBS = ("Prioritize", "Follow", "Watch", "Track", "Look for")

#: One topic for each seed logic in free text, in their order, so that both forms start alike.
TOPICS = (
    "extreme weather",
    "government policy",
    "public holidays",
    "power outages",
    "industrial production",
    "fuel prices",
    "rooftop solar",
    "interest rates",
    "health measures",
    "international trade",
)

_ANY_REGION = "any region"
#: Region words by entity. Sensors and other entities without a place of their own have none.
_REGIONS = {
    "NSW1": ("New South Wales",),
    "QLD1": ("Queensland",),
    "SA1": ("South Australia",),
    "TAS1": ("Tasmania",),
    "VIC1": ("Victoria",),
    "AUD": ("Australia", "China", "the United States"),
    "BTC": ("China", "Europe", "the United States"),
}

_TIMES = (
    "at any time of day",
    "above all in the morning",
    "above all in the afternoon",
    "above all in the evening",
    "above all at night",
)
_SIGNS = ("higher values", "lower values", "sudden changes")

_SEED_VERBS = (0, 1, 3, 4, 1, 2, 3, 1, 3, 4)  # of each seed logic
_SEED_SIGNS = (0, 2, 1, 2, 0, 2, 1, 2, 1, 2)


def build_slots(entities: Sequence[str]) -> list[list[str]]:
    """Return the texts of each slot; a logic is one text of every slot, one behind the other.

    Args:
        entities: those of the data set, whose regions a logic may name.
    """
    regions = sorted({name for entity in entities for name in _REGIONS.get(entity, ())})
    topics = [*TOPICS, *_list_topic_pairs()]
    return [
        [f" {verb} news about" for verb in _VERBS],
        [f" {topic}" for topic in topics],
        [f" in {region}," for region in (_ANY_REGION, *regions)],
        [f" {time}," for time in _TIMES],
        [f" as a sign of {sign}." for sign in _SIGNS],
    ]


def list_seed_logics(form: str) -> tuple[str, ...]:
    """Return where agents start: one logic each, in the form ``evolution.form`` names."""
    return SEED_LOGICS if form == "free" else SLOT_SEED_LOGICS


class SlotLogic(NamedTuple):
    """What the slots of a logic hold.

    Attributes:
        verb: how the news are to be followed.
        topics: one or two of :data:`TOPICS`.
        region: where they are looked for.
        time: of which part of the day.
        sign: what they would mean.
    """

    verb: str
    topics: tuple[str, ...]
    region: str
    time: str
    sign: str


# No text of a slot holds the words that stand between it and the next one.
_SLOTS = re.compile(r"(.+?) news about (.+?) in (.+?), (.+?), as a sign of (.+)\.")


def read_slots(logic: str) -> SlotLogic | None:
    """Return the slots of a logic; None for a text that is not one of this form."""
    match = _SLOTS.fullmatch(logic.strip())
    if match is None:
        return None
    verb, topics, region, time, sign = match.groups()
    return SlotLogic(verb, tuple(topics.split(" and ")), region, time, sign)


def find_topics(logic: str) -> tuple[str, ...]:
    """Return the topics that a logic with slots names, in its order; none of one in free text."""
    slots = read_slots(logic)
    if slots is None or not set(slots.topics) <= set(TOPICS):
        return ()
    return slots.topics


def _list_topic_pairs() -> list[str]:
    """Return two different topics joined, each pair once."""
    return [
        f"{first} and {second}"
        for number, first in enumerate(TOPICS)
        for second in TOPICS[number + 1 :]
    ]


def _build_seed(number: int) -> str:
    return (
        f"{_VERBS[_SEED_VERBS[number]]} news about {TOPICS[number]} in {_ANY_REGION}, "
        f"{_TIMES[0]}, as a sign of {_SIGNS[_SEED_SIGNS[number]]}."
    )


SLOT_SEED_LOGICS = tuple(map(_build_seed, range(len(TOPICS))))
"""Seed logics with slots; no region of their own, so that they fit every data set."""
