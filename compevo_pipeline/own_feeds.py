"""The feeds of a user's own data set: its tables, and live news of its query.

What belongs here: which files are read, and which parser reads them. What does not: parsing
(``sources.own``), the built-in feeds (``feeds``).

The user's files are the same in every mode, and are labelled as files in each.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import polars as pl

from compevo_core.errors import SourceAbsent
from compevo_pipeline.feeds import Feed, Parsed
from compevo_pipeline.sources.common.base import Clock, FrameKind, Mode, RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.gdelt import doc_live
from compevo_pipeline.sources.gdelt import source as gdelt
from compevo_pipeline.sources.own import articles, covariates, series
from compevo_pipeline.sources.own.declaration import DAY, Declaration
from compevo_pipeline.sources.own.spec import make_label, name_publisher


def make_feeds(declaration: Declaration, folder: Path) -> tuple[Feed, ...]:
    """Return the feeds of a declared data set.

    Args:
        declaration: names the tables.
        folder: where relative paths start.
    """
    publisher = name_publisher(declaration.name)
    # With a column of series the covariates have one too: the declaration asks for it.
    entities = [make_label(column) for column in declaration.series.values]
    feeds = [
        _make_file_feed(
            publisher,
            publisher,
            folder / declaration.series.file,
            FrameKind.SERIES,
            lambda raws: series.parse(raws, declaration),
        )
    ]
    keys = declaration.covariates
    if keys is not None:
        feeds.append(
            _make_file_feed(
                f"{publisher}-covariates",
                publisher,
                folder / keys.file,
                FrameKind.COVARIATES,
                lambda raws: covariates.parse(raws, declaration, keys, entities),
            )
        )
    if declaration.news.articles:
        feeds.append(
            _make_file_feed(
                f"{publisher}-news",
                publisher,
                folder / declaration.news.articles,
                FrameKind.ARTICLES,
                lambda raws: articles.parse(raws, declaration),
            )
        )
    if declaration.news.gdelt:
        feeds.append(_make_gdelt_feed(f"{publisher}-gdelt", publisher, declaration))
    return tuple(feeds)


def read_file(path: Path, publisher: str, clock: Clock) -> RawFile:
    """Read a file of the user's.

    Raises:
        SourceAbsent: there is none, or it cannot be read.
    """
    try:
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


def _make_file_feed(
    name: str,
    publisher: str,
    path: Path,
    kind: FrameKind,
    parse: Callable[[Sequence[RawFile]], pl.DataFrame],
) -> Feed:
    def read(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
        yield read_file(path, publisher, clock)

    return Feed(name=name, read_files=read, parsers={kind: parse}, replaces=True)


def _make_gdelt_feed(name: str, publisher: str, declaration: Declaration) -> Feed:
    def read(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
        raise SourceAbsent(f"{name} exists in live mode alone: a query is answered by GDELT")

    def fetch_live(live: LiveContext) -> Iterator[RawFile]:
        lookback = DAY * declaration.news.lookback_days
        yield from doc_live.fetch_query(live, declaration.news.gdelt, lookback, source=publisher)

    def parse(raws: Sequence[RawFile]) -> Parsed:
        found, report = gdelt.parse_all(raws)
        return articles.claim(found, declaration), report.describe_losses()

    return Feed(
        name=name,
        read_files=read,
        parsers={FrameKind.ARTICLES: parse},
        modes=frozenset(),
        fetch_live=fetch_live,
    )
