"""The contract every forecaster keeps, and what all baselines share (style, rules 10 and 11).

What belongs here: the protocols, the split guard and the seasonal-naive base. What does not: any model.
Baselines are saved without pickle, in files that other tools can read.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.window import HORIZON, WindowSet, WindowView
from compevo_core.errors import CheckpointMismatch, DataError, LeakageError

KIND_FILE = "baseline.json"
_FITTABLE = ("train", "val")


@runtime_checkable
class Forecaster(Protocol):
    """Anything that answers 48 numbers in physical units for every view; it cannot see a truth."""

    @property
    def name(self) -> str:
        """What the result rows call it."""
        ...

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Forecasts (N, 48) in each view's unit, in the order of the views."""
        ...


@runtime_checkable
class Baseline(Forecaster, Protocol):
    """A forecaster that is fitted on a train split and kept in a folder."""

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Fit on train (or validation) windows; LeakageError for any other split."""
        ...

    def save(self, folder: Path) -> None:
        """Write all that :meth:`load` needs."""
        ...

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        ...


def refuse_held_out_splits(windows: WindowSet, who: str) -> None:
    """Refuse windows a fit must not see.

    Raises:
        LeakageError: a window is of the test or inference split.
        DataError: there is no window.
    """
    if not len(windows):
        raise DataError(f"{who} was given no windows to fit on; build the train split first")
    wrong = [w.view for w in windows if w.view.split not in _FITTABLE]
    if wrong:
        raise LeakageError(
            f"{who} was given {len(wrong)} window(s) of split {wrong[0].split!r}, first {wrong[0].window_id}; "
            "fit on WindowSet.split('train')"
        )


def repeat_last_season(view: WindowView) -> FloatArray:
    """The last season of the input, repeated over the horizon (48,): yesterday, or the last value on daily grids."""
    return repeat_last_values(view.x, view.season_steps)


def repeat_last_values(x: FloatArray, steps: int) -> FloatArray:
    """The last ``steps`` values of ``x`` repeated to 48."""
    return np.tile(x[-steps:], -(-HORIZON // steps))[:HORIZON]


def stack(rows: Sequence[FloatArray]) -> FloatArray:
    """Rows of 48 as (N, 48), also for N = 0."""
    return np.stack(rows) if rows else np.empty((0, HORIZON))


def write_baseline_file(folder: Path, name: str, **facts: Any) -> None:
    """Write which baseline a folder holds; called last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / KIND_FILE).write_text(
        json.dumps({"baseline": name, **facts}, indent=1, sort_keys=True)
    )


def read_baseline_file(folder: Path, name: str | None = None) -> dict[str, Any]:
    """Facts of a saved baseline.

    Raises:
        CheckpointMismatch: the folder is incomplete or holds another baseline.
    """
    if not (folder / KIND_FILE).exists():
        raise CheckpointMismatch(
            f"no complete baseline in {folder} ({KIND_FILE} is missing); fit and save it again"
        )
    facts: dict[str, Any] = json.loads((folder / KIND_FILE).read_text())
    if name is not None and facts["baseline"] != name:
        raise CheckpointMismatch(
            f"{folder} holds {facts['baseline']!r}, not {name!r}; load it under its own name"
        )
    return facts
