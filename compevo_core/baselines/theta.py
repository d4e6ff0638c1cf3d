"""Theta: the last day without its usual shape, smoothed and continued with half of its trend.

Source: Assimakopoulos and Nikolopoulos, "The theta model: a decomposition approach to forecasting",
International Journal of Forecasting, 2000, from ``statsmodels``. Differs: inputs may hold one day
and no season, so the shape of the day is the mean of each step over the entity's train windows, on
its own clock; daily grids have none. Shapes: N windows, H horizon, L lookback.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Self
from zoneinfo import ZoneInfo

import numpy as np

from compevo_core.baselines.base import raise_if_held_out, read_baseline_file, write_baseline_file
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.runtime.files import write_json

THETA = 2.0
"""The theta line whose forecast is averaged with the trend; 2 is the authors' own."""

_SHAPE_FILE = "shape.json"
_LEAST_RANGE = 1e-9  # of what is left, as a share of the values: rounding

DayStep = tuple[str, int]
"""An entity, and minutes after midnight on its clock."""


class Theta:
    """The theta method on what is left of the last day without its usual shape."""

    name: ClassVar[str] = "theta"

    def __init__(self, shape: Mapping[DayStep, float]) -> None:
        """Take the usual value of each step of the day; use :meth:`fit`."""
        self._shape = dict(shape)

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Average the unmasked targets of each step of the day; ``seed`` is not used."""
        raise_if_held_out(train, cls.name)
        values: dict[DayStep, list[float]] = defaultdict(list)
        for window in train:
            # Values may stand in for other days' where a season is one step: there is no shape.
            if window.view.season_steps == 1:
                continue
            steps = _list_day_steps(window.view, 0, window.view.horizon)
            for step, value in zip(steps, window.y, strict=True):
                if np.isfinite(value):
                    values[step].append(float(value))

        return cls({step: float(np.mean(known)) for step, known in values.items()})

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H); DataError if a step of an entity's day was not in train."""
        return stack_rows([self._forecast(view) for view in views])

    def save(self, folder: Path) -> None:
        """Write the shape of the day."""
        rows = [[*step, value] for step, value in self._shape.items()]
        write_json(folder / _SHAPE_FILE, rows)
        write_baseline_file(folder, self.name)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote."""
        read_baseline_file(folder, cls.name)
        rows = json.loads((folder / _SHAPE_FILE).read_text(encoding="utf-8"))
        return cls({(entity, minutes): value for entity, minutes, value in rows})

    def _forecast(self, view: WindowView) -> FloatArray:
        # Takes a second to import, and most users of this package never ask for it.
        from statsmodels.tsa.forecasting.theta import ThetaModel

        if view.season_steps == 1:
            past_L, future_H = np.zeros(view.lookback), np.zeros(view.horizon)
        else:
            past_L = self._look_up(view, -view.lookback, 0)
            future_H = self._look_up(view, 0, view.horizon)

        left_L = view.x - past_L
        # The model divides by the errors of its smoothing, and a level has none.
        if np.ptp(left_L) <= _LEAST_RANGE * np.abs(view.x).max():
            return np.asarray(left_L[-1] + future_H, dtype=np.float64)

        model = ThetaModel(left_L, period=1, deseasonalize=False)
        forecast = model.fit(disp=False).forecast(view.horizon, theta=THETA)
        return np.asarray(forecast, dtype=np.float64) + future_H

    def _look_up(self, view: WindowView, start: int, end: int) -> FloatArray:
        steps = list(_list_day_steps(view, start, end))
        unknown = [step for step in steps if step not in self._shape]
        if unknown:
            entity, minutes = unknown[0]
            raise DataError(
                f"no train window of {entity} has a value at {minutes // 60:02}:{minutes % 60:02}; "
                "fit theta on whole days of every entity"
            )
        return np.array([self._shape[step] for step in steps])


def _list_day_steps(view: WindowView, start: int, end: int) -> Iterator[DayStep]:
    """Yield the entity and the local time of day of steps, counted from the origin."""
    zone = ZoneInfo(view.calendar.timezone)
    for i in range(start, end):
        local: datetime = (view.origin_utc + i * view.step).astimezone(zone)
        yield view.entity, 60 * local.hour + local.minute
