"""The contract of every forecaster, and what all baselines share.

What belongs here: the protocols, the split guard, the seasonal-naive base and the file that says
which baseline a folder holds. What does not: any model.

Baselines are saved without pickle, in files that other tools can read.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import write_json
from compevo_core.data.splits import FITTABLE_SPLITS
from compevo_core.data.view import HORIZON, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, DataError, LeakageError

BASELINE_FILE = "baseline.json"


@runtime_checkable
class Forecaster(Protocol):
    """Anything that forecasts 48 steps in physical units for every view; it cannot see a truth."""

    @property
    def name(self) -> str:
        """The method name in result rows."""
        ...

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit, in the order of the views."""
        ...


@runtime_checkable
class Baseline(Forecaster, Protocol):
    """A forecaster that is fitted on a train split and saved in a folder."""

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


def refuse_held_out_splits(windows: WindowSet, method: str) -> None:
    """Refuse windows that a fit must not see.

    Args:
        windows: what the fit was given.
        method: the name of the method, for the message.

    Raises:
        LeakageError: a window is of the test or inference split.
        DataError: there is no window.
    """
    if not len(windows):
        raise DataError(f"{method} was given no windows to fit on; build the train split first")

    held_out = [w.view for w in windows if w.view.split not in FITTABLE_SPLITS]
    if held_out:
        raise LeakageError(
            f"{method} was given {len(held_out)} window(s) of split {held_out[0].split!r}, first "
            f"{held_out[0].window_id}; fit on WindowSet.split('train')"
        )


def repeat_last_season(view: WindowView) -> FloatArray:
    """Return the last season of the input, repeated over the horizon (48,).

    The season is a day, or one value on daily grids.
    """
    return repeat_last_values(view.x, view.season_steps)


def repeat_last_values(x: FloatArray, steps: int) -> FloatArray:
    """Return the last ``steps`` values of ``x``, repeated to 48."""
    repeats = -(-HORIZON // steps)  # rounded up
    return np.tile(x[-steps:], repeats)[:HORIZON]


def stack_rows(rows: Sequence[FloatArray]) -> FloatArray:
    """Return rows of 48 as (N, 48), also for N = 0."""
    # np.stack refuses an empty list, and a split may have no window.
    return np.stack(rows) if rows else np.empty((0, HORIZON))


def stack_published(views: Sequence[WindowView]) -> FloatArray:
    """Return the published medians (N, H).

    Raises:
        DataError: a view has none.
    """
    without = [view for view in views if view.published is None]
    if without:
        raise DataError(
            f"{len(without)} of {len(views)} windows have no published forecast, first "
            f"{without[0].window_id}; use it only where every window has one"
        )
    return stack_rows([view.published for view in views if view.published is not None])


def write_baseline_file(folder: Path, name: str, **facts: object) -> None:
    """Write which baseline a folder holds; call it last, since it marks the folder complete."""
    write_json(folder / BASELINE_FILE, {"baseline": name, **facts})


def read_baseline_file(folder: Path, name: str | None = None) -> dict[str, Any]:
    """Return the facts of a saved baseline.

    Args:
        folder: a folder that :func:`write_baseline_file` completed.
        name: the baseline it must hold; None accepts any.

    Raises:
        CheckpointMismatch: the folder is incomplete or holds another baseline.
    """
    if not (folder / BASELINE_FILE).exists():
        raise CheckpointMismatch(
            f"no complete baseline in {folder} ({BASELINE_FILE} is missing); fit and save it again"
        )

    facts: dict[str, Any] = json.loads((folder / BASELINE_FILE).read_text(encoding="utf-8"))
    # Two baselines can share file names; loading one as the other would fail much later.
    if name is not None and facts["baseline"] != name:
        raise CheckpointMismatch(
            f"{folder} holds {facts['baseline']!r}, not {name!r}; load it under its own name"
        )
    return facts
