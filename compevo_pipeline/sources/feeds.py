"""Which source feeds which data set, and which frames its files become.

What belongs here: the feeds of the built-in data sets and of a declared one. What does not: reading
and parsing, storing (``work.ingest``), all else about a data set (``sources.registry``).

A feed's files may become several frames: a day of operational demand holds actuals (series) and
AEMO's day-ahead forecast (published). A user's own files are the same in every mode.
"""

import functools
import itertools
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from compevo_core.data.news import deduplicate_articles
from compevo_core.data.steps import DAY
from compevo_core.errors import SourceAbsent, SourceRejected
from compevo_pipeline.sources import bitinfocharts, exchange, news2forecast
from compevo_pipeline.sources.aemo import live as aemo_live
from compevo_pipeline.sources.aemo import names, parse_operational
from compevo_pipeline.sources.aemo import source as aemo
from compevo_pipeline.sources.common.articles import LOSSES
from compevo_pipeline.sources.common.base import Clock, FrameKind, Mode, RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.common.tables import ReadPeriods, check_periods
from compevo_pipeline.sources.gdelt import live as gdelt_live
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.own import frames
from compevo_pipeline.sources.own.declaration import Declaration, make_label, name_publisher
from compevo_pipeline.sources.pems import live as pems_live
from compevo_pipeline.sources.pems import source as pems
from compevo_pipeline.sources.weather import collected as weather_collected
from compevo_pipeline.sources.weather import forecast as weather_forecast
from compevo_pipeline.sources.weather import observed as weather

Parsed = pl.DataFrame | tuple[pl.DataFrame, Mapping[str, int]]
"""A frame of one contract, of news with the counts of what was left out or repaired."""

Parser = Callable[[Sequence[RawFile]], Parsed]  # turns a feed's files into one frame
MOST_BYTES = 1 << 30  # of a user's own file, which is held in memory
FILE_MODES = frozenset({Mode.SAMPLE, Mode.ARCHIVE})  # of a publisher's files


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """One source of a data set."""

    name: str  # its name in run configurations and logs
    parsers: Mapping[FrameKind, Parser]  # the parser of each kind of frame that its files hold
    # Yields its files in a mode, given the archive folder and a clock; none unless given.
    read_files: Callable[[Mode, Path | None, Clock], Iterator[RawFile]] = lambda *_: iter(())
    modes: frozenset[Mode] = FILE_MODES  # the modes in which it has files
    # Yields what is new at the publisher; None where no endpoint is connected.
    fetch_live: Callable[[LiveContext], Iterator[RawFile]] | None = None
    replaces: bool = False  # whether its frames are all there is, as a user's own file
    is_whole: bool = False  # whether a backfill asks for its whole span at once, not month by month
    is_optional: bool = False  # whether others are stored where it fails, as windows do without it
    folds_titles: bool = False  # whether live news with a near-identical headline is left out
    labels: tuple[str, ...] = ()  # starts of the labels of its raw files, by mode and product
    # Returns what a kept file holds; the file itself unless given.
    unpack: Callable[[RawFile], Sequence[RawFile]] = lambda raw: [raw]
    # Parsers that accept a file whose publisher left rows out, where a run asks for them.
    with_gaps: Mapping[FrameKind, Parser] = field(default_factory=dict)
    accepts_gaps: bool = False  # whether these are the parsers

    def accept_gaps(self) -> "Feed":
        """Return the feed with the parsers that accept gaps."""
        return replace(self, parsers={**self.parsers, **self.with_gaps}, accepts_gaps=True)

    def exists_in(self, mode: Mode) -> bool:
        """Whether the feed can be read in a mode."""
        return mode in self.modes or (mode is Mode.LIVE and self.fetch_live is not None)


FeedTable = Mapping[str, Sequence[Feed]]  # feeds by data set, and by `news`


