"""The base models: the forecasters whose errors the agents learn to correct (02-priors).

The errors of a base model are smaller on the windows that it was fitted on than on later ones, and
agents trained on such forecasts would trust it too much. So they train on forecasts of blocks that
were left out, with one horizon between the targets, and predict with the base model of the split.

Shapes: A agents, P base models, N windows, H horizon.
"""

import copy
import dataclasses
import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Self

import numpy as np

from compevo_core.agents.decoders import ForecastExample
from compevo_core.baselines import Baseline, FitBaseline, fit_baseline, load_baseline
from compevo_core.baselines.gbm import BLEND_WEIGHTS
from compevo_core.baselines.known_errors import ErrorLevels, LevelRule
from compevo_core.baselines.news_ridge import NewsRidge
from compevo_core.baselines.zero_shot import PREFIX, make_folder_name
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import nearest_windows, release_windows
from compevo_core.data.view import DEFAULT_STEPS, Window, WindowView, find_horizon, replay_days
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.runtime.files import write_json

MIXTURE = "mixture"  # name of a method of several members

_FOLDER = "prior"
_LEVELS_FILE = "levels.safetensors"
_KNOWN_FOLDER = "known"
_FITTED_FILE = "fitted.json"


@dataclasses.dataclass(frozen=True, order=True)
class PriorKey:
    """A baseline to fit, and on how many of the nearest train days; 0 is all of them."""

    name: str
    calibration_days: int = 0

    @property
    def folder(self) -> str:
        """The name of its folder in a sealed model."""
        name = make_folder_name(self.name)
        return f"{name}-{self.calibration_days}d" if self.calibration_days else name


def mix_priors(config: RunConfig) -> tuple[tuple[PriorKey, ...], FloatArray]:
    """Return the base models that the agents of a run need, and each agent's share in them, (A, P).

    A row sums to 1, or to 0 without a base model.
    """
    shares: list[dict[PriorKey, float]] = []
    for key in _list_keys(config):
        # The parts of a blend are separate base models, as their disagreement is evidence.
        weights = BLEND_WEIGHTS if key.name == "blend" else {key.name: 1.0}
        parts = {PriorKey(part, key.calibration_days): weights[part] for part in weights}
        shares.append({} if key.name == "none" else parts)
    keys = tuple(sorted({key for share in shares for key in share}))

    mix_AP = np.array([[share.get(key, 0.0) for key in keys] for share in shares])
    return keys, mix_AP.reshape(len(shares), len(keys))


def name_members(config: RunConfig) -> list[str]:
    """Return the name of each member: the number of an agent, otherwise the method.

    If several members have one method, their names contain the days that they are fitted on.
    """
    if config.has_agents:
        return [f"agent {agent}" for agent in range(config.population.agents)]
    keys = _list_keys(config)
    names = [key.name for key in keys]
    return [key.folder if names.count(key.name) > 1 else key.name for key in keys]


def name_method(config: RunConfig) -> str:
    """Return the name of what forecasts: a system of agents, one method, or a mixture of some."""
    if config.has_agents:
        return str(config.population.system)
    members = name_members(config)
    return members[0] if len(members) == 1 else MIXTURE


def _list_keys(config: RunConfig) -> list[PriorKey]:
    """Return the base model of each member."""
    zero_shot = f"{PREFIX}{config.forecast.zero_shot_model}"
    return [
        PriorKey(zero_shot if name == "zero-shot" else name, member.calibration_days)
        for name, member in zip(config.priors, config.population.list_members(), strict=True)
    ]


