"""The numeric prior: the forecaster whose error the agents learn to correct (decision 2).

What belongs here: fitting it on the train split, out-of-fold forecasts of that split, examples for
the population. What does not: the forecasters themselves (``baselines``).

A prior's error on the windows that it was fitted on is smaller than on any later window. Agents
that were trained on such forecasts would learn to trust it too much. They train on forecasts of
blocks that were left out, one horizon between the targets, and predict with the prior of the whole
split (decision 15).

Shapes: N windows, H horizon.
"""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np

from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.baselines import Baseline, fit_baseline, load_baseline
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import HORIZON, WindowSet, WindowView
from compevo_core.errors import DataError

_FOLDER = "prior"
_NO_PRIOR = "none"


def fit_prior(kind: str, train: WindowSet) -> Baseline | None:
    """Fit the named prior on the train split; ``none`` gives ``None``."""
    return None if kind == _NO_PRIOR else fit_baseline(kind, train)


def forecast_out_of_fold(kind: str, train: WindowSet, folds: int) -> FloatArray | None:
    """Forecast the train windows, each by a prior that did not see its block.

    Args:
        kind: name of the prior; ``none`` gives ``None``.
        train: windows of the train split.
        folds: blocks of consecutive windows; 1 forecasts with a prior fitted on all of them.

    Returns:
        forecasts (N, H) in the windows' unit.

    Raises:
        DataError: there are fewer windows than folds.
    """
    if kind == _NO_PRIOR:
        return None
    if folds == 1:
        return fit_baseline(kind, train).predict(train.views())

    by_time = sorted(range(len(train)), key=lambda i: train[i].view.origin_utc)
    forecast_NH = np.full((len(train), HORIZON), np.nan)
    for block in np.array_split(np.array(by_time), folds):
        if not block.size:
            raise DataError(
                f"{len(train)} train windows cannot be cut into {folds} blocks; lower "
                "forecast.prior_folds"
            )

        # Blocks are consecutive in time: windows of neighbouring days share most of their values,
        # so a random block would be forecast from its own neighbours.
        views = [train[int(i)].view for i in block]
        prior = fit_baseline(kind, _drop_neighbours(train, views[0], views[-1]))
        forecast_NH[block] = prior.predict(views)
    return forecast_NH


def _drop_neighbours(train: WindowSet, first: WindowView, last: WindowView) -> WindowSet:
    """Return the windows that share no value with the block from ``first`` to ``last``.

    A window reaches one horizon back (its lookback) and one ahead (its target), so that origins
    two horizons apart are the nearest that overlap in nothing.
    """
    horizon = HORIZON * timedelta(minutes=first.step_minutes)
    start = first.origin_utc - 2 * horizon
    end = last.origin_utc + 2 * horizon
    others = [window for window in train if not start < window.view.origin_utc < end]
    return WindowSet(others, dataset=train.dataset)


def make_examples(
    windows: WindowSet, prior_NH: FloatArray | None, scaler: Scaler
) -> list[ForecastExample]:
    """Return examples with scaled base and truth, for training and validation.

    Args:
        windows: each must have at least one known target.
        prior_NH: forecasts of the prior in the windows' unit; None for zeros.
        scaler: fitted on the train split.
    """
    # The scale is that of the window's own entity, so that errors of large and small series count
    # alike in the loss.
    return [
        ForecastExample(
            view=window.view,
            base_H=_scale_prior(prior_NH, row, window.view, scaler),
            truth_H=scaler.scale(window.y, window.view.entity),
        )
        for row, window in enumerate(windows)
    ]


def make_view_examples(
    views: Sequence[WindowView], prior_NH: FloatArray | None, scaler: Scaler
) -> list[ForecastExample]:
    """Return examples without truth, for prediction."""
    return [
        ForecastExample(view, _scale_prior(prior_NH, row, view, scaler))
        for row, view in enumerate(views)
    ]


def save_prior(prior: Baseline | None, folder: Path) -> None:
    """Write the prior below ``folder``, if there is one."""
    if prior is not None:
        prior.save(folder / _FOLDER)


def load_prior(folder: Path) -> Baseline | None:
    """Read what :func:`save_prior` wrote; None where it wrote nothing."""
    return load_baseline(folder / _FOLDER) if (folder / _FOLDER).is_dir() else None


def _scale_prior(
    prior_NH: FloatArray | None, row: int, view: WindowView, scaler: Scaler
) -> FloatArray:
    # Zeros in scaled units are the training mean: without a prior, agents forecast from there.
    return np.zeros(HORIZON) if prior_NH is None else scaler.scale(prior_NH[row], view.entity)
