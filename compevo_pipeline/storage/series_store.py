"""Series, and the frames that accompany them, in Parquet.

What belongs here: where files lie, idempotent upserts, atomic replacement. What does not: parsing,
gaps, windows, news (``storage.news_store``), raw files (``sources.common.raw_store``).

Series: ``series/<dataset>/<series>.parquet``, where a slash in a series id is two underscores. A
file is replaced by a rename, so a reader sees the old or the new one and never half of either;
writers of one data set wait for each other. ``sums/`` has the hash of each file: a disk that loses
a bit changes values that still look like values.

Frames (covariates, published forecasts, benchmark records): ``<dataset>/<kind>/``, rows by step in
one file a month of their ``start_utc``, since forecasts of them are tens of millions of rows a
year; rows by day and records in one file (decision 19-stores).
"""

import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA, validate_frame
from compevo_core.data.series import validate_series
from compevo_core.errors import DataError
from compevo_core.runtime.files import (
    MANIFEST_FILE,
    describe_storage_error,
    file_lock,
    hash_file,
    read_together,
    replace_together,
    translate_storage_errors,
    write_atomically,
    write_bytes,
)
from compevo_pipeline.sources.common.base import Counts, FrameKind
from compevo_pipeline.sources.common.nem import FAULTY, INCOMPLETE, OUTSIDE
from compevo_pipeline.sources.common.raw_store import check_folder_name
from compevo_pipeline.sources.common.tables import MISSING
from compevo_pipeline.storage.series_changes import (
    ACCEPTED_AT,
    FILE,
    MOST_CHANGED,
    ChangeKind,
    empty_changes,
    find_far,
    find_waiting,
    join_changes,
    keep_first,
    list_changes,
    list_frame_changes,
    list_removals,
)
from compevo_pipeline.storage.series_changes import KEY as SERIES_KEY

CONTENT = ("value", "unit", "flag")
"""Columns that make a row another one; its source and time do not."""

LACKING = (MISSING, INCOMPLETE, OUTSIDE, *FAULTY)
"""Flags of rows whose file does not hold the value, or not all of its parts."""

KEYS: dict[FrameKind, tuple[str, ...]] = {
    FrameKind.COVARIATES: ("entity", "name", "valid_date", "available_at"),
    FrameKind.PUBLISHED: ("entity", "start_utc", "available_at", "quantile"),
    FrameKind.STEP_COVARIATES: ("entity", "name", "start_utc", "available_at"),
    FrameKind.BENCHMARK: ("source", "record"),
}
"""Columns that identify a row of a kind of frame."""

Query = Callable[[pl.LazyFrame], pl.LazyFrame]
"""A selection of stored rows; files and columns that it does not need are not read."""

_LOCK = ".lock"
_CHANGES = "changes"
_SUMS = "sums"
_DAMAGED = ".damaged"  # ending of a file that was set aside
_WHOLE = "all.parquet"
_FILE = "_file"
_REMEDY = "run `compevo refresh`, which sets it aside and makes it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport(Counts):
    """Counts of an upsert.

    Rows given = added + changed + unchanged + superseded + nulls_kept_out + waiting.
    """

    rows: int = 0
    added: int = 0  # rows of a new key
    changed: int = 0  # rows that replaced a stored one
    unchanged: int = 0  # rows equal to the stored one
    # Rows that lost to a row of the same key that was fetched later, given or stored.
    superseded: int = 0
    nulls_kept_out: int = 0  # rows without a value where one is stored; the value stays
    removed: int = 0  # stored rows that a later version of their own file no longer has
    # Stored rows that a later version of their own file lacks, and that stay, for the file brings
    # nothing else or takes away too many, and may be cut.
    absent: int = 0
    # Rows given of files that change most of what they repeat; what is stored stays.
    waiting: int = 0
    files_written: int = 0  # files that were replaced


