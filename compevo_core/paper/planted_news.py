"""Worlds in which news is known to matter: effects planted on real windows (a positive control).

What belongs here: which topics move the target and by how much, windows and articles of such a
world, the columns of its result rows. What does not: the words of its headlines
(``planted_news.toml``), training in it and evaluating the forecasts (``paper.control``).

The targets of a window are shifted for the whole day by the topics that act on it; the inputs stay
as they were. So only its articles reveal the effect, and nothing else that a model sees does.

Shapes: N windows, H horizon.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from compevo_core.agents.logics import TOPICS, list_regions
from compevo_core.baselines import fit_baseline
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news import derive_article_id
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.data.window import WindowSet
from compevo_core.lm.encoder import Encoder
from compevo_core.paper.declared import read_columns, read_declared
from compevo_core.paper.news_changes import NONE, SWAPPED

_TEXTS = read_declared("planted_news")
HEADLINES: Mapping[str, Sequence[str]] = _TEXTS["headlines"]
"""Headlines by topic, in the words of a newspaper; the article about a place names it."""

DISTRACTORS: Sequence[str] = _TEXTS["distractors"]  # headlines of no topic that a logic can name

MORE_TOPICS: tuple[str, ...] = tuple(_TEXTS["more_topics"])
"""Topics that a logic can name in a world of a hundred; their news mentions nothing else."""

EVOLVED = "evolved"
BEST_AGENT = "best-agent"
PRIOR = "prior"
SUM, MEAN = "all-articles", "all-articles-mean"
"""Arms that read all articles without choice: their sum by a single generalist, or their mean."""

EFFECTS = (0.0, 0.5, 1.0, 2.0, 4.0)
"""Effects of one acting topic, in standard deviations of a calendar ridge's errors."""

AFTER_TRAINING = {"no-news": NONE, "swapped-news": SWAPPED}
"""What the evolved population is given in place of its own news, by the name of the arm."""

CONTROL_SCHEMA = read_columns("control")

# Of the whole population; an arm may have fewer agents, or one more.
SPECIALISTS_SCHEMA = {"agents": pl.Int64(), **CONTROL_SCHEMA}

ROUNDS_SCHEMA = read_columns("control_rounds")


SIGNS, EVENTS, NICHES = (_TEXTS["signs"][kind] for kind in ("two", "events", "niches"))
"""Topics that act, and the direction in which they do."""

HOMES: Mapping[str, str] = dict(zip(NICHES, ("NSW1", "QLD1", "SA1", "TAS1", "VIC1"), strict=False))
"""The first five of them, each with the only series that it moves if every region has its own."""

_FORTY = (*TOPICS, *MORE_TOPICS[:30])

WORLDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "regional": {"is_regional": True},
    "many-topics": {
        "topics": (*TOPICS, *MORE_TOPICS),
        "signs": {**SIGNS, "ferry timetables": 1},
        "share": 0.3,
    },
    "events": {
        "topics": (*EVENTS, *(topic for topic in TOPICS[1:] if topic not in EVENTS)),
        "signs": EVENTS,
        "share": 0.25,
        "lengths": ("short", "medium", "long"),
    },
    "niches": {"topics": _FORTY, "signs": NICHES, "share": 0.12},
    "niches-wide": {"topics": (*TOPICS, *MORE_TOPICS), "signs": NICHES, "share": 0.3},
    "niches-regional": {
        "topics": _FORTY,
        "signs": {topic: NICHES[topic] for topic in HOMES},
        "homes": HOMES,
        "share": 0.3,
    },
}
"""Worlds by name: what sets each apart from :class:`PlantedNews` as it is."""

_LEAD = timedelta(hours=6)
"""Time between an article's availability and the origin of the windows that may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedNews:
    """What is planted."""

    # Shift of the target by one acting topic, in standard deviations of a calendar ridge's errors
    # on train; 0 plants news that means nothing
    effect: float
    # The topics that act, and whether they raise (1) or lower (-1) the target
    signs: Mapping[str, int] = field(default_factory=lambda: SIGNS)
    # Topics that act on only one series, and which; the others act on all
    homes: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[str, ...] = TOPICS  # the topics that are in the news
    share: float = 0.5  # share of the days of a region on which each topic is in the news
    distractors: int = 4  # articles of no topic for each window
    # Whether a window's candidates are the articles of all regions, although only those that name
    # its own region act (otherwise: the articles of its own region)
    is_regional: bool = False
    # Lengths of articles, equally likely: only a title; with what it is about; or also between two
    # titles of no topic
    lengths: Sequence[str] = ("short",)
    seed: int = 0  # seed of all draws

    def count_signs(self, topics: Sequence[str], entity: str) -> int:
        """Return the sum of the signs of the topics that act on a series."""
        return sum(
            self.signs.get(topic, 0) for topic in topics if self.homes.get(topic, entity) == entity
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedWorld:
    """Windows with planted effects, the articles that reveal them, and the effects by window id."""

    windows: WindowSet
    news: NewsPool
    topics: tuple[str, ...]  # that act
    effects: Mapping[str, float]  # in the series' unit
    sizes: Mapping[str, float]  # units of the effects, by series

    def split(self, name: str) -> WindowSet:
        """Return the windows of a split."""
        return self.windows.split(name)

    def effects_of(self, windows: WindowSet) -> FloatArray:
        """Return the planted effect of each window (N,), in the series' unit."""
        return np.array([self.effects[view.window_id] for view in windows.views()])

    def surprises_of(self, windows: WindowSet) -> FloatArray:
        """Return each window's effect (N,) less its mean on the series' train windows.

        A prior fitted on train has learnt the mean.
        """
        train = self.split("train")
        entities = np.array([view.entity for view in train.views()])
        effect_N = self.effects_of(train)
        mean_of = {name: effect_N[entities == name].mean() for name in train.entities}
        mean_N = np.array([mean_of[view.entity] for view in windows.views()])
        surprise_N: FloatArray = self.effects_of(windows) - mean_N
        return surprise_N


