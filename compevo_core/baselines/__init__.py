"""Baselines by name, under one contract (``fit``, ``predict``, ``save``, ``load``).

What belongs here: the table of names, the functions that use it, and fits that several users share.
What does not: any model, or scoring (``evaluation.result_rows``).
"""

import contextlib
import logging
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from compevo_core.baselines import gbm, naive, ridge, smoothing
from compevo_core.baselines.base import (
    BASELINE_FILE,
    Baseline,
    FitBaseline,
    ViewForecaster,
    read_baseline_file,
)
from compevo_core.baselines.news_ridge import SUFFIX, NewsRidge, reads_news
from compevo_core.baselines.zero_shot import ZeroShot, is_zero_shot, make_folder_name
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, import_package

__all__ = [
    "BASELINES",
    "PRIORS",
    "Baseline",
    "FitBaseline",
    "SharedFits",
    "ViewForecaster",
    "add_news",
    "find_cost",
    "fit_baseline",
    "has_method",
    "is_applicable",
    "list_news_readers",
    "load_baseline",
    "register",
    "register_estimator",
]

PRIORS: dict[str, type[Baseline]] = {}
"""Every baseline that can be fitted by name, the simplest first: on a tie it is chosen."""

BASELINES: dict[str, type[Baseline]] = {}
"""Baselines of the result tables, which every evaluation fits."""


def register(baseline: type[Baseline]) -> None:
    """Add a baseline under its name; ConfigError if that is taken."""
    if baseline.name in PRIORS:
        raise ConfigError(f"there is a baseline {baseline.name!r} already; give it another name")
    PRIORS[baseline.name] = baseline
    if baseline.is_scored:
        BASELINES[baseline.name] = baseline


def register_estimator(estimator: Any, name: str = "") -> str:  # noqa: ANN401 - of any library
    """Make a method of any object with scikit-learn's ``fit`` and ``predict``; return its name.

    It forecasts one step from lags, calendar and columns known ahead, again and again, for all
    series together. ``auto`` tries it where it has a ``name``; ConfigError if that is taken.
    """
    method = gbm.LaggedEstimator.wrap(estimator, name, is_candidate=bool(name))
    if name or method.name not in PRIORS:
        register(method)
    return method.name


def has_method(name: str) -> bool:
    """Whether a baseline has a name, or one that news may correct (:func:`list_news_readers`).

    A regressor of scikit-learn has its path as a name, such as ``sklearn.linear_model.LassoCV``,
    with its own defaults.
    """
    if reads_news(name):
        return name in list_news_readers()
    module, _, title = name.rpartition(".")
    if name not in PRIORS and module.startswith("sklearn."):
        regressor = import_package("sklearn.base").RegressorMixin
        with contextlib.suppress(ImportError):
            found = getattr(import_module(module), title, None)
            if isinstance(found, type) and issubclass(found, regressor):
                register(gbm.LaggedEstimator.wrap(found(), name, is_candidate=False))
    return name in PRIORS


# Nothing fitted, one map, trees, several models.
for _baseline in (
    naive.LastValue,
    naive.Persistence,
    naive.WeeklyPersistence,
    naive.SeasonalMean,
    naive.PublishedForecast,
    smoothing.Theta,
    smoothing.SeasonalLevel,
    smoothing.DoubleSeason,
    smoothing.Ets,
    ridge.CalendarRidge,
    ridge.PublishedErrorRidge,
    ridge.OwnWeatherRidge,
    gbm.LaggedTrees,
    gbm.BoostedTrees,
    gbm.PublishedErrorTrees,
    gbm.OwnWeatherTrees,
    gbm.Blend,
):
    register(_baseline)


def find_cost(name: str) -> float:
    """Return about how long a method takes relative to a ridge, for the time left."""
    if reads_news(name):  # its method on parts of train and on all of it
        return 6 * find_cost(name.removesuffix(SUFFIX))
    return PRIORS.get(name, ZeroShot if is_zero_shot(name) else Baseline).cost


def list_news_readers() -> list[str]:
    """Return the names of the methods that are corrected by what news says.

    They are fitted on each part of train, so slow ones are none of them.
    """
    return [name + SUFFIX for name, method in PRIORS.items() if method.cost <= 10.0]


def fit_baseline(name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
    """Fit one of :data:`PRIORS`, or ``zero-shot:`` and a pretrained model, on train windows.

    ConfigError if the name is unknown, or reads news (:func:`add_news`); LeakageError if ``train``
    holds a test or inference window.
    """
    if reads_news(name):
        raise ConfigError(f"the method {name!r} reads news, and there is none: give it")
    if is_zero_shot(name):
        return ZeroShot.fit(train, seed=seed, name=name)
    return _find_class(name).fit(train, seed=seed)


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
    return _find_class(name).load(folder)


def is_applicable(name: str, windows: WindowSet, train: WindowSet | None = None) -> bool:
    """Return whether a baseline can forecast every window, fitted on ``train`` if that is given.

    A table leaves methods out rather than scoring them on other windows.
    """
    return PRIORS.get(name, Baseline).is_applicable(windows, train)


def _find_class(name: str) -> type[Baseline]:
    if not has_method(name):
        raise ConfigError(
            f"no baseline {name!r}; known: {', '.join(PRIORS)}: give an estimator of your own to "
            "register_estimator first"
        )
    return PRIORS[name]


def add_news(fit: FitBaseline, news: NewsPool | None) -> FitBaseline:
    """Return what fits methods that read news as well; the same without any news."""
    if news is None:
        return fit

    def fit_any(name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
        if not reads_news(name):
            return fit(name, train, seed=seed)
        base = name.removesuffix(SUFFIX)
        return cast(Baseline, NewsRidge.fit(train, seed=seed, base=base, news=news, fit=fit))

    return fit_any


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
        key = f"{make_folder_name(name)}-seed{seed}-{train.identity[:16]}"
        if key in self._fitted:
            return self._fitted[key]

        fitted: Baseline
        stored = self._folder / key if self._folder else None
        if name == gbm.Blend.name:
            # Its parts are baselines of their own, which others ask for as well.
            fitted = gbm.Blend(*(self(part, train, seed=seed) for part in gbm.BLEND_WEIGHTS))
        # A baseline's own file is the last one written: a folder that has it is complete.
        elif stored is not None and (stored / BASELINE_FILE).is_file():
            # What was used of late is not cleaned away.
            with contextlib.suppress(PermissionError):
                (stored / BASELINE_FILE).touch()
            fitted = load_baseline(stored)
        else:
            if self._log is not None:
                self._log.info(f"fitting {name} on {len(train):,} windows")
            fitted = fit_baseline(name, train, seed=seed)
            if stored is not None:
                fitted.save(stored)
        self._fitted[key] = fitted
        return fitted