class SeriesStore:
    """Series under one root folder."""

    def __init__(self, root: Path) -> None:
        """Use ``root``, the project's home folder; the first write creates it."""
        self.root = root

    def write(
        self, dataset: str, frame: pl.DataFrame, *, replace: bool = False, accept: bool = False
    ) -> WriteReport:
        """Upsert series rows by (series_id, variable, start_utc); the row fetched last wins.

        A row whose value, unit and flag are stored already leaves the stored row, with its source
        and time, as it is; so the same input twice changes no byte. The whole frame is checked
        before the first file is touched.

        A row that is merely missing never takes the place of a value: a day issued again without
        its values loses nothing, nor does a half-hour some of whose parts a cut file lacks. One
        that is nulled for another reason (``nulled:...``) does. Of a file
        that is given again, stored rows that it no longer has go, from its first row on and only
        with a change that it brings.

        With ``replace`` the frame is the whole data set, and stored rows that it lacks go. Where
        it would change most of what it repeats, or take away most of what is stored, as a file in
        another unit or a cut one does, everything stays until a person accepts it; with ``accept``
        it is applied at once.

        Raises:
            DataError: the frame breaks ``SERIES_SCHEMA`` or its rules, or the name of the data set
                cannot name a folder.
            StoreBusy: another run writes this data set for too long.
        """
        folder = self._series_folder(dataset)

        # Columns and types first: sorting needs them. The rules hold for one row a key.
        rows = validate_frame(frame, SERIES_SCHEMA, "series frame")
        rows = rows.sort("fetched_at", maintain_order=True)
        # Of several rows of a key the last counts, but a value before none.
        rows = rows.sort(~pl.col("flag").is_in(LACKING), maintain_order=True)
        latest = validate_series(rows.unique(SERIES_KEY, keep="last", maintain_order=True))

        parts = latest.partition_by("series_id", as_dict=True)
        files = {
            folder / f"{_file_name(str(key[0]))}.parquet": part
            for key, part in sorted(parts.items())
        }
        report = WriteReport()
        with file_lock(folder / _LOCK, exclusive=True):
            if replace and not accept and _hold_back(folder, latest):
                return WriteReport(rows=latest.height, waiting=latest.height)

            # A file that is wrong in one of its series is not believed in the others.
            held: set[str] = set()
            for path, part in files.items() if not replace else ():
                stored, known = _read_rows(path), _read_record(path)
                waiting = known.filter(kind=ChangeKind.WAITING.value)
                far = find_far(_pair(stored, part, keep_values=True))
                held.update(find_waiting(far, waiting)["source"])

            for path, part in files.items():
                stored, known = _read_rows(path), _read_record(path)
                if replace:
                    stored = stored.join(part, on=list(SERIES_KEY), how="semi")
                merged, counts, record = _upsert(stored, part, known, held, keep_values=not replace)
                report += counts
                if replace:
                    record = known.filter(pl.col("kind") != ChangeKind.WAITING.value)
                # First: a killed process may record a change twice, and never loses what was.
                if not record.equals(known):
                    _write_record(path, record)
                if replace or counts.files_written:
                    _write_parquet(path, merged)
            if replace:
                for path in {*folder.glob("*__*.parquet")} - files.keys():
                    path.unlink()

        lost = frame.height - latest.height
        return report + WriteReport(rows=lost, superseded=lost)

    def read(self, dataset: str, series_prefix: str | None = None) -> pl.DataFrame:
        """Read a data set, or its series whose id starts with ``series_prefix``, sorted by key.

        Raises:
            DataError: nothing of that name is stored.
        """
        paths = self._find_files(dataset, series_prefix)
        rows = pl.concat([_read_parquet(path) for path in paths])
        return rows.select(list(SERIES_SCHEMA)).sort(SERIES_KEY)

    def scan(self, dataset: str) -> pl.LazyFrame:
        """Return a data set, read as far as a query needs it; ``DataError`` if none is stored."""
        return pl.scan_parquet(self._find_files(dataset), glob=False).select(list(SERIES_SCHEMA))

    def count_rows(self, dataset: str) -> dict[str, int]:
        """Return the number of rows of each stored file, by its name; torn files have none."""
        counts = {}
        for path in sorted(self._series_folder(dataset).glob("*__*.parquet")):
            try:
                rows = pl.scan_parquet(path, glob=False).select(pl.len())
                counts[path.name] = int(rows.collect().item())
            except pl.exceptions.ComputeError:
                counts[path.name] = 0
        return counts

    def read_changes(self, dataset: str) -> pl.DataFrame:
        """Read the record of changes of known values, ``CHANGE_SCHEMA``, oldest fetch first."""
        paths = sorted((self._series_folder(dataset) / _CHANGES).glob("*.parquet"))
        rows = pl.concat([empty_changes(), *(_read_parquet(path) for path in paths)])
        return rows.sort("fetched_at", *SERIES_KEY)

    def read_waiting(self, dataset: str) -> pl.DataFrame:
        """Read the changes that wait to be confirmed."""
        return self.read_changes(dataset).filter(kind=ChangeKind.WAITING.value)

    def accept_waiting(self, dataset: str) -> int:
        """Let the next fetch confirm what waits, however soon it comes; return the count."""
        folder = self._series_folder(dataset)
        is_waiting = pl.col("kind") == ChangeKind.WAITING.value
        count = 0
        with file_lock(folder / _LOCK, exclusive=True):
            for path in sorted((folder / _CHANGES).glob("*.parquet")):
                known = _read_parquet(path)
                at = pl.when(is_waiting).then(pl.lit(ACCEPTED_AT)).otherwise("fetched_at")
                _write_parquet(path, known.with_columns(at.alias("fetched_at")))
                count += known.filter(is_waiting).height
        return count

    def hash_files(self, dataset: str) -> list[str]:
        """Return the name and hash of each stored file, by name; equal rows leave them equal.

        ``StoreBusy`` where another run writes this data set for too long.
        """
        folder = self._series_folder(dataset)
        if not folder.exists():
            return []
        # Under the writers' lock: a file that goes meanwhile would be missed.
        with file_lock(folder / _LOCK, exclusive=False):
            paths = sorted(folder.glob("*__*.parquet"))
            return [f"{path.name} {hash_file(path)}" for path in paths]

    def set_aside_damaged(self, dataset: str, *, dry: bool = False) -> list[Path]:
        """Rename the files that are not what was written, so that they are made again.

        They are returned; with ``dry`` they stay. StoreBusy as :meth:`hash_files`.
        """
        folder = self._series_folder(dataset)
        if not folder.exists():
            return []
        with file_lock(folder / _LOCK, exclusive=True):
            files = sorted(path for path in folder.rglob("*__*.parquet") if not _is_whole(path))
            for path in () if dry else files:
                path.replace(path.with_suffix(_DAMAGED))
        return files

    def is_older(self, dataset: str, path: Path) -> bool:
        """Whether a data set was written before a file was; so where nothing is stored."""
        stored = self._series_folder(dataset).glob("*__*.parquet")
        written = max((file.stat().st_mtime for file in stored), default=0.0)
        return written < path.stat().st_mtime

    def _find_files(self, dataset: str, series_prefix: str | None = None) -> list[Path]:
        folder = self._series_folder(dataset)
        prefix = (series_prefix or "").replace("/", "__")
        # Two underscores mark a series: other frames in the folder are not this store's.
        paths = sorted(path for path in folder.glob("*__*.parquet") if path.name.startswith(prefix))
        if not paths:
            wanted = f"series {series_prefix}*" if series_prefix else "series"
            raise DataError(
                f"no {wanted} of {dataset} stored under {folder}: "
                f"read its source with `compevo fit {dataset}` or `compevo refresh {dataset}`"
            )
        return paths

    def _series_folder(self, dataset: str) -> Path:
        return self.root / "series" / check_folder_name(dataset)


