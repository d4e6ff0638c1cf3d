"""What a logic may be, and what an agent knows of those that it has tried (decision 05-logics).

What belongs here: which texts contain no logic, slots and their texts, sentences drawn by chance,
what a logic selects, records of gains. What does not: sampling (``agents.logic_writer``), tokens of
the grammar (``lm.grammar``), the selection itself (``agents.retrieval``).

A sentence with slots says what to look for, where and when, and what it would mean:

    Prioritize news about extreme weather and power outages in Victoria, above all in the
    afternoon, as a sign of higher values.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

from compevo_core.agents import prompts
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.steps import DAY
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError

if TYPE_CHECKING:
    import torch

GENERALIST_LOGIC = "Read all news."  # the logic of an agent that chooses nothing

_SHORTEST_LOGIC = 12  # characters; anything shorter is not a sentence
_SHORTEST_CLAUSE = 0.5  # share of a text that was cut off; a shorter clause misses its subject

#: How lines of the template begin, in lower case; small models continue with such lines.
_TEMPLATE_BEGINNINGS = (
    "[",  # its placeholder
    "your logic",
    "your new logic",
    "your refined logic",
    "new logic",
    "the new logic",
    "the refined logic",
    "new refined logic",
    "refined logic",
    "output format",
    "peer information",
    "task:",
    "agent id",
    "agent_",
    "agent's",
    "insert ",
    "write your",
)

_REPEATED_WORDS = 4  # in a row, to count as words of the instruction
_REPEATED_SHARE = 0.5  # of a text's runs of words, above which it repeats the instruction

_WORD = re.compile(r"[a-z0-9']+")
_SENTENCE_END = re.compile(r"(?<!\b[A-Z])[.!?](?=\s|$)")  # not that of "U.S."
_CLAUSE_END = re.compile(r"[,;:](?=\s)|\s[\u2013\u2014-](?=\s)")

REMEMBERED = 3  # best logics of an agent's record that are scored again with the new ones

_KEPT_WEIGHT = 0.7  # weight that earlier records keep at each rewriting
_LEAST_WINDOWS = 2.0  # a record of fewer windows has no spread, and its logic is forgotten


def clean_logic(text: str, fallback: str, *, was_cut: bool = False) -> tuple[str, bool]:
    """Return the logic in the first line of a text, or the fallback, and whether it is the latter.

    A text that was cut at the largest number of tokens ends at its last clause.
    """
    first_line = prompts.clean_text(text.strip().split("\n")[0], prompts.LOGIC_CHARACTERS)
    bare = first_line.removeprefix(prompts.LOGIC_CUE).strip("\"'* ").rstrip("]")

    runs = _list_runs(bare)
    repeated = len(runs & _INSTRUCTION_RUNS)
    begins_alike = bare.lower().startswith(_TEMPLATE_BEGINNINGS)
    if begins_alike or repeated > _REPEATED_SHARE * len(runs):
        return fallback, True

    logic = end_at_clause(bare) if was_cut else bare
    return (fallback, True) if len(logic) < _SHORTEST_LOGIC else (logic, False)


def end_at_clause(text: str) -> str:
    """Return a text that was cut off up to its last complete sentence or long enough clause.

    A text without either is unchanged, as its words still retrieve news.
    """
    sentences = [match.end() for match in _SENTENCE_END.finditer(text)]
    if sentences and sentences[-1] >= _SHORTEST_LOGIC:
        return text[: sentences[-1]]

    clauses = [match.start() for match in _CLAUSE_END.finditer(text)]
    if clauses and clauses[-1] >= max(_SHORTEST_CLAUSE * len(text), _SHORTEST_LOGIC):
        return text[: clauses[-1]] + "."
    return text


def _list_runs(text: str) -> set[tuple[str, ...]]:
    """Return every run of words of a text."""
    words = _WORD.findall(text.lower())
    return {
        tuple(words[start : start + _REPEATED_WORDS])
        for start in range(len(words) - _REPEATED_WORDS + 1)
    }


_INSTRUCTION_RUNS = set().union(*map(_list_runs, prompts.LOGIC_INSTRUCTIONS))


_VERBS = ("Prioritize", "Follow", "Watch", "Track", "Look for")

#: The topic of each seed logic in free text, so that both forms start alike.
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
_HOME_REGION = "the home region"  # the region of the series that is forecast
#: Region words by entity. Sensors and other entities without a place have none.
_REGIONS = {
    "NSW1": ("New South Wales",),
    "QLD1": ("Queensland",),
    "SA1": ("South Australia",),
    "TAS1": ("Tasmania",),
    "VIC1": ("Victoria",),
    "AUD": ("Australia", "China", "the United States"),
    "BTC": ("China", "Europe", "the United States"),
}

# The longest first: South Australia is not Australia.
_REGION_NAMES = sorted({name for names in _REGIONS.values() for name in names}, key=len)[::-1]

_TIMES = (
    "at any time of day",
    "above all in the morning",
    "above all in the afternoon",
    "above all in the evening",
    "above all at night",
)
_SIGNS = ("higher values", "lower values", "sudden changes")

#: What a logic may select in addition to topics and region, if ``news.selects`` is set.
_COUNTS = {"one article at a time": 1, "three articles at a time": 3, "eight articles at a time": 8}
_LOCAL = "from papers of its country"
_AGES = {"at most a day old": 1, "at most three days old": 3}

OWN_TOPICS = "*"  # replaced by words of the headlines
_TOPIC = re.compile(r"[^\W\d_]{4,}")  # shorter words are mostly articles and prepositions
_FEWEST_ORIGINS = 8  # train origins that must have a topic in their news
_MOST_TOPICS = 60

_SEED_VERBS = (0, 1, 3, 4, 1, 2, 3, 1, 3, 4)  # of each seed logic
_SEED_SIGNS = (0, 2, 1, 2, 0, 2, 1, 2, 1, 2)


def build_slots(
    entities: Sequence[str], topics: Sequence[str] = (), *, selects: bool = False, top_k: int = 1
) -> list[list[str]]:
    """Return the texts of each slot; a logic is one text of every slot, in order.

    Topics default to the ten of the seed logics. With ``selects`` there are slots for the other
    criteria of :class:`LogicQuery`; a logic may then select fewer than ``top_k`` articles.
    """
    names, regions = topics or TOPICS, list_regions(entities)
    counts = [text for text, count in _COUNTS.items() if count < top_k]
    # A series without a region has no home region.
    home, local = ([_HOME_REGION], [_LOCAL]) if selects and regions else ([], [])
    selectors = [counts, local, list(_AGES)] if selects else []
    return [
        [f" {verb} news about" for verb in _VERBS],
        [f" {topic}" for topic in [*names, *map(" and ".join, itertools.combinations(names, 2))]],
        [f" in {region}," for region in [_ANY_REGION, *home, *regions]],
        *(["", *(f" {text}," for text in texts)] for texts in selectors),
        [f" {time}," for time in _TIMES],
        [f" as a sign of {sign}." for sign in _SIGNS],
    ]


def list_regions(entities: Sequence[str]) -> list[str]:
    """Return the regions of a data set's entities that a logic may name, sorted."""
    return sorted({name for entity in entities for name in _REGIONS.get(entity, ())})


