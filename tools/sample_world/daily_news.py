"""News of the synthetic world: what happens tomorrow, among much that changes nothing.

What belongs here: which headlines appear on a day, about which region and when. What does not: the
words (``compevo_core.paper.planted_news``), a publisher's format (``news2forecast``, ``gdelt``).

An event of tomorrow is announced between 5 and 8 o'clock, before all other news. So the 64 newest
headlines, which a window can name, hold the whole day and announce nothing of the day before. A
reporter makes each headline one of its own: equal ones, and those that differ in a word, pass for
copies. A number would run with time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from compevo_core.agents.logics import list_regions
from compevo_core.paper.planted_news import DISTRACTORS, HEADLINES
from compevo_pipeline.sources.common.nem import REGIONS
from tools.sample_world.world import EVENT_EFFECTS, FIRST_DAY, SEED, SampleWorld

HEADLINES_PER_REGION = 8
_ANNOUNCED = (5 * 60, 8 * 60)  # minutes of the day, market time
_OTHERS = (8 * 60, 22 * 60)

# 23 and 29: a text shares no name with itself on the days around, and no pair comes back. Each name
# is one token to the encoder, which takes a quarter of the demo's time for these titles.
_FIRST_NAMES = """Ada Bruno Clara Felix Hugo Jonas Lars Olga Pavel Rosa Sven Vera Wanda Emma Paul
    Anna Maria Peter Laura Helen Karl Nora Greta"""
_LAST_NAMES = """Weber Fischer Silva Rossi Novak Ramos Torres Larsen Nielsen Keller Meyer Hansen
    Murphy Kelly Walsh Dixon Turner Baker Fraser Hughes Palmer Reid Tanaka Vargas Wolff Ortega Lopez
    Berg Costa"""
_WITHOUT_EFFECT = (
    *(text for topic, texts in HEADLINES.items() if topic not in EVENT_EFFECTS for text in texts),
    *DISTRACTORS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One headline; ``topic`` names the topic of the event it announces, empty without one."""

    title: str
    region: str
    topic: str
    minute: int  # of its day


def write_day(world: SampleWorld, day: date) -> Iterator[Headline]:
    """Yield the headlines of a day; equal on every call."""
    index = (day - FIRST_DAY).days
    generator = np.random.default_rng([SEED, index, 1])
    first_names, last_names = _FIRST_NAMES.split(), _LAST_NAMES.split()

    for region in REGIONS:
        place = list_regions([region])[0]
        topics = [e.topic for e in world.events(day + timedelta(days=1)) if e.region == region]
        n_others = HEADLINES_PER_REGION - len(topics)
        others = generator.choice(len(_WITHOUT_EFFECT), n_others, replace=False)

        texts = [HEADLINES[topic][generator.integers(4)] for topic in topics]
        texts += [_WITHOUT_EFFECT[other] for other in others]
        for text, topic in zip(texts, [*topics, *[""] * n_others], strict=True):
            # One text of a day has another reporter in each region.
            number = index + 7 * len(text) + 4 * REGIONS.index(region)
            reporter = f"{first_names[number % 23]} {last_names[number % 29]}"
            yield Headline(
                title=f"{text.format(place=place)} (synthetic, by {reporter})",
                region=region,
                topic=topic,
                minute=int(generator.integers(*(_ANNOUNCED if topic else _OTHERS))),
            )
