"""The set of windows of a data set, with its manifest, its hash and its folder.

What belongs here: order, selection, hash, the rows of the file, counts of what windows cover and of
the news they choose from. What does not: views and windows (``data.view``), how they are cut
(``data.cutting``, ``data.build``), where splits lie (``data.splits``), which days are holidays
(``data.calendar``).

Rules of holidays change with releases of the library that knows them, also for days long past. A
window whose calendar changed has another hash, and a model that was trained on it another name.

Shapes: N windows, H horizon.
"""

import hashlib
import itertools
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from compevo_core.data.arrays import FloatArray, keep_last_run
from compevo_core.data.calendar import read_calendar, write_calendar
from compevo_core.data.schemas import UTC_US
from compevo_core.data.steps import count_steps
from compevo_core.data.view import (
    DEFAULT_STEPS,
    MOST_PAST,
    NO_BOUNDS,
    SPLITS,
    Window,
    WindowView,
    find_horizon,
    find_shared,
    stack_rows,
)
from compevo_core.errors import DataError
from compevo_core.runtime.files import FileSet, hash_text, read_together, replace_together

_NUMBERS = pl.List(pl.Float64)
_NAMES = pl.List(pl.String)

FRAME_SCHEMA: dict[str, pl.DataType] = {
    "window_id": pl.String(),
    "dataset": pl.String(),
    "series_id": pl.String(),
    "entity": pl.String(),
    "variable": pl.String(),
    "unit": pl.String(),
    "step_minutes": pl.Int64(),
    "origin_utc": UTC_US,
    "x": _NUMBERS,
    "calendar": pl.String(),  # JSON
    "covariates": pl.String(),  # JSON
    "published": _NUMBERS,
    "candidate_ids": _NAMES,
    "split": pl.String(),
    "fold": pl.Int64(),
    "subsets": _NAMES,
    "leaky": pl.Boolean(),
    "n_filled": pl.Int64(),
    "unknown_steps": pl.Int64(),
    "step_covariates": pl.List(pl.Struct({"name": pl.String(), "values": _NUMBERS})),
    "task": pl.String(),
    "horizon": pl.Int64(),
    "bounds": _NUMBERS,
    "season": pl.Int64(),
    "y": _NUMBERS,
}

_UNHASHED: dict[str, Any] = {
    "unknown_steps": 0,
    "step_covariates": [],
    "task": "",
    "horizon": DEFAULT_STEPS,
    "bounds": list(NO_BOUNDS),
    "season": 0,
}
"""Columns that stay out of the hash with these values.

Rows of results name windows by their hash, which cannot be recomputed without their data."""

_CHUNK = 4096  # windows that become rows at a time, and rows that become windows
_NUMBERS_OF_WINDOW = ("x", "y")  # columns that are one matrix of all windows


def tabulate(windows: Sequence[Window]) -> pl.DataFrame:
    """Return windows as rows of :data:`FRAME_SCHEMA`."""
    labels = {name: kind for name, kind in FRAME_SCHEMA.items() if name not in _NUMBERS_OF_WINDOW}
    frame = pl.DataFrame(list(map(to_labels, windows)), labels)
    numbers = {"x": [window.view.x for window in windows], "y": [window.y for window in windows]}
    columns = [pl.Series(name, stack_rows(rows)).arr.to_list() for name, rows in numbers.items()]
    return frame.with_columns(columns).select(list(FRAME_SCHEMA))


