"""Which source feeds which data set, and what each of its files becomes.

What belongs here: the table from data set to source modules. What does not: fetching, parsing, storing.
A feed's files may become several frames: a day of operational demand holds actuals (series) and AEMO's day-ahead
forecast (published).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import polars as pl

from compevo_core.data.news import deduplicate_articles
from compevo_pipeline.sources import exchange, weather
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.bitinfocharts import source as bitinfocharts
from compevo_pipeline.sources.common.base import Clock, Mode, RawFile
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.news2forecast import news as n2f_news
from compevo_pipeline.sources.news2forecast import source as n2f
from compevo_pipeline.sources.pems import source as pems


class Kind(StrEnum):
    """Which contract a parsed frame follows."""

    SERIES = "series"
    COVARIATES = "covariates"
    PUBLISHED = "published"
    BENCHMARK = "benchmark"
    ARTICLES = "articles"


Parser = Callable[[Sequence[RawFile]], pl.DataFrame]
"""Turns a feed's files into one frame of one contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One source: where its files come from and what they become. ``modes`` are those it exists in."""

    name: str
    raw_files: Callable[[Mode, Path | None, Clock], Iterator[RawFile]]
    parsers: Mapping[Kind, Parser]
    modes: frozenset[Mode] = frozenset(Mode)


FeedTable = Mapping[str, Sequence[Feed]]
"""Feeds by data set, and by ``news``."""

FILES = frozenset({Mode.SAMPLE, Mode.ARCHIVE})
"""Modes of a source whose public endpoint is not wired."""


def default_feeds() -> dict[str, tuple[Feed, ...]]:
    """Every source of this project, by data set."""
    return {
        "electricity": (
            _feed(
                "aemo",
                aemo.raw_files,
                {Kind.SERIES: aemo.parse_all, Kind.PUBLISHED: aemo.parse_published},
            ),
            _feed("weather", weather.raw_files, {Kind.COVARIATES: _each(weather.parse)}),
            _feed(
                "news2forecast-benchmark",
                _benchmark_files,
                {Kind.BENCHMARK: _each(n2f.parse_benchmark)},
            ),
        ),
        "exchange": (_feed("exchange", exchange.raw_files, {Kind.SERIES: _each(exchange.parse)}),),
        "bitcoin": (
            _feed(
                "bitinfocharts", bitinfocharts.raw_files, {Kind.SERIES: _each(bitinfocharts.parse)}
            ),
        ),
        "traffic": (_feed("pems", pems.raw_files, {Kind.SERIES: _each(pems.parse)}),),
        "news": (
            _feed("gdelt", gdelt.raw_files, {Kind.ARTICLES: lambda raws: gdelt.collect(raws)[0]}),
            _feed("news2forecast", n2f.raw_files, {Kind.ARTICLES: _n2f_articles}),
        ),
    }


def _feed(
    name: str, raw_files: Callable[..., Iterator[RawFile]], parsers: Mapping[Kind, Parser]
) -> Feed:
    def files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
        return raw_files(mode, archive=archive, clock=clock)

    return Feed(name=name, raw_files=files, parsers=parsers, modes=FILES)


def _each(parse: Callable[[RawFile], pl.DataFrame]) -> Parser:
    return lambda raws: pl.concat([parse(raw) for raw in raws])


def _benchmark_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """The 100-window test file alone: the validation sample's targets lie in the train split."""
    return (
        raw for raw in n2f.raw_files(mode, archive=archive, clock=clock) if n2f.is_test_file(raw)
    )


def _n2f_articles(raws: Sequence[RawFile]) -> pl.DataFrame:
    """News of the tables and of the test prompts; the benchmark's validation prompts repeat the tables."""
    tables = [n2f_news.parse(raw) for raw in raws if raw.source == n2f_news.SOURCE]
    prompts = [n2f.parse_prompt_articles(raw) for raw in raws if n2f.is_test_file(raw)]
    return deduplicate_articles(pl.concat([*tables, *prompts]))