@dataclasses.dataclass(eq=False)
class RefitMemory:
    """All windows with a known truth, and the end of the newest one at the last fit.

    In daily use a base model learns from every day that has ended (decision 16-daily-use). A fit is
    due ``days`` days after the last one. The windows are read only for a fit.
    """

    days: int
    read: Callable[[], WindowSet]
    fitted_utc: datetime
    added: Sequence[Window] = ()  # later ones; joined only when needed, as that copies all

    @property
    def windows(self) -> WindowSet:
        """All windows with a known truth, as windows of the train split."""
        known = self.read()
        if self.added:
            known = WindowSet([*known, *release_windows(self.added)], dataset=known.dataset)
        self.read, self.added = (lambda: known), ()
        return known

    def add(self, windows: Sequence[Window]) -> bool:
        """Add windows whose truth has become known; return whether a fit is due."""
        # A new list, as copies of this memory share the old one.
        self.added = [*self.added, *windows]

        newest_utc = max(window.view.end_utc for window in windows)
        if newest_utc - self.fitted_utc < timedelta(days=self.days):
            return False
        self.fitted_utc = newest_utc
        return True

    def save(self, folder: Path) -> None:
        """Write the windows and the time of the last fit into ``folder``."""
        self.windows.write(folder)
        write_json(folder / _FITTED_FILE, self.fitted_utc.isoformat())

    @classmethod
    def load(cls, days: int, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        fitted_utc = json.loads((folder / _FITTED_FILE).read_text(encoding="utf-8"))
        # Cached for all copies, as each refit needs them.
        read = cache(partial(WindowSet.read, folder))
        return cls(days, read, datetime.fromisoformat(fitted_utc))


@dataclasses.dataclass
class PriorSet:
    """The fitted base models of a run."""

    fitted: dict[PriorKey, Baseline]  # in the order of :func:`mix_priors`
    levels: ErrorLevels | None  # of their known errors, which correct their forecasts
    memory: RefitMemory | None = None  # if they are refitted in use
    fit_baseline: FitBaseline = fit_baseline
    news: NewsPool | None = None  # read by loaded base models

    @classmethod
    def fit(
        cls, config: RunConfig, train: WindowSet, scaler: Scaler, fit: FitBaseline = fit_baseline
    ) -> Self:
        """Fit every base model of the run on the train split; their errors are not known yet."""
        fitted = {key: _fit(key, train, fit) for key in mix_priors(config)[0]}
        days = config.forecast.refit_days
        ended_utc = max(view.end_utc for view in train.views())
        memory = RefitMemory(days, lambda: train, ended_utc) if days else None
        levels = _start_levels(config, len(fitted), scaler, train.horizon)
        return cls(fitted, levels, memory, fit)

    def forecast(self, views: Sequence[WindowView]) -> FloatArray:
        """Return every base model's forecast of every view, (N, P, H) in the views' units."""
        forecast_NPH = self._forecast_as_fitted(views)
        return forecast_NPH if self.levels is None else self.levels.apply(views, forecast_NPH)

    def forecast_train(self, train: WindowSet, folds: int) -> FloatArray:
        """Return out-of-fold forecasts of every base model, (N, P, H) in the windows' units."""
        fit = self.fit_baseline
        forecasts = [forecast_out_of_fold(key, train, folds, fit) for key in self.fitted]
        return np.stack(forecasts, 1) if forecasts else np.empty((len(train), 0, train.horizon))

    def follow(self, windows: Sequence[Window]) -> FloatArray:
        """Forecast windows in the order of time, (N, P, H), and learn from windows that ended.

        Each forecast uses the base models as they were at its origin.
        """
        views = [window.view for window in windows]
        forecast_NPH = np.empty((len(windows), len(self.fitted), find_horizon(views)))

        for ended, today in replay_days(views):
            if ended:
                self.observe([windows[i] for i in ended])
            if today:
                forecast_NPH[today] = self.forecast([views[i] for i in today])
        return forecast_NPH

    def observe(self, windows: Sequence[Window]) -> None:
        """Learn errors from windows whose truth is known, and keep the windows for later fits.

        DataError if a window is earlier than the last one whose errors are known.
        """
        if not len(windows):
            return
        # Without levels no error is remembered, and the base models need not forecast for it.
        if self.levels is not None:
            views = [window.view for window in windows]
            self.levels.observe(windows, self._forecast_as_fitted(views))

        if self.memory is not None and self.memory.add(windows):
            refitted: dict[PriorKey, Baseline] = {}
            for key, prior in self.fitted.items():
                if isinstance(prior, NewsRidge):
                    # News is only learnt in training: later, old articles are not available.
                    base_key = dataclasses.replace(key, name=prior.base.name)
                    base = _fit(base_key, self.memory.windows, self.fit_baseline)
                    refitted[key] = dataclasses.replace(prior, base=base)
                else:
                    refitted[key] = _fit(key, self.memory.windows, self.fit_baseline)
            self.fitted = refitted

    def copy(self, news: NewsPool | None = None) -> Self:
        """Return base models that learn independently, with other news if it is given."""
        levels, memory = copy.deepcopy(self.levels), copy.copy(self.memory)
        copied = dataclasses.replace(self, levels=levels, memory=memory)
        if news is not None:
            copied.fitted, copied.news = dict(self.fitted), news
            for key, prior in self.fitted.items():
                if isinstance(prior, NewsRidge):
                    copied.fitted[key] = dataclasses.replace(prior, news=news)
        return copied

    def save(self, folder: Path) -> None:
        """Write every base model below ``folder``."""
        for key, prior in self.fitted.items():
            prior.save(folder / _FOLDER / key.folder)
        if self.levels is not None:
            self.levels.save(folder / _FOLDER / _LEVELS_FILE)
        if self.memory is not None:
            self.memory.save(folder / _FOLDER / _KNOWN_FOLDER)

    def save_observed(self, folder: Path) -> None:
        """Write what observed days have changed into ``folder``, without the days."""
        if self.levels is not None:
            self.levels.save(folder / _LEVELS_FILE)
        if self.memory is not None:
            for key, prior in self.fitted.items():
                prior.save(folder / key.folder)

    def load_observed(
        self, folder: Path, observed: Sequence[Window], fitted_utc: str | None
    ) -> None:
        """Read what :meth:`save_observed` wrote after the observed days."""
        if self.levels is not None:
            self.levels.load(folder / _LEVELS_FILE)
        if self.memory is not None and fitted_utc is not None:
            self.fitted = {
                key: load_baseline(folder / key.folder, self.news) for key in self.fitted
            }
            self.memory = dataclasses.replace(
                self.memory,
                fitted_utc=datetime.fromisoformat(fitted_utc),
                added=[*self.memory.added, *observed],
            )

    @classmethod
    def load(
        cls,
        config: RunConfig,
        folder: Path,
        scaler: Scaler,
        fit: FitBaseline = fit_baseline,
        horizon: int = DEFAULT_STEPS,
        news: NewsPool | None = None,
    ) -> Self:
        """Read what :meth:`save` wrote for a run of this configuration, scale and horizon."""
        keys, _ = mix_priors(config)
        fitted = {key: load_baseline(folder / _FOLDER / key.folder, news) for key in keys}
        days = config.forecast.refit_days
        memory = RefitMemory.load(days, folder / _FOLDER / _KNOWN_FOLDER) if days else None

        levels = _start_levels(config, len(fitted), scaler, horizon)
        if levels is not None:
            levels.load(folder / _FOLDER / _LEVELS_FILE)
        return cls(fitted, levels, memory, fit, news)

    def _forecast_as_fitted(self, views: Sequence[WindowView]) -> FloatArray:
        forecasts = [prior.predict(views) for prior in self.fitted.values()]
        if not forecasts:
            return np.empty((len(views), 0, find_horizon(views)))
        return np.stack(forecasts, axis=1)


def forecast_out_of_fold(
    key: PriorKey, train: WindowSet, folds: int, fit: FitBaseline = fit_baseline
) -> FloatArray:
    """Forecast the train windows (N, H), each by a base model that did not see its block.

    One fold forecasts in sample. DataError if there are fewer windows than folds, or
    the base model must know its series and one of them is in a single block.
    """
    if folds == 1:
        return _fit(key, train, fit).predict(train.views())

    by_time = sorted(range(len(train)), key=lambda i: train[i].view.origin_utc)
    forecast_NH = np.full((len(train), train.horizon), np.nan)
    for block in np.array_split(np.array(by_time), folds):
        if not block.size:
            raise DataError(
                f"{len(train)} train windows cannot be cut into {folds} blocks; lower "
                "forecast.prior_folds"
            )

        # Windows of neighbouring days share most of their values, so a random block would be
        # forecast from its neighbours.
        views = [train[int(i)].view for i in block]
        first, last = views[0].origin_utc, views[-1].origin_utc
        # Targets at least a horizon away from the targets of the block.
        apart = 2 * views[0].horizon * views[0].step
        kept = [w for w in train if not first - apart < w.view.origin_utc < last + apart]
        others = WindowSet(kept, dataset=train.dataset)
        prior = _fit(key, others, fit, first, last)
        try:
            forecast_NH[block] = prior.predict(views)
        except DataError as error:
            # Checked only now, as persistence can forecast an unknown series.
            if missing := sorted({view.entity for view in views} - set(others.entities)):
                raise DataError(
                    f"all train windows of {missing[0]} are in one block of forecast.prior_folds "
                    f"or within two horizons of it, so that no {key.name} fitted on the other "
                    "blocks knows the series; add more of its days to train, leave the series "
                    "out, or set forecast.prior_folds to 1 (forecasts in sample)"
                ) from error
            raise
    return forecast_NH


def make_examples(
    windows: WindowSet, priors_NPH: FloatArray, scaler: Scaler
) -> list[ForecastExample]:
    """Return examples with scaled base models and truth; each window needs a known target."""
    # Scaled by entity, so that errors of large and small series count alike in the loss.
    return [
        ForecastExample(
            window.view,
            scaler.scale(priors_PH, window.view.entity),
            scaler.scale(window.y, window.view.entity),
        )
        for window, priors_PH in zip(windows, priors_NPH, strict=True)
    ]


def _start_levels(
    config: RunConfig, priors: int, scaler: Scaler, horizon: int
) -> ErrorLevels | None:
    """Return an empty memory of the base models' errors; None if they remember none."""
    rule = LevelRule(config.forecast.known_errors)
    return ErrorLevels(rule, scaler, priors, horizon) if priors and rule.form != "none" else None


def _fit(
    key: PriorKey,
    train: WindowSet,
    fit: FitBaseline,
    first: datetime | None = None,
    last: datetime | None = None,
) -> Baseline:
    """Fit a base model for the origins of a block of train, or for what comes after train."""
    return fit(key.name, nearest_windows(train, first, last, key.calibration_days))
