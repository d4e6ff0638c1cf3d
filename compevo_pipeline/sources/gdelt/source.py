"""GDELT news: which articles concern which data set, the files of each mode, and their parsers.

What belongs here: reading ``queries.toml`` (or a copy that a deployment names), the test of an
article; dispatch by file name, the archive's polls, the parsing of all files into one frame. What
does not: the formats (``gdelt.parse``), fetching (``gdelt.live``), which candidates a window may
have (``compevo_core.data.news``).
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field, ValidationError, field_validator, model_validator

from compevo_core.data import news
from compevo_core.errors import ConfigError, SchemaDrift, SourceAbsent
from compevo_core.runtime.files import read_toml
from compevo_pipeline.sources.common import base
from compevo_pipeline.sources.common.articles import LOSSES, EmptyNewsAnswer
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.common.decode import TomlSection, untar
from compevo_pipeline.sources.common.tables import Period, check_periods
from compevo_pipeline.sources.gdelt import parse

DOC_SOURCE = "gdelt_doc"
BULK_SOURCE = "gdelt_bulk"
DOC_FOLDER = "gdelt_doc_artlist"
BULK_FOLDER = "gdelt_bulk"

QUARTER_HOUR = timedelta(minutes=15)  # GDELT's grid
_SPAN = re.compile(r"^artlist_[0-9a-f]+_(\d{14})_(\d{14})\.json$")
_NEAR = timedelta(days=2)

PACKAGED = Path(__file__).with_name("queries.toml")

_WORD = re.compile(r"[\w'./ -]+")


class FetchLimits(TomlSection):
    """How much one refresh asks for."""

    days_back: int = Field(ge=1, le=90)
    most_requests: int = Field(ge=1)
    most_mb: int = Field(ge=1)
    gkg: Literal["none", "gaps", "all"]


class Topic(TomlSection):
    """News that concerns some data sets."""

    datasets: tuple[str, ...] = Field(min_length=1)
    words: tuple[str, ...] = Field(min_length=1)
    languages: tuple[str, ...] = ()
    country: str = ""
    domains: tuple[str, ...] = ()

    @field_validator("words")
    @classmethod
    def _check_words(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        # Words are matched whole and as they are: no quotes, brackets or other operators.
        wrong = [word for word in words if not _WORD.fullmatch(word) or len(word) < 3]
        if wrong:
            raise ValueError(
                f"{wrong[0]!r} is not a search word: letters, digits and spaces, from 3"
            )
        return words

    @model_validator(mode="after")
    def _check_country(self) -> "Topic":
        if self.country and self.country not in news.COUNTRIES:
            raise ValueError(
                f"country {self.country!r} has no signs in compevo_core/data/countries.toml "
                f"(known: {', '.join(news.COUNTRIES)})"
            )
        return self

    def concerns(self) -> pl.Expr:
        """Return the expression of "this article has the topic" over an article frame."""
        has_word = news.holds_word(self.words) & news.is_of_country(self.country)
        domain = pl.col("domain").fill_null("").str.to_lowercase().str.strip_prefix("www.")
        return (has_word | domain.is_in(list(self.domains))) & news.is_in_language(self.languages)


class NewsQueries(TomlSection):
    """The whole file."""

    fetch: FetchLimits
    topics: dict[str, Topic] = Field(min_length=1)

    def keep_concerned(self, articles: pl.DataFrame) -> pl.DataFrame:
        """Return the articles of any topic."""
        return articles.filter(
            pl.any_horizontal(topic.concerns() for topic in self.topics.values())
        )


def read_queries(path: Path | None = None) -> NewsQueries:
    """Read the file of queries, the packaged one unless another is named.

    ConfigError if it cannot be read, is not TOML, or a key is missing, unknown or wrong.
    """
    file = path or PACKAGED
    tables = read_toml(file, "correct COMPEVO_NEWS_QUERIES")
    fetch = tables.pop("fetch", None)
    topics = {name: table for name, table in tables.items() if isinstance(table, dict)}
    try:
        return NewsQueries.model_validate({"fetch": fetch, "topics": topics})
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"])).removeprefix("topics.")
        raise ConfigError(
            f"{file}: {where}: {fault['msg']}; compare with the packaged {PACKAGED.name}"
        ) from error


def read_files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the news files of a mode.

    ``archive`` gives one file per stored poll of ``gdelt_doc_artlist/`` (daily tars and single
    answers), then bulk files put into ``gdelt_bulk/``; ``sample`` synthetic answers, one GAL and
    one GKG file. SourceAbsent if the archive has no stored poll.
    """
    if mode is Mode.SAMPLE:
        yield from base.read_sample_files(DOC_SOURCE)
        yield from base.read_sample_files(BULK_SOURCE)
        return

    for path in base.find_archive_files(archive, DOC_FOLDER, "*.tar.gz"):
        for member, content in untar(path.read_bytes(), path.name):
            # Members have the same names in every tar: the day in front keeps their labels apart.
            name = f"{path.name.removesuffix('.tar.gz')}_{member.replace('/', '_')}"
            yield base.read_archive_file(
                path, Path(archive or ""), (name, content), source=DOC_SOURCE, clock=clock
            )
    # Single stored answers, the empty ones too (they are counted), and bulk files.
    patterns = {
        DOC_SOURCE: (DOC_FOLDER, ("*.json",)),
        BULK_SOURCE: (BULK_FOLDER, [f"*{suffix}" for suffix in parse.BULK_SUFFIXES]),
    }
    for source, (folder, files) in patterns.items():
        with contextlib.suppress(SourceAbsent):
            for path in base.find_archive_files(archive, folder, *files):
                yield base.read_archive_file(path, Path(archive or ""), source=source, clock=clock)


