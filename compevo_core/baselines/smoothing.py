"""Methods that smooth each series by itself: theta, exponential smoothing, a level with a season.

Theta: the last day without its usual shape, smoothed and continued with half of its trend. Source:
Assimakopoulos and Nikolopoulos, "The theta model: a decomposition approach to forecasting",
International Journal of Forecasting, 2000, from ``statsmodels``. Differs: inputs may hold one day
and no season, so the shape of the day is the mean of each step over the entity's train windows, on
its own clock; daily grids have none.

Exponential smoothing (ETS): level, trend and season, each additive, multiplicative or absent.
Source: Hyndman, Koehler, Snyder and Grose, "A state space framework for automatic forecasting using
exponential smoothing methods", International Journal of Forecasting, 2002, from ``statsforecast``,
an extra. The form and the rates of each series are chosen on what its newest train window knows, by
the corrected Akaike criterion. Differs: whether a series has a
season is decided by how much of its variation a mean season explains, as the criterion, which goes
by errors one step ahead, leaves out the day of hourly data. Seasons of more than 24 steps are
beyond the method: their mean shape over the inputs is taken off before and put back after.

Shapes: N windows, H horizon, L lookback.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any, Self
from zoneinfo import ZoneInfo

import numpy as np

from compevo_core.baselines.base import Baseline, raise_if_held_out
from compevo_core.baselines.features import knows_weeks, measure_surprise, split_weeks
from compevo_core.data.arrays import FloatArray, evenly_spaced
from compevo_core.data.steps import DAY, WEEK
from compevo_core.data.view import Window, WindowView, group_by_series, keep_bounds, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, import_package

_LEAST_RANGE = 1e-9  # of what is left, as a share of the values: rounding

MOST_SEASON_STEPS = 24  # longest season that the methods hold as a part of their own

_FEWEST_INPUTS = 12  # from which the library fits any form without a season
_SPARE_INPUTS = 8  # besides one season; with them it fits any form that has one
_SHAPE_SEASONS = 7  # newest seasons whose mean is the shape of a long one
# Newest steps that the form of a series is fitted to, and those of all series
_FEWEST_STEPS, _MOST_STEPS, _MOST_FITTED = 60, 1000, 20_000
_LEAST_EXPLAINED = 0.2  # by a mean season, of the variation within seasons

Form = list[Any]
"""What is chosen for one series, ready for JSON."""


class _FormedSeries(Baseline):
    """A method that has a form for each series, and reads all that is known of it."""

    is_scored = False

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._forms = dict(forms)

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0) -> Self:
        """Choose the form of every entity; ``seed`` is not used.

        ConfigError if an extra is not installed; DataError if no form fits so short a look-back.
        """
        raise_if_held_out(train, cls.name)
        grouped = group_by_series(train)
        return cls({name: cls._choose(part, len(grouped)) for name, part in grouped.items()})

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit; DataError for a series not in train."""
        unknown = sorted({view.entity for view in views} - set(self._forms))
        if unknown:
            raise DataError(
                f"no train window belongs to {unknown[0]}, so {self.name} has no form for it; "
                "train on windows of every series"
            )
        rows = [self._forecast(view, self._forms[view.entity]) for view in views]
        return keep_bounds(views, stack_rows(rows))

    @classmethod
    @abstractmethod
    def _choose(cls, windows: Sequence[Window], series: int) -> Form:
        """Return the form of one of so many series by its train windows, in order of time."""

    @abstractmethod
    def _forecast(self, view: WindowView, form: Form) -> FloatArray:
        """Return the forecast (H,) of one view."""

    def _to_files(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        return {"forms": self._forms}, {}

    @classmethod
    def _from_files(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        return cls(facts["forms"])


class Theta(_FormedSeries):
    """The theta method on what is left of the last day without its usual shape.

    A form is the usual value of each step of the day, by minutes after midnight on its clock.
    """

    name = "theta"
    title = "Theta"
    cost = 10.0
    is_candidate = False

    @classmethod
    def _choose(cls, windows: Sequence[Window], series: int) -> Form:
        # Values may stand in for other days' where a season is one step: there is no shape.
        newest = windows[-1].view
        if newest.seasons.day == 1:
            return []
        shape = _average_by_minute((w.view, 0, w.y) for w in windows)
        if len(shape) < DAY // newest.step:
            # As where windows are further apart than their horizon: the newest week's inputs.
            views = [w.view for w in windows if w.view.origin_utc > newest.origin_utc - WEEK]
            shape = _average_by_minute((v, -v.lookback, v.x) for v in views) | shape
        return list(map(list, shape.items()))

    def _forecast(self, view: WindowView, form: Form) -> FloatArray:
        # Takes a second to import, and most users of this package never ask for it.
        library = import_package("statsmodels.tsa.forecasting.theta")
        shape = dict(form)
        minutes = _list_minutes(view, -view.lookback, view.horizon) if shape else []
        if unknown := [minute for minute in minutes if minute not in shape]:
            raise DataError(
                f"no train window of {view.entity} has a value at "
                f"{unknown[0] // 60:02}:{unknown[0] % 60:02}; fit theta on whole days"
            )
        usual = [shape[minute] for minute in minutes] or [0.0] * (view.lookback + view.horizon)
        usual_T = np.array(usual, dtype=np.float64)

        left_L, future_H = view.x - usual_T[: view.lookback], usual_T[view.lookback :]
        # The model divides by the errors of its smoothing, and a level has none.
        if np.ptp(left_L) <= _LEAST_RANGE * np.abs(view.x).max():
            return np.asarray(left_L[-1] + future_H, dtype=np.float64)

        model = library.ThetaModel(left_L, period=1, deseasonalize=False)
        # The line whose forecast is averaged with the trend is the authors' own.
        forecast = model.fit(disp=False).forecast(view.horizon, theta=2.0)
        return np.asarray(forecast, dtype=np.float64) + future_H


def _average_by_minute(parts: Iterable[tuple[WindowView, int, FloatArray]]) -> dict[int, float]:
    """Return the mean of the known values of each step of the day, from a first step of views."""
    values: dict[int, list[float]] = defaultdict(list)
    for view, first, known in parts:
        minutes = _list_minutes(view, first, first + len(known))
        for minute, value in zip(minutes, known.tolist(), strict=True):
            if np.isfinite(value):
                values[minute].append(value)
    return {minute: float(np.mean(known)) for minute, known in values.items()}


def _list_minutes(view: WindowView, start: int, end: int) -> list[int]:
    """Return the minutes after midnight on the clock of steps, counted from the origin."""
    zone = ZoneInfo(view.calendar.timezone)
    stamps = ((view.origin_utc + i * view.step).astimezone(zone) for i in range(start, end))
    return [60 * stamp.hour + stamp.minute for stamp in stamps]


class Ets(_FormedSeries):
    """Exponential smoothing; a form is its components, as ``MNA``, and the rates of its states."""

    name = "ets"
    title = "Exponential smoothing"

    @classmethod
    def _choose(cls, windows: Sequence[Window], series: int) -> Form:
        view = windows[-1].view
        if view.lookback < _FEWEST_INPUTS:
            raise DataError(
                f"{cls.name} needs a look-back of {_FEWEST_INPUTS} steps or more, not "
                f"{view.lookback}"
            )
        ets = import_package("statsforecast.ets")  # takes three seconds
        steps = max(_FEWEST_STEPS, min(_MOST_STEPS, _MOST_FITTED // series))
        left_T, _, season = _take_off_long(view.known[-steps:], view.seasons.shortest)
        is_seasonal = season > 1 and _is_long(left_T, season) and _explain(left_T, season)
        model = ets.ets_f(
            left_T,
            m=season if is_seasonal else 1,
            model="ZZA" if is_seasonal else "ZZN",
            additive_only=None if left_T.min() > 0 else True,
        )
        # What a form does not have is NaN.
        return [str(model["components"]), np.nan_to_num(model["par"][:4]).tolist()]

    def _forecast(self, view: WindowView, form: Form) -> FloatArray:
        left_T, shape_S, season = _take_off_long(view.known[-_MOST_STEPS:], view.seasons.shortest)
        components, rates = form
        if left_T.min() <= 0:
            components = components.replace("M", "A")
        if not _is_long(left_T, season):
            components = components[:2] + "N" + components[3:]
        library = import_package("statsforecast.ets")
        _, trend, seasonal = components[:3]
        season = 1 if seasonal == "N" else season
        state = library.initstate(left_T, season, trend, seasonal)
        if seasonal != "N":
            # Seasons add up to nothing, or are one in the mean.
            known = state[1 if trend == "N" else 2 :].sum()
            state = np.append(state, (season if seasonal == "M" else 0.0) - known)
        parameters = np.concatenate([rates, state])
        model = {"m": season, "components": components, "par": parameters, "fit": None}
        model["n_params"] = len(parameters)
        # Known values follow the states that their first seasons begin.
        future = library.forecast_ets(library.forward_ets(model, left_T), view.horizon)
        mean_H = np.asarray(future["mean"], dtype=np.float64)
        return np.asarray(mean_H + np.resize(shape_S, view.horizon))


def _is_long(known_T: FloatArray, season: int) -> bool:
    return len(known_T) >= max(2 * season, season + _SPARE_INPUTS)


_RATES = np.array([1.0, 0.6, 0.3, 0.15, 0.08, 0.04, 0.02, 0.01, 0.005])  # of a level, by step
_DRIFTS = np.array([0.0, 0.5, 1.0])  # parts of the mean change that go on
# Train windows that the form of a series is chosen on, evenly spaced, and those of all series
_FEWEST_JUDGED, _MOST_JUDGED, _ALL_JUDGED = 4, 24, 2400


class SeasonalLevel(_FormedSeries):
    """A smoothed level, its drift and the usual shape of a season.

    Chosen by the error over the horizon on train windows: the season (none, the shortest, a week
    below daily grids), whether parts add or multiply, the rate of smoothing, the share of the
    drift. With half of the drift it is the theta method. Source: Hyndman and Billah, "Unmasking the
    theta method", International Journal of Forecasting, 2003.
    """

    name = "seasonal-level"
    title = "Level, drift and season"

    @classmethod
    def _choose(cls, windows: Sequence[Window], series: int) -> Form:
        count = max(_FEWEST_JUDGED, min(_MOST_JUDGED, _ALL_JUDGED // series))
        judged = [windows[i] for i in evenly_spaced(len(windows), count)]
        view = judged[-1].view
        seasons = {1, view.seasons.shortest} | ({WEEK // view.step} if view.step < DAY else set())
        is_positive = min(window.view.known.min() for window in judged) > 0
        ways = [False, True] if is_positive else [False]

        tried: list[tuple[float, Form]] = []
        for season, multiplies in product(sorted(seasons), ways):
            error_RD = np.zeros((len(_RATES), len(_DRIFTS)))
            for window in judged:
                forecast_RDH = _extrapolate(window.view, season, multiplies, _RATES, _DRIFTS)
                error_RD += np.nansum(np.abs(forecast_RDH - window.y), axis=2)
            rate, drift = divmod(int(error_RD.argmin()), len(_DRIFTS))
            form = [season, multiplies, float(_RATES[rate]), float(_DRIFTS[drift])]
            tried.append((float(error_RD.min()), form))
        return min(tried, key=itemgetter(0))[1]

    def _forecast(self, view: WindowView, form: Form) -> FloatArray:
        season, multiplies, rate, drift = form
        forecast_RDH = _extrapolate(view, season, multiplies, np.array([rate]), np.array([drift]))
        return np.asarray(forecast_RDH[0, 0])


def _extrapolate(
    view: WindowView, season: int, multiplies: bool, rates_R: FloatArray, drifts_D: FloatArray
) -> FloatArray:
    """Return the forecasts (R, D, H) of a view by every rate and part of the drift.

    There is no season where fewer than two are known.
    """
    known_T = view.known
    is_log = multiplies and known_T.min() > 0
    known_T = np.log(known_T) if is_log else known_T
    season = season if len(known_T) >= 2 * season else 1
    known_T = known_T[len(known_T) % season :]
    rows_NS = known_T.reshape(-1, season)
    if season > 1:
        rows_NS = rows_NS[-_SHAPE_SEASONS:]
    level_N = rows_NS.mean(axis=1)
    slope = (level_N[-1] - level_N[0]) / max(1, season * (len(level_N) - 1))

    # Within a season the drift is no part of its shape.
    shape_S = (rows_NS - level_N[:, None]).mean(axis=0)
    shape_S = shape_S - slope * (np.arange(season) - (season - 1) / 2)
    left_T = known_T - np.tile(shape_S, len(known_T) // season)

    # Old values count as they would have become by now.
    weight_RT = np.stack([_weigh(rate, len(left_T)) for rate in rates_R.tolist()])
    age_R = weight_RT @ np.arange(len(left_T))[::-1]
    level_RD = (weight_RT @ left_T)[:, None] + np.outer(age_R, drifts_D * slope)
    change_DH = np.outer(drifts_D * slope, np.arange(1, view.horizon + 1))
    forecast_RDH = level_RD[..., None] + change_DH + np.resize(shape_S, view.horizon)
    return np.asarray(np.exp(forecast_RDH) if is_log else forecast_RDH)


_DECAYS = np.array([1.0, 4.0, 12.0])  # hours in which half of the last deviation is left
_STIFFNESS = 1e-3  # penalty of a weight, as a share of what a column weighs
_REFITS = 15  # of least squares until they are least absolute errors
_MOST_TARGETS = 60_000  # target steps that weights are fitted on, of all series


class DoubleSeason(_FormedSeries):
    """The usual week, and how the latest deviations from it go on.

    The usual week may be flattened, and shares of the deviations are added to it: of the last day's
    and week's mean, the same step a day ago, and the last value, which fades. Yesterday has another
    share where it was a surprise. The shares, of values or their logarithms, err least on train
    windows, in place of the states of double seasonal smoothing. Source: Taylor,
    "Short-term electricity demand forecasting using double seasonal exponential smoothing", Journal
    of the Operational Research Society, 2003.
    """

    name = "double-season"
    title = "Day and week"
    _can_forecast = staticmethod(knows_weeks)

    @classmethod
    def _choose(cls, windows: Sequence[Window], series: int) -> Form:
        count = max(_MOST_JUDGED, _MOST_TARGETS // (series * windows[0].view.horizon))
        judged = [windows[i] for i in evenly_spaced(len(windows), count)]
        truth_R = np.concatenate([window.y for window in judged])
        is_known_R = np.isfinite(truth_R)
        if not is_known_R.any():
            raise DataError(
                f"{cls.name} needs a measured target of every series; give one, or leave it out"
            )
        truth_R = truth_R[is_known_R]
        lowest = min(truth_R.min(), *(window.view.known.min() for window in judged))

        tried: list[tuple[float, Form]] = []
        for is_log in [False, True] if lowest > 0 else [False]:
            described = [_describe_week(window.view, is_log) for window in judged]
            usual_R, x_RF = (np.concatenate(of)[is_known_R] for of in zip(*described, strict=True))
            weight_F = _fit_absolute(x_RF, (np.log(truth_R) if is_log else truth_R) - usual_R)
            forecast_R = usual_R + x_RF @ weight_F
            error = float(np.abs((np.exp(forecast_R) if is_log else forecast_R) - truth_R).sum())
            tried.append((error, [is_log, weight_F.tolist()]))
        return min(tried, key=itemgetter(0))[1]

    def _forecast(self, view: WindowView, form: Form) -> FloatArray:
        is_log, weights = bool(form[0] and view.known.min() > 0), np.array(form[1])
        usual_H, x_HF = _describe_week(view, is_log)
        forecast_H = usual_H + x_HF @ weights
        return np.asarray(np.exp(forecast_H) if is_log else forecast_H)


def _describe_week(view: WindowView, is_log: bool) -> tuple[FloatArray, FloatArray]:
    """Return the usual values of the target steps (H,), and the columns that move them (H, F)."""
    day, horizon = view.seasons.day, view.horizon
    usual_W, left_DS = split_weeks(np.log(view.known) if is_log else view.known, day)
    usual_H = np.resize(usual_W, horizon)
    yesterday_H = np.resize(left_DS[-1], horizon)
    columns = [
        np.full(horizon, left_DS[-1].mean()),
        np.full(horizon, left_DS[-7:].mean()),
        yesterday_H,
        *(share * yesterday_H for share in measure_surprise(left_DS)),
        *(left_DS[-1, -1] * 0.5 ** ((np.arange(horizon) + 1) / (_DECAYS[:, None] * day / 24))),
        np.resize(usual_W.reshape(7, day).mean(axis=0), horizon) - usual_H,
        usual_W.mean() - usual_H,
    ]
    return usual_H, np.stack(columns, axis=1)


def _fit_absolute(x_RF: FloatArray, y_R: FloatArray) -> FloatArray:
    """Return the weights (F,) of least absolute errors, by reweighted least squares."""
    size_F = np.sqrt((x_RF**2).mean(axis=0)) + _LEAST_RANGE
    z_RF = x_RF / size_F
    weight_R = np.ones(len(y_R))
    for _ in range(_REFITS):
        gram_FF = (z_RF * weight_R[:, None]).T @ z_RF
        gram_FF += _STIFFNESS * weight_R.sum() * np.eye(len(size_F))
        beta_F = np.linalg.solve(gram_FF, z_RF.T @ (weight_R * y_R))
        error_R = np.abs(y_R - z_RF @ beta_F)
        # Small errors all count alike, so that none counts without end.
        weight_R = 1 / np.maximum(error_R, np.quantile(error_R, 0.1) + _LEAST_RANGE)
    return np.asarray(beta_F / size_F)


@lru_cache(maxsize=512)
def _weigh(rate: float, steps: int) -> FloatArray:
    """Return the weights (T,) of values in a level, which series of equal lengths share."""
    weight_T = (1 - rate) ** np.arange(steps)[::-1]
    return np.asarray(weight_T / weight_T.sum())


def _take_off_long(known_T: FloatArray, season: int) -> tuple[FloatArray, FloatArray, int]:
    """Return values without the mean shape of a long season, that shape (S,), what season is left.

    The shape continues with the first step after the values.
    """
    if season <= MOST_SEASON_STEPS or len(known_T) < 2 * season:
        return known_T, np.zeros(1), season if season <= MOST_SEASON_STEPS else 1
    # By place before the end; only the newest seasons where there are many.
    whole = known_T[len(known_T) % season :].reshape(-1, season)[-_SHAPE_SEASONS:]
    shape_S = whole.mean(axis=0) - whole.mean()
    return known_T - np.resize(shape_S[::-1], len(known_T))[::-1], shape_S, 1


def _explain(known_L: FloatArray, season: int) -> bool:
    """Whether a mean season explains enough of the variation within seasons."""
    rows = known_L[len(known_L) % season :].reshape(-1, season)
    within = rows - rows.mean(axis=1, keepdims=True)
    # As many seasons of noise have a mean as well, which explains one part of as many.
    left = float((within - within.mean(axis=0)).var()) * len(rows) / (len(rows) - 1)
    return left < (1 - _LEAST_EXPLAINED) * float(within.var())
