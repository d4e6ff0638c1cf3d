"""Which source feeds which data set, and which frames its files become.

What belongs here: the table from data set to source modules. What does not: reading and parsing
(``sources``), storing (``storage``).

A feed's files may become several frames: a day of operational demand holds actuals (series) and
AEMO's day-ahead forecast (published).
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from compevo_core.data.news import deduplicate_articles
from compevo_pipeline.sources import weather, weather_live, weather_runs
from compevo_pipeline.sources.aemo import live as aemo_live
from compevo_pipeline.sources.aemo import operational
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.bitinfocharts import live as bitinfocharts_live
from compevo_pipeline.sources.bitinfocharts import source as bitinfocharts
from compevo_pipeline.sources.common.base import Clock, FrameKind, Mode, RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.exchange import live as exchange_live
from compevo_pipeline.sources.exchange import source as exchange
from compevo_pipeline.sources.gdelt import doc_live
from compevo_pipeline.sources.gdelt import live as gdelt_live
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.news2forecast import news, prompts
from compevo_pipeline.sources.news2forecast import source as news2forecast
from compevo_pipeline.sources.pems import live as pems_live
from compevo_pipeline.sources.pems import source as pems

Parsed = pl.DataFrame | tuple[pl.DataFrame, Mapping[str, int]]
"""A frame of one contract, of news with the counts of what was left out or repaired."""

Parser = Callable[[Sequence[RawFile]], Parsed]
"""Turns a feed's files into one frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One source of a data set.

    Attributes:
        name: its name in run configurations and logs.
        read_files: yields its files in a mode, given the archive folder and a clock.
        parsers: the parser of each kind of frame that its files hold.
        modes: the modes in which it has files.
        fetch_live: yields what is new at the publisher; None where no endpoint is connected.
        replaces: whether its frames take the place of all that is stored: a user's own file is the
            whole of what it holds, so a row that was removed from it is gone.
        is_whole: whether a backfill asks for its whole span at once, not month by month.
        is_optional: whether windows can do without it: where it fails, the others are stored all
            the same.
        folds_titles: whether live news of it is left out where a near-identical headline is stored.
        with_gaps: parsers that accept a file whose publisher left rows out, where a run asks for
            them.
    """

    name: str
    read_files: Callable[[Mode, Path | None, Clock], Iterator[RawFile]]
    parsers: Mapping[FrameKind, Parser]
    modes: frozenset[Mode] = frozenset(Mode)
    fetch_live: Callable[[LiveContext], Iterator[RawFile]] | None = None
    replaces: bool = False
    is_whole: bool = False
    is_optional: bool = False
    folds_titles: bool = False
    with_gaps: Mapping[FrameKind, Parser] = field(default_factory=dict)

    def accept_gaps(self) -> "Feed":
        """Return the feed with the parsers that accept gaps."""
        return replace(self, parsers={**self.parsers, **self.with_gaps})

    def exists_in(self, mode: Mode) -> bool:
        """Whether the feed can be read in a mode."""
        return mode in self.modes or (mode is Mode.LIVE and self.fetch_live is not None)


FeedTable = Mapping[str, Sequence[Feed]]
"""Feeds by data set, and by ``news``."""

FILE_MODES = frozenset({Mode.SAMPLE, Mode.ARCHIVE})
"""Modes of a publisher's files; live mode asks the publisher instead."""


def default_feeds(
    news_queries: Path | None = None, pems_stations: Sequence[str] = ()
) -> dict[str, tuple[Feed, ...]]:
    """Return every source of this project, by data set.

    Args:
        news_queries: file that says which live news is kept, in place of the packaged one.
        pems_stations: stations whose traffic is kept; all unless given.
    """
    parse_traffic = functools.partial(pems.parse_chosen, stations=pems_stations)
    exchange_parsers = {FrameKind.SERIES: _concat(exchange.parse)}
    news_parsers = {
        FrameKind.ARTICLES: functools.partial(_parse_gdelt_articles, news_queries=news_queries)
    }
    return {
        **_electricity_feeds(),
        "exchange": (
            # A month of a span may be one weekend, for which the bank says that it has no rate.
            replace(
                _make_feed(
                    "exchange", exchange.read_files, exchange_parsers, exchange_live.fetch_ecb
                ),
                is_whole=True,
            ),
            # A second opinion on the same rates; its host refuses many addresses.
            replace(
                _make_live_extra("exchange-rba", exchange_live.fetch_rba, exchange_parsers),
                is_whole=True,
            ),
        ),
        "bitcoin": (
            replace(
                _make_feed(
                    "bitinfocharts",
                    bitinfocharts.read_files,
                    {FrameKind.SERIES: _concat(bitinfocharts.parse)},
                    bitinfocharts_live.fetch_live,
                ),
                is_whole=True,
            ),
        ),
        "traffic": (
            _make_feed(
                "pems",
                pems.read_files,
                {FrameKind.SERIES: _concat(parse_traffic)},
                pems_live.fetch_live,
            ),
        ),
        "news": (
            replace(
                _make_feed("gdelt", gdelt.read_files, news_parsers, gdelt_live.fetch_live),
                folds_titles=True,
            ),
            replace(
                _make_live_extra("gdelt-doc", doc_live.fetch_topics, news_parsers),
                folds_titles=True,
            ),
            _make_feed(
                "news2forecast",
                news2forecast.read_files,
                {FrameKind.ARTICLES: _parse_news2forecast_articles},
            ),
        ),
    }


