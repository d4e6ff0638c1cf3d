"""Views and windows: what a forecaster may see, and the same with its truth.

What belongs here: the two objects, until when a view knows, and the order in which views are
forecast and their truths become known. What does not: the set of them and their stored form
(``data.window``), how they are cut (``data.cutting``, ``data.build``).

A model is given a ``WindowView``, which has no field for the truth: leaking it would take a change
of this class, not a slip.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Self

import numpy as np

from compevo_core.data.arrays import FloatArray, IntArray
from compevo_core.data.calendar import Calendar
from compevo_core.data.steps import DAY, shift
from compevo_core.errors import DataError

DEFAULT_STEPS = 48
"""Steps of look-back and of horizon where a data set says nothing: as in the paper."""

SPLITS = ("train", "val", "test", "inference")
Bounds = tuple[float | None, float | None]  # lowest and highest value, None where there is none
NO_BOUNDS: Bounds = (None, None)
MOST_PAST = 2048  # steps before the inputs that a view holds at most

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowView:
    """All that a forecaster may see of one window, each part known by ``information_until``.

    ``x`` (L,) holds the inputs in ``unit``, ``published`` (H,) and each of ``step_covariates`` (H,)
    a value for every target step, NaN where unknown; H is ``horizon``. ``origin_utc`` is the start
    of the first target interval. ``n_filled`` counts inputs that were carried forward over a gap.
    The last ``unknown_steps`` inputs had not been measured when the view was made: earlier days
    stand in for them.
    """

    window_id: str
    dataset: str
    series_id: str
    entity: str
    variable: str
    unit: str
    step_minutes: int
    origin_utc: datetime
    x: FloatArray
    calendar: Calendar
    covariates: Mapping[str, float] = field(default_factory=dict)
    published: FloatArray | None = None
    candidate_ids: tuple[str, ...] = ()  # article ids, newest first
    split: str = "test"
    fold: int = -1  # -1 outside train, and in the part of train that is not a validation fold
    subsets: tuple[str, ...] = ()
    leaky: bool = False
    n_filled: int = 0
    unknown_steps: int = 0
    step_covariates: Mapping[str, FloatArray] = field(default_factory=dict)
    task: str = ""  # what a prompt asks for, where the data set declares it
    horizon: int = DEFAULT_STEPS  # target steps
    bounds: Bounds = NO_BOUNDS  # of possible values; no forecast leaves them
    season: int = 0  # steps of the season that its data show; 0: the season of its grid
    # Values before the inputs, for models that read a whole series; it is not stored
    past: FloatArray = field(default_factory=lambda: np.zeros(0))

    lookback: int = field(init=False)  # inputs
    step: timedelta = field(init=False)  # length of one
    end_utc: datetime = field(init=False)  # of the last target interval
    information_until: datetime = field(init=False)  # the latest that anything in it was known at

    def __post_init__(self) -> None:
        """Check shapes and values, and make the view read-only.

        DataError for an unknown split, an origin without time zone, a wrong shape, NaN in ``x``.
        """
        name = f"window {self.window_id}"
        if self.split not in SPLITS:
            raise DataError(f"{name}: split {self.split!r} is none of {', '.join(SPLITS)}")
        if self.origin_utc.tzinfo is None:
            raise DataError(f"{name}: origin_utc has no time zone; give an aware UTC datetime")

        # A frozen dataclass sets fields through object; arrays inside would still be writable.
        put = partial(object.__setattr__, self)
        if self.horizon < 1 or not np.size(self.x):
            raise DataError(
                f"{name}: a horizon of {self.horizon} after {np.size(self.x)} inputs; both must be "
                "at least 1"
            )
        put("lookback", np.size(self.x))
        put("x", _copy_read_only(self.x, self.lookback, f"{name}: x"))
        if not np.isfinite(self.x).all():
            raise DataError(f"{name}: x holds NaN or infinity; fill it causally or drop the window")

        # Windows of a series share these numbers: a copy for each would be large.
        past = np.asarray(self.past, dtype=np.float64).view()
        past.flags.writeable = False
        put("past", past)

        if self.published is not None:
            published = _copy_read_only(self.published, self.horizon, f"{name}: published")
            put("published", published)

        if not 0 <= self.unknown_steps < self.lookback:
            raise DataError(
                f"{name}: {self.unknown_steps} of its {self.lookback} inputs are unknown; give 0 "
                f"to {self.lookback - 1}"
            )

        # Sorted, so that equal covariates give equal prompts for any order of the frame.
        put("covariates", dict(sorted(self.covariates.items())))
        by_step = {
            covariate: _copy_read_only(values, self.horizon, f"{name}: {covariate}")
            for covariate, values in sorted(self.step_covariates.items())
        }
        put("step_covariates", by_step)

        put("step", timedelta(minutes=self.step_minutes))
        put("end_utc", shift(self.origin_utc, self.horizon, self.step))
        put("information_until", shift(self.origin_utc, -self.unknown_steps, self.step))

    @property
    def known(self) -> FloatArray:
        """All that is known of the series (T,): the values before the inputs, and the inputs."""
        return np.concatenate([self.past, self.x])

    @property
    def known_before(self) -> datetime:
        """Instant before which everything in the view was available."""
        return find_known_before(self.origin_utc, self.information_until)

    @property
    def seasons(self) -> "Seasons":
        """Steps of the seasons of the grid and of the input."""
        return find_seasons(self.step, self.lookback, self.horizon, self.season)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """A view with its truth ``y`` (H,), NaN where that is missing, filled or known to be wrong."""

    view: WindowView
    y: FloatArray
    digest: bytes = field(default=b"", init=False, repr=False)  # SHA-256 of all of it, once known

    def __post_init__(self) -> None:
        name = f"window {self.view.window_id}"
        object.__setattr__(self, "y", _copy_read_only(self.y, self.view.horizon, f"{name}: y"))

    def keep_digest(self, serialized: bytes) -> bytes:
        """Return the digest of all that the window holds, serialized, and remember it."""
        object.__setattr__(self, "digest", hashlib.sha256(serialized).digest())
        return self.digest

    def change_view(self, **changes: Any) -> Self:  # noqa: ANN401 - fields of a view
        """Return the window with other values in fields of its view."""
        return replace(self, view=replace(self.view, **changes))


def group_by_series(windows: Sequence[Window]) -> dict[str, list[Window]]:
    """Return the windows of each entity, in their order."""
    grouped: dict[str, list[Window]] = {}
    for window in windows:
        grouped.setdefault(window.view.entity, []).append(window)
    return grouped


def find_known_before(origin_utc: datetime, information_until: datetime) -> datetime:
    """Return the instant before which a thing must have been available to be in a view.

    What comes out at the origin is too late. What comes out at the very time that an earlier view
    is made, as a forecast that is issued then, is in it.
    """
    return min(origin_utc, information_until + _INSTANT)


def count_season_steps(step: timedelta) -> int:
    """Return the steps of one season: a day below daily grids, else one step."""
    return max(1, DAY // step)


def find_season(step: timedelta, shown: int = 0) -> int:
    """Return the steps of a grid's shortest season: a day, on daily grids a week, above a year.

    A season that the data were ``shown`` to have takes its place.
    """
    if shown:
        return shown
    if step < DAY:
        return DAY // step
    return 7 if step == DAY else max(1, round(timedelta(days=365.25) / step))


@dataclass(frozen=True, slots=True)
class Seasons:
    """Seasons in steps."""

    day: int  # a day below daily grids, else one step
    shortest: int  # the season that the data show, or else the shortest one of the grid
    # How many of the last inputs stand for the target steps one by one: whole seasons that cover
    # the horizon, or all inputs where they reach no further
    covering: int
    # The last season of the input, which changes are counted from: a day, or the shortest season
    # where the inputs hold more than cover the horizon
    reference: int


@lru_cache
def find_seasons(step: timedelta, lookback: int, horizon: int, shown: int) -> Seasons:
    """Return the seasons of a grid, of inputs and of a horizon; see :func:`find_season`."""
    day, season = count_season_steps(step), find_season(step, shown)
    covering = min(math.ceil(horizon / season) * season, lookback)
    return Seasons(day, season, covering, season if lookback > covering else day)


def _copy_read_only(values: FloatArray, length: int, name: str) -> FloatArray:
    # Views share read-only numbers: of a view with other labels, or of their series.
    is_frozen = isinstance(values, np.ndarray) and not values.flags.writeable
    base = values.base if is_frozen else None
    is_shared = base is None or (isinstance(base, np.ndarray) and not base.flags.writeable)
    is_safe = is_frozen and is_shared and values.dtype == np.float64
    copied = values if is_safe else np.array(values, dtype=np.float64)
    if copied.shape != (length,):
        raise DataError(f"{name} has shape {copied.shape}, not ({length},); cut it again")

    copied.setflags(write=False)
    return copied


def stack_by_step(views: Sequence[WindowView], name: str) -> FloatArray:
    """Return a covariate by step (N, H), NaN where a view lacks it."""
    unknown_H = np.full(find_horizon(views), np.nan)
    return stack_rows([view.step_covariates.get(name, unknown_H) for view in views])


def stack_rows(rows: Sequence[FloatArray]) -> FloatArray:
    """Return rows of one length as a matrix, also where there is none."""
    # np.stack rejects an empty list, and a split may have no window.
    return np.array(rows, dtype=np.float64) if rows else np.empty((0, DEFAULT_STEPS))


def keep_bounds(views: Sequence[WindowView], values: FloatArray) -> FloatArray:
    """Return values (N, ...) in the views' units, moved into the bounds of their series."""
    if all(view.bounds == NO_BOUNDS for view in views):
        return values
    pairs = zip(views, values, strict=True)
    # np.clip wants one bound at least.
    return np.stack([row if v.bounds == NO_BOUNDS else np.clip(row, *v.bounds) for v, row in pairs])