def read_rows(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the fields and the truth of windows from rows that :func:`tabulate` made."""
    x_NL, y_NH = (
        frame[name].explode().to_numpy().reshape(frame.height, -1) for name in _NUMBERS_OF_WINDOW
    )
    labels = frame.drop(_NUMBERS_OF_WINDOW).iter_rows(named=True)
    for row, x, y in zip(labels, x_NL, y_NH, strict=True):
        published = row["published"]
        yield row | {
            "x": x,
            "y": y,
            "calendar": read_calendar(row["calendar"]),
            "covariates": json.loads(row["covariates"]),
            "published": None if published is None else np.array(published, dtype=np.float64),
            "candidate_ids": tuple(row["candidate_ids"]),
            "subsets": tuple(row["subsets"]),
            "bounds": tuple(row["bounds"]),
            "step_covariates": {
                by_step["name"]: np.array(by_step["values"], dtype=np.float64)
                for by_step in row["step_covariates"]
            },
        }


def to_labels(window: Window) -> dict[str, Any]:
    """Return the values of :data:`FRAME_SCHEMA` but for ``x`` and ``y``."""
    view = window.view

    # JSON for what Parquet has no stable column for: covariates differ from window to window.
    converted = {
        "calendar": write_calendar(view.calendar),
        "covariates": json.dumps(dict(view.covariates), sort_keys=True),
        "published": None if view.published is None else view.published.tolist(),
        "candidate_ids": list(view.candidate_ids),
        "subsets": list(view.subsets),
        "bounds": list(view.bounds),
        "step_covariates": [
            {"name": name, "values": values} for name, values in view.step_covariates.items()
        ],
    }
    return {
        name: converted[name] if name in converted else getattr(view, name)
        for name in FRAME_SCHEMA
        if name not in _NUMBERS_OF_WINDOW
    }


def serialize_for_hash(window: Window) -> bytes:
    """Return bytes that are equal only for equal windows."""
    row = to_labels(window) | {"origin_utc": window.view.origin_utc.isoformat()}
    for name, empty in _UNHASHED.items():
        if row[name] == empty:
            del row[name]

    row["masked"] = np.flatnonzero(np.isnan(window.y)).tolist()
    if window.view.step_covariates:
        # Thousands of numbers a window, most of the set: their digest stands for them.
        values = np.stack(list(window.view.step_covariates.values()))
        values[np.isnan(values)] = np.nan
        digest = hashlib.sha256(values.tobytes()).hexdigest()
        row["step_covariates"] = [*window.view.step_covariates, digest]

    # Bytes, not decimal text: two values that print alike are different windows. NaN has many bit
    # patterns, so masked targets enter as their positions.
    truth = np.where(np.isnan(window.y), -0.0, window.y)
    row |= {"x": window.view.x.tobytes().hex(), "y": truth.tobytes().hex()}
    return json.dumps(row, sort_keys=True, default=str).encode()


WINDOWS_FILE = "windows.parquet"

CHOICE_SIZES = (1, 3, 5)
"""Articles k that an agent reads: a logic has a choice where a window has more candidates."""


class WindowSet(Sequence[Window]):
    """Windows in canonical order (origin, series, id), for any order given."""

    def __init__(
        self, windows: Iterable[Window], *, dataset: str, manifest: Mapping[str, Any] | None = None
    ) -> None:
        """Sort and check the windows; ``manifest`` says what they were built from.

        DataError if two windows share an id, or one belongs to another data set.
        """
        self._windows = tuple(
            sorted(windows, key=lambda w: (w.view.origin_utc, w.view.series_id, w.view.window_id))
        )
        self.dataset = dataset

        ids = [window.view.window_id for window in self._windows]
        if len(set(ids)) != len(ids):
            ((duplicate, _),) = Counter(ids).most_common(1)
            raise DataError(
                f"window id {duplicate} comes twice in {dataset}; cut each origin of a series once"
            )

        foreign = [window.view for window in self._windows if window.view.dataset != dataset]
        if foreign:
            raise DataError(
                f"window {foreign[0].window_id} belongs to {foreign[0].dataset!r}, not "
                f"{dataset!r}; build one set for each data set"
            )

        for field in ("lookback", "horizon"):
            find_shared(self.views(), field)  # DataError where windows of two grids are mixed

        self._origin_manifest = dict(manifest or {})
        self._splits: dict[str, WindowSet] = {}

    @cached_property
    def hash(self) -> str:
        """SHA-256 of every view and truth in canonical order."""
        digest = hashlib.sha256()
        by_split: defaultdict[str, Any] = defaultdict(hashlib.sha256)
        for window in self._windows:
            serialized = serialize_for_hash(window)
            digest.update(serialized)
            by_split[window.view.split].update(serialized)
            window.keep_digest(serialized)

        # Serializing takes nearly all of the time, and the hashes of splits are asked for next.
        if len(by_split) > 1:
            for name, part in by_split.items():
                self.split(name).hash = part.hexdigest()
        return digest.hexdigest()

    @cached_property
    def identity(self) -> str:
        """SHA-256 of the digests that windows keep: sets that share them share the work."""
        if not any(window.digest for window in self._windows):
            _ = self.hash  # it keeps their digests, and is asked for where they are written
        digest = hashlib.sha256()
        for window in self._windows:
            digest.update(window.digest or window.keep_digest(serialize_for_hash(window)))
        return digest.hexdigest()

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What the windows were built from, their hash, and counts of what they hold."""
        views = self.views()
        return self._origin_manifest | {
            "dataset": self.dataset,
            "hash": self.hash,
            "n_windows": len(views),
            "n_by_split": dict(Counter(view.split for view in views)),
            "n_by_subset": dict(Counter(name for view in views for name in view.subsets)),
            "n_masked_targets": int(np.isnan(self.truth()).sum()),
            "n_filled_inputs": sum(view.n_filled for view in views),
            "n_without_covariates": sum(not view.covariates for view in views),
            "n_with_published": sum(view.published is not None for view in views),
            "n_without_candidates": sum(not view.candidate_ids for view in views),
            "coverage": count_coverage(views),
            "news_choice": measure_news_choice(views),
        }

    @overload
    def __getitem__(self, index: int) -> Window: ...
    @overload
    def __getitem__(self, index: slice) -> "WindowSet": ...
    def __getitem__(self, index: int | slice) -> "Window | WindowSet":
        if isinstance(index, slice):
            return self.with_windows(self._windows[index])
        return self._windows[index]

    def __iter__(self) -> Iterator[Window]:
        return iter(self._windows)

    def __repr__(self) -> str:
        splits = Counter(window.view.split for window in self)
        counts = ", ".join(f"{count:,} {split}" for split, count in splits.items())
        return f"WindowSet of {self.dataset}: {counts or 'no windows'}"

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def training_hash(self) -> str:
        """SHA-256 of what a training sees: train and validation windows, and no others."""
        return hash_text(self.split("train").hash + self.split("val").hash)

    @property
    def lookback(self) -> int:
        """Inputs of every window."""
        return find_shared(self.views(), "lookback")

    @property
    def horizon(self) -> int:
        """Target steps of every window."""
        return find_horizon(self.views())

    @property
    def entities(self) -> tuple[str, ...]:
        """Sorted names of the entities."""
        return tuple(sorted({window.view.entity for window in self._windows}))

    def split(self, name: str) -> "WindowSet":
        """Return the windows of one split; DataError if there is no split of that name."""
        if name not in SPLITS:
            raise DataError(f"split {name!r} is none of {', '.join(SPLITS)}")
        if name not in self._splits:
            self._splits[name] = self.with_windows(w for w in self if w.view.split == name)
        return self._splits[name]

    def subset(self, name: str) -> "WindowSet":
        """Return the windows of one named subset.

        DataError if no window has the name: an empty set would score as if nothing were wrong.
        """
        known = {subset for window in self._windows for subset in window.view.subsets}
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise DataError(f"no subset {name!r} in {self.dataset} (known: {names})")
        return self.with_windows(w for w in self._windows if name in w.view.subsets)

    def entity(self, name: str) -> "WindowSet":
        """Return the windows of one entity."""
        return self.with_windows(w for w in self._windows if w.view.entity == name)

    def views(self) -> tuple[WindowView, ...]:
        """Return what a forecaster may see, in order."""
        return tuple(window.view for window in self._windows)

    def truth(self) -> FloatArray:
        """Return the truth (N, H), NaN where masked."""
        return stack_rows([window.y for window in self._windows])

    def with_truth(self, y_NH: FloatArray) -> "WindowSet":
        """Return the same views with another truth (N, H), for tests that poison it."""
        return self.with_windows(
            replace(window, y=row) for window, row in zip(self._windows, y_NH, strict=True)
        )

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Replace the windows and the manifest of a folder."""

        def yield_chunks(*_: object) -> Iterator[pl.DataFrame]:
            for first in range(0, len(self), _CHUNK):
                yield tabulate(self._windows[first : first + _CHUNK])

        rows = register_io_source(yield_chunks, schema=FRAME_SCHEMA)
        write = partial(rows.sink_parquet, metadata={"hash": self.hash})
        replace_together(Path(folder), {WINDOWS_FILE: write}, self.manifest)

    @classmethod
    def read(cls, folder: str | os.PathLike[str], since: datetime | None = None) -> Self:
        """Read a folder that :meth:`write` wrote, or its windows ``since`` an origin.

        DataError if the folder has no manifest, or its windows are others than it describes.
        """
        remedy = "give a folder that WindowSet.write wrote, or build the windows again"
        return read_together(Path(folder), partial(cls._from_files, since=since), remedy=remedy)

    @classmethod
    def _from_files(cls, files: FileSet, since: datetime | None) -> Self:
        path = files.paths[WINDOWS_FILE]
        is_named = {"dataset", "hash"} <= files.facts.keys()
        if not is_named or pl.read_parquet_schema(path) != FRAME_SCHEMA:
            raise DataError(f"{path} has other columns than windows; build the windows again")
        rows = pl.scan_parquet(path)
        rows = rows if since is None else rows.filter(pl.col("origin_utc") >= since)
        parts = map(read_rows, rows.collect_batches(chunk_size=_CHUNK))
        read: Iterable[dict[str, Any]] = itertools.chain.from_iterable(parts)
        if files.facts.get("spec", {}).get("year_evidence"):
            read = _restore_pasts(read, rows)
        made = (Window(y=row.pop("y"), view=WindowView(**row)) for row in read)
        windows = cls(made, dataset=files.facts["dataset"], manifest=files.facts)
        if since is None:
            # What was hashed when it was written is not again: the hash of the file covers it.
            windows.hash = pl.read_parquet_metadata(path).get("hash") or windows.hash
            if windows.hash != files.facts["hash"]:
                raise DataError(f"{path} differs from its manifest; build the windows again")
        return windows

    def with_windows(self, windows: Iterable[Window], **facts: Any) -> "WindowSet":  # noqa: ANN401
        """Return other windows of the data set; ``facts`` join what these were built from."""
        return WindowSet(windows, dataset=self.dataset, manifest=self._origin_manifest | facts)


def _restore_pasts(
    windows: Iterable[dict[str, Any]], rows: pl.LazyFrame
) -> Iterator[dict[str, Any]]:
    """Yield windows, the rows in order, with what earlier ones hold of the values before them."""
    origin = pl.col("origin_utc")
    spans = rows.group_by("series_id").agg(origin.min(), origin.max().alias("last")).collect()
    spans_by_id = spans.rows_by_key("series_id", unique=True)
    known: dict[str, FloatArray] = {}
    for window in windows:
        x, series_id = window["x"], window["series_id"]
        step = timedelta(minutes=window["step_minutes"])
        start, last = spans_by_id[series_id]
        if series_id not in known:
            known[series_id] = np.full(len(x) + count_steps(start, last, step), np.nan)

        known_T = known[series_id]
        begin = count_steps(start, window["origin_utc"], step)
        past = keep_last_run(known_T[max(0, begin - MOST_PAST) : begin])
        # What stands in for values that were not measured yet is no past of later windows.
        measured = len(x) - window["unknown_steps"]
        known_T[begin : begin + measured] = x[:measured]
        yield window | {"past": past}


def read_hash(folder: Path) -> str:
    """Return the hash of the windows of a folder that is whole; empty where it is not."""
    try:
        return read_together(
            folder, lambda files: str(files.facts.get("hash", "")), remedy="build the windows"
        )
    except DataError:
        return ""


def count_coverage(views: Iterable[WindowView]) -> dict[str, dict[str, dict[str, int]]]:
    """Return the number of windows by split, entity and year of the target day.

    An entity that is in any split is listed under every split, without a year where it has no
    window.
    """
    counts = Counter(
        (view.split, view.entity, str(view.calendar.target_date.year)) for view in views
    )
    splits = [split for split in SPLITS if any(key[0] == split for key in counts)]
    entities = sorted({entity for _, entity, _ in counts})

    coverage: dict[str, dict[str, dict[str, int]]]
    coverage = {split: {entity: {} for entity in entities} for split in splits}
    for (split, entity, year), count in sorted(counts.items()):
        coverage[split][entity][year] = count
    return coverage


def measure_news_choice(views: Sequence[WindowView]) -> dict[str, dict[str, float]]:
    """Return, by split, the mean number of candidates and the shares of windows with a choice.

    ``more_than_<k>`` is the share of windows with more candidates than k, for :data:`CHOICE_SIZES`:
    in the others every logic reads the same articles.
    """
    choice: dict[str, dict[str, float]] = {}
    for split in SPLITS:
        counts = [len(view.candidate_ids) for view in views if view.split == split]
        if counts:
            shares = {f"more_than_{size}": share_with_choice(counts, size) for size in CHOICE_SIZES}
            means = {"windows": len(counts), "mean_candidates": sum(counts) / len(counts)}
            choice[split] = means | shares
    return choice


def share_with_choice(candidates: Sequence[int], articles: int) -> float:
    """Return the share of windows with more candidates than the articles that an agent reads."""
    return sum(count > articles for count in candidates) / len(candidates) if candidates else 0.0
