"""Series, and the frames that accompany them, in Parquet.

What belongs here: where files are, idempotent upserts, atomic replacement. What does not: parsing,
gaps, windows, news (``storage.news_store``), raw files (``sources.common.raw_store``).

A folder of a frame has Parquet files, the record of the values that changed in them, and a manifest
that names each file by its hash: a reader sees all that a writer replaced or nothing of it, and a
disk that loses a bit is found out. Writers of one frame wait for each other.

Series: ``series/<dataset>/``, a file for each series, where a slash in its id is two underscores.
Frames (covariates, published forecasts, benchmark records): ``<dataset>/<kind>/``, rows by step in
one file a month of their ``start_utc``, since forecasts of them are tens of millions of rows a
year; rows by day and records in one file (decision 19-stores).
"""

import functools
import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA, validate_frame
from compevo_core.data.series import split_series, validate_series
from compevo_core.errors import DataError
from compevo_core.runtime.files import (
    MANIFEST_FILE,
    FileSet,
    describe_storage_error,
    file_lock,
    hash_file,
    hash_text,
    is_named_by_hash,
    read_together,
    replace_together,
    translate_storage_errors,
)
from compevo_pipeline.sources.common.base import FrameKind
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

_LONGEST_NAME = 150  # bytes of a series in its file's name

CONTENT = ("value", "unit", "flag")  # make a row another one; its source and time do not
LACKING = (MISSING, INCOMPLETE, OUTSIDE, *FAULTY)  # flags of rows without a whole value
KEYS: dict[FrameKind, tuple[str, ...]] = {
    FrameKind.COVARIATES: ("entity", "name", "valid_date", "available_at"),
    FrameKind.PUBLISHED: ("entity", "start_utc", "available_at", "quantile"),
    FrameKind.STEP_COVARIATES: ("entity", "name", "start_utc", "available_at"),
    FrameKind.BENCHMARK: ("source", "record"),
}
"""Columns that identify a row of a kind of frame."""

