"""Windows: 48 values in, 48 out, and the set of them with its manifest (design 3).

What belongs here: the objects, their order, hash and folder format. What does not: how windows are cut
(``windows``), where splits lie (``splits``), which data sets there are (``datasets``).
A model is given a ``WindowView``, which has no field for the truth.
"""

import hashlib
import json
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
from compevo_core.errors import DataError

LOOKBACK = 48
HORIZON = 48
SPLITS = ("train", "val", "test", "inference")
WINDOWS_FILE = "windows.parquet"
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowView:
    """All that a forecaster may see of one window; everything in it was available before ``origin_utc``.

    ``x`` and ``published`` are (48,) in ``unit``; ``origin_utc`` is the start of the first target interval.
    ``n_filled`` counts inputs that were carried forward over a gap.
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
    candidate_ids: tuple[str, ...] = ()
    split: str = "test"
    fold: int = -1
    subsets: tuple[str, ...] = ()
    leaky: bool = False
    n_filled: int = 0

    def __post_init__(self) -> None:
        """Check shapes and values, and make the view read-only."""
        if self.split not in SPLITS:
            raise DataError(
                f"window {self.window_id}: split {self.split!r} is none of {', '.join(SPLITS)}"
            )
        if self.origin_utc.tzinfo is None:
            raise DataError(
                f"window {self.window_id}: origin_utc has no time zone; give an aware UTC datetime"
            )
        object.__setattr__(self, "x", _frozen(self.x, LOOKBACK, f"window {self.window_id}: x"))
        if not np.isfinite(self.x).all():
            raise DataError(
                f"window {self.window_id}: x holds NaN or infinity; fill it causally or drop the window"
            )
        if self.published is not None:
            frozen = _frozen(self.published, HORIZON, f"window {self.window_id}: published")
            object.__setattr__(self, "published", frozen)
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
        """Steps after which the series is most like itself: one day below daily grids, else one step."""
        return 1 if self.step_minutes >= 1440 else 1440 // self.step_minutes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """A view with its truth ``y`` (48,), NaN where the truth is missing, filled or known to be wrong."""

    view: WindowView
    y: FloatArray

    def __post_init__(self) -> None:
        """Check the shape and make the truth read-only."""
        object.__setattr__(self, "y", _frozen(self.y, HORIZON, f"window {self.view.window_id}: y"))


class WindowSet(Sequence[Window]):
    """Windows in canonical order (origin, series, id), whatever order they were given in."""

    def __init__(
        self, windows: Iterable[Window], *, dataset: str, manifest: Mapping[str, Any] | None = None
    ) -> None:
        """Sort, check and describe the windows.

        Raises:
            DataError: two windows share an id, or one belongs to another data set.
        """
        self._windows = tuple(
            sorted(windows, key=lambda w: (w.view.origin_utc, w.view.series_id, w.view.window_id))
        )
        self.dataset = dataset
        ids = [w.view.window_id for w in self._windows]
        if len(set(ids)) != len(ids):
            twice = next(name for name in ids if ids.count(name) > 1)
            raise DataError(
                f"window id {twice} comes twice in {dataset}; cut each origin of a series once"
            )
        foreign = [w.view for w in self._windows if w.view.dataset != dataset]
        if foreign:
            raise DataError(
                f"window {foreign[0].window_id} is of {foreign[0].dataset!r}, not {dataset!r}"
            )
        self._origin_manifest = dict(manifest or {})

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What made the windows, and what they are: counts by split and subset, and the hash."""
        return self._origin_manifest | self._describe()

    @overload
    def __getitem__(self, index: int) -> Window: ...
    @overload
    def __getitem__(self, index: slice) -> "WindowSet": ...
    def __getitem__(self, index: int | slice) -> "Window | WindowSet":
        """One window, or a set of some."""
        if isinstance(index, slice):
            return self._of(self._windows[index])
        return self._windows[index]

    def __len__(self) -> int:
        """Number of windows."""
        return len(self._windows)

    @property
    def hash(self) -> str:
        """SHA-256 of every view and truth in canonical order."""
        return str(self.manifest["hash"])

    @property
    def entities(self) -> tuple[str, ...]:
        """Sorted names of the entities."""
        return tuple(sorted({w.view.entity for w in self._windows}))

    def split(self, name: str) -> "WindowSet":
        """Windows of one split."""
        if name not in SPLITS:
            raise DataError(f"split {name!r} is none of {', '.join(SPLITS)}")
        return self._of(w for w in self._windows if w.view.split == name)

    def subset(self, name: str) -> "WindowSet":
        """Windows of one named subset; an unknown name is an error, not an empty set."""
        known = {s for w in self._windows for s in w.view.subsets}
        if name not in known:
            raise DataError(
                f"no subset {name!r} in {self.dataset} (known: {', '.join(sorted(known)) or 'none'})"
            )
        return self._of(w for w in self._windows if name in w.view.subsets)

    def entity(self, name: str) -> "WindowSet":
        """Windows of one entity."""
        return self._of(w for w in self._windows if w.view.entity == name)

    def views(self) -> tuple[WindowView, ...]:
        """What a forecaster may see, in order."""
        return tuple(w.view for w in self._windows)

    def truth(self) -> FloatArray:
        """Truth (N, 48), NaN where masked."""
        return np.stack([w.y for w in self._windows]) if self._windows else np.empty((0, HORIZON))

    def with_truth(self, y_NH: FloatArray) -> "WindowSet":
        """The same views with another truth (for tests that poison it)."""
        if y_NH.shape != (len(self), HORIZON):
            raise DataError(
                f"truth of shape {y_NH.shape} for {len(self)} windows; give (N, {HORIZON})"
            )
        return self._of(replace(w, y=row) for w, row in zip(self._windows, y_NH, strict=True))

    def write(self, folder: Path) -> None:
        """Write ``windows.parquet`` and, last, ``manifest.json``."""
        folder.mkdir(parents=True, exist_ok=True)
        pl.DataFrame([_row(w) for w in self._windows], schema=_FRAME_SCHEMA).write_parquet(
            folder / WINDOWS_FILE
        )
        (folder / MANIFEST_FILE).write_text(
            json.dumps(self.manifest, indent=1, sort_keys=True, default=str)
        )

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read a folder :meth:`write` made and check its hash.

        Raises:
            DataError: the folder has no manifest, or the windows are not the ones it was made for.
        """
        if not (folder / MANIFEST_FILE).exists():
            raise DataError(
                f"no complete windows in {folder} ({MANIFEST_FILE} is missing); build the windows asset"
            )
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
        frame = pl.read_parquet(folder / WINDOWS_FILE)
        found = cls(
            (_window(r) for r in frame.iter_rows(named=True)),
            dataset=manifest["dataset"],
            manifest=manifest,
        )
        if found.hash != manifest["hash"]:
            raise DataError(
                f"{folder / WINDOWS_FILE} differs from its manifest; build the windows again"
            )
        return found

    def _of(self, windows: Iterable[Window]) -> "WindowSet":
        return WindowSet(windows, dataset=self.dataset, manifest=self._origin_manifest)

    def _describe(self) -> dict[str, Any]:
        digest = hashlib.sha256()
        splits: dict[str, int] = {}
        subsets: dict[str, int] = {}
        masked = 0
        for window in self._windows:
            digest.update(_digest_bytes(window))
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
            "n_filled_inputs": sum(w.view.n_filled for w in self._windows),
        }


_LIST = pl.List(pl.Float64)
_FRAME_SCHEMA: dict[str, pl.DataType] = {
    **{n: pl.String() for n in ("window_id", "dataset", "series_id", "entity", "variable", "unit")},
    "step_minutes": pl.Int64(), "origin_utc": pl.Datetime("us", "UTC"), "x": _LIST, "calendar": pl.String(),
    "covariates": pl.String(), "published": _LIST, "candidate_ids": pl.List(pl.String), "split": pl.String(),
    "fold": pl.Int64(), "subsets": pl.List(pl.String), "leaky": pl.Boolean(), "n_filled": pl.Int64(), "y": _LIST,
}  # fmt: skip


def _row(window: Window) -> dict[str, Any]:
    view = window.view
    special = {
        "x": view.x.tolist(),
        "calendar": json.dumps(view.calendar.as_dict(), sort_keys=True),
        "covariates": json.dumps(dict(view.covariates), sort_keys=True),
        "published": None if view.published is None else view.published.tolist(),
        "candidate_ids": list(view.candidate_ids),
        "subsets": list(view.subsets),
        "y": window.y.tolist(),
    }
    return {
        name: special[name] if name in special else getattr(view, name) for name in _FRAME_SCHEMA
    }


def _window(row: dict[str, Any]) -> Window:
    fields = {name: value for name, value in row.items() if name != "y"}
    fields |= {
        "x": np.array(row["x"], dtype=np.float64),
        "calendar": Calendar.from_dict(json.loads(row["calendar"])),
        "covariates": json.loads(row["covariates"]),
        "published": None
        if row["published"] is None
        else np.array(row["published"], dtype=np.float64),
        "candidate_ids": tuple(row["candidate_ids"]),
        "subsets": tuple(row["subsets"]),
    }
    return Window(view=WindowView(**fields), y=np.array(row["y"], dtype=np.float64))


def _digest_bytes(window: Window) -> bytes:
    row = _row(window) | {"origin_utc": window.view.origin_utc.isoformat()}
    row |= {
        "x": window.view.x.tobytes().hex(),
        "y": np.nan_to_num(window.y, nan=-0.0).tobytes().hex(),
    }
    row["masked"] = np.flatnonzero(np.isnan(window.y)).tolist()
    return json.dumps(row, sort_keys=True, default=str).encode()


def _frozen(values: FloatArray, length: int, what: str) -> FloatArray:
    copied = np.array(values, dtype=np.float64)
    if copied.shape != (length,):
        raise DataError(f"{what} has shape {copied.shape}, not ({length},)")
    copied.setflags(write=False)
    return copied
