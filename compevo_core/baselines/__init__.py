"""Baselines: one file each, one contract (``fit``, ``predict``, ``save``, ``load``), by name.

What belongs here: the table of names. What does not: any model, or scoring (``compevo_core.evaluation.result_rows``).
"""

from pathlib import Path
from typing import Any

from compevo_core.baselines.base import Baseline, Forecaster, read_baseline_file
from compevo_core.baselines.gbm import BoostedTrees
from compevo_core.baselines.persistence import Persistence
from compevo_core.baselines.published import PublishedForecast
from compevo_core.baselines.ridge import CalendarRidge
from compevo_core.baselines.weekly import WeeklyPersistence, has_full_week
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError

__all__ = ["BASELINES", "Baseline", "Forecaster", "applicable", "fit_baseline", "load_baseline"]

BASELINES: dict[str, Any] = {
    kind.name: kind
    for kind in (Persistence, WeeklyPersistence, CalendarRidge, BoostedTrees, PublishedForecast)
}
"""Every baseline class by the name its rows carry."""


def fit_baseline(name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
    """Fit a baseline on train windows.

    Raises:
        ConfigError: the name is unknown.
        LeakageError: ``train`` holds a test or inference window.
    """
    fitted: Baseline = _kind(name).fit(train, seed=seed)
    return fitted


def load_baseline(folder: Path) -> Baseline:
    """Load whichever baseline a folder holds."""
    loaded: Baseline = _kind(read_baseline_file(folder)["baseline"]).load(folder)
    return loaded


def is_applicable(name: str, windows: WindowSet) -> bool:
    """Whether a baseline can answer every window: a week of input for weekly, a forecast for published."""
    if name == WeeklyPersistence.name:
        return all(has_full_week(view) for view in windows.views())
    if name == PublishedForecast.name:
        return all(view.published is not None for view in windows.views())
    return True


def _kind(name: str) -> Any:
    if name not in BASELINES:
        raise ConfigError(f"no baseline {name!r}; known: {', '.join(BASELINES)}")
    return BASELINES[name]