_Found = TypeVar("_Found")  # what a reader makes of files
Query = Callable[[pl.LazyFrame], pl.LazyFrame]  # selects rows; what it does not need is not read
_RECORD = "changes.parquet"  # of the changes of known values
_DAMAGED = ".damaged"  # ending of a file that was set aside
_WHOLE = "all.parquet"
_FILE = "_file"
_REMEDY = "run `compevo refresh`, which sets it aside and makes it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """Counts of an upsert.

    Rows given = added + changed + unchanged + superseded + nulls_kept_out + waiting.
    """

    rows: int = 0
    added: int = 0  # rows of a new key
    changed: int = 0  # rows that replaced a stored one
    unchanged: int = 0  # rows equal to the stored one
    superseded: int = 0  # rows that lost to a row of their key that was fetched later
    nulls_kept_out: int = 0  # rows without a value where one is stored; the value stays
    removed: int = 0  # stored rows that a later version of their own file no longer has
    absent: int = 0  # stored rows that stay though their own file lacks them: it may be cut
    waiting: int = 0  # rows of files that change most of what they repeat; what is stored stays
    files_written: int = 0  # files that were replaced


@dataclass(frozen=True)
class _Folder:
    """The Parquet files of one frame, and the record of the values that changed in them."""

    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out from reading to writing: rows that they add would be lost."""
        with file_lock(self.path.with_name(f".{self.path.name}.lock"), exclusive=True):
            yield

    def follow(self, read: Callable[[FileSet], _Found], *, is_verified: bool = False) -> _Found:
        """Return what a reader makes of the files that the manifest names, if there is one.

        DataError where the manifest is torn, or a file is missing or, if verified, altered.
        """
        if not (self.path / MANIFEST_FILE).exists():
            return read(FileSet(facts={}, paths={}, hashes={}))
        return read_together(self.path, read, remedy=_REMEDY, is_verified=is_verified)

    def find_files(self) -> dict[str, Path]:
        """Return the files of rows by name."""
        return self.follow(_list_rows)

    def read(self, query: Query | None, *, is_verified: bool) -> pl.DataFrame | None:
        """Return the rows that a query selects, or all; None where there is none."""

        def collect(found: FileSet) -> pl.DataFrame | None:
            paths = _list_rows(found).values()
            if not paths:
                return None
            rows = pl.concat([_scan(path) for path in paths])
            return (query(rows) if query else rows).collect()

        return self.follow(collect, is_verified=is_verified)

    def read_record(self) -> pl.DataFrame:
        """Return the record of changes, ``CHANGE_SCHEMA``."""

        def read(found: FileSet) -> pl.DataFrame:
            path = found.paths.get(_RECORD)
            return empty_changes() if path is None else _read_whole(path)

        return self.follow(read)

    def replace(
        self,
        files: Mapping[str, pl.DataFrame],
        record: pl.DataFrame | None = None,
        *,
        keeps_others: bool = True,
    ) -> None:
        """Put files of rows, and the record if one is given, in the place of old ones."""
        given = files if record is None else {**files, _RECORD: record}
        writers = {name: rows.write_parquet for name, rows in given.items()}
        replace_together(self.path, writers, {}, keeps_others=keeps_others)

    def set_aside_damaged(self, *, dry: bool) -> list[Path]:
        """Rename the files that are not what was written, so that they are made again.

        They are returned; with ``dry`` they stay.
        """
        if not self.path.exists():
            return []
        with self.locked():
            # Without a manifest it is unknown what was written.
            try:
                found = self.follow(lambda found: found)
                is_known = found.paths or not any(self.path.glob("*.parquet"))
            except DataError:
                is_known = False
            if not is_known:
                if not dry:
                    shutil.rmtree(self.path.with_suffix(_DAMAGED), ignore_errors=True)
                    self.path.rename(self.path.with_suffix(_DAMAGED))
                return [self.path]

            damaged = {
                name: path
                for name, path in found.paths.items()
                if not path.exists() or hash_file(path) != found.hashes[name]
            }
            if damaged and not dry:
                for path in damaged.values():
                    if path.exists():
                        path.replace(path.with_suffix(_DAMAGED))
                stay = {
                    name: functools.partial(shutil.copyfile, path)
                    for name, path in found.paths.items()
                    if name not in damaged
                }
                replace_together(self.path, stay, {})
        return list(damaged.values())