def default_feeds(
    news_queries: Path | None = None, pems_stations: Sequence[str] = ()
) -> dict[str, tuple[Feed, ...]]:
    """Return every source of this project, by data set.

    ``news_queries`` chooses the live news, in place of the packaged file; only ``pems_stations`` of
    the traffic series are kept, if given.
    """
    parse_traffic = functools.partial(pems.parse, stations=pems_stations)
    parse_news = functools.partial(gdelt.parse_concerned, news_queries=news_queries)
    exchange_parsers = {FrameKind.SERIES: _parse_each(exchange.parse)}
    return {
        "electricity": _ELECTRICITY,
        "electricity-operational": _OPERATIONAL,
        "exchange": (
            Feed(
                name="exchange",
                read_files=exchange.read_files,
                parsers=exchange_parsers,
                fetch_live=exchange.fetch_ecb,
                labels=("live:ecb_bulk/", "archive:ecb_", "archive:n2f_exchange/", "archive:rba_"),
                is_whole=True,
            ),
            # A second opinion on the same rates; its host refuses many addresses.
            Feed(
                name="exchange-rba",
                parsers=exchange_parsers,
                modes=frozenset(),
                fetch_live=exchange.fetch_rba,
                labels=("live:rba_",),
                is_whole=True,
                is_optional=True,
            ),
        ),
        "bitcoin": (
            Feed(
                name="bitinfocharts",
                read_files=bitinfocharts.read_files,
                parsers={FrameKind.SERIES: _parse_each(bitinfocharts.parse)},
                fetch_live=bitinfocharts.fetch_live,
                labels=_label(bitinfocharts.SOURCE),
                is_whole=True,
            ),
        ),
        "traffic": (
            Feed(
                name="pems",
                read_files=pems.read_files,
                parsers={FrameKind.SERIES: _parse_each(parse_traffic, pems.read_periods)},
                fetch_live=pems_live.fetch_live,
                labels=_label(pems.SOURCE),
                # Tables of stations are kept, and are not series.
                unpack=lambda raw: [raw] if pems.has_values(raw.name) else [],
            ),
        ),
        "news": (
            Feed(
                name="gdelt",
                read_files=gdelt.read_files,
                parsers={FrameKind.ARTICLES: parse_news},
                fetch_live=gdelt_live.fetch_live,
                labels=("live:gdelt_", "archive:gdelt_"),
                folds_titles=True,
            ),
            Feed(
                name="news2forecast",
                read_files=lambda *given: itertools.chain(
                    news2forecast.read_prompts(*given), news2forecast.read_news(*given)
                ),
                parsers={FrameKind.ARTICLES: _parse_news2forecast_articles},
                labels=(news2forecast.TEST_LABEL, f"archive:{news2forecast.NEWS}/"),
            ),
        ),
    }


