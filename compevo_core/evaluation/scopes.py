"""What is scored together: named sets of windows, and the forecasts made for them.

What belongs here: choosing windows of a data set by split and subset, keeping forecasts by window. What does not:
scoring (``compevo_core.evaluation.result_rows``), cutting windows. Every method of a table is scored on the same scope.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.data.window import FloatArray, WindowSet
from compevo_core.errors import ConfigError, DataError

TEST_SUBSETS = {"electricity": ("n2f-test-100", "aemo-2021")}
"""Subsets that are scored apart; other data sets are scored on their whole test split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Windows with the name their rows carry."""

    subset: str
    windows: WindowSet


def test_scopes(windows: WindowSet, every: int = 1) -> list[Scope]:
    """The scopes of a data set's test split; subsets the data does not hold are left out.

    Raises:
        DataError: there is no test window.
    """
    present = windows.manifest["n_by_subset"]
    named = [name for name in TEST_SUBSETS.get(windows.dataset, ()) if name in present]
    scopes = [thinned(windows.subset(name), name, every) for name in named]
    if not scopes:
        scopes = [thinned(windows.split("test"), "test", every)]
    if not len(scopes[0].windows):
        raise DataError(
            f"{windows.dataset} has no test window; read its sources and build its windows first"
        )
    return scopes


def thinned(windows: WindowSet, subset: str, every: int) -> Scope:
    """The windows of every n-th origin, all entities of it; the name says so where n is above one."""
    if every < 1:
        raise ConfigError(f"every is {every}; it must be 1 (all windows) or more")
    if every == 1:
        return Scope(subset=subset, windows=windows)
    origins = set(sorted({view.origin_utc for view in windows.views()})[::every])
    held = [window for window in windows if window.view.origin_utc in origins]
    kept = WindowSet(held, dataset=windows.dataset, manifest=windows.manifest)
    return Scope(subset=f"{subset}-every-{every}", windows=kept)


def write_forecasts(path: Path, made: Sequence[tuple[Scope, Mapping[str, FloatArray]]]) -> None:
    """Keeps forecasts (N, 48) of several methods for several scopes: one row a subset, method and window."""
    frames = [
        pl.DataFrame(
            {
                "window_id": [view.window_id for view in scope.windows.views()],
                "values": values.tolist(),
            }
        ).select(
            pl.lit(scope.subset).alias("subset"),
            pl.lit(method).alias("method"),
            "window_id",
            "values",
        )
        for scope, forecasts in made
        for method, values in forecasts.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    pl.concat(frames).write_parquet(part)
    part.replace(path)


def read_forecasts(path: Path, scope: Scope) -> dict[str, FloatArray]:
    """The forecasts kept for a scope, in the order of its windows.

    Raises:
        DataError: nothing was kept, or a window of the scope is missing.
    """
    if not path.exists():
        raise DataError(
            f"no forecasts at {path}: materialize evaluation/baselines for this data set first"
        )
    ids = [view.window_id for view in scope.windows.views()]
    frame = pl.read_parquet(path).filter(pl.col("subset") == scope.subset)
    if not frame.height:
        raise DataError(
            f"{path} has no forecasts for {scope.subset}: give both evaluation assets the same settings"
        )
    return {
        str(method): _ordered(part, ids, path)
        for (method,), part in frame.group_by("method", maintain_order=True)
    }


def _ordered(part: pl.DataFrame, ids: Sequence[str], path: Path) -> FloatArray:
    known = dict(part.select("window_id", "values").iter_rows())
    missing = [name for name in ids if name not in known]
    if missing:
        raise DataError(
            f"{path} lacks {len(missing)} window(s), first {missing[0]}: materialize its asset again"
        )
    return np.array([known[name] for name in ids], dtype=np.float64)
