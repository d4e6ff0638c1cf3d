"""Series in Parquet and raw bytes on disk; news is in :mod:`.news_store`, named here for convenience.

What belongs here: where files lie, idempotent upserts, atomic replacement. What does not: parsing, gaps, windows.
Layout under the root: ``series/<dataset>/<series>.parquet``, ``series/<dataset>/tables/<table>.parquet`` for frames
that are no series, ``raw/<source>/<name>`` with a JSON sidecar (URL, sha256, time, mode). A file is replaced by a
rename, so a reader sees the old or the new one and never half of either; writers of one data set wait for each other.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import polars as pl

from compevo_core.errors import DataError
from compevo_core.series import (
    BENCHMARK_SCHEMA,
    COVARIATE_SCHEMA,
    PUBLISHED_SCHEMA,
    SERIES_SCHEMA,
    validate_frame,
    validate_series,
)
from compevo_pipeline.filelock import file_lock
from compevo_pipeline.news_store import NewsStore
from compevo_pipeline.sources.base import RawFile, check_member_path

__all__ = ["TABLES", "NewsStore", "SeriesStore", "WriteReport"]

SERIES_KEY = ("series_id", "variable", "start_utc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A stored frame that is no series: its schema and what makes a row unique."""

    schema: Mapping[str, pl.DataType]
    key: tuple[str, ...]


TABLES: dict[str, Table] = {
    "covariates": Table(schema=COVARIATE_SCHEMA, key=("entity", "name", "valid_date", "available_at")),
    "published": Table(schema=PUBLISHED_SCHEMA, key=("entity", "start_utc", "quantile", "available_at")),
    "benchmark": Table(schema=BENCHMARK_SCHEMA, key=("source", "record")),
}


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
        return WriteReport(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def as_dict(self) -> dict[str, int]:
        """Counts for metadata."""
        return asdict(self)


class SeriesStore:
    """Series, side tables and raw files under one root folder."""

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
        validated = validate_frame(frame, SERIES_SCHEMA, "series frame").sort("fetched_at", maintain_order=True)
        latest = validate_series(validated.unique(SERIES_KEY, keep="last", maintain_order=True))
        total = WriteReport()
        parts = latest.partition_by("series_id", as_dict=True)
        named = [(folder / f"{_slug(str(key[0]))}.parquet", part) for key, part in sorted(parts.items())]
        with file_lock(folder / ".lock", exclusive=True):
            for path, part in named:
                merged, report = _upsert(_read(path), part, SERIES_KEY, ("value", "unit", "flag"), "fetched_at")
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
        wanted = _slug(series_prefix) if series_prefix else ""
        paths = sorted(path for path in folder.glob("*.parquet") if path.name.startswith(wanted))
        if not paths:
            what = f"series {series_prefix}* of {dataset}" if series_prefix else f"series of {dataset}"
            raise DataError(f"no {what} stored under {folder}: materialize series/{dataset} first")
        frames = [pl.read_parquet(path, glob=False) for path in paths]
        return pl.concat(frames).select(list(SERIES_SCHEMA)).sort(SERIES_KEY)

    def write_table(self, dataset: str, table: str, frame: pl.DataFrame) -> WriteReport:
        """Upsert rows of a side table named in ``TABLES`` by its key; of equal keys the row given last wins.

        Raises:
            DataError: unknown table, or the frame breaks its schema.
            StoreBusy: another run writes this data set for too long.
        """
        spec = self._table(table)
        folder = self._folder(dataset)
        rows = validate_frame(frame, spec.schema, f"{table} frame").unique(spec.key, keep="last", maintain_order=True)
        path = folder / "tables" / f"{table}.parquet"
        with file_lock(folder / ".lock", exclusive=True):
            content = tuple(name for name in spec.schema if name not in spec.key)
            merged, report = _upsert(_read(path), rows, spec.key, content, None)
            if report.files_written:
                _write_parquet(path, merged)
        lost = frame.height - rows.height
        return report + WriteReport(rows=lost, superseded=lost)

    def read_table(self, dataset: str, table: str) -> pl.DataFrame | None:
        """Read a side table, sorted by key; None where the data set has none.

        Raises:
            DataError: unknown table.
        """
        spec = self._table(table)
        return _read(self._folder(dataset) / "tables" / f"{table}.parquet", spec.key)

    def keep_raw(self, raw: RawFile) -> Path:
        """Store the published bytes and a sidecar; equal bytes are stored once, other bytes under one name both kept.

        The newest content lies at ``raw/<source>/<name>``; what lay there before moves to ``<name>.<sha256[:8]>``.

        Raises:
            DataError: source or name would lead outside the folder.
        """
        folder = self.root / "raw" / _name(raw.source)
        check_member_path(raw.name, raw.source)
        path = folder / raw.name
        sidecar = path.with_name(f"{path.name}.json")
        with file_lock(folder / ".lock", exclusive=True):
            if path.exists():
                known = json.loads(sidecar.read_text(encoding="utf-8"))["sha256"] if sidecar.exists() else "unknown"
                if known == raw.sha256 and path.stat().st_size == len(raw.content):
                    return path
                for old in (path, sidecar):
                    if old.exists():
                        old.replace(old.with_name(f"{path.name}.{known[:8]}{old.name.removeprefix(path.name)}"))
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

    @staticmethod
    def _table(table: str) -> Table:
        if table not in TABLES:
            raise DataError(f"unknown table {table!r}; choose from {', '.join(TABLES)}")
        return TABLES[table]


def _upsert(
    stored: pl.DataFrame | None, given: pl.DataFrame, key: Sequence[str], content: Sequence[str], newer: str | None
) -> tuple[pl.DataFrame, WriteReport]:
    """Merge ``given`` (unique by key) into ``stored``; see :meth:`SeriesStore.write` for which row wins."""
    if stored is None:
        return given.sort(key), WriteReport(rows=given.height, added=given.height, files_written=int(given.height > 0))
    there = stored.with_columns(pl.lit(value=True).alias("_stored"))
    marked = given.join(there, on=list(key), how="left", suffix="_was")
    known = pl.col("_stored").fill_null(value=False)
    equal = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_was")) for name in content)
    older = pl.col(newer) < pl.col(f"{newer}_was") if newer else pl.lit(value=False)
    marked = marked.with_columns(
        pl.when(~known)
        .then(pl.lit("added"))
        .when(equal)
        .then(pl.lit("unchanged"))
        .when(older)
        .then(pl.lit("superseded"))
        .otherwise(pl.lit("changed"))
        .alias("_what")
    )
    counts = dict(marked["_what"].value_counts().rows())
    win = marked.filter(pl.col("_what").is_in(["added", "changed"])).select(given.columns)
    merged = pl.concat([stored.select(given.columns).join(win, on=list(key), how="anti"), win]).sort(key)
    report = WriteReport(rows=given.height, **counts, files_written=int(win.height > 0))
    return merged, report


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


def _read(path: Path, key: Sequence[str] = ()) -> pl.DataFrame | None:
    if not path.exists():
        return None
    frame = pl.read_parquet(path, glob=False)
    return frame.sort(key) if key else frame


def _slug(series_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._+\-/]+", series_id):
        raise DataError(f"series_id {series_id!r} gives no file name; use letters, digits and . _ + - /")
    return series_id.replace("/", "__")


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_\-]+", text):
        raise DataError(f"{text!r} is no folder name; use letters, digits, _ and -")
    return text