def _record_of(path: Path) -> Path:
    return path.parent / _CHANGES / path.name


def _write_record(path: Path, changes: pl.DataFrame) -> None:
    record = _record_of(path)
    record.parent.mkdir(exist_ok=True)
    _write_parquet(record, changes)


def _read_rows(path: Path) -> pl.DataFrame:
    """Return what is stored of a series."""
    rows = _read_parquet(path) if path.exists() else pl.DataFrame(schema=SERIES_SCHEMA)
    return rows.select(list(SERIES_SCHEMA))


def _read_record(path: Path) -> pl.DataFrame:
    """Return the record of changes of a series."""
    record = _record_of(path)
    return _read_parquet(record) if record.exists() else empty_changes()


def _hold_back(folder: Path, given: pl.DataFrame) -> bool:
    """Record the changes of a whole file that nobody has accepted; return whether there are any."""
    paths = sorted(folder.glob("*__*.parquet"))
    stored = pl.concat([pl.DataFrame(schema=SERIES_SCHEMA), *map(_read_rows, paths)])
    known = pl.concat([empty_changes(), *map(_read_record, paths)])

    changes = find_far(_pair(stored, given, keep_values=False))
    lacking = stored.join(given, on=list(SERIES_KEY), how="anti")
    if lacking.height > MOST_CHANGED * stored.height:
        changes = pl.concat([changes, list_removals(lacking, ChangeKind.WAITING)])
    accepted = known.filter(kind=ChangeKind.WAITING.value, fetched_at=ACCEPTED_AT)
    waiting = changes.join(find_waiting(changes, accepted), on="series_id", how="semi")
    for (name,), part in waiting.partition_by("series_id", as_dict=True).items():
        _write_record(folder / f"{_file_name(str(name))}.parquet", part)
    return waiting.height > 0