def list_seed_logics(form: str) -> tuple[str, ...]:
    """Return the logics that agents start with, in the form that ``evolution.form`` names."""
    return prompts.SEED_LOGICS if form == "free" else SLOT_SEED_LOGICS


def list_first_logics(config: RunConfig) -> list[str]:
    """Return the first logic of all agents: a seed logic for each that chooses its news."""
    evolution = config.evolution
    return list(evolution.start) or _assign_logics(config, list_seed_logics(evolution.form))


def _assign_logics(config: RunConfig, logics: Sequence[str]) -> list[str]:
    """Return one of the logics for each agent that chooses its news, in turn."""
    chosen, members = itertools.cycle(logics), config.population.list_members()
    return [GENERALIST_LOGIC if each.reads == "everything" else next(chosen) for each in members]


class SlotLogic(NamedTuple):
    """The texts in the slots of a logic."""

    verb: str
    topics: tuple[str, ...]
    region: str
    time: str
    sign: str
    selectors: tuple[str, ...] = ()


# No text of a slot contains the words between it and the next one.
_SLOTS = re.compile(r"(.+?) news about (.+?) in (.+?), (.+?), as a sign of (.+)\.")


def read_slots(logic: str) -> SlotLogic | None:
    """Return the slots of a logic; None for a text of another form."""
    match = _SLOTS.fullmatch(logic.strip())
    if match is None:
        return None
    verb, topics, region, rest, sign = match.groups()
    *selectors, time = rest.split(", ")
    return SlotLogic(verb, tuple(topics.split(" and ")), region, time, sign, tuple(selectors))


