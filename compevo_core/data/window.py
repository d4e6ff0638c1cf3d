"""The set of windows of a data set, with its manifest, its hash and its folder.

What belongs here: order, selection, hash, files. What does not: views and windows
(``data.view``), their rows (``data.window_rows``), how they are cut (``data.cutting``,
``data.build``), where splits lie (``data.splits``), which data sets there are (``data.datasets``).

Shapes: N windows, H horizon.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import FileSet, hash_text, read_together, replace_together
from compevo_core.data.view import HORIZON, SPLITS, Window, WindowView
from compevo_core.data.window_rows import FRAME_SCHEMA, from_row, serialize_for_hash, to_row
from compevo_core.errors import DataError

WINDOWS_FILE = "windows.parquet"


class WindowSet(Sequence[Window]):
    """Windows in canonical order (origin, series, id), whatever order they were given in."""

    def __init__(
        self, windows: Iterable[Window], *, dataset: str, manifest: Mapping[str, Any] | None = None
    ) -> None:
        """Sort and check the windows.

        Args:
            windows: in any order.
            dataset: the data set all of them belong to.
            manifest: what the windows were built from.

        Raises:
            DataError: two windows share an id, or one belongs to another data set.
        """
        self._windows = tuple(
            sorted(windows, key=lambda w: (w.view.origin_utc, w.view.series_id, w.view.window_id))
        )
        self.dataset = dataset

        ids = [window.view.window_id for window in self._windows]
        if len(set(ids)) != len(ids):
            duplicate = next(name for name in ids if ids.count(name) > 1)
            raise DataError(
                f"window id {duplicate} comes twice in {dataset}; cut each origin of a series once"
            )

        foreign = [window.view for window in self._windows if window.view.dataset != dataset]
        if foreign:
            raise DataError(
                f"window {foreign[0].window_id} is of {foreign[0].dataset!r}, not {dataset!r}; "
                "build one set for each data set"
            )

        self._origin_manifest = dict(manifest or {})

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What the windows were built from, their counts by split and subset, and their hash."""
        return self._origin_manifest | self._describe()

    @overload
    def __getitem__(self, index: int) -> Window: ...
    @overload
    def __getitem__(self, index: slice) -> "WindowSet": ...
    def __getitem__(self, index: int | slice) -> "Window | WindowSet":
        """Return one window, or a set of some."""
        if isinstance(index, slice):
            return self._replace_windows(self._windows[index])
        return self._windows[index]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self._windows)

    @property
    def hash(self) -> str:
        """SHA-256 of every view and truth in canonical order."""
        return str(self.manifest["hash"])

    @property
    def training_hash(self) -> str:
        """SHA-256 of what a training sees: train and validation windows, and no others."""
        return hash_text(self.split("train").hash + self.split("val").hash)

    @property
    def entities(self) -> tuple[str, ...]:
        """Sorted names of the entities."""
        return tuple(sorted({window.view.entity for window in self._windows}))

    def split(self, name: str) -> "WindowSet":
        """Return the windows of one split.

        Raises:
            DataError: there is no split of that name.
        """
        if name not in SPLITS:
            raise DataError(f"split {name!r} is none of {', '.join(SPLITS)}")
        return self._replace_windows(w for w in self._windows if w.view.split == name)

    def subset(self, name: str) -> "WindowSet":
        """Return the windows of one named subset.

        Raises:
            DataError: no window has the name; an empty set would score as if nothing were wrong.
        """
        known = {subset for window in self._windows for subset in window.view.subsets}
        if name not in known:
            raise DataError(
                f"no subset {name!r} in {self.dataset} "
                f"(known: {', '.join(sorted(known)) or 'none'})"
            )
        return self._replace_windows(w for w in self._windows if name in w.view.subsets)

    def entity(self, name: str) -> "WindowSet":
        """Return the windows of one entity."""
        return self._replace_windows(w for w in self._windows if w.view.entity == name)

    def views(self) -> tuple[WindowView, ...]:
        """Return what a forecaster may see, in order."""
        return tuple(window.view for window in self._windows)

    def truth(self) -> FloatArray:
        """Return the truth (N, 48), NaN where masked."""
        if not self._windows:
            return np.empty((0, HORIZON))
        return np.stack([window.y for window in self._windows])

    def with_truth(self, y_NH: FloatArray) -> "WindowSet":
        """Return the same views with another truth, for tests that poison it.

        Raises:
            DataError: the truth is not (N, 48).
        """
        if y_NH.shape != (len(self), HORIZON):
            raise DataError(
                f"truth of shape {y_NH.shape} for {len(self)} windows; give (N, {HORIZON})"
            )
        return self._replace_windows(
            replace(window, y=row) for window, row in zip(self._windows, y_NH, strict=True)
        )

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Put windows and manifest in the place of those that the folder holds."""
        frame = pl.DataFrame([to_row(window) for window in self._windows], schema=FRAME_SCHEMA)
        replace_together(Path(folder), {WINDOWS_FILE: frame.write_parquet}, self.manifest)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a folder that :meth:`write` of this or an earlier version wrote; check its hash.

        Raises:
            DataError: the folder has no manifest, or its windows are others than it describes.
        """
        return read_together(
            Path(folder),
            cls._from_files,
            remedy="build the windows asset",
            # Models that were trained earlier hold windows of their own, which none can build.
            unhashed=(WINDOWS_FILE,),
        )

    @classmethod
    def _from_files(cls, files: FileSet) -> Self:
        path = files.paths[WINDOWS_FILE]
        windows = cls(
            (from_row(row) for row in pl.read_parquet(path).iter_rows(named=True)),
            dataset=files.facts["dataset"],
            manifest=files.facts,
        )

        if windows.hash != files.facts["hash"]:
            raise DataError(f"{path} differs from its manifest; build the windows again")
        return windows

    def _replace_windows(self, windows: Iterable[Window]) -> "WindowSet":
        return WindowSet(windows, dataset=self.dataset, manifest=self._origin_manifest)

    def _describe(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        splits: dict[str, int] = {}
        subsets: dict[str, int] = {}
        masked = 0

        for window in self._windows:
            digest.update(serialize_for_hash(window))
            masked += int(np.isnan(window.y).sum())
            splits[window.view.split] = splits.get(window.view.split, 0) + 1
            for name in window.view.subsets:
                subsets[name] = subsets.get(name, 0) + 1

        return {
            "dataset": self.dataset,
            "hash": digest.hexdigest(),
            "n_windows": len(self._windows),
            "n_by_split": splits,
            "n_by_subset": subsets,
            "n_masked_targets": masked,
            "n_filled_inputs": sum(window.view.n_filled for window in self._windows),
        }