def _pair(stored: pl.DataFrame, given: pl.DataFrame, *, keep_values: bool) -> pl.DataFrame:
    """Return each given row beside the stored row of its key, with what becomes of it."""
    pairs = given.join(stored, on=list(SERIES_KEY), how="left", suffix="_stored")
    is_equal = pl.all_horizontal(
        pl.col(name).eq_missing(pl.col(f"{name}_stored")) for name in CONTENT
    )

    outcome = (
        pl.when(pl.col("fetched_at_stored").is_null())
        .then(pl.lit("added"))
        .when(is_equal)
        .then(pl.lit("unchanged"))
        .when(keep_values & pl.col("flag").is_in(LACKING) & pl.col("value_stored").is_not_null())
        .then(pl.lit("nulls_kept_out"))
        .when(pl.col("fetched_at") < pl.col("fetched_at_stored"))
        .then(pl.lit("superseded"))
        .otherwise(pl.lit("changed"))
    )
    return pairs.with_columns(outcome.alias("_outcome"))


def _upsert(
    stored: pl.DataFrame,
    given: pl.DataFrame,
    known: pl.DataFrame,
    held: Collection[str],
    *,
    keep_values: bool,
) -> tuple[pl.DataFrame, WriteReport, pl.DataFrame]:
    """Merge ``given`` (unique by key) into ``stored`` by the rules of :meth:`SeriesStore.write`.

    ``known`` is the record of earlier changes, which is returned with the new ones. Files that are
    ``held`` bring nothing; with ``keep_values`` the rules hold that protect what is known.
    """
    earlier = known.filter(kind=ChangeKind.WAITING.value)
    pairs = _pair(stored, given, keep_values=keep_values)

    # A file that changes most of what it repeats brings nothing until it is confirmed.
    is_held = pl.col("source").is_in(list(held))
    is_new = pl.col("_outcome").is_in(["added", "changed"])
    waiting = list_changes(pairs.filter(is_held, _outcome="changed"), ChangeKind.WAITING)
    pairs = pairs.with_columns(
        pl.when(is_held & is_new).then(pl.lit("waiting")).otherwise("_outcome").alias("_outcome")
    )
    new = pairs.filter(is_new)

    # A file takes rows away only with a change that it brings.
    lacking = _find_lacking(stored, given)
    wanted = earlier.filter(pl.col("after").is_null())
    corrected = pl.concat([new.select(FILE), wanted.select(FILE)])
    missed = lacking.filter(~is_held).join(corrected, on=FILE, how="semi")
    removals = list_removals(missed, ChangeKind.REMOVED)
    staying = find_waiting(removals, wanted) if keep_values else empty_changes()
    removed = removals.join(staying, on=list(SERIES_KEY), how="anti")

    gone = pl.concat([new.select(SERIES_KEY), removed.select(SERIES_KEY)])
    merged = pl.concat(
        [stored.join(gone, on=list(SERIES_KEY), how="anti"), new.select(stored.columns)]
    )
    report = WriteReport(
        rows=given.height,
        **dict(pairs["_outcome"].value_counts().rows()),
        removed=removed.height,
        absent=lacking.height - removed.height,
        files_written=int(gone.height > 0),
    )
    changed = list_changes(new.filter(_outcome="changed"), ChangeKind.CHANGED)
    changes = [changed, removed, keep_first(waiting, earlier), staying]
    return merged.sort(SERIES_KEY), report, join_changes(known, changes, given)