def find_topics(logic: str) -> tuple[str, ...]:
    """Return the topics that a logic with slots names, in its order; () for free text."""
    slots = read_slots(logic)
    return () if slots is None else slots.topics


def cross_logics(parents: Sequence[str], choose: Callable[[int], int]) -> str:
    """Return a sentence that crosses its parents; ``choose`` draws a number below its argument."""
    known = [slots for slots in map(read_slots, parents) if slots is not None]
    topics = sorted({topic for slots in known for topic in slots.topics})
    while len(topics) > 2 or (len(topics) == 2 and choose(2)):
        topics.pop(choose(len(topics)))

    verb, region, time, sign, selectors = (
        getattr(known[choose(len(known))], slot)
        for slot in ("verb", "region", "time", "sign", "selectors")
    )
    place = ", ".join([region, *selectors, time])
    return f"{verb} news about {' and '.join(topics)} in {place}, as a sign of {sign}."


class SlotDraws:
    """Draws sentences, every text of a slot as likely as any other."""

    def __init__(self, config: RunConfig, entities: Sequence[str]) -> None:
        """Take the settings, and the entities of the data set for the regions of the slots."""
        self._cross_share = config.evolution.cross_share
        self.slots = build_slots(
            entities, config.evolution.topics, selects=config.news.selects, top_k=config.news.top_k
        )

    def draw(
        self, count: int, logic: str, peers: Sequence[str], generator: "torch.Generator"
    ) -> list[str]:
        """Return new sentences for an agent, the first crossed with its logic and a peer's."""
        import torch  # a table of logics is read where none is installed

        def choose(below: int) -> int:
            return int(torch.randint(below, (1,), generator=generator, device=generator.device))

        sizes = torch.tensor([len(slot) for slot in self.slots], device=generator.device)
        group = []
        for _ in range(count):
            share_S = torch.rand(len(sizes), generator=generator, device=generator.device)
            texts = zip(self.slots, (share_S * sizes).long().tolist(), strict=True)
            group.append("".join(slot[i] for slot, i in texts).strip())
        for number in range(round(self._cross_share * count)):
            peer = [peers[choose(len(peers))]] if peers else []
            group[number] = cross_logics([logic, *peer, group[number]], choose)
        return group


class LogicQuery(NamedTuple):
    """What a logic selects: the articles that pass, and what they are ranked by.

    Its part of the day and its sign select nothing: a reader learns how the articles of a logic
    change which steps.
    """

    topics: tuple[str, ...]  # articles are ranked by their similarity to the nearest one
    region: str = ""  # that an article has to name; "" is any
    is_home: bool = False  # whether it has to name the region of the series
    is_local: bool = False  # whether it has to come from the country of the series
    most: int | None = None  # articles to read; None is as many as an agent reads
    days: int | None = None  # largest age


def read_query(logic: str) -> LogicQuery:
    """Return what a logic selects; free text is one topic, and selects by the words in it."""
    slots = read_slots(logic)
    mentioned = logic.lower()
    topics = (logic,) if slots is None else slots.topics
    region = next((name for name in _REGION_NAMES if name.lower() in mentioned), "")
    return LogicQuery(
        topics=topics,
        region=region,
        is_home=_HOME_REGION in mentioned,
        is_local=_LOCAL in mentioned,
        most=next((count for text, count in _COUNTS.items() if text in mentioned), None),
        days=next((days for text, days in _AGES.items() if text in mentioned), None),
    )


def _write_seed_logics(topics: Sequence[str]) -> tuple[str, ...]:
    """Return a logic about each topic, in any region, so that it fits every data set."""
    slots = zip(topics, itertools.cycle(_SEED_VERBS), itertools.cycle(_SEED_SIGNS), strict=False)
    return tuple(
        f"{_VERBS[verb]} news about {topic} in {_ANY_REGION}, {_TIMES[0]}, as a sign of "
        f"{_SIGNS[sign]}."
        for topic, verb, sign in slots
    )


SLOT_SEED_LOGICS = _write_seed_logics(TOPICS)