def make_own_feeds(declaration: Declaration, folder: Path, family: str = "") -> tuple[Feed, ...]:
    """Return the feeds of a declared data set: its tables, and live news of its query.

    Relative paths start at ``folder``. Feeds of a block have the names of its ``family``.
    """
    publisher = name_publisher(declaration.name)

    def make_feed(
        suffix: str, file: str, kind: FrameKind, parse: Callable[..., Parsed], *others: str
    ) -> Feed:
        def read(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
            for name in (file, *others):
                yield read_own_file(folder / name, publisher, clock)

        return Feed(
            name=f"{name_publisher(family or declaration.name)}{suffix}",
            read_files=read,
            parsers={kind: lambda raws: parse(*raws)},
            modes=frozenset(Mode),
            replaces=True,
        )

    # For tables without a column of series: their rows count for all of these.
    entities = [make_label(column) for column in declaration.series.values]
    days, ahead, news = declaration.covariates, declaration.ahead, declaration.news

    file = declaration.series.file
    feeds = [
        make_feed("", file, FrameKind.SERIES, lambda raw: frames.parse_series(raw, declaration)[0])
    ]
    if days is not None:
        parse = functools.partial(
            frames.parse_covariates, declaration=declaration, keys=days, entities=entities
        )
        feeds.append(make_feed("-covariates", days.file, FrameKind.COVARIATES, parse))
    # What describes series, and what is known ahead: both are values by step.
    files = [ahead.file] if ahead else []
    files += [file] if declaration.series.static else []
    if files:

        def parse_by_step(*raws: RawFile) -> Parsed:
            parts = (
                [frames.parse_static(raws[-1], declaration)] if declaration.series.static else []
            )
            if ahead is not None:
                parts.append(frames.parse_ahead(raws[0], declaration, ahead, entities))
            return pl.concat(parts)

        feeds.append(
            make_feed("-ahead", files[0], FrameKind.STEP_COVARIATES, parse_by_step, *files[1:])
        )
    if news.articles:
        parse_news = functools.partial(frames.parse_articles, declaration=declaration)
        feeds.append(make_feed("-news", news.articles, FrameKind.ARTICLES, parse_news))
    if news.gdelt:
        lookback = DAY * news.lookback_days

        def parse_found(raws: Sequence[RawFile]) -> Parsed:
            frame, counts = gdelt.parse_all(raws)
            losses = {name: counts[name] for name in LOSSES}
            return frames.claim_articles(frame, declaration), losses

        feeds.append(
            Feed(
                name=f"{publisher}-gdelt",
                parsers={FrameKind.ARTICLES: parse_found},
                modes=frozenset(),
                fetch_live=lambda live: gdelt_live.fetch_query(
                    live, news.gdelt, lookback, source=publisher
                ),
                labels=(f"live:{publisher}/",),
            )
        )
    return tuple(feeds)


def read_own_file(path: Path, publisher: str, clock: Clock) -> RawFile:
    """Read a user's own file; its rows are labelled as a file's in every mode.

    SourceAbsent if it cannot be read; SourceRejected if it is no file or above ``MOST_BYTES``.
    """
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
            raise SourceRejected(
                f"{path} is no regular file of at most {MOST_BYTES >> 30} GiB: name a file of "
                "rows, of a larger one its newest years"
            )
        content = path.read_bytes()
    except OSError as error:
        raise SourceAbsent(
            f"{path} cannot be read ({error.strerror}); correct the file's name, here or in "
            "the declaration"
        ) from error
    return RawFile(
        source=publisher,
        name=path.name,
        content=content,
        url=path.resolve().as_uri(),
        fetched_at=clock(),
        mode=Mode.ARCHIVE,
    )


def _label(source: str) -> tuple[str, ...]:
    """Return the starts of the labels of a product, fetched live or read from an archive."""
    return (f"{Mode.LIVE}:{source}/", f"{Mode.ARCHIVE}:{source}/")


def _parse_each(
    parse: Callable[[RawFile], pl.DataFrame], find: ReadPeriods = lambda _: ()
) -> Parser:
    return lambda raws: check_periods(pl.concat([parse(raw) for raw in raws]), raws, find)


def _parse_news2forecast_articles(raws: Sequence[RawFile]) -> Parsed:
    """Parse the news of the tables and of the test prompts, without duplicates."""
    of_tables = [raw for raw in raws if raw.source == news2forecast.NEWS]
    parsed = [news2forecast.parse_news(raw) for raw in of_tables]
    quoted = [news2forecast.parse_prompt_articles(raw) for raw in raws if raw not in of_tables]
    articles = deduplicate_articles(pl.concat([*(frame for frame, _ in parsed), *quoted]))
    return articles, dict(sum((Counter(counts) for _, counts in parsed), Counter()))


_ELECTRICITY = (
    Feed(
        name="aemo",
        read_files=aemo.read_files,
        parsers={FrameKind.SERIES: aemo.parse_all, FrameKind.PUBLISHED: aemo.parse_published},
        fetch_live=aemo_live.fetch_price_and_demand,
        # Live mode keeps operational demand only for the data set of this measure.
        labels=(f"live:{aemo.PRICE}/", "archive:aemo_"),
        with_gaps={FrameKind.SERIES: functools.partial(aemo.parse_all, tolerate_gaps=True)},
    ),
    Feed(
        name="weather",
        read_files=weather.read_files,
        parsers={FrameKind.COVARIATES: _parse_each(weather.parse)},
        labels=(f"archive:{weather.SOURCE}/",),
    ),
    # The benchmark is a feed of its own: a deployment may run without its files.
    Feed(
        name="news2forecast-benchmark",
        read_files=news2forecast.read_prompts,
        parsers={FrameKind.BENCHMARK: _parse_each(news2forecast.parse_benchmark)},
        labels=(news2forecast.TEST_LABEL,),
    ),
)
_OPERATIONAL = (
    Feed(
        name="aemo-operational",
        read_files=aemo.read_operational_files,
        parsers={
            FrameKind.SERIES: aemo.parse_all,
            FrameKind.PUBLISHED: aemo.parse_published,
            FrameKind.STEP_COVARIATES: lambda raws: check_periods(
                parse_operational.parse_step_covariates(*raws), raws, names.read_periods
            ),
        },
        fetch_live=aemo_live.fetch_operational,
        labels=(f"live:{aemo.OPERATIONAL}/", f"archive:{aemo.OPERATIONAL}/"),
        unpack=aemo_live.unpack,
    ),
    Feed(
        name="weather-forecast",
        read_files=weather_forecast.read_files,
        parsers={FrameKind.STEP_COVARIATES: _parse_each(weather_forecast.parse)},
        modes=frozenset({Mode.ARCHIVE}),  # the sample's world has no forecast weather
        fetch_live=weather_forecast.fetch_live,
        labels=_label(weather_forecast.SOURCE),
        is_optional=True,
    ),
    Feed(
        name="weather-collected",
        read_files=weather_collected.read_files,
        parsers={FrameKind.STEP_COVARIATES: weather_collected.parse_all},
        modes=frozenset({Mode.ARCHIVE}),
        labels=(f"archive:{weather_collected.SOURCE}/",),
        is_optional=True,
    ),
)