def require_views(views: Sequence[WindowView]) -> None:
    """Raise a DataError for what is not a view: windows, which hold the truth, or a table."""
    if isinstance(views, Sequence) and all(isinstance(view, WindowView) for view in views):
        return
    raise DataError(
        f"a {type(views).__name__} was given in place of views: give windows.views(), or a table "
        "to compevo_core.Forecaster"
    )


def find_horizon(views: Sequence[WindowView]) -> int:
    """Return the horizon that views share; DataError if they have several."""
    return find_shared(views, "horizon")


def find_shared(views: Sequence[WindowView], field: str) -> int:
    """Return the ``lookback`` or ``horizon`` that views share; DataError if they have several."""
    lengths: list[int] = sorted(set(map(attrgetter(field), views))) or [DEFAULT_STEPS]
    if len(lengths) > 1:
        raise DataError(
            f"windows of {views[0].dataset} have a {field} of {lengths[0]} and of {lengths[-1]} "
            "steps; build them again, all with one grid"
        )
    return lengths[0]


def count_minutes(views: Sequence[WindowView], instant: str = "origin_utc") -> IntArray:
    """Return an instant of each view (N,), in minutes since 1970."""
    return np.array([int(getattr(v, instant).timestamp()) // 60 for v in views], dtype=np.int64)


def replay_days(views: Sequence[WindowView]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield what becomes known and what is then forecast, in the order of time.

    They are positions of views, given in any order, whose targets have ended since the step before,
    in order of time, and positions of the views of one instant. A view is thus forecast before it
    has ended. The last step has the views that end after every instant, and none to forecast.
    """
    by_time = sorted(range(len(views)), key=lambda i: views[i].information_until)
    by_end = sorted(by_time, key=lambda i: views[i].end_utc)

    n_known = 0
    for instant, group in groupby(by_time, key=lambda i: views[i].information_until):
        first = n_known
        # A view ends after its own instant, so that this stops before those of today.
        while views[by_end[n_known]].end_utc <= instant:
            n_known += 1
        yield by_end[first:n_known], list(group)
    yield by_end[n_known:], []
