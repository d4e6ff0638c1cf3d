"""What ridge and boosted trees see of a window: its day, the calendar, and yesterday's weather (design 4.2).

What belongs here: turning a view into numbers, with the scales and covariate means of the train split. What does
not: any model. Everything is in units of the entity's train spread, and forecasts are changes from the last season,
so that a fit carries over to years with another level. A missing covariate is NaN here; each model says what it does.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from compevo_core.baselines.base import repeat_last_season, stack
from compevo_core.data.arrays import FloatArray
from compevo_core.data.calendar import Calendar
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import HORIZON, Window, WindowView

DAYS_OF_YEAR = 365.25
MIN_COVERAGE = 0.5
WARM_K, COOL_K = 293.0, 288.0
"""Above the first air conditioning, below the second heating adds to demand; temperatures in kelvin."""
KELVIN = "_temp_k_lag"
"""How the key of a temperature covariate is told from others."""
CALENDAR_NAMES = (
    *(f"weekday_{i}" for i in range(7)), "holiday", "holiday_before", "day_off", "day_off_before", "into_day_off",
    "out_of_day_off", "sin_year", "cos_year", "sin_half_year", "cos_half_year",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSpace:
    """Scales and names fixed on the train split.

    ``covariates`` are the keys that at least half of the train windows have.
    """

    scaler: Scaler
    entities: tuple[str, ...]
    covariates: tuple[str, ...]

    @classmethod
    def fit(cls, train: Sequence[Window]) -> Self:
        """Fix names and scales on train windows."""
        counts: dict[str, int] = {}
        for window in train:
            for name in window.view.covariates:
                counts[name] = counts.get(name, 0) + 1
        return cls(
            scaler=Scaler.fit(train),
            entities=tuple(sorted({w.view.entity for w in train})),
            covariates=tuple(
                sorted(k for k, n in counts.items() if n >= MIN_COVERAGE * len(train))
            ),
        )

    def weather(self, views: Sequence[WindowView]) -> FloatArray:
        """Covariates (N, C), NaN where a view lacks one."""
        rows = [[view.covariates.get(name, np.nan) for name in self.covariates] for view in views]
        return np.array(rows, dtype=np.float64).reshape(len(views), len(self.covariates))

    def has_weather(self, view: WindowView) -> bool:
        """Whether a view has any covariate of the train split."""
        return any(name in view.covariates for name in self.covariates)

    def hinges(self, weather_NC: FloatArray) -> FloatArray:
        """Kelvins above ``WARM_K`` and below ``COOL_K`` of every temperature, (N, 2 x temperatures)."""
        columns = [i for i, name in enumerate(self.covariates) if KELVIN in name]
        kelvin = weather_NC[:, columns]
        return np.concatenate(
            [np.maximum(kelvin - WARM_K, 0), np.maximum(COOL_K - kelvin, 0)], axis=1
        )

    @property
    def change_names(self) -> tuple[str, ...]:
        """Stems of the covariates known for both of the last two days."""
        stems = (name.removesuffix("_lag1") for name in self.covariates if name.endswith("_lag1"))
        return tuple(stem for stem in stems if f"{stem}_lag2" in self.covariates)

    def changes(self, weather_NC: FloatArray) -> FloatArray:
        """Change from the day before yesterday to yesterday of ``change_names``, (N, names)."""
        at = self.covariates.index
        last = [at(f"{stem}_lag1") for stem in self.change_names]
        before = [at(f"{stem}_lag2") for stem in self.change_names]
        return weather_NC[:, last] - weather_NC[:, before]

    def scaled_inputs(self, views: Sequence[WindowView]) -> FloatArray:
        """Inputs (N, 48) in units of each entity's train spread."""
        return stack([self.scaler.scale(view.x, view.entity) for view in views])

    def targets(self, windows: Sequence[Window]) -> FloatArray:
        """Scaled change of the truth from the last season (N, 48), NaN where masked."""
        return stack(
            [(w.y - repeat_last_season(w.view)) / self.scaler.std[w.view.entity] for w in windows]
        )

    def to_physical(self, views: Sequence[WindowView], change_NH: FloatArray) -> FloatArray:
        """Forecasts (N, 48) in each view's unit from scaled changes."""
        return stack(
            [
                repeat_last_season(v) + self.scaler.std[v.entity] * row
                for v, row in zip(views, change_NH, strict=True)
            ]
        )

    def entity_codes(self, views: Sequence[WindowView]) -> npt.NDArray[np.int64]:
        """Position of each view's entity; the scaler refuses unknown ones before this is used."""
        return np.array([self.entities.index(view.entity) for view in views], dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; :meth:`from_dict` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Self:
        """Read what :meth:`to_dict` wrote."""
        return cls(
            scaler=Scaler.from_json(json.dumps(raw["scaler"])),
            entities=tuple(raw["entities"]),
            covariates=tuple(raw["covariates"]),
        )


def calendar_features(calendar: Calendar) -> list[float]:
    """Numbers of ``CALENDAR_NAMES``."""
    weekdays = [float(calendar.target_weekday == i) for i in range(7)]
    off, before = calendar.target_is_day_off, calendar.previous_is_day_off
    flags = [
        bool(calendar.target_holiday),
        bool(calendar.previous_holiday),
        off,
        before,
        off > before,
        before > off,
    ]
    angle = 2 * np.pi * calendar.day_of_year / DAYS_OF_YEAR
    return [
        *weekdays,
        *map(float, flags),
        *(float(f(k * angle)) for k in (1, 2) for f in (np.sin, np.cos)),
    ]


def calendar_matrix(views: Sequence[WindowView]) -> FloatArray:
    """Calendar features (N, len(CALENDAR_NAMES))."""
    return np.array([calendar_features(v.calendar) for v in views]).reshape(
        len(views), len(CALENDAR_NAMES)
    )


def flat_inputs(z_NH: FloatArray) -> FloatArray:
    """Shape of the input day (N, 8): mean, extremes, last value, change over the day, and means of three parts."""
    third = HORIZON // 3
    parts = [z_NH[:, i * third : (i + 1) * third].mean(axis=1) for i in range(3)]
    summary = [
        z_NH.mean(axis=1),
        z_NH.min(axis=1),
        z_NH.max(axis=1),
        z_NH[:, -1],
        z_NH[:, -1] - z_NH[:, 0],
    ]
    return np.stack([*summary, *parts], axis=1)
