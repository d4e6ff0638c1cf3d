"""Baselines by name: one file each, one contract (``fit``, ``predict``, ``save``, ``load``).

What belongs here: the table of names and the functions that use it. What does not: any model, or
scoring (``evaluation.result_rows``).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from compevo_core.baselines.base import Baseline, ViewForecaster, read_baseline_file
from compevo_core.baselines.blend import Blend
from compevo_core.baselines.features import knows_past, knows_published_errors
from compevo_core.baselines.gbm import BoostedTrees, OwnWeatherTrees, PublishedErrorTrees
from compevo_core.baselines.naive import (
    Persistence,
    PublishedForecast,
    SeasonalMean,
    WeeklyPersistence,
    has_full_week,
)
from compevo_core.baselines.ridge import CalendarRidge, OwnWeatherRidge, PublishedErrorRidge
from compevo_core.baselines.smoothing import Ets, Theta
from compevo_core.baselines.zero_shot import ZeroShot, is_zero_shot
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError

__all__ = [
    "BASELINES",
    "Baseline",
    "ViewForecaster",
    "find_cost",
    "fit_baseline",
    "is_applicable",
    "load_baseline",
]

# Typed loosely: mypy has no type for "a class whose instances satisfy Baseline".
BASELINES: dict[str, type[Any]] = {
    baseline.name: baseline
    for baseline in (
        Persistence,
        WeeklyPersistence,
        CalendarRidge,
        BoostedTrees,
        Blend,
        PublishedForecast,
        PublishedErrorRidge,
        PublishedErrorTrees,
        OwnWeatherRidge,
        OwnWeatherTrees,
    )
}
"""Every baseline of the result tables by the name that its rows carry."""

PRIORS = BASELINES | {baseline.name: baseline for baseline in (SeasonalMean, Theta, Ets)}
"""Every baseline that can be fitted by name."""


_COSTS = {
    **dict.fromkeys((Theta.name, Ets.name), 10.0),
    **dict.fromkeys((BoostedTrees.name, PublishedErrorTrees.name, OwnWeatherTrees.name), 20.0),
}


def find_cost(name: str) -> float:
    """Return about how long a method takes beside a ridge, for the time left."""
    return _COSTS.get(name, 10.0 if is_zero_shot(name) else 1.0)


def fit_baseline(name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
    """Fit one of :data:`PRIORS`, or ``zero-shot:`` and a pretrained model, on train windows.

    Raises:
        ConfigError: the name is unknown.
        LeakageError: ``train`` holds a test or inference window.
    """
    if is_zero_shot(name):
        return ZeroShot.fit(train, seed=seed, name=name)
    fitted: Baseline = _find_class(name).fit(train, seed=seed)
    return fitted


def load_baseline(folder: Path) -> Baseline:
    """Load the baseline that a folder holds; CheckpointMismatch if it is incomplete."""
    name = read_baseline_file(folder)["baseline"]
    if is_zero_shot(name):
        return ZeroShot.load(folder)
    loaded: Baseline = _find_class(name).load(folder)
    return loaded


def is_applicable(name: str, windows: WindowSet, train: WindowSet | None = None) -> bool:
    """Return whether a baseline can forecast every window, fitted on ``train`` if that is given.

    Weekly persistence needs a week of input, the published forecast a publication, models of its
    errors those errors, models of a longer past that past. A table leaves them out rather than
    scoring them on other windows.
    """
    if name == WeeklyPersistence.name:
        return all(has_full_week(view) for view in windows.views())
    if name == PublishedForecast.name:
        return all(view.published is not None for view in windows.views())
    if name in (PublishedErrorRidge.name, PublishedErrorTrees.name):
        return _has_evidence(windows, train, knows_published_errors)
    if name in (OwnWeatherRidge.name, OwnWeatherTrees.name):
        return _has_evidence(windows, train, knows_past)
    return True


def _has_evidence(
    windows: WindowSet, train: WindowSet | None, knows: Callable[[WindowView], bool]
) -> bool:
    """Whether all views know a thing, and train has days for all entities and all they lack."""
    if not all(knows(view) for view in windows.views()):
        return False
    if train is None:
        return True
    fitted = [view for view in train.views() if knows(view)]
    entities = {view.entity for view in fitted}
    leads = {view.unknown_steps for view in fitted}
    return all(v.entity in entities and v.unknown_steps in leads for v in windows.views())


def _find_class(name: str) -> type[Any]:
    if name not in PRIORS:
        raise ConfigError(f"no baseline {name!r}; known: {', '.join(PRIORS)}")
    return PRIORS[name]
