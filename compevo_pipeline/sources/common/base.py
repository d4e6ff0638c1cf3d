"""The contracts that every source shares: modes, raw files with their provenance, kinds of frames.

What belongs here: :class:`RawFile` and how the archive and sample modes make one. What does not:
unpacking and decoding (``common.decode``), any publisher's format, requests (``common.http``).

The sample's files are invented: ``python -m tools.sample_world`` in the repository writes their
archive, and the parsers of the publishers' files read them. Two runs store equal rows.
"""

import csv
import hashlib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.common.decode import Member, read_members, read_unpacked

SAMPLE_ARCHIVE = Path(__file__).parents[1] / "sample_archive.zip"
"""Invented files, in a folder for each product, named like the ``source`` of its files."""

SAMPLE_FETCHED_AT = datetime(2026, 1, 1, tzinfo=UTC)  # fixed, so that two runs give equal frames
Clock = Callable[[], datetime]  # returns the current time, timezone-aware


class Mode(StrEnum):
    """Where the bytes come from: the public endpoint, files on disk, or a synthetic generator."""

    LIVE = "live"
    ARCHIVE = "archive"
    SAMPLE = "sample"


MODE_MEANINGS = {
    Mode.SAMPLE: "synthetic data",
    Mode.ARCHIVE: "the publishers' files",
    Mode.LIVE: "the publishers' endpoints",
}
"""The data of a mode, shown wherever a reader could take synthetic data for real."""


def describe_data(mode: Mode, dataset: str = "") -> str:
    """Return the mode and kind of data, for one data set or all: ``[sample: synthetic data]``."""
    # Commands that need no data set start without it.
    from compevo_core.data.datasets import DATASETS

    meaning = MODE_MEANINGS[mode]
    if dataset and dataset not in DATASETS:
        meaning = "your own files"  # the same in every mode
    elif mode is Mode.SAMPLE and dataset == "exchange":
        meaning = "published rates, synthetic news"
    return f"[{mode}: {meaning}]"


class FrameKind(StrEnum):
    """Which contract of ``compevo_core.data`` a parsed frame follows."""

    SERIES = "series"
    COVARIATES = "covariates"
    PUBLISHED = "published"
    STEP_COVARIATES = "step_covariates"
    BENCHMARK = "benchmark"
    ARTICLES = "articles"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFile:
    """One published file, unpacked from the archive it came in, with its provenance."""

    source: str  # folder-safe name of the publisher's product (`aemo_histdemand`)
    name: str  # the published file name
    content: bytes
    url: str  # address it was fetched from, or `file:` and its path in the archive
    fetched_at: datetime  # when it was read, timezone-aware
    mode: Mode  # which mode read it
    packed_in: str = ""  # name of the fetched file that held it; empty where it was fetched itself

    @property
    def sha256(self) -> str:
        """Hex digest of the content."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def label(self) -> str:
        """Value of a frame's ``source`` column; ``sample:...`` marks synthetic rows."""
        return f"{self.mode}:{self.source}/{self.name}"


def find_archive_files(archive: Path | None, folder: str, *patterns: str) -> list[Path]:
    """Return the sorted files anywhere below ``archive/folder`` whose name fits a pattern.

    Case does not matter. SourceAbsent if no archive folder was given, or no name fits.
    """
    wanted = f"{folder}/{' or '.join(patterns)}"
    if archive is None:
        raise SourceAbsent(
            f"archive mode needs a folder with {wanted}: set COMPEVO_ARCHIVE to the archive's root"
        )

    lowered = [pattern.lower() for pattern in patterns]
    files = sorted(
        path
        for path in (archive / folder).rglob("*")
        if path.is_file() and any(fnmatchcase(path.name.lower(), name) for name in lowered)
    )
    if not files:
        raise SourceAbsent(
            f"no file {wanted} under {archive}: check COMPEVO_ARCHIVE, or run in sample mode"
        )
    return files


def read_archive_file(
    path: Path, archive: Path, member: Member | None = None, *, source: str, clock: Clock
) -> RawFile:
    """Read one file below the ``archive`` root, decompressing ``.gz``, or wrap a member of it."""
    plain_name = path.name.removesuffix(".gz")
    name, content = member or (plain_name, read_unpacked(path))
    inside = f"!{name}" if name != plain_name else ""
    return RawFile(
        source=source,
        name=name,
        content=content,
        url=f"file:{path.relative_to(archive).as_posix()}{inside}",
        fetched_at=clock(),
        mode=Mode.ARCHIVE,
    )


def read_sample_files(source: str) -> Iterator[RawFile]:
    """Yield the invented files of a product by name; none where the archive lacks the product."""
    with zipfile.ZipFile(SAMPLE_ARCHIVE) as bundle:
        for member in sorted(bundle.namelist()):
            folder, _, name = member.partition("/")
            if folder == source:
                yield RawFile(
                    source=source,
                    name=name,
                    content=bundle.read(member),
                    url=f"sample:{member}",
                    fetched_at=SAMPLE_FETCHED_AT,  # not the clock: two runs must store equal rows
                    mode=Mode.SAMPLE,
                )


def read_planted() -> list[tuple[str, str, str]]:
    """Return day (ISO), region and topic of each event that the invented news announces."""
    (events,) = read_sample_files("planted")
    rows = csv.reader(events.content.decode().splitlines())
    return [(day, region, topic) for day, region, topic in rows]


def read_product(
    mode: Mode,
    archive: Path | None,
    clock: Clock,
    *,
    source: str,
    folder: str,
    files: Sequence[str],
) -> Iterator[RawFile]:
    """Yield the files of one product in sample or archive mode.

    In an archive these are the files anywhere below ``folder`` whose name fits a pattern of
    ``files``. Publishers' downloads differ in capitals, folders and packing, and none of them
    counts: a plain file is one, a zip of zips or a tar several. SourceAbsent if the archive has no
    file of the product; SourceTransient or SchemaDrift if one cannot be unpacked.
    """
    if mode is Mode.SAMPLE:
        yield from read_sample_files(source)
        return

    for path in find_archive_files(archive, folder, *files):
        for member in read_members(path):
            yield read_archive_file(path, Path(archive or ""), member, source=source, clock=clock)