class SeriesStore:
    """Series, and the frames next to them, in the folder of a deployment's data."""

    def __init__(self, root: Path) -> None:
        """Use ``root``, which the first write creates."""
        self.root = root

    def write(
        self, dataset: str, frame: pl.DataFrame, *, replace: bool = False, accept: bool = False
    ) -> WriteReport:
        """Upsert series rows by (series_id, variable, start_utc); the row fetched last wins.

        A row whose value, unit and flag are stored already leaves the stored row, with its source
        and time, as it is; so the same input twice changes no byte. The frame is checked first.

        A row that is merely missing never takes the place of a value: a day issued again without
        its values loses nothing, nor does a half-hour some of whose parts a cut file lacks. One
        nulled for another reason (``nulled:...``) does. Of a file that is given again, stored rows
        that it no longer has go, from its first row on and only with a change that it brings.

        With ``replace`` the frame is the whole data set, and stored rows that it lacks go. Where it
        would change most of what it repeats, or take away most of what is stored, as a file in
        another unit or a cut one does, everything stays until a person accepts it; with ``accept``
        it is applied at once. DataError if the frame breaks ``SERIES_SCHEMA`` or its rules, or the
        name of the data set cannot name a folder; StoreBusy if another run writes it for too long.
        """
        folder = self._folder(dataset)

        # Columns and types first: sorting needs them. The rules hold for one row a key. Series by
        # series, since all of them are large.
        parts: dict[str, pl.DataFrame] = {}
        for series_id, rows in split_series(validate_frame(frame, SERIES_SCHEMA, "series frame")):
            ordered = rows.sort("fetched_at", maintain_order=True)
            # Of several rows of a key the last counts, but a value before none.
            ordered = ordered.sort(~pl.col("flag").is_in(LACKING), maintain_order=True)
            latest = ordered.unique(SERIES_KEY, keep="last", maintain_order=True)
            parts[f"{_file_name(series_id)}.parquet"] = validate_series(latest)
        height = sum(part.height for part in parts.values())

        with folder.locked():
            stored, known = folder.find_files(), folder.read_record()
            earlier = known.filter(kind=ChangeKind.WAITING.value)

            def read(name: str) -> pl.DataFrame:
                if name not in stored:
                    return pl.DataFrame(schema=SERIES_SCHEMA)
                return _read_whole(stored[name]).select(list(SERIES_SCHEMA))

            if replace and not accept:
                pairs = ((read(name), parts.get(name, frame.clear())) for name in stored)
                waiting = _find_unaccepted(pairs, earlier)
                if waiting.height:
                    folder.replace({}, waiting)
                    return WriteReport(rows=height, waiting=height)

            # A file that is wrong in one of its series is not believed in the others.
            held: set[str] = set()
            for name, part in parts.items() if not replace else ():
                far = find_far(_pair(read(name), part, keep_values=True))
                held.update(find_waiting(far, earlier)["source"])

            lost = frame.height - height
            counts = Counter(rows=lost, superseded=lost)
            files: dict[str, pl.DataFrame] = {}
            changes: list[pl.DataFrame] = []
            given = pl.concat([frame.clear(), *(() if replace else parts.values())])
            for name in sorted(parts):
                part, before = parts.pop(name), read(name)
                if replace:
                    before = before.join(part, on=SERIES_KEY, how="semi")
                merged, of_part, changed = _upsert(
                    before, part, earlier, held, keep_values=not replace
                )
                counts += of_part
                changes += changed
                if replace or of_part["files_written"]:
                    files[name] = merged

            if replace:
                folder.replace(files, keeps_others=False)
            else:
                record = join_changes(known, changes, given)
                is_new = not record.equals(known)
                if files or is_new:
                    folder.replace(files, record if is_new else None)
        return WriteReport(**counts)

    def read(self, dataset: str, query: Query | None = None) -> pl.DataFrame:
        """Read a data set sorted by key, or what a query selects, whose files are not verified.

        DataError if nothing of that name is stored, or a file is not what was written.
        """
        folder = self._folder(dataset)
        rows = folder.read(query, is_verified=query is None)
        if rows is None:
            raise DataError(
                f"no series of {dataset} stored under {folder.path}: "
                f"read its source with `compevo fit {dataset}` or `compevo refresh {dataset}`"
            )
        # Each file is sorted, so that the whole is once its files are.
        if query is None:
            parts = sorted(split_series(rows.select(list(SERIES_SCHEMA))))
            rows = pl.concat([part for _, part in parts], rechunk=False)
        return rows

    def read_waiting(self, dataset: str) -> pl.DataFrame:
        """Read the changes that wait to be confirmed."""
        return self._folder(dataset).read_record().filter(kind=ChangeKind.WAITING.value)

    def accept_waiting(self, dataset: str) -> int:
        """Let the next fetch confirm what waits, however soon it comes; return the count."""
        folder = self._folder(dataset)
        with folder.locked():
            known = folder.read_record()
            is_waiting = pl.col("kind") == ChangeKind.WAITING.value
            at = pl.when(is_waiting).then(pl.lit(ACCEPTED_AT)).otherwise("fetched_at")
            if known.height:
                folder.replace({}, known.with_columns(at.alias("fetched_at")))
        return known.filter(is_waiting).height

    def is_older(self, dataset: str, path: Path) -> bool:
        """Whether a data set was written before a file was; so where nothing is stored."""
        stored = self._folder(dataset).find_files().values()
        written = max((file.stat().st_mtime for file in stored), default=0.0)
        return written < path.stat().st_mtime

    def write_frame(
        self, dataset: str, kind: FrameKind, frame: pl.DataFrame, *, replace: bool = False
    ) -> None:
        """Merge rows into the stored frame by the kind's key, or put them in its place.

        Writing a frame twice changes nothing; of two rows with one key the row written last stays,
        and a value that it changes is recorded. The files that the rows fall into are replaced all
        at once. DataError if the folder of the stored frame is incomplete, or a file of it damaged;
        StoreBusy if another process writes the frame for longer than a minute.
        """
        folder, keys = self._folder(dataset, kind), list(KEYS[kind])
        with folder.locked():
            stored, known = folder.find_files(), folder.read_record()
            files: dict[str, pl.DataFrame] = {}
            changes: list[pl.DataFrame] = []
            parts = {_WHOLE: frame}
            if "start_utc" in keys:
                month = pl.col("start_utc").dt.strftime("%Y-%m.parquet").alias(_FILE)
                by_month = frame.with_columns(month)
                split = by_month.partition_by(_FILE, as_dict=True, include_key=False)
                parts = {str(name): part for (name,), part in sorted(split.items())}
            for name, part in parts.items():
                before = None if replace or name not in stored else _read_whole(stored[name])
                # Stored rows come first, so that the given ones are kept.
                rows = part if before is None else pl.concat([before, part])
                merged = rows.unique(keys, keep="last", maintain_order=True).sort(keys)
                if before is None or not merged.equals(before):
                    files[name] = merged
                    if before is not None:
                        changes.append(list_frame_changes(before, merged, keys))

            if files or replace:
                record = pl.concat([known, *changes]).unique(maintain_order=True)
                folder.replace(files, record if record.height else None, keeps_others=not replace)

    def read_frame(
        self,
        dataset: str,
        kind: FrameKind,
        query: Query | None = None,
        *,
        is_verified: bool = False,
    ) -> pl.DataFrame | None:
        """Read all of the stored frame, or what a query selects; None if there is none.

        With ``is_verified`` each file is compared with its hash first, which reads it whole.
        DataError if the folder is incomplete or a file altered; StorageError if a file is torn.
        """
        return self._folder(dataset, kind).read(query, is_verified=is_verified)

    def read_changes(self, dataset: str) -> pl.DataFrame:
        """Read the record of changes of known values, ``CHANGE_SCHEMA``, oldest first."""
        records = [folder.read_record() for folder in self.list_folders(dataset).values()]
        return pl.concat(records).sort("fetched_at", *SERIES_KEY)

    def hash_files(self, dataset: str) -> list[str]:
        """Return kind, name and hash of every file; ``DataError`` if a folder is incomplete."""
        # The name of a file that a manifest names holds its hash.
        return [
            f"{kind.value} {path.name}"
            for kind, folder in self.list_folders(dataset).items()
            for path in folder.find_files().values()
        ]

    def count_rows(self, dataset: str) -> dict[str, int]:
        """Return the number of rows of each stored file, by its name; torn files have none."""
        counts = {}
        for kind, folder in self.list_folders(dataset).items():
            for name, path in folder.find_files().items():
                try:
                    rows = pl.scan_parquet(path, glob=False).select(pl.len()).collect()
                    counts[f"{kind.value} {name}"] = int(rows.item())
                except (FileNotFoundError, pl.exceptions.ComputeError):
                    counts[f"{kind.value} {name}"] = 0
        return counts

    def set_aside_damaged(self, dataset: str, *, dry: bool = False) -> list[Path]:
        """Rename the files that are not what was written, so that they are made again.

        They are returned; with ``dry`` they stay. StoreBusy where another run writes for too long.
        """
        folders = self.list_folders(dataset).values()
        return [path for folder in folders for path in folder.set_aside_damaged(dry=dry)]

    def list_folders(self, dataset: str) -> dict[FrameKind, _Folder]:
        """Return the folder of each kind of rows of a data set, whether it exists or not."""
        return {kind: self._folder(dataset, kind) for kind in (FrameKind.SERIES, *KEYS)}

    def _folder(self, dataset: str, kind: FrameKind = FrameKind.SERIES) -> _Folder:
        name = check_folder_name(dataset)
        is_series = kind is FrameKind.SERIES
        return _Folder(
            self.root / "series" / name if is_series else self.root / "tables" / name / kind.value
        )


