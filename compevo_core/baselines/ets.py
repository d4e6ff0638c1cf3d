"""Exponential smoothing (ETS): level, trend and season, each additive, multiplicative or absent.

Source: Hyndman, Koehler, Snyder and Grose, "A state space framework for automatic forecasting using
exponential smoothing methods", International Journal of Forecasting, 2002, from ``statsforecast``,
an extra. The form of each series is chosen on its newest train window, by the corrected Akaike
criterion; its smoothing is estimated on the inputs of each window. Differs: whether a series has a
season is decided by how much of its variation a mean season explains, as the criterion, which goes
by errors one step ahead, leaves out the day of hourly data. Seasons of more than 24 steps are
beyond the method: their mean shape over the inputs is taken off before and put back after.

Shapes: N windows, H horizon, L lookback.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from compevo_core.baselines.base import raise_if_held_out, read_baseline_file, write_baseline_file
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_core.runtime.files import write_json

MOST_SEASON_STEPS = 24
"""Longest season that the method holds as states of its own."""

_FEWEST_INPUTS = 12  # from which the library fits any form without a season
_SPARE_INPUTS = 8  # beside one season, from which it fits any form with one
_FORMS_FILE = "forms.json"
_SEASONAL, _NOT_SEASONAL = "ZZA", "ZZN"
_LEAST_EXPLAINED = 0.2  # by a mean season, of the variation within seasons


class Ets:
    """Exponential smoothing, with a form for each series."""

    name: ClassVar[str] = "ets"

    def __init__(self, forms: Mapping[str, str]) -> None:
        """Take the form of each entity, as ``MNA`` and whether its trend is damped; see fit."""
        self._forms = dict(forms)

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Choose the form of every entity on its newest train window; ``seed`` is not used.

        Raises:
            ConfigError: the extra is not installed.
            DataError: a look-back is too short for every form.
        """
        raise_if_held_out(train, cls.name)
        shortest = min((window.view.lookback for window in train), default=_FEWEST_INPUTS)
        if shortest < _FEWEST_INPUTS:
            raise DataError(
                f"{cls.name} needs a look-back of {_FEWEST_INPUTS} steps or more, not {shortest}"
            )
        _import_library()
        newest = {window.view.entity: window for window in train}  # windows are in order of time
        forms = {}
        for entity, window in newest.items():
            known = np.concatenate([window.view.x, window.y[np.isfinite(window.y)]])
            form = _SEASONAL if _explain(known, window.view.shortest_season) else _NOT_SEASONAL
            forms[entity] = _smooth(known, window.view, form)[0]
        return cls(forms)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit; DataError for a series not in train."""
        unknown = sorted({view.entity for view in views} - set(self._forms))
        if unknown:
            raise DataError(
                f"no train window belongs to {unknown[0]}, so {self.name} has no form for it; "
                "train on windows of every series"
            )
        return stack_rows([_smooth(view.x, view, self._forms[view.entity])[1] for view in views])

    def save(self, folder: Path) -> None:
        """Write the forms."""
        write_json(folder / _FORMS_FILE, self._forms)
        write_baseline_file(folder, self.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        read_baseline_file(folder, cls.name)
        return cls(json.loads((folder / _FORMS_FILE).read_text(encoding="utf-8")))


def _smooth(known_L: FloatArray, view: WindowView, form: str) -> tuple[str, FloatArray]:
    """Return the form that was used, four letters, and the forecast (H,) after known values."""
    library = _import_library()
    season, horizon = view.shortest_season, view.horizon
    has_seasons = len(known_L) >= max(2 * season, season + _SPARE_INPUTS) and season > 1
    shape_S = np.zeros(season)
    if has_seasons and season > MOST_SEASON_STEPS:
        # By place before the end, so that the forecast goes on with the first.
        whole = known_L[len(known_L) % season :].reshape(-1, season)
        shape_S = whole.mean(axis=0) - whole.mean()
    is_seasonal = has_seasons and season <= MOST_SEASON_STEPS
    left_L = known_L - np.resize(shape_S[::-1], len(known_L))[::-1]

    if not is_seasonal:
        form = form[:2] + "N" + form[3:]
    is_positive = left_L.min() > 0
    if not is_positive:
        form = form.replace("M", "A")
    model = library.ets_f(
        left_L,
        m=season if is_seasonal else 1,
        model=form[:3],
        damped=form[3] == "D" if len(form) > 3 else None,
        additive_only=None if is_positive else True,
    )
    forecast_H = np.asarray(library.forecast_ets(model, horizon)["mean"], dtype=np.float64)
    return str(model["components"]), forecast_H + np.resize(shape_S, horizon)


def _explain(known_L: FloatArray, season: int) -> bool:
    """Whether a mean season explains enough of the variation within seasons."""
    seasons = len(known_L) // season
    if seasons < 2 or season < 2:
        return False
    rows = known_L[len(known_L) - seasons * season :].reshape(seasons, season)
    within = rows - rows.mean(axis=1, keepdims=True)
    # As many seasons of noise have a mean as well, which explains one part of as many.
    left = float((within - within.mean(axis=0)).var()) * seasons / (seasons - 1)
    return left < (1 - _LEAST_EXPLAINED) * float(within.var())


def _import_library() -> Any:  # noqa: ANN401 - a module without types
    # Takes three seconds to import.
    try:
        from statsforecast import ets
    except ImportError as error:
        raise ConfigError(
            "exponential smoothing needs an extra: pip install 'compevo[statsforecast]'"
        ) from error
    return ets
