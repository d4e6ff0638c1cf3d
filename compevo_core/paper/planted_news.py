"""News that is known to matter: effects planted on real windows, and real text of the target day.

What belongs here: which topics move the target and by how much, windows and articles of such a
world; turning files of an archive into windows and their articles; the columns of the result rows.
What does not: the words of planted headlines (``planted_news.toml``), training and scoring
(``paper.control``).

The targets of a planted window are shifted for the whole day by the topics that act on it; the
inputs stay as they were. So only its articles reveal the effect, and nothing else that a model sees
does (a positive control).

Of the real text, ``weather`` is PERFECT FORESIGHT: its captions were made from the very day that is
forecast. They are stamped an hour before the origin, so that a window may read them, and every row
says so. It shows whether words are read, never what a forecaster would have known. The worded
forecasts of ``demand`` were public: they are the newest that were collected before the origin.
``ireland`` has words of the day's news titles, for which a gain was published. ``ireland-earlier``
has the words of 35 days earlier as a control: a gain that they give, too, is not due to news.
``toy`` is a made-up sine whose changes of period are announced in words.

Shapes: N windows, H horizon.
"""

import csv
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
import polars as pl

from compevo_core.agents.logics import TOPICS, list_regions
from compevo_core.baselines import fit_baseline
from compevo_core.data.arrays import FloatArray
from compevo_core.data.build import build_windows
from compevo_core.data.calendar import Place
from compevo_core.data.datasets import DatasetSpec, Span
from compevo_core.data.news import derive_article_id
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.schemas import ARTICLE_SCHEMA, SERIES_SCHEMA
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, SourceAbsent
from compevo_core.lm.encoder import Encoder
from compevo_core.paper.changes import NONE, SWAPPED
from compevo_core.paper.declared import read_columns, read_declared

_TEXTS = read_declared("planted_news")
# Headlines by topic, in the words of a newspaper; the article about a place names it.
HEADLINES: Mapping[str, Sequence[str]] = _TEXTS["headlines"]
DISTRACTORS: Sequence[str] = _TEXTS["distractors"]  # headlines of no topic that a logic can name
# Topics that a logic can name in a world of a hundred; their news mentions nothing else.
MORE_TOPICS: tuple[str, ...] = tuple(_TEXTS["more_topics"])
EVOLVED = "evolved"
BEST_AGENT = "best-agent"
PRIOR = "prior"
# Arms that read all articles without choice: their sum by a single generalist, or their mean.
SUM, MEAN = "all-articles", "all-articles-mean"
# Effects of one acting topic, in standard deviations of a calendar ridge's errors.
EFFECTS = (0.0, 0.5, 1.0, 2.0, 4.0)
# What the evolved population is given in place of its own news, by the name of the arm.
AFTER_TRAINING = {"no-news": NONE, "swapped-news": SWAPPED}
CONTROL_SCHEMA = read_columns("control")
# Of the whole population; an arm may have fewer agents, or one more.
SPECIALISTS_SCHEMA = {"agents": pl.Int64(), **CONTROL_SCHEMA}
ROUNDS_SCHEMA = read_columns("control_rounds")

# Topics that act, and the direction in which they do.
SIGNS, EVENTS, NICHES = (_TEXTS["signs"][kind] for kind in ("two", "events", "niches"))
# The first five of them, each with the only series that it moves if every region has its own.
HOMES: Mapping[str, str] = dict(zip(NICHES, ("NSW1", "QLD1", "SA1", "TAS1", "VIC1"), strict=False))
_FORTY = (*TOPICS, *MORE_TOPICS[:30])

# Worlds by name: what sets each apart from :class:`PlantedNews` as it is.
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

