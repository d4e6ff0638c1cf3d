"""Frames that accompany a data set's series: covariates, published forecasts, benchmark records.

What belongs here: storing each by month as Parquet, idempotently, and reading as much of it as is
asked for. What does not: series (``storage.series_store``), news (``storage.news_store``).

Writing a frame twice changes nothing; of two rows with one key the row written last stays. Rows by
step are kept in one file a month of their ``start_utc``, since forecasts of them are tens of
millions of rows a year; rows by day and records are few, and are one file (decision 68). A writer
replaces the files that its rows fall into, all at once (``compevo_core.data.files``).
"""

from collections.abc import Callable
from pathlib import Path

import polars as pl

from compevo_core.data.filelock import file_lock
from compevo_core.data.files import MANIFEST_FILE, hash_file, read_together, replace_together
from compevo_core.storage_errors import describe_storage_error
from compevo_pipeline.sources.common.base import FrameKind

KEYS: dict[FrameKind, tuple[str, ...]] = {
    FrameKind.COVARIATES: ("entity", "name", "valid_date", "available_at"),
    FrameKind.PUBLISHED: ("entity", "start_utc", "available_at", "quantile"),
    FrameKind.STEP_COVARIATES: ("entity", "name", "start_utc", "available_at"),
    FrameKind.BENCHMARK: ("source", "record"),
}
"""Columns that identify a row of a kind."""

Query = Callable[[pl.LazyFrame], pl.LazyFrame]
"""What is asked of stored rows; files and columns that it does not need are not read."""

_WHOLE = "all.parquet"
_FILE = "_file"
_REMEDY = "restore it, or remove the folder and materialize the series again"


class FrameStore:
    """Frames under ``root/<dataset>/<kind>/``, a file a month or one file."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def folder(self, dataset: str, kind: FrameKind) -> Path:
        """Return the folder of a frame, whether it exists or not."""
        return self._root / dataset / kind.value

    def write(
        self, dataset: str, kind: FrameKind, frame: pl.DataFrame, *, replace: bool = False
    ) -> int:
        """Merge rows into the stored frame by the kind's key, or put them in its place.

        Returns:
            The number of rows that the frame has now.

        Raises:
            DataError: the folder of the stored frame is incomplete.
            StorageError: a stored file is torn.
            StoreBusy: another process writes the frame for longer than a minute.
        """
        folder = self.folder(dataset, kind)
        # One writer from reading to writing: rows that another adds in between would be lost.
        with file_lock(folder.with_name(f".{folder.name}.lock"), exclusive=True):
            stored = _find_files(folder)
            files: dict[str, Callable[[Path], object]] = {}
            for name, part in _split(kind, _take_over(frame, folder, replace=replace)).items():
                before = None if replace or name not in stored else _collect([stored[name]])
                merged = _merge(before, part, kind)
                if before is None or not merged.equals(before):
                    files[name] = merged.write_parquet

            if files or replace:
                replace_together(folder, files, {}, keeps_others=not replace)
            count = self.read(dataset, kind, lambda rows: rows.select(pl.len()))
        return 0 if count is None else int(count.item())

    def read(
        self, dataset: str, kind: FrameKind, query: Query | None = None
    ) -> pl.DataFrame | None:
        """Read the stored frame, or return None if there is none.

        Args:
            dataset: name of the data set.
            kind: which of its frames.
            query: what is wanted of it; all rows, month by month, unless given.

        Raises:
            DataError: the folder is incomplete.
            StorageError: a file is torn.
        """
        folder = self.folder(dataset, kind)
        if _is_split(folder):
            return read_together(
                folder,
                lambda files: _collect(list(files.paths.values()), query),
                remedy=_REMEDY,
                is_verified=False,  # a torn Parquet file says so itself
            )

        single = _single_file(folder)
        return _collect([single], query) if single.exists() else None

    def hash_files(self, dataset: str) -> list[str]:
        """Return the hash of each stored file of a data set's frames, by kind and name.

        Args:
            dataset: name of the data set.

        Raises:
            DataError: a folder is incomplete.
        """
        found = []
        for kind in KEYS:
            folder = self.folder(dataset, kind)
            single = _single_file(folder)
            # The name of a file that a manifest names holds its hash.
            names = sorted(path.name for path in _find_files(folder).values())
            if not names and single.exists():
                names = [hash_file(single)]
            found += [f"{kind.value} {name}" for name in names]
        return found


def _single_file(folder: Path) -> Path:
    """Return where earlier versions stored the whole frame."""
    return folder.with_name(f"{folder.name}.parquet")


def _take_over(frame: pl.DataFrame, folder: Path, *, replace: bool) -> pl.DataFrame:
    """Return the given rows, after those that an earlier version stored as a single file.

    That file holds the rows until the manifest is there, and goes with the write after it: whoever
    began to read it is done by then.
    """
    single = _single_file(folder)
    if _is_split(folder):
        single.unlink(missing_ok=True)
    elif single.exists() and not replace:
        return pl.concat([_scan(single).collect(), frame])
    return frame


def _is_split(folder: Path) -> bool:
    return (folder / MANIFEST_FILE).exists()


def _find_files(folder: Path) -> dict[str, Path]:
    """Return the files that a folder's manifest names, by name."""
    if not _is_split(folder):
        return {}
    return read_together(folder, lambda files: dict(files.paths), remedy=_REMEDY, is_verified=False)


def _split(kind: FrameKind, frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return rows by the name of the file that they belong into."""
    if "start_utc" not in KEYS[kind]:
        return {_WHOLE: frame}

    month = pl.col("start_utc").dt.strftime("%Y-%m.parquet").alias(_FILE)
    parts = frame.with_columns(month).partition_by(_FILE, as_dict=True, include_key=False)
    return {str(name): part for (name,), part in sorted(parts.items())}


def _merge(stored: pl.DataFrame | None, given: pl.DataFrame, kind: FrameKind) -> pl.DataFrame:
    # Stored rows come first, so that keep="last" prefers the given ones.
    keys = list(KEYS[kind])
    rows = given if stored is None else pl.concat([stored, given])
    return rows.unique(keys, keep="last", maintain_order=True).sort(keys)


def _collect(paths: list[Path], query: Query | None = None) -> pl.DataFrame | None:
    """Return what a query finds in files, or None where there is none."""
    if not paths:
        return None
    rows = pl.concat([_scan(path) for path in sorted(paths)])
    return (query(rows) if query else rows).collect()


def _scan(path: Path) -> pl.LazyFrame:
    rows = pl.scan_parquet(path, glob=False)
    try:
        # The schema stands at the end of a file: a torn one is named here.
        rows.collect_schema()
    except pl.exceptions.ComputeError as error:
        raise describe_storage_error(error, f"reading {path}") from error
    return rows