def _electricity_feeds() -> dict[str, tuple[Feed, ...]]:
    return {
        "electricity": (
            replace(
                _make_feed(
                    "aemo",
                    aemo.read_files,
                    {
                        FrameKind.SERIES: aemo.parse_all,
                        FrameKind.PUBLISHED: aemo.parse_published,
                    },
                    aemo_live.fetch_price_and_demand,
                ),
                with_gaps={FrameKind.SERIES: functools.partial(aemo.parse_all, tolerate_gaps=True)},
            ),
            _make_feed(
                "weather", weather.read_files, {FrameKind.COVARIATES: _concat(weather.parse)}
            ),
            # The benchmark is a feed of its own: a deployment may run without its files.
            _make_feed(
                "news2forecast-benchmark",
                _read_benchmark_files,
                {FrameKind.BENCHMARK: _concat(prompts.parse_benchmark)},
            ),
        ),
        "electricity-operational": (
            _make_feed(
                "aemo-operational",
                operational.read_files,
                {
                    FrameKind.SERIES: aemo.parse_all,
                    FrameKind.PUBLISHED: aemo.parse_published,
                    FrameKind.STEP_COVARIATES: _concat(operational.parse_step_covariates),
                },
                aemo_live.fetch_operational,
            ),
            replace(
                _make_feed(
                    "weather-forecast",
                    weather_runs.read_files,
                    {FrameKind.STEP_COVARIATES: _concat(weather_runs.parse)},
                    weather_live.fetch_live,
                ),
                modes=frozenset({Mode.ARCHIVE}),  # the sample's world has no forecast weather
                is_optional=True,
            ),
        ),
    }


def _make_feed(
    name: str,
    read_files: Callable[..., Iterator[RawFile]],
    parsers: Mapping[FrameKind, Parser],
    fetch_live: Callable[[LiveContext], Iterator[RawFile]] | None = None,
) -> Feed:
    # Sources take archive and clock by keyword, a feed by position: assets call all feeds alike.
    def read(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
        return read_files(mode, archive=archive, clock=clock)

    return Feed(
        name=name, read_files=read, parsers=parsers, modes=FILE_MODES, fetch_live=fetch_live
    )


def _make_live_extra(
    name: str,
    fetch_live: Callable[[LiveContext], Iterator[RawFile]],
    parsers: Mapping[FrameKind, Parser],
) -> Feed:
    """Make a feed that has no files of its own in another mode than live."""
    return Feed(
        name=name,
        read_files=lambda mode, archive, clock: iter(()),
        parsers=parsers,
        modes=frozenset(),
        fetch_live=fetch_live,
        is_optional=True,
    )


def _concat(parse: Callable[[RawFile], pl.DataFrame]) -> Parser:
    return lambda raws: pl.concat([parse(raw) for raw in raws])


def _read_benchmark_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the 100-window test file alone."""
    # The targets of the validation sample lie in the train split.
    for raw in news2forecast.read_files(mode, archive=archive, clock=clock):
        if news2forecast.is_test_file(raw):
            yield raw


def _parse_gdelt_articles(raws: Sequence[RawFile], *, news_queries: Path | None) -> Parsed:
    articles, report = gdelt.parse_concerned(raws, news_queries)
    return articles, report.describe_losses()


def _parse_news2forecast_articles(raws: Sequence[RawFile]) -> pl.DataFrame:
    """Parse the news of the tables and of the test prompts, without duplicates."""
    tables = [news.parse(raw) for raw in raws if raw.source == news.SOURCE]
    # The validation prompts repeat the tables.
    quoted = [prompts.parse_prompt_articles(raw) for raw in raws if news2forecast.is_test_file(raw)]
    return deduplicate_articles(pl.concat([*tables, *quoted]))