# Time between an article's availability and the origin of the windows that may read it.
_LEAD = timedelta(hours=6)


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
        """Return each window's effect (N,) less the mean on train, which a prior has learnt."""
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
    topics_of: dict[tuple[str, datetime], list[str]] = {}
    titles: dict[tuple[str, datetime], list[tuple[str, datetime]]] = {}
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

            topics_of[entity, origin] = topics
            titles[entity, origin] = [
                (templates[i].format(place=region), origin - _LEAD)
                for i in rng.permutation(len(templates))
            ]

    news, ids_of = _publish(titles, encoder, "planted", "%Y%m%d%H%M")
    changed, effects = [], {}
    for window in windows:
        view = window.view
        signs = planted.count_signs(topics_of[view.entity, view.origin_utc], view.entity)
        effect = planted.effect * size_of[view.entity] * signs
        sources = windows.entities if planted.is_regional else (view.entity,)
        ids = [name for entity in sources for name in ids_of[entity, view.origin_utc]]
        changed.append(replace(window.change_view(candidate_ids=tuple(ids)), y=window.y + effect))
        effects[view.window_id] = float(effect)

    return PlantedWorld(
        windows=windows.with_windows(changed),
        news=news,
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
    given = {name: ARTICLE_SCHEMA[name] for name in ("article_id", "url", "title", "available_at")}
    times = ("published_at", "seen_at", "fetched_at")
    frame = pl.DataFrame(rows, schema=given, orient="row").with_columns(
        *(pl.col("available_at").alias(name) for name in times),
        body=pl.lit(""),
        domain=pl.lit(f"{source}.example"),
        language=pl.lit("English"),
        country=pl.lit("AU"),
        source=pl.lit(source),
    )
    frame = frame.select(list(ARTICLE_SCHEMA))

    # Titles repeat: each is embedded once.
    titles = frame["title"].to_list()
    unique = sorted(set(titles))
    row_of = {title: row for row, title in enumerate(unique)}
    embeddings = encoder.encode(unique)[[row_of[title] for title in titles]]
    return NewsPool(frame, embeddings, encoder.name)


WEATHER, DEMAND = "weather", "demand"
IRELAND, IRELAND_EARLIER = "ireland", "ireland-earlier"
TOY = "toy"
_DECLARED = read_declared("worded_data")
# Worded data by name, and the built data set whose windows they are given; "" for none.
TEXTS = {name: declared.get("dataset", "") for name, declared in _DECLARED.items()}
TEXT_SCHEMA = read_columns("text")


def cut_windows(name: str) -> DatasetSpec:
    """Return how windows are cut from the files of some worded data themselves."""
    declared = dict(_DECLARED[name]["windows"])
    series, step = tuple(declared.pop("series")), timedelta(minutes=declared.pop("step_minutes"))
    spans = tuple(
        Span(split=split, series_pattern=series[0], first_day=first, last_day=last)
        for split, (first, last) in declared.pop("days").items()
    )
    place = Place(**declared.pop("place"))
    return DatasetSpec(step=step, series=(series,), default_place=place, spans=spans, **declared)


_HOUR, _MINUTE = timedelta(hours=1), timedelta(minutes=1)
_WEATHER, _IRELAND, _TOY = map(cut_windows, (WEATHER, IRELAND, TOY))
_PARTS = {0: "At night", 6: "In the morning", 12: "In the afternoon", 18: "In the evening"}
_OPENING = re.compile(r"It's .*\bday\b")  # "It's the morning of a day in January."
_SENTENCE_END = re.compile(r"(?<=\.)\s+")
_WORDS_OF_DAY = 40  # most frequent first; a title of 150 words would be cut by the encoder
_EARLIER = timedelta(days=35)  # as published: weekdays agree, and it is no longer news
_STEADY = "goes as a steady sine wave"  # what is written where nothing changes
_FIRST_DAYS = {"train": date.min, "val": date(2026, 1, 25), "test": date(2026, 2, 19)}
_MARKET_OFFSET = timedelta(hours=10)
# Titles by entity and origin, each with when it was known.
Titles = Mapping[tuple[str, datetime], Sequence[tuple[str, datetime]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordedData:
    """Windows, what they may read, and how it is to be read."""

    windows: WindowSet  # with their articles as candidates
    news: NewsPool  # the articles
    foresight: bool  # whether the articles were made from the target days
    # Logics that a person would write, by name
    logics: Mapping[str, str] = field(default_factory=dict)
    # Settings of a training that belong to these data
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Splits that are scored, in the order of time; the last is test
    scored: Sequence[str] = ("test",)
    # Days of a split after which everything is fitted again on all that has ended; 0 fits once, on
    # train
    refit_days: int = 0
    trains: bool = True  # whether there are enough windows to train a population


def read_worded_data(
    name: str, archive: Path, encoder: Encoder, windows: WindowSet | None = None
) -> WordedData:
    """Read worded data; ``windows`` come from the built data set that they need, if any.

    ConfigError for an unknown name or missing windows; SourceAbsent if the archive lacks files.
    """
    if name not in TEXTS or (TEXTS[name] and windows is None):
        raise ConfigError(f"no worded data {name!r}; known: {', '.join(TEXTS)}, with their windows")
    declared = _DECLARED[name]
    folder = archive / declared["folder"]
    if not folder.is_dir():
        raise SourceAbsent(f"{archive} has no folder {folder.name}: name an archive that holds it")

    source = name
    options: dict[str, Any] = {"foresight": False, "trains": False}
    if TEXTS[name] and windows is not None:
        windows = _strip_weather(windows)
        titles, source = _read_forecasts(folder), "worded-forecasts"
        options |= {"scored": ("val", "test"), "refit_days": 7}
    elif name == TOY:
        values, titles = _read_sine(folder)
        windows = build_windows(_TOY, _make_series(_TOY, "1", values))
    elif name == WEATHER:
        windows = build_windows(_WEATHER, _read_temperatures(folder))
        titles, source = _read_captions(folder), "captions"
        options = {"foresight": True, **{key: declared[key] for key in ("logics", "settings")}}
    else:
        windows = build_windows(replace(_IRELAND, name=name), _read_load(folder))
        titles = _read_news_words(folder, _EARLIER if name == IRELAND_EARLIER else timedelta(0))
        # With one article per day a logic has nothing to choose, so nothing is trained.
        options |= {"scored": ("val", "test"), "refit_days": 28}

    news, ids_of = _publish(dict(sorted(titles.items())), encoder, source, "%Y%m%d")
    given = windows.with_windows(
        window.change_view(candidate_ids=tuple(ids_of[window.view.entity, window.view.origin_utc]))
        for window in windows
    )
    return WordedData(windows=given, news=news, **options)


def _read_temperatures(folder: Path) -> pl.DataFrame:
    """Return half-hours; a stamp of xx:20 or xx:50 counts for the half-hour around it."""
    values: dict[datetime, float] = {}
    first, *_, last = _WEATHER.spans
    for year in range(first.first_day.year, last.last_day.year + 1):
        for row in csv.DictReader(_open(folder / f"hourly_weather_raw_{year}.csv.gz")):
            if degrees := re.fullmatch(r"(-?\d+)°C", row["temp"]):
                start = _parse_stamp(row["time"])
                half_hour = start.replace(minute=start.minute // 30 * 30)
                values.setdefault(half_hour, float(degrees[1]))
    return _make_series(_WEATHER, "°C", values)


def _read_load(folder: Path) -> pl.DataFrame:
    """Return half-hours; when clocks go back a stamp occurs twice, and the first one counts."""
    values: dict[datetime, float] = {}
    for row in csv.DictReader(_open(folder / "NIEload.csv.gz")):
        if row["Load"]:
            start = datetime.fromisoformat(row["Date"]).replace(tzinfo=UTC)
            values.setdefault(start, float(row["Load"]))
    return _make_series(_IRELAND, "MW", values)


def _read_sine(folder: Path) -> tuple[dict[datetime, float], Titles]:
    """Return the days, and for the day after each the announced change of the period."""
    values: dict[datetime, float] = {}
    titles: dict[tuple[str, datetime], list[tuple[str, datetime]]] = {}
    for row in csv.DictReader(_open(folder / "toydata_with_text.csv.gz"), delimiter="|"):
        start = datetime.fromisoformat(row["date"]).replace(tzinfo=UTC)
        values[start] = float(row["Channel 1"])
        if _STEADY not in row["text"]:
            end = start + timedelta(days=1)
            titles["the sine", end] = [(row["text"], end - _MINUTE)]
    return values, titles


def _make_series(spec: DatasetSpec, unit: str, values: Mapping[datetime, float]) -> pl.DataFrame:
    shared = {
        "series_id": spec.series[0][0],
        "variable": spec.variable,
        "unit": unit,
        "flag": "observed",
        "source": f"archive:{spec.name}",
    }

    rows = [
        shared | {"start_utc": start, "value": value, "fetched_at": start + _HOUR}
        for start, value in sorted(values.items())
    ]
    return pl.DataFrame(rows, schema=SERIES_SCHEMA)


def _read_news_words(folder: Path, age: timedelta) -> Titles:
    """Return stems of the most frequent words in a day's titles, for the day after or later."""
    titles: dict[tuple[str, datetime], list[tuple[str, datetime]]] = {}
    for row in csv.DictReader(_open(folder / "WordFreqDf_titles.csv.gz")):
        day = datetime.strptime(row.pop("Date"), "%Y/%m/%d").replace(tzinfo=UTC)
        counts = {word: int(count) for word, count in row.items() if word.isalpha()}
        named = [word for word, count in counts.items() if count]
        words = sorted(named, key=lambda word: (-counts[word], word))[:_WORDS_OF_DAY]

        # All titles of a day were out when it ended.
        end = day + timedelta(days=1)
        titles["Northern Ireland", end + age] = [(" ".join(words), end - _MINUTE)]
    return titles


def _read_captions(folder: Path) -> Titles:
    """Return the sentences of each day, each with its part of the day.

    The first sentence of a part only names it, and is left out; of 51,000 sentences 8 have a hash
    that the table lacks.
    """
    sentence_of = {
        name: text.strip() for text, name in json.load(_open(folder / "hashtable.json.gz")).items()
    }
    titles: defaultdict[tuple[str, datetime], list[tuple[str, datetime]]] = defaultdict(list)
    for stamp, names in json.load(_open(folder / "wm_messages_v1.json.gz")).items():
        start = _parse_stamp(stamp)
        origin = start.replace(hour=0)
        sentences = [sentence_of[name] for name in names if name in sentence_of]
        titles["Jena", origin] += [
            (f"{_PARTS[start.hour]}: {text}", origin - _HOUR)
            for text in sentences
            if not _OPENING.match(text)
        ]
    return titles


def _read_forecasts(folder: Path) -> Titles:
    """Return the newest forecast of each region and day as sentences, its numbers first."""
    newest: dict[tuple[str, datetime], tuple[datetime, Mapping[str, str]]] = {}
    for row in csv.DictReader(_open(folder / "worded_forecasts.csv.gz")):
        origin = datetime.fromisoformat(row["day"]).replace(tzinfo=UTC) - _MARKET_OFFSET
        # Never by "one day ahead": under this key there can be a forecast of the day itself.
        known = datetime.fromisoformat(row["known_at"]).astimezone(UTC)
        key = row["region"], origin
        if row["temp_max_c"] and known < origin and (key not in newest or newest[key][0] < known):
            newest[key] = known, row

    titles: dict[tuple[str, datetime], list[tuple[str, datetime]]] = {}
    for key, (known, of_day) in newest.items():
        lowest = f"Minimum {of_day['temp_min_c']}, maximum" if of_day["temp_min_c"] else "Maximum"
        # One word next to each number: a ridge reads no more than 32 of them by region.
        numbers = f"{lowest} {of_day['temp_max_c']}, chance of rain {of_day['rain_chance']}."
        # The effect of a degree changes with the season, the effect of a warmer day less so.
        _, before = newest.get((key[0], key[1] - timedelta(days=1)), (known, {}))
        changes = [
            f"{word} {float(of_day[column]) - float(before[column]):g}"
            for word, column in (("lowest", "temp_min_c"), ("highest", "temp_max_c"))
            if before.get(column) and of_day[column]
        ]
        changed = [f"Change from the day before: {', '.join(changes)}."] if changes else []
        text = f"{of_day['precis']} {of_day['forecast']}".strip()
        sentences = [numbers, *changed, *(part for part in _SENTENCE_END.split(text) if part)]
        titles[key] = [(sentence, known) for sentence in sentences]
    return titles


def _strip_weather(windows: WindowSet) -> WindowSet:
    """Return windows that know the demand of the day before and no weather at all."""

    def choose_split(day: date) -> str:
        return [split for split, first in _FIRST_DAYS.items() if first <= day][-1]

    return windows.with_windows(
        window.change_view(
            split=choose_split(window.view.calendar.target_date),
            fold=-1,
            subsets=(),
            covariates={},
            step_covariates={},
            published=None,
        )
        for window in windows
        if not window.view.unknown_steps
    )


def _publish(
    titles: Titles, encoder: Encoder, source: str, stamp: str
) -> tuple[NewsPool, Mapping[tuple[str, datetime], Sequence[str]]]:
    """Return articles with these titles, whose addresses hold the origin, and their ids by key."""
    rows = []
    ids_of: defaultdict[tuple[str, datetime], list[str]] = defaultdict(list)
    for (entity, origin), of_window in titles.items():
        for number, (title, known) in enumerate(of_window):
            address = f"https://{source}.example/{origin:{stamp}}/{entity}/{number}"
            rows.append((derive_article_id(address), address, title, known))
            ids_of[entity, origin].append(rows[-1][0])
    return make_pool(rows, encoder, source), ids_of


def _parse_stamp(text: str) -> datetime:
    return datetime.strptime(text, "%Y%m%d%H%M").replace(tzinfo=UTC)


def _open(path: Path) -> TextIO:
    return cast(TextIO, gzip.open(path, "rt", encoding="utf-8"))
