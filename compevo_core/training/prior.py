"""The numeric prior: the forecaster whose error the agents learn to correct (design decision 2).

What belongs here: fitting it on the train split, out-of-fold forecasts of that split, tasks for the population.
What does not: the forecasters themselves (``baselines``).
A prior's error on the windows it was fitted on is smaller than it will ever be again, so agents train on forecasts
of blocks that were left out (with one horizon between) and predict with the prior fitted on the whole split.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np

from compevo_core.agents.decoders import ForecastExample
from compevo_core.baselines import Baseline, fit_baseline, load_baseline
from compevo_core.data.scaling import FloatArray, Scaler
from compevo_core.data.window import HORIZON, WindowSet, WindowView
from compevo_core.errors import DataError

_FOLDER = "prior"


def fit_prior(kind: str, train: WindowSet) -> Baseline | None:
    """Fits the named prior on the train split; ``none`` gives ``None``."""
    return None if kind == "none" else fit_baseline(kind, train)


def out_of_fold(kind: str, train: WindowSet, folds: int) -> FloatArray | None:
    """Prior forecasts (N, 48) of the train windows, each by a prior that did not see its block."""
    if kind == "none":
        return None
    if folds == 1:
        return fit_baseline(kind, train).predict(train.views())
    order = sorted(range(len(train)), key=lambda i: train[i].view.origin_utc)
    out = np.full((len(train), HORIZON), np.nan)
    for block in np.array_split(np.array(order), folds):
        if not block.size:
            raise DataError(
                f"{len(train)} train windows cannot be cut in {folds} blocks; lower forecast.prior_folds"
            )
        views = [train[int(i)].view for i in block]
        gap = HORIZON * timedelta(minutes=views[0].step_minutes)
        first, last = views[0].origin_utc - 2 * gap, views[-1].origin_utc + 2 * gap
        rest = WindowSet(
            [w for w in train if not first < w.view.origin_utc < last], dataset=train.dataset
        )
        out[block] = fit_baseline(kind, rest).predict(views)
    return out


def make_tasks(
    windows: WindowSet, prior_NH: FloatArray | None, scaler: Scaler
) -> list[ForecastExample]:
    """Tasks with scaled base and truth; windows without any known target are an error of the caller."""
    return [
        ForecastExample(
            w.view, _base(prior_NH, i, w.view, scaler), scaler.scale(w.y, w.view.entity)
        )
        for i, w in enumerate(windows)
    ]


def make_view_tasks(
    views: Sequence[WindowView], prior_NH: FloatArray | None, scaler: Scaler
) -> list[ForecastExample]:
    """Tasks without truth, for prediction."""
    return [ForecastExample(view, _base(prior_NH, i, view, scaler)) for i, view in enumerate(views)]


def save_prior(prior: Baseline | None, folder: Path) -> None:
    """Writes the prior below ``folder``, if there is one."""
    if prior is not None:
        prior.save(folder / _FOLDER)


def load_prior(folder: Path) -> Baseline | None:
    """Reads what :func:`save_prior` wrote."""
    return load_baseline(folder / _FOLDER) if (folder / _FOLDER).is_dir() else None


def _base(prior_NH: FloatArray | None, row: int, view: WindowView, scaler: Scaler) -> FloatArray:
    return np.zeros(HORIZON) if prior_NH is None else scaler.scale(prior_NH[row], view.entity)
