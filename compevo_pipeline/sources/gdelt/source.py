"""GDELT news: the files of each mode, and which parser reads which.

What belongs here: dispatch by file name, the archive's polls, the parsing of all files into one
frame. What does not: the formats (``gdelt.parse``), fetching
(``gdelt.live``), which articles concern a data set (``gdelt.queries``).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import polars as pl

from compevo_core.data.news import deduplicate_articles, drop_near_identical
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer, NewsReport
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    find_archive_files,
    read_archive_file,
    read_sample_files,
)
from compevo_pipeline.sources.common.decode import untar
from compevo_pipeline.sources.common.promises import Promise, refuse_beyond
from compevo_pipeline.sources.gdelt.parse import (
    GAL_SUFFIXES,
    GKG_SUFFIXES,
    parse_doc,
    parse_gal,
    parse_gkg,
    parse_utc,
    read_file_time,
)
from compevo_pipeline.sources.gdelt.queries import NewsQueries, read_queries

DOC_SOURCE = "gdelt_doc"
BULK_SOURCE = "gdelt_bulk"
DOC_FOLDER = "gdelt_doc_artlist"
BULK_FOLDER = "gdelt_bulk"

QUARTER_HOUR = timedelta(minutes=15)  # GDELT's grid
_SPAN = re.compile(r"^artlist_[0-9a-f]+_(\d{14})_(\d{14})\.json$")
_NEAR = timedelta(days=2)


def read_files(mode: Mode, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the news files of a mode.

    ``archive`` gives one file a stored poll of ``gdelt_doc_artlist/`` (daily tars and single
    answers), then bulk files put into ``gdelt_bulk/``; ``sample`` synthetic answers, one GAL and
    one GKG file.

    Raises:
        SourceAbsent: the archive has no stored poll.
    """
    if mode is Mode.SAMPLE:
        yield from read_sample_files(DOC_SOURCE)
        yield from read_sample_files(BULK_SOURCE)
        return

    for path in find_archive_files(archive, DOC_FOLDER, "*.tar.gz"):
        for member, content in untar(path.read_bytes(), path.name):
            # Members have the same names in every tar: the day in front keeps their labels apart.
            name = f"{path.name.removesuffix('.tar.gz')}_{member.replace('/', '_')}"
            yield read_archive_file(
                path, path.parents[1], (name, content), source=DOC_SOURCE, clock=clock
            )
    yield from _read_single_files(archive, clock)


def parse_counted(raw: RawFile) -> tuple[pl.DataFrame, NewsReport]:
    """Parse any GDELT file into ``ARTICLE_SCHEMA``, with counts.

    Raises:
        SchemaDrift: a name or a format that is not GDELT's, or articles of another time than the
            name says.
        EmptyNewsAnswer: an answer without articles, which is not "no news".
        SourceTransient: a damaged file or a throttle notice.
        SourceRejected: a refusal of the query.
    """
    # The bulk names first: .gal.json ends in .json too.
    if raw.name.endswith(GAL_SUFFIXES):
        frame, report = parse_gal(raw)
    elif raw.name.endswith(GKG_SUFFIXES):
        frame, report = parse_gkg(raw)
    elif raw.name.endswith(".json"):
        frame, report = parse_doc(raw)
    else:
        raise SchemaDrift(
            f"{raw.name}: not a DOC answer (.json), a GAL file (.gal.json.gz) or a GKG file "
            "(.gkg.csv.zip); rename it"
        )
    return refuse_beyond(frame, [raw], promises), report


def promises(raw: RawFile) -> list[Promise]:
    """Return what a file's name promises: an answer's span, and the time of a GAL file.

    Half of a GAL file may be older: it lists pages that were just seen, few of them old. GKG's rows
    state themselves when they were seen (``gdelt.parse``).
    """
    if span := _SPAN.search(raw.name):
        first, end = (parse_utc(stamp, "%Y%m%d%H%M%S") for stamp in span.groups())
        if first and end:
            return [Promise(first=first, end=end + QUARTER_HOUR, column="seen_at")]
    if raw.name.endswith(GAL_SUFFIXES):
        at = read_file_time(raw.name)
        return [Promise(first=at - _NEAR, end=at + _NEAR, column="published_at", most_beyond=0.5)]
    return []


def parse_all(
    raws: Iterable[RawFile], queries: NewsQueries | None = None
) -> tuple[pl.DataFrame, NewsReport]:
    """Parse many files into one frame without duplicates; count the empty answers.

    The 15-minute files hold the news of the whole world: of those fetched live only articles that
    concern a topic of ``queries`` are kept, if any are given.

    Raises:
        EmptyNewsAnswer: there was no file, or every answer was empty.
        SourceError: any other failure of :func:`parse_counted`.
    """
    frames: list[pl.DataFrame] = []
    total = NewsReport()
    for raw in raws:
        try:
            frame, report = parse_counted(raw)
        except EmptyNewsAnswer:
            # One empty poll among many is normal; only nothing but empty polls is a failure.
            total += NewsReport(files=1, empty_answers=1)
            continue

        if queries is not None and raw.mode is Mode.LIVE:
            if _is_bulk(raw.name):
                frame = queries.keep_concerned(frame)
            report = replace(report, articles=frame.height)
        frames.append(frame)
        total += report

    if not frames:
        raise EmptyNewsAnswer(
            f"none of {total.files} news files held an article; this is a failure, not a day "
            "without news: try later"
        )
    return deduplicate_articles(pl.concat(frames)), total


def parse_concerned(
    raws: Iterable[RawFile], news_queries: Path | None
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Parse files by the topics of a file of queries, and say what was left out or repaired.

    Of near-identical headlines the first is kept, where any news was fetched live.
    """
    frame, report = parse_all(raws, read_queries(news_queries))
    if frame["source"].str.starts_with(f"{Mode.LIVE}:").any():
        frame = drop_near_identical(frame)
    return frame, report.describe_losses()


def _is_bulk(name: str) -> bool:
    return name.endswith((*GAL_SUFFIXES, *GKG_SUFFIXES))


def _read_single_files(archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield single stored answers, the empty ones too (they are counted), and bulk files."""
    if archive is None:
        return

    folder = archive / DOC_FOLDER
    for path in [*sorted(folder.glob("*/*.json")), *sorted(folder.glob("*.json"))]:
        yield read_archive_file(path, archive, source=DOC_SOURCE, clock=clock)

    for path in sorted((archive / BULK_FOLDER).glob("*.g*")):
        if _is_bulk(path.name):
            yield read_archive_file(path, archive, source=BULK_SOURCE, clock=clock)
