"""Windows: 48 values in, 48 out, and the set of them with its manifest.

What belongs here: the objects, their order, hash and folder format. What does not: how windows are
cut (``data.cutting``, ``data.build``), where splits lie (``data.splits``), which data sets there
are (``data.datasets``).

A model is given a ``WindowView``, which has no field for the truth: leaking it would take a change
of this class, not a slip.

Shapes: N windows, H horizon.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.calendar import Calendar
from compevo_core.data.files import write_atomically, write_text
from compevo_core.data.schemas import UTC_US
from compevo_core.errors import DataError

LOOKBACK = 48  # input steps of every data set, whatever the length of a step
HORIZON = 48  # target steps
SPLITS = ("train", "val", "test", "inference")
WINDOWS_FILE = "windows.parquet"
MANIFEST_FILE = "manifest.json"

_MINUTES_PER_DAY = 1440


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowView:
    """All that a forecaster may see of one window, each part known before ``origin_utc``.

    ``x`` and ``published`` are (48,) in ``unit``. ``origin_utc`` is the start of the first target
    interval. ``n_filled`` counts inputs that were carried forward over a gap.
    """

    window_id: str
    dataset: str
    series_id: str
    entity: str
    variable: str
    unit: str
    step_minutes: int
    origin_utc: datetime
    x: FloatArray
    calendar: Calendar
    covariates: Mapping[str, float] = field(default_factory=dict)
    published: FloatArray | None = None
    candidate_ids: tuple[str, ...] = ()  # article ids, newest first
    split: str = "test"
    fold: int = -1  # -1 outside train, and in the part of train that is no validation fold
    subsets: tuple[str, ...] = ()
    leaky: bool = False
    n_filled: int = 0

    def __post_init__(self) -> None:
        """Check shapes and values, and make the view read-only.

        Raises:
            DataError: an unknown split, an origin without time zone, a wrong shape, NaN in ``x``.
        """
        name = f"window {self.window_id}"
        if self.split not in SPLITS:
            raise DataError(f"{name}: split {self.split!r} is none of {', '.join(SPLITS)}")
        if self.origin_utc.tzinfo is None:
            raise DataError(f"{name}: origin_utc has no time zone; give an aware UTC datetime")

        # A frozen dataclass sets fields through object; arrays inside would still be writable.
        object.__setattr__(self, "x", _copy_read_only(self.x, LOOKBACK, f"{name}: x"))
        if not np.isfinite(self.x).all():
            raise DataError(f"{name}: x holds NaN or infinity; fill it causally or drop the window")

        if self.published is not None:
            published = _copy_read_only(self.published, HORIZON, f"{name}: published")
            object.__setattr__(self, "published", published)

        # Sorted, so that equal covariates give equal prompts, whatever order the frame had.
        object.__setattr__(self, "covariates", dict(sorted(self.covariates.items())))

    @property
    def step(self) -> timedelta:
        """Length of one step."""
        return timedelta(minutes=self.step_minutes)

    @property
    def end_utc(self) -> datetime:
        """End of the last target interval."""
        return self.origin_utc + HORIZON * self.step

    @property
    def season_steps(self) -> int:
        """Steps of one season: a day below daily grids, else one step."""
        if self.step_minutes >= _MINUTES_PER_DAY:
            return 1
        return _MINUTES_PER_DAY // self.step_minutes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """A view with its truth ``y`` (48,), NaN where that is missing, filled or known to be wrong."""

    view: WindowView
    y: FloatArray

    def __post_init__(self) -> None:
        """Check the shape and make the truth read-only."""
        name = f"window {self.view.window_id}"
        object.__setattr__(self, "y", _copy_read_only(self.y, HORIZON, f"{name}: y"))


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
        """Write ``windows.parquet`` and ``manifest.json``."""
        folder = Path(folder)
        frame = pl.DataFrame([_to_row(window) for window in self._windows], schema=_FRAME_SCHEMA)
        write_atomically(folder / WINDOWS_FILE, frame.write_parquet)

        # The manifest is last: a folder that has one is complete.
        text = json.dumps(self.manifest, indent=1, sort_keys=True, default=str)
        write_text(folder / MANIFEST_FILE, text)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a folder that :meth:`write` wrote and check its hash.

        Raises:
            DataError: the folder has no manifest, or its windows are others than it describes.
        """
        folder = Path(folder)
        if not (folder / MANIFEST_FILE).exists():
            raise DataError(
                f"no complete windows in {folder} ({MANIFEST_FILE} is missing); "
                "build the windows asset"
            )

        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        frame = pl.read_parquet(folder / WINDOWS_FILE)
        windows = cls(
            (_from_row(row) for row in frame.iter_rows(named=True)),
            dataset=manifest["dataset"],
            manifest=manifest,
        )

        if windows.hash != manifest["hash"]:
            raise DataError(
                f"{folder / WINDOWS_FILE} differs from its manifest; build the windows again"
            )
        return windows

    def _replace_windows(self, windows: Iterable[Window]) -> "WindowSet":
        return WindowSet(windows, dataset=self.dataset, manifest=self._origin_manifest)

    def _describe(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        splits: dict[str, int] = {}
        subsets: dict[str, int] = {}
        masked = 0

        for window in self._windows:
            digest.update(_serialize_for_hash(window))
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


_NUMBERS = pl.List(pl.Float64)
_NAMES = pl.List(pl.String)

# Every column enters the hash of a set: a new name here changes every hash that was published.
_FRAME_SCHEMA: dict[str, pl.DataType] = {
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
    "y": _NUMBERS,
}


def _to_row(window: Window) -> dict[str, Any]:
    view = window.view

    # JSON for what Parquet has no stable column for: covariates differ from window to window.
    converted = {
        "x": view.x.tolist(),
        "calendar": json.dumps(view.calendar.as_dict(), sort_keys=True),
        "covariates": json.dumps(dict(view.covariates), sort_keys=True),
        "published": None if view.published is None else view.published.tolist(),
        "candidate_ids": list(view.candidate_ids),
        "subsets": list(view.subsets),
        "y": window.y.tolist(),
    }
    return {
        name: converted[name] if name in converted else getattr(view, name)
        for name in _FRAME_SCHEMA
    }


def _from_row(row: dict[str, Any]) -> Window:
    published = row["published"]
    fields = {name: value for name, value in row.items() if name != "y"}
    fields |= {
        "x": np.array(row["x"], dtype=np.float64),
        "calendar": Calendar.from_dict(json.loads(row["calendar"])),
        "covariates": json.loads(row["covariates"]),
        "published": None if published is None else np.array(published, dtype=np.float64),
        "candidate_ids": tuple(row["candidate_ids"]),
        "subsets": tuple(row["subsets"]),
    }
    return Window(view=WindowView(**fields), y=np.array(row["y"], dtype=np.float64))


def _serialize_for_hash(window: Window) -> bytes:
    row = _to_row(window) | {"origin_utc": window.view.origin_utc.isoformat()}

    # Bytes, not decimal text: two values that print alike are different windows. NaN has many bit
    # patterns, so masked targets enter as their positions.
    row["x"] = window.view.x.tobytes().hex()
    row["y"] = np.nan_to_num(window.y, nan=-0.0).tobytes().hex()
    row["masked"] = np.flatnonzero(np.isnan(window.y)).tolist()

    return json.dumps(row, sort_keys=True, default=str).encode()


def _copy_read_only(values: FloatArray, length: int, name: str) -> FloatArray:
    copied = np.array(values, dtype=np.float64)
    if copied.shape != (length,):
        raise DataError(f"{name} has shape {copied.shape}, not ({length},); cut it again")

    copied.setflags(write=False)
    return copied