def name_own_topics(config: RunConfig, train: WindowSet, news: NewsPool | None) -> RunConfig:
    """Return settings with words of the headlines of train in place of the topic ``*``.

    These are the words that were in the news of the last day before most origins, but of at most
    half of them: a word of every day distinguishes no day. Agents start with the first ones.
    ConfigError if no word is in the news before a few origins.
    """
    if news is None or OWN_TOPICS not in config.evolution.topics:
        return config
    ids_of = {view.known_before: view.candidate_ids for view in train.views()}
    counts: Counter[str] = Counter()
    for known_before, ids in ids_of.items():
        fresh = [news.get_title(name) for name in ids if known_before - news.get_date(name) <= DAY]
        counts.update({word for title in fresh for word in _TOPIC.findall(title.lower())})
    most = len(ids_of) / 2
    # Equally frequent words by name, as the order of a set differs between processes.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    words = [word for word in ranked if _FEWEST_ORIGINS <= counts[word] <= most]
    if not words:
        raise ConfigError(
            f"no word is in the headlines of {_FEWEST_ORIGINS} train origins, so agents have no "
            "topics: give more news, or set evolution.topics"
        )
    start = _assign_logics(config, _write_seed_logics(words[: config.population.agents]))
    named = [topic for topic in config.evolution.topics if topic != OWN_TOPICS]
    topics = named + words[:_MOST_TOPICS]
    return config.with_overrides({"evolution.topics": topics, "evolution.start": start})


class LogicRecord(NamedTuple):
    """Gains of one logic over the windows that scored it, in units of the metric."""

    windows: float = 0.0  # how many, older ones counting less
    total: float = 0.0
    squares: float = 0.0

    @property
    def gain(self) -> float:
        """Mean gain of a window."""
        return self.total / self.windows

    @property
    def standard_error(self) -> float:
        """Standard error of :attr:`gain`, windows taken as independent."""
        variance = max(0.0, self.squares / self.windows - self.gain**2)
        return math.sqrt(variance / self.windows)

    @property
    def lower_bound(self) -> float:
        """Gain minus one standard error, by which a logic is chosen."""
        return self.gain - self.standard_error

    def add(self, gain_W: FloatArray) -> Self:
        """Return the record with the gains of more windows."""
        return type(self)(
            windows=self.windows + len(gain_W),
            total=self.total + float(gain_W.sum()),
            squares=self.squares + float((gain_W**2).sum()),
        )

    def age(self) -> Self:
        """Return the record with less weight."""
        return type(self)(*(value * _KEPT_WEIGHT for value in self))


class LogicRecords:
    """The records of all agents, each by the text of the logic.

    A logic is credited on a window with the agent's error without news minus its error with the
    news that the logic retrieves. All windows that have scored it count, the latest rewriting
    most: the reader learns, and the gain under an earlier reader matters less.
    """

    def __init__(self, by_agent: Mapping[int, dict[str, LogicRecord]] | None = None) -> None:
        self._by_agent = dict(by_agent or {})

    def list_best(self, agent: int, *, but: str) -> list[str]:
        """Return the best logics of an agent except its current one, at most three."""
        records = self._by_agent.get(agent, {})
        ranked = sorted(records, key=lambda logic: -records[logic].lower_bound)
        return [logic for logic in ranked if logic != but][:REMEMBERED]

    def add(self, agent: int, candidates: Sequence[str], gain_CW: FloatArray) -> str:
        """Add the gains of an agent's logics; return the one that it should play next.

        The played one comes first, and stays on ties. A logic that is given twice has the same
        gains, and counts once.
        """
        scored = dict(zip(candidates, gain_CW, strict=True))
        records = {k: record.age() for k, record in self._by_agent.get(agent, {}).items()}
        records |= {k: records.get(k, LogicRecord()).add(gain_W) for k, gain_W in scored.items()}

        by_rank = sorted(
            [*scored, *(logic for logic in records if logic not in scored)],
            key=lambda logic: -records[logic].lower_bound,
        )
        self._by_agent[agent] = {
            logic: records[logic] for logic in by_rank if records[logic].windows >= _LEAST_WINDOWS
        }
        return by_rank[0]

    def get(self, agent: int, logic: str) -> LogicRecord:
        """Return the record of an agent's logic."""
        return self._by_agent[agent][logic]

    def to_json(self) -> dict[str, dict[str, LogicRecord]]:
        """Return values that JSON can hold, for a checkpoint."""
        return {str(agent): records for agent, records in self._by_agent.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, Sequence[float]]]) -> Self:
        """Read what :meth:`to_json` gave."""
        return cls(
            {
                int(agent): {logic: LogicRecord(*numbers) for logic, numbers in records.items()}
                for agent, records in values.items()
            }
        )