def _find_lacking(stored: pl.DataFrame, given: pl.DataFrame) -> pl.DataFrame:
    """Return the stored rows that the new version of their file lacks, as fetched with that.

    Earlier rows than the file's first are history that it no longer reaches back to.
    """
    files = given.group_by(FILE).agg(
        pl.col("start_utc").min().alias("_first"), pl.col("fetched_at").max().alias("_fetched_at")
    )
    # A row that came later is not missed by an earlier version that is read again.
    is_reached = pl.col("start_utc") >= pl.col("_first")
    is_newer = pl.col("fetched_at") <= pl.col("_fetched_at")
    lacking = stored.join(files, on=FILE, how="inner").filter(is_reached & is_newer)
    return lacking.with_columns(fetched_at="_fetched_at").join(
        given, on=list(SERIES_KEY), how="anti"
    )


def _write_parquet(path: Path, rows: pl.DataFrame) -> None:
    """Write a file and its hash; whenever the process is killed, the hash of the file is there."""

    def write(part: Path) -> None:
        rows.write_parquet(part)
        sums = _sums_of(path)
        stays = sums.exists() and path.exists() and _is_whole(path)
        hashes = [*([hash_file(path)] if stays else []), hash_file(part)]
        write_bytes(sums, "\n".join(hashes).encode(), is_durable=False)

    write_atomically(path, write)


def _sums_of(path: Path) -> Path:
    return path.parent / _SUMS / f"{path.stem}.txt"


def _is_whole(path: Path) -> bool:
    """Whether a file is what was written; one without a hash, of an older version, is taken so."""
    sums = _sums_of(path)
    known = sums.read_bytes().decode(errors="replace").split() if sums.exists() else []
    return not known or hash_file(path) in known


def _read_parquet(path: Path) -> pl.DataFrame:
    if not _is_whole(path):
        raise DataError(f"{path} is not what was written; {_REMEDY}")
    # Without glob=False a bracket in a path would be a pattern.
    with translate_storage_errors(f"reading {path}"):
        return pl.read_parquet(path, glob=False)


