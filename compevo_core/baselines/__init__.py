"""Baselines by name, under one contract (``fit``, ``predict``, ``save``, ``load``).

What belongs here: the table of names, the functions that use it, and fits that several users share.
What does not: any model, or scoring (``evaluation.result_rows``).
"""

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from compevo_core.baselines.base import (
    BASELINE_FILE,
    Baseline,
    FitBaseline,
    ViewForecaster,
    read_baseline_file,
)
from compevo_core.baselines.features import knows_past, knows_published_errors
from compevo_core.baselines.gbm import (
    Blend,
    BoostedTrees,
    LaggedTrees,
    OwnWeatherTrees,
    PublishedErrorTrees,
)
from compevo_core.baselines.naive import (
    LastValue,
    Persistence,
    PublishedForecast,
    SeasonalMean,
    WeeklyPersistence,
    has_full_week,
)
from compevo_core.baselines.news_ridge import SUFFIX, NewsRidge, reads_news
from compevo_core.baselines.ridge import CalendarRidge, OwnWeatherRidge, PublishedErrorRidge
from compevo_core.baselines.smoothing import Ets, Theta
from compevo_core.baselines.zero_shot import ZeroShot, is_zero_shot, make_folder_name
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.steps import DAY
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError

__all__ = [
    "BASELINES",
    "Baseline",
    "FitBaseline",
    "NewsFits",
    "SharedFits",
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
        LastValue,
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

PRIORS = BASELINES | {
    baseline.name: baseline for baseline in (SeasonalMean, Theta, Ets, LaggedTrees)
}
"""Every baseline that can be fitted by name."""


_COSTS = {
    **dict.fromkeys((Theta.name, LaggedTrees.name), 10.0),
    **dict.fromkeys((BoostedTrees.name, PublishedErrorTrees.name, OwnWeatherTrees.name), 20.0),
}

_HASH_CHARACTERS = 16


def find_cost(name: str) -> float:
    """Return about how long a method takes beside a ridge, for the time left."""
    if reads_news(name):  # its method on parts of train and on all of it
        return 6 * find_cost(name.removesuffix(SUFFIX))
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


def load_baseline(folder: Path, news: NewsPool | None = None) -> Baseline:
    """Load the baseline that a folder holds, with the news that it reads.

    CheckpointMismatch if it is incomplete.
    """
    name = read_baseline_file(folder)["baseline"]
    if is_zero_shot(name):
        return ZeroShot.load(folder)
    if reads_news(name):
        base = load_baseline(folder / NewsRidge.BASE_FOLDER)
        return cast(Baseline, NewsRidge.load(folder, base, news))
    loaded: Baseline = _find_class(name).load(folder)
    return loaded


def is_applicable(name: str, windows: WindowSet, train: WindowSet | None = None) -> bool:
    """Return whether a baseline can forecast every window, fitted on ``train`` if that is given.

    Weekly persistence needs a week of input, the published forecast a publication, models of its
    errors those errors, models of a longer past that past. The last value is a method of its own
    where persistence repeats a season of days or coarser steps. A table leaves methods out rather
    than scoring them on other windows.
    """
    if name == WeeklyPersistence.name:
        return all(has_full_week(view) for view in windows.views())
    if name == LastValue.name:
        return all(view.step >= DAY and view.reference_steps > 1 for view in windows.views())
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


class NewsFits:
    """Fits methods that read news from a pool, and others as given; call it as ``fit_baseline``."""

    def __init__(self, fit: FitBaseline, news: NewsPool | None) -> None:
        """Take what fits the methods that read no news, and the articles of all windows."""
        self._fit, self._news = fit, news

    def __call__(self, name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
        """Return the baseline, fitted on train windows."""
        if not reads_news(name):
            return self._fit(name, train, seed=seed)
        base = name.removesuffix(SUFFIX)
        fitted = NewsRidge.fit(train, seed=seed, base=base, news=self._news, fit=self._fit)
        return cast(Baseline, fitted)


class SharedFits:
    """Fits each baseline once for equal windows and seed; call it as ``fit_baseline``.

    Boosted trees take seconds to minutes; the table of baselines, the leakage check and the priors
    of six ablation variants ask for the same trees. What is read back forecasts the same bits.

    Fits are kept in memory, and in ``folder`` for other processes. The folder must be one of this
    version of the code: a fit is known by its windows, not by what fitted it.
    """

    def __init__(self, folder: Path | None = None, log: logging.Logger | None = None) -> None:
        """Keep fits in a folder as well, if one is given; ``log`` gets a line a fit."""
        self._folder = folder
        self._log = log
        self._fitted: dict[str, Baseline] = {}

    def __call__(self, name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
        """Return the baseline, fitted on train windows now or earlier."""
        key = f"{make_folder_name(name)}-seed{seed}-{train.hash[:_HASH_CHARACTERS]}"
        if key not in self._fitted:
            self._fitted[key] = self._find_or_fit(key, name, train, seed)
        return self._fitted[key]

    def _find_or_fit(self, key: str, name: str, train: WindowSet, seed: int) -> Baseline:
        # Its parts are baselines of their own, which others ask for as well.
        if name == Blend.name:
            ridge = self(CalendarRidge.name, train, seed=seed)
            trees = self(BoostedTrees.name, train, seed=seed)
            if isinstance(ridge, CalendarRidge) and isinstance(trees, BoostedTrees):
                return Blend(ridge, trees)

        stored = self._folder / key if self._folder else None
        # A baseline's own file is the last one written: a folder that has it is complete.
        if stored is not None and (stored / BASELINE_FILE).is_file():
            # What was used of late is not cleaned away.
            with contextlib.suppress(PermissionError):
                (stored / BASELINE_FILE).touch()
            return load_baseline(stored)

        if self._log is not None:
            self._log.info(f"fitting {name} on {len(train):,} windows")
        fitted = fit_baseline(name, train, seed=seed)
        if stored is not None:
            fitted.save(stored)
        return fitted
