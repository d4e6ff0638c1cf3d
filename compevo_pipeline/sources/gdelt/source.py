"""GDELT news in all modes: which files there are, and which parser reads which.

What belongs here: dispatch by file name, the archive's polls, the gathering of all files into one frame.
What does not: the formats (``gdelt_doc``, ``gdelt_bulk``), the synthetic files (``gdelt_sample``), fetching (``live``).
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.articles import NewsReport, gather
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    archive_files,
    archive_raw,
    sample_raw,
    untar,
)
from compevo_pipeline.sources.gdelt import sample as gdelt_sample
from compevo_pipeline.sources.gdelt.bulk import GAL_SUFFIXES, GKG_SUFFIXES, parse_gal, parse_gkg
from compevo_pipeline.sources.gdelt.doc import parse_doc

DOC_SOURCE, BULK_SOURCE = "gdelt_doc", "gdelt_bulk"
DOC_FOLDER, BULK_FOLDER = "gdelt_doc_artlist", "gdelt_bulk"


def raw_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the news files of a mode.

    ``archive`` gives one file a stored poll of ``gdelt_doc_artlist/`` (daily tars and loose answers), then bulk files
    dropped into ``gdelt_bulk/``; ``sample`` synthetic answers, one GAL and one GKG file. For ``live`` see
    ``sources.live``.

    Raises:
        SourceAbsent: the archive has no stored poll.
    """
    if mode is Mode.LIVE:
        message = "gdelt.raw_files reads files only; use sources.live.gdelt_doc or gdelt_bulk for the public endpoints"
        raise SourceAbsent(message)
    if mode is Mode.SAMPLE:
        for name, content in gdelt_sample.files():
            source = BULK_SOURCE if name.endswith((*GAL_SUFFIXES, *GKG_SUFFIXES)) else DOC_SOURCE
            yield sample_raw(source, name, content)
        return
    for path in archive_files(archive, DOC_FOLDER, "*.tar.gz"):
        for member, content in untar(path.read_bytes(), path.name):
            named = (f"{path.name.removesuffix('.tar.gz')}_{member.replace('/', '_')}", content)
            yield archive_raw(path, path.parents[1], source=DOC_SOURCE, member=named, clock=clock)
    yield from _loose(archive, clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse any GDELT file into ``ARTICLE_SCHEMA``; see :func:`parse_counted` for the errors."""
    return parse_counted(raw)[0]


def parse_counted(raw: RawFile) -> tuple[pl.DataFrame, NewsReport]:
    """Parse any GDELT file and count what was met.

    Raises:
        SchemaDrift: a name or a format that is not GDELT's.
        EmptyNewsAnswer: an answer without articles, which is not "no news".
        SourceTransient: a torn file or a throttle notice.
        SourceRejected: a refusal of the query.
    """
    if raw.name.endswith(GAL_SUFFIXES):
        return parse_gal(raw)
    if raw.name.endswith(GKG_SUFFIXES):
        return parse_gkg(raw)
    if raw.name.endswith(".json"):
        return parse_doc(raw)
    message = f"{raw.name}: not a DOC answer (.json), a GAL file (.gal.json.gz) or a GKG file (.gkg.csv.zip); rename it"
    raise SchemaDrift(message)


def collect(raws: Iterable[RawFile]) -> tuple[pl.DataFrame, NewsReport]:
    """Parse many files into one frame without duplicates, counting empty answers.

    Raises:
        EmptyNewsAnswer: every answer was empty.
    """
    return gather(raws, parse_counted)


def _loose(archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield single stored answers, the empty ones too (they are counted), and bulk files dropped in by hand."""
    if archive is None:
        return
    answers = sorted((archive / DOC_FOLDER).glob("*/*.json")) + sorted(
        (archive / DOC_FOLDER).glob("*.json")
    )
    for path in answers:
        yield archive_raw(path, archive, source=DOC_SOURCE, member=None, clock=clock)
    for path in sorted((archive / BULK_FOLDER).glob("*.g*")):
        if path.name.endswith((*GAL_SUFFIXES, *GKG_SUFFIXES)):
            yield archive_raw(path, archive, source=BULK_SOURCE, member=None, clock=clock)