def _file_name(series_id: str) -> str:
    if not re.fullmatch(r"\w[\w.+\-]*(/[\w.+\-]+)+", series_id):
        raise DataError(
            f"series_id {series_id!r} is not SOURCE/NAME of letters, digits and . _ + -; "
            "correct the parser"
        )

    return series_id.replace("/", "__")


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

        Writing a frame twice changes nothing; of two rows with one key the row written last stays,
        and a value that it changes is recorded.
        The files that the rows fall into are replaced all at once.

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
            stored = _list_frame_files(folder)
            files: dict[str, Callable[[Path], object]] = {}
            changes: list[pl.DataFrame] = []
            for name, part in _split_by_file(kind, frame).items():
                before = None if replace or name not in stored else _collect([stored[name]])
                # Stored rows come first, so that the given ones are kept.
                rows = part if before is None else pl.concat([before, part])
                keys = list(KEYS[kind])
                merged = rows.unique(keys, keep="last", maintain_order=True).sort(keys)
                if before is None or not merged.equals(before):
                    files[name] = merged.write_parquet

                    if before is not None:
                        changes.append(list_frame_changes(before, merged, keys))

            # First, as of series.
            if changes:
                record = pl.concat([self._read_changes(dataset, kind), *changes])
                path = self._changes_file(dataset, kind)
                write_atomically(path, record.unique(maintain_order=True).write_parquet)
            if files or replace:
                replace_together(folder, files, {}, keeps_others=not replace)
            count = self.read(dataset, kind, lambda rows: rows.select(pl.len()))
        return 0 if count is None else int(count.item())

    def read_changes(self, dataset: str) -> pl.DataFrame:
        """Read the record of changed values, ``CHANGE_SCHEMA``, oldest issue first."""
        rows = pl.concat([self._read_changes(dataset, kind) for kind in KEYS])
        return rows.sort("fetched_at", *SERIES_KEY)

    def _read_changes(self, dataset: str, kind: FrameKind) -> pl.DataFrame:
        path = self._changes_file(dataset, kind)
        return _read_parquet(path) if path.exists() else empty_changes()

    def _changes_file(self, dataset: str, kind: FrameKind) -> Path:
        return self.folder(dataset, kind).with_name(f"{kind.value}-changes.parquet")

    def read(
        self,
        dataset: str,
        kind: FrameKind,
        query: Query | None = None,
        *,
        is_verified: bool = False,
    ) -> pl.DataFrame | None:
        """Read all of the stored frame, or what a query selects; None if there is none.

        With ``is_verified`` each file is compared with its hash first, which reads it whole.

        Raises:
            DataError: the folder is incomplete, or a file is not what was written.
            StorageError: a file is torn.
        """
        folder = self.folder(dataset, kind)
        if not (folder / MANIFEST_FILE).exists():
            return None
        return read_together(
            folder,
            lambda files: _collect(list(files.paths.values()), query),
            remedy=_REMEDY,
            is_verified=is_verified,
        )

    def set_aside_damaged(self, dataset: str, *, dry: bool = False) -> list[Path]:
        """Do as :meth:`SeriesStore.set_aside_damaged` for the frames of a data set."""
        damaged = []
        for folder in (self.folder(dataset, kind) for kind in KEYS):
            if not folder.exists():
                continue
            with file_lock(folder.with_name(f".{folder.name}.lock"), exclusive=True):
                try:
                    kind = FrameKind(folder.name)
                    self.read(dataset, kind, lambda rows: rows.head(0), is_verified=True)
                except DataError:
                    damaged.append(folder)
                    if not dry:
                        shutil.rmtree(folder.with_suffix(_DAMAGED), ignore_errors=True)
                        folder.rename(folder.with_suffix(_DAMAGED))
        return damaged

    def hash_files(self, dataset: str) -> list[str]:
        """Return kind, name and hash of every file; ``DataError`` if a folder is incomplete."""
        # The name of a file that a manifest names holds its hash.
        return [
            f"{kind.value} {path.name}"
            for kind in KEYS
            for path in sorted(_list_frame_files(self.folder(dataset, kind)).values())
        ]


def _list_frame_files(folder: Path) -> dict[str, Path]:
    if not (folder / MANIFEST_FILE).exists():
        return {}
    return read_together(folder, lambda files: dict(files.paths), remedy=_REMEDY, is_verified=False)


def _split_by_file(kind: FrameKind, frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return rows by the name of the file that they belong into."""
    if "start_utc" not in KEYS[kind]:
        return {_WHOLE: frame}

    month = pl.col("start_utc").dt.strftime("%Y-%m.parquet").alias(_FILE)
    parts = frame.with_columns(month).partition_by(_FILE, as_dict=True, include_key=False)
    return {str(name): part for (name,), part in sorted(parts.items())}


def _collect(paths: list[Path], query: Query | None = None) -> pl.DataFrame | None:
    """Return what a query selects from files, or None where there is none."""
    if not paths:
        return None
    rows = pl.concat([_scan(path) for path in sorted(paths)])
    return (query(rows) if query else rows).collect()


def _scan(path: Path) -> pl.LazyFrame:
    rows = pl.scan_parquet(path, glob=False)
    try:
        # The schema is at the end of a file: a torn one is named here.
        rows.collect_schema()
    except pl.exceptions.ComputeError as error:
        raise describe_storage_error(error, f"reading {path}") from error
    return rows