def _find_unaccepted(
    pairs: Iterable[tuple[pl.DataFrame, pl.DataFrame]], earlier: pl.DataFrame
) -> pl.DataFrame:
    """Return the changes of a whole file, as waiting ones, that were not accepted.

    ``pairs`` are the stored and given rows of each series.
    """
    far, gone, rows = [empty_changes()], [empty_changes()], 0
    for stored, given in pairs:
        far.append(find_far(_pair(stored, given, keep_values=False)))
        lacking = stored.join(given, on=SERIES_KEY, how="anti")
        gone.append(list_removals(lacking, ChangeKind.WAITING))
        rows += stored.height
    changes = pl.concat(far)
    if sum(each.height for each in gone) > MOST_CHANGED * rows:
        changes = pl.concat([changes, *gone])
    accepted = earlier.filter(fetched_at=ACCEPTED_AT)
    return changes.join(find_waiting(changes, accepted), on="series_id", how="semi")


def _pair(stored: pl.DataFrame, given: pl.DataFrame, *, keep_values: bool) -> pl.DataFrame:
    """Return each given row joined to the stored row of its key, and what becomes of it."""
    pairs = given.join(stored, on=SERIES_KEY, how="left", suffix="_stored")
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
    earlier: pl.DataFrame,
    held: Collection[str],
    *,
    keep_values: bool,
) -> tuple[pl.DataFrame, Counter[str], list[pl.DataFrame]]:
    """Merge ``given`` (unique by key) into ``stored`` by the rules of :meth:`SeriesStore.write`.

    ``earlier`` are the changes that wait; new ones, waiting or not, are returned. Files that are
    ``held`` bring nothing; with ``keep_values`` the rules hold that protect what is known.
    """
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
    # Earlier rows than the file's first are history that it no longer reaches back to.
    files = given.group_by(FILE).agg(
        pl.col("start_utc").min().alias("_first"), pl.col("fetched_at").max().alias("_fetched_at")
    )
    # A row that came later is not missed by an earlier version that is read again.
    is_reached = pl.col("start_utc") >= pl.col("_first")
    is_newer = pl.col("fetched_at") <= pl.col("_fetched_at")
    lacking = stored.join(files, on=FILE, how="inner").filter(is_reached & is_newer)
    lacking = lacking.with_columns(fetched_at="_fetched_at").join(given, on=SERIES_KEY, how="anti")
    wanted = earlier.filter(pl.col("after").is_null())
    corrected = pl.concat([new.select(FILE), wanted.select(FILE)])
    missed = lacking.filter(~is_held).join(corrected, on=FILE, how="semi")
    removals = list_removals(missed, ChangeKind.REMOVED)
    staying = find_waiting(removals, wanted) if keep_values else empty_changes()
    removed = removals.join(staying, on=SERIES_KEY, how="anti")

    gone = pl.concat([new.select(SERIES_KEY), removed.select(SERIES_KEY)])
    merged = pl.concat([stored.join(gone, on=SERIES_KEY, how="anti"), new.select(stored.columns)])
    counts = Counter(
        rows=given.height,
        **dict(pairs["_outcome"].value_counts().rows()),
        removed=removed.height,
        absent=lacking.height - removed.height,
        files_written=int(gone.height > 0),
    )
    changed = list_changes(new.filter(_outcome="changed"), ChangeKind.CHANGED)
    changes = [changed, removed, keep_first(waiting, earlier), staying]
    return merged.sort(SERIES_KEY), counts, changes


def _list_rows(found: FileSet) -> dict[str, Path]:
    return {name: path for name, path in sorted(found.paths.items()) if name != _RECORD}


def _read_whole(path: Path) -> pl.DataFrame:
    if not is_named_by_hash(path):
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

    name = series_id.replace("/", "__")
    if len(name.encode()) > _LONGEST_NAME:
        # A file system has room for 255 bytes, some of which are added while it is written.
        start = name.encode()[:_LONGEST_NAME].decode(errors="ignore")
        name = f"{start}-{hash_text(series_id)[:16]}"
    return name


def _scan(path: Path) -> pl.LazyFrame:
    rows = pl.scan_parquet(path, glob=False)
    try:
        # The schema is at the end of a file: a torn one is named here.
        rows.collect_schema()
    except pl.exceptions.ComputeError as error:
        raise describe_storage_error(error, f"reading {path}") from error
    return rows
