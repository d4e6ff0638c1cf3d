"""Which articles of GDELT concern which data set, and how much a refresh may fetch: one TOML file.

What belongs here: reading ``queries.toml`` (or a copy that a deployment names), the test of an
article, the same topic as a query of the DOC API. What does not: fetching (``gdelt.live``), which
candidates a window may have (``compevo_core.data.news``).
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import polars as pl
from pydantic import Field, ValidationError, field_validator, model_validator

from compevo_core.data.news import COUNTRIES, holds_word, is_in_language, is_of_country
from compevo_core.errors import ConfigError
from compevo_pipeline.sources.common.decode import TomlSection, read_toml

PACKAGED = Path(__file__).with_name("queries.toml")

MAX_QUERY_CHARACTERS = 240
"""The DOC API refuses longer queries ("too long"), so a topic with many words is asked in parts."""

_WORD = re.compile(r"[\w'./ -]+")
_FETCH = "fetch"


class FetchLimits(TomlSection):
    """How much one refresh asks for."""

    days_back: int = Field(ge=1, le=90)
    most_requests: int = Field(ge=1)
    most_mb: int = Field(ge=1)
    gkg: Literal["none", "gaps", "all"]
    doc: bool


class Topic(TomlSection):
    """News that concerns some data sets."""

    name: str
    datasets: tuple[str, ...] = Field(min_length=1)
    words: tuple[str, ...] = Field(min_length=1)
    languages: tuple[str, ...] = ()
    country: str = ""
    fips: str = ""
    domains: tuple[str, ...] = ()

    @field_validator("words")
    @classmethod
    def _check_words(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        # Quotes and brackets are operators of the DOC API.
        wrong = [word for word in words if not _WORD.fullmatch(word) or len(word) < 3]
        if wrong:
            raise ValueError(
                f"{wrong[0]!r} is not a search word: letters, digits and spaces, from 3"
            )
        return words

    @model_validator(mode="after")
    def _check_country(self) -> "Topic":
        if bool(self.country) != bool(self.fips):
            raise ValueError("country and fips go together; give both or neither")
        if self.country and self.country not in COUNTRIES:
            raise ValueError(
                f"country {self.country!r} has no signs in compevo_core/data/news.py "
                f"(known: {', '.join(COUNTRIES)})"
            )
        return self

    def concerns(self) -> pl.Expr:
        """Return the expression of "this article has the topic" over an article frame."""
        has_word = holds_word(self.words) & is_of_country(self.country)
        domain = pl.col("domain").fill_null("").str.to_lowercase().str.strip_prefix("www.")
        return (has_word | domain.is_in(list(self.domains))) & is_in_language(self.languages)

    def doc_queries(self) -> Iterator[str]:
        """Yield the queries of the DOC API that together ask for the words of the topic."""
        filters = [f"sourcelang:{language.lower()}" for language in self.languages]
        scope = (
            [filters[0] if len(filters) == 1 else f"({' OR '.join(filters)})"] if filters else []
        )
        scope += [f"sourcecountry:{self.fips}"] if self.fips else []

        part: list[str] = []
        for word in (f'"{word}"' if not word.isalnum() else word for word in self.words):
            if part and len(_join_query([*part, word], scope)) > MAX_QUERY_CHARACTERS:
                yield _join_query(part, scope)
                part = []
            part.append(word)
        yield _join_query(part, scope)


class NewsQueries(TomlSection):
    """The whole file."""

    fetch: FetchLimits
    topics: tuple[Topic, ...] = Field(min_length=1)

    def keep_concerned(self, articles: pl.DataFrame) -> pl.DataFrame:
        """Return the articles of any topic."""
        return articles.filter(pl.any_horizontal(topic.concerns() for topic in self.topics))


def read_queries(path: Path | None = None) -> NewsQueries:
    """Read the file of queries, the packaged one unless another is named.

    Raises:
        ConfigError: it cannot be read, is not TOML, or a key is missing, unknown or wrong.
    """
    file = path or PACKAGED
    tables = read_toml(file, "correct COMPEVO_NEWS_QUERIES")
    topics = [
        {"name": name, **table}
        for name, table in tables.items()
        if name != _FETCH and isinstance(table, dict)
    ]
    try:
        return NewsQueries.model_validate({_FETCH: tables.get(_FETCH), "topics": topics})
    except ValidationError as error:
        fault = error.errors()[0]
        where = _name_place(fault["loc"], topics)
        raise ConfigError(
            f"{file}: {where}: {fault['msg']}; compare with the packaged {PACKAGED.name}"
        ) from error


def _name_place(location: Sequence[int | str], topics: Sequence[dict[str, object]]) -> str:
    """Return where in the file a fault is, with a topic's name in place of its number."""
    if len(location) > 1 and location[0] == "topics" and isinstance(location[1], int):
        return ".".join(map(str, (topics[location[1]]["name"], *location[2:])))
    return ".".join(map(str, location))


def _join_query(words: Sequence[str], scope: Sequence[str]) -> str:
    # The API refuses brackets around a single term, and alternatives without them.
    term = words[0] if len(words) == 1 else f"({' OR '.join(words)})"
    return " ".join([term, *scope])