def plant_news(windows: WindowSet, planted: PlantedNews, encoder: Encoder) -> PlantedWorld:
    """Replace the articles of windows by made-up ones, and shift the targets that they move."""
    rng, length_rng = (np.random.default_rng([planted.seed, stream]) for stream in (6, 7))
    size_of = measure_residuals(windows.split("train"))
    regions = {entity: list_regions([entity])[0] for entity in windows.entities}

    origins = sorted({view.origin_utc for view in windows.views()})
    topics_of: dict[tuple[datetime, str], list[str]] = {}
    ids_of: dict[tuple[datetime, str], list[str]] = {}
    rows: list[tuple[str, str, str, datetime]] = []
    for origin in origins:
        for entity, region in regions.items():
            topics = [topic for topic in planted.topics if rng.random() < planted.share]
            templates = [list_headlines(topic)[int(rng.integers(4))] for topic in topics]
            templates = [
                _lengthen(title, topic, str(length_rng.choice(planted.lengths)), length_rng)
                for title, topic in zip(templates, topics, strict=True)
            ]
            chosen = rng.choice(len(DISTRACTORS), planted.distractors, replace=False)
            templates += [DISTRACTORS[i] for i in chosen]

            titles = [templates[i].format(place=region) for i in rng.permutation(len(templates))]
            addresses = [
                f"https://planted.example/{origin:%Y%m%d%H%M}/{entity}/{i}"
                for i in range(len(titles))
            ]
            ids = [derive_article_id(address) for address in addresses]
            rows += [(*row, origin - _LEAD) for row in zip(ids, addresses, titles, strict=True)]
            topics_of[origin, entity], ids_of[origin, entity] = topics, ids

    changed, effects = [], {}
    for window in windows:
        view = window.view
        signs = planted.count_signs(topics_of[view.origin_utc, view.entity], view.entity)
        effect = planted.effect * size_of[view.entity] * signs
        sources = windows.entities if planted.is_regional else (view.entity,)
        ids = [name for entity in sources for name in ids_of[view.origin_utc, entity]]
        changed.append(replace(window.change_view(candidate_ids=tuple(ids)), y=window.y + effect))
        effects[view.window_id] = float(effect)

    return PlantedWorld(
        windows=windows.with_windows(changed),
        news=make_pool(rows, encoder),
        topics=tuple(t for t in planted.signs if planted.homes.get(t) in (None, *windows.entities)),
        effects=effects,
        sizes=size_of,
    )


def list_headlines(topic: str) -> Sequence[str]:
    """Return the four headlines of a topic, each with a gap for the place."""
    if known := HEADLINES.get(topic) or _TEXTS["event_headlines"].get(topic):
        return list(known)
    named = topic.capitalize()
    return [
        text.replace("{topic}", named if text.startswith("{topic}") else topic)
        for text in _TEXTS["more_headlines"]
    ]


def _lengthen(title: str, topic: str, length: str, rng: np.random.Generator) -> str:
    """Return the text of a short, medium or long article about a topic, with gaps for the place."""
    if length == "short":
        return title
    text = f"{title}. {_TEXTS['event_details'].get(topic, _TEXTS['more_to_say'])}"
    if length == "medium":
        return text
    before, after = rng.choice(DISTRACTORS, 2, replace=False)
    return f"{before}. {text} {after}."


def measure_residuals(train: WindowSet) -> dict[str, float]:
    """Return the standard deviation of a calendar ridge's errors on train, by entity."""
    missed_NH = train.truth() - fit_baseline("calendar-ridge", train).predict(train.views())
    entities = np.array([view.entity for view in train.views()])
    return {name: float(np.nanstd(missed_NH[entities == name])) for name in train.entities}


def make_pool(
    rows: Sequence[tuple[str, str, str, datetime]], encoder: Encoder, source: str = "planted"
) -> NewsPool:
    """Return the pool of articles given by id, address, title and time."""
    ids, addresses, titles, times = zip(*rows, strict=True)
    count = len(rows)
    frame = pl.DataFrame(
        {
            "article_id": ids,
            "url": addresses,
            "title": titles,
            "body": [""] * count,
            "domain": [f"{source}.example"] * count,
            "language": ["English"] * count,
            "country": ["AU"] * count,
            "published_at": times,
            "seen_at": times,
            "available_at": times,
            "fetched_at": times,
            "source": [source] * count,
        },
        schema=ARTICLE_SCHEMA,
    )

    # Titles repeat: each is embedded once.
    unique = sorted(set(titles))
    row_of = {title: row for row, title in enumerate(unique)}
    embeddings = encoder.encode(unique)[[row_of[title] for title in titles]]
    return NewsPool(frame, embeddings, encoder.name)