def parse_counted(raw: RawFile) -> tuple[pl.DataFrame, Counter[str]]:
    """Parse any GDELT file into ``ARTICLE_SCHEMA``, with counts.

    It raises what :func:`parse.parse_doc` raises; SchemaDrift also for a name that is not GDELT's,
    or articles of another time than the name says.
    """
    # The bulk names first: .gal.json ends in .json too.
    if raw.name.endswith(parse.BULK_SUFFIXES):
        frame, counts = parse.parse_bulk(raw)
    elif raw.name.endswith(".json"):
        frame, counts = parse.parse_doc(raw)
    else:
        raise SchemaDrift(
            f"{raw.name}: not a DOC answer (.json), a GAL file (.gal.json.gz) or a GKG file "
            "(.gkg.csv.zip); rename it"
        )
    return check_periods(frame, [raw], read_periods), counts


def read_periods(raw: RawFile) -> list[Period]:
    """Return the periods that a file's name states: an answer's span, and the time of a GAL file.

    Half of a GAL file may be older: it lists pages that were just seen, few of them old. GKG's rows
    state themselves when they were seen (``gdelt.parse``).
    """
    if span := _SPAN.search(raw.name):
        first, end = (parse.parse_utc(stamp, "%Y%m%d%H%M%S") for stamp in span.groups())
        if first and end:
            return [Period(first=first, end=end + QUARTER_HOUR, column="seen_at")]
    if raw.name.endswith(parse.GAL_SUFFIXES):
        at = parse.read_file_time(raw.name)
        return [Period(first=at - _NEAR, end=at + _NEAR, column="published_at", most_beyond=0.5)]
    return []


def parse_all(
    raws: Iterable[RawFile], queries: NewsQueries | None = None
) -> tuple[pl.DataFrame, Counter[str]]:
    """Parse many files into one frame without duplicates; count the empty answers.

    The 15-minute files hold the news of the whole world: of those fetched live only articles that
    concern a topic of ``queries`` are kept, if any are given. EmptyNewsAnswer if there was no file,
    or every answer was empty; otherwise what :func:`parse_counted` raises.
    """
    frames: list[pl.DataFrame] = []
    total = Counter(dict.fromkeys(LOSSES, 0))
    for raw in raws:
        try:
            frame, counts = parse_counted(raw)
        except EmptyNewsAnswer:
            # One empty poll among many is normal; only nothing but empty polls is a failure.
            total.update({"files": 1, "empty answers": 1})
            continue

        if queries is not None and raw.mode is Mode.LIVE:
            if raw.name.endswith(parse.BULK_SUFFIXES):
                frame = queries.keep_concerned(frame)
            counts["articles"] = frame.height
        frames.append(frame)
        total.update(counts)

    if not frames:
        raise EmptyNewsAnswer(
            f"none of {total['files']} news files held an article; this is a failure, not a day "
            "without news: try later"
        )
    return news.deduplicate_articles(pl.concat(frames)), total


def parse_concerned(
    raws: Iterable[RawFile], news_queries: Path | None
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Parse files by the topics of a file of queries, and say what was left out or repaired.

    Of near-identical headlines the first is kept, where any news was fetched live.
    """
    frame, counts = parse_all(raws, read_queries(news_queries))
    if frame["source"].str.starts_with(f"{Mode.LIVE}:").any():
        frame = news.drop_near_identical(frame)
    return frame, {name: counts[name] for name in LOSSES}
