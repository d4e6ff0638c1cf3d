"""Series in Parquet and raw bytes on disk; news is in :mod:`.news_store`, named here for convenience.

What belongs here: where files lie, idempotent upserts, atomic replacement. What does not: parsing, gaps, windows.
Layout under the root: ``series/<dataset>/<series>.parquet``, where a slash in a series id is two underscores (files
without them there are not this store's), and ``raw/<source>/<name>`` with a JSON sidecar (URL, sha256, time, mode). A
file is replaced by a rename, so a reader sees the old or the new one and never half of either; writers of one data set
wait for each other.
"""

import json
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA, validate_frame
from compevo_core.data.series import validate_series
from compevo_core.errors import DataError
from compevo_pipeline.sources.common.base import RawFile, check_member_path
from compevo_pipeline.storage.filelock import file_lock
from compevo_pipeline.storage.news_store import NewsStore

__all__ = ["NewsStore", "SeriesStore", "WriteReport"]

SERIES_KEY = ("series_id", "variable", "start_utc")
CONTENT = ("value", "unit", "flag")
"""Columns that make a row another one; its source and time do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """What an upsert did: rows given = added + changed + unchanged + superseded; and how many files it replaced.

    ``superseded`` rows lost to a row of the same key that was fetched later, given or already stored.
    """

    rows: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    superseded: int = 0
    files_written: int = 0

    def __add__(self, other: "WriteReport") -> "WriteReport":
        """Add count by count."""
        return WriteReport(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )

    def as_dict(self) -> dict[str, int]:
        """Counts for metadata."""
        return asdict(self)


class SeriesStore:
    """Series and raw files under one root folder."""

    def __init__(self, root: Path) -> None:
        """``root`` is the project's home folder; it is created by the first write."""
        self.root = root

    def write(self, dataset: str, frame: pl.DataFrame) -> WriteReport:
        """Upsert series rows by (series_id, variable, start_utc); the row fetched last wins.

        A row whose value, unit and flag are stored already leaves the stored row, with its source and time, as it is;
        so the same input twice changes no byte. The whole frame is checked before the first file is touched.

        Raises:
            DataError: the frame breaks ``SERIES_SCHEMA`` or its rules, or the data set's name is no folder name.
            StoreBusy: another run writes this data set for too long.
        """
        folder = self._folder(dataset)
        validated = validate_frame(frame, SERIES_SCHEMA, "series frame").sort(
            "fetched_at", maintain_order=True
        )
        latest = validate_series(validated.unique(SERIES_KEY, keep="last", maintain_order=True))
        total = WriteReport()
        parts = latest.partition_by("series_id", as_dict=True)
        named = [
            (folder / f"{_slug(str(key[0]))}.parquet", part) for key, part in sorted(parts.items())
        ]
        with file_lock(folder / ".lock", exclusive=True):
            for path, part in named:
                merged, report = _upsert(
                    pl.read_parquet(path, glob=False) if path.exists() else None, part
                )
                if report.files_written:
                    _write_parquet(path, merged)
                total += report
        lost = frame.height - latest.height
        return total + WriteReport(rows=lost, superseded=lost)

    def read(self, dataset: str, series_prefix: str | None = None) -> pl.DataFrame:
        """Read a data set, or those of its series whose id starts with ``series_prefix``, sorted by key.

        Raises:
            DataError: nothing of that name is stored.
        """
        folder = self._folder(dataset)
        wanted = (series_prefix or "").replace("/", "__")
        paths = sorted(path for path in folder.glob("*__*.parquet") if path.name.startswith(wanted))
        if not paths:
            what = (
                f"series {series_prefix}* of {dataset}" if series_prefix else f"series of {dataset}"
            )
            raise DataError(f"no {what} stored under {folder}: materialize series/{dataset} first")
        frames = [pl.read_parquet(path, glob=False) for path in paths]
        return pl.concat(frames).select(list(SERIES_SCHEMA)).sort(SERIES_KEY)

    def keep_raw(self, raw: RawFile) -> Path:
        """Store the published bytes and a sidecar; equal bytes are stored once, other bytes under one name both kept.

        The newest content lies at ``raw/<source>/<name>``; what lay there before moves to ``<name>.<sha256[:8]>``.

        Raises:
            DataError, SchemaDrift: source or name would lead outside the folder.
        """
        folder = self.root / "raw" / _name(raw.source)
        check_member_path(raw.name, raw.source)
        path = folder / raw.name
        sidecar = path.with_name(f"{path.name}.json")
        with file_lock(folder / ".lock", exclusive=True):
            if path.exists():
                known = (
                    json.loads(sidecar.read_text(encoding="utf-8"))["sha256"]
                    if sidecar.exists()
                    else "unknown"
                )
                if known == raw.sha256 and path.stat().st_size == len(raw.content):
                    return path
                for old in (path, sidecar):
                    if old.exists():
                        old.replace(
                            old.with_name(
                                f"{path.name}.{known[:8]}{old.name.removeprefix(path.name)}"
                            )
                        )
            facts = {
                "url": raw.url,
                "sha256": raw.sha256,
                "bytes": len(raw.content),
                "fetched_at": raw.fetched_at.isoformat(),
                "mode": raw.mode.value,
            }
            _write_bytes(path, raw.content)
            _write_bytes(sidecar, (json.dumps(facts, indent=1) + "\n").encode())
        return path

    def _folder(self, dataset: str) -> Path:
        return self.root / "series" / _name(dataset)


def _upsert(stored: pl.DataFrame | None, given: pl.DataFrame) -> tuple[pl.DataFrame, WriteReport]:
    """Merge ``given`` (unique by key) into ``stored``; see :meth:`SeriesStore.write` for which row wins."""
    if stored is None:
        return given.sort(SERIES_KEY), WriteReport(
            rows=given.height, added=given.height, files_written=1
        )
    there = stored.with_columns(pl.lit(value=True).alias("_stored"))
    marked = given.join(there, on=list(SERIES_KEY), how="left", suffix="_was")
    equal = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_was")) for name in CONTENT)
    marked = marked.with_columns(
        pl.when(pl.col("_stored").is_null())
        .then(pl.lit("added"))
        .when(equal)
        .then(pl.lit("unchanged"))
        .when(pl.col("fetched_at") < pl.col("fetched_at_was"))
        .then(pl.lit("superseded"))
        .otherwise(pl.lit("changed"))
        .alias("_what")
    )
    counts = dict(marked["_what"].value_counts().rows())
    win = marked.filter(pl.col("_what").is_in(["added", "changed"])).select(given.columns)
    merged = pl.concat(
        [stored.select(given.columns).join(win, on=list(SERIES_KEY), how="anti"), win]
    )
    return merged.sort(SERIES_KEY), WriteReport(
        rows=given.height, **counts, files_written=int(win.height > 0)
    )


def _write_parquet(path: Path, frame: pl.DataFrame) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        frame.write_parquet(part)
        with part.open("rb") as handle:
            os.fsync(handle.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _write_bytes(path: Path, content: bytes) -> None:
    """Replace a raw file or sidecar. Not synced: a day's hundreds of files would take long, and they are verified."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _slug(series_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+\-]*(/[A-Za-z0-9._+\-]+)+", series_id):
        raise DataError(
            f"series_id {series_id!r} is not SOURCE/NAME of letters, digits and . _ + -; correct the parser"
        )
    return series_id.replace("/", "__")


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_\-]+", text):
        raise DataError(f"{text!r} is no folder name; use letters, digits, _ and -")
    return text
