"""Whether the news of a table tells of its values: one answer in words, and what it rests on.

What belongs here: the test of a numeric method's errors against the news that was known before, and
which effect it would have seen. What does not: the reading (``baselines.news_ridge``), whether a
trained model uses it (``evaluation.method_choice``), the paper's audit of agents (the wing).

The test is what one column of the news explains at most, the weight of a word or a direction of
sentences over one day, three or seven, against errors that were moved on by whole weeks: recurring
news, drift and the choice among many columns raise no alarm. A null says something only with its
power: effects planted on the days of random words, in errors that were moved on, must be seen.

Shapes: N windows, R rows (windows of one instant), K columns, H horizon, S shapes of an error.
"""

from dataclasses import dataclass

import numpy as np

from compevo_core.baselines import FitBaseline, fit_baseline
from compevo_core.baselines.news_ridge import Columns, NewsSample, find_missed, standardize
from compevo_core.data.arrays import FloatArray, evenly_spaced
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.steps import WEEK
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError

BASE = "calendar-ridge"  # whose errors are explained
_SIZES = {0.25: "a quarter of ", 0.5: "half ", 1.0: "", 2.0: "twice "}
EFFECTS = tuple(_SIZES)
"""Planted effects, in standard deviations of what the method misses."""
POWER = 0.8  # share of the draws in which an effect must be seen

_MOVES = 99  # at most, of the errors against the news
_ALARMS = 0.02  # share of moves that may explain as much as what is seen
_LEAST_MOVE = 2 * WEEK  # of errors against news, at either end
_DRAWS = 20  # of each planted effect
_SHAPES = 4  # of an error over the horizon: level, slope and two more
_DIRECTIONS = 16  # of sentences
_COMMON = (0.03, 0.4)  # shares of rows that hold a word on whose days effects are planted
_LEAST_WEIGHT = 1e-9  # of a word, rounding apart
_FEWEST_ROWS, _FEWEST_MOVES = 60, 19
_SPANS = ((1,), (3,), (7,))  # days of news


@dataclass(frozen=True, kw_only=True)
class NewsErrors:
    """Mean absolute errors of one method, in the series' unit."""

    articles: int  # that the windows name
    own: float  # with the news that was known
    none: float  # without
    swapped: float  # with another day's

    @property
    def numbers(self) -> str:
        """The errors in words."""
        return (
            f"{self.articles:,} articles: MAE {self.own:.3g} with them, {self.none:.3g} without, "
            f"{self.swapped:.3g} with another day's"
        )


@dataclass(frozen=True, kw_only=True)
class NewsAudit(NewsErrors):
    """What the news of a table tells of it, measured on later parts of it."""

    p_value: float  # share of moves that explain as much, one at least
    is_seen: bool  # whether the errors follow the news more than by chance
    power: float | None  # smallest of :data:`EFFECTS` that would be seen; None for none

    @property
    def effect(self) -> float:
        """What the news changes in the error; below 0 it helps."""
        return self.own - self.none

    @property
    def verdict(self) -> str:
        """The answer in words."""
        numbers = f"{self.numbers} (p = {self.p_value:.2g})"
        if self.is_seen and self.own < min(self.none, self.swapped):
            return f"Yes, the news helps. {numbers}."
        if self.is_seen:
            return f"The values follow the news, but it does not improve forecasts yet. {numbers}."
        seen = "one of twice the errors' standard deviation would not have been seen either"
        if self.power is not None:
            seen = f"one of {_SIZES[self.power]}the errors' standard deviation would have been"
        return f"No effect of the news is seen; {seen}. {numbers}."


def audit_news(
    windows: WindowSet, news: NewsPool, *, base: str = BASE, fit: FitBaseline = fit_baseline
) -> NewsAudit:
    """Return whether news tells of what a method misses of windows of train.

    DataError if there are too few windows.
    """
    views = windows.views()
    scale, scaled_NH = standardize(views, find_missed(base, windows, fit))
    sample = NewsSample(views, news, Columns.fit(views, news))
    missed_RH = sample.average(scaled_NH)
    rows = range(len(missed_RH))
    apart = (sample.views[-1].origin_utc - sample.views[0].origin_utc) / max(1, len(rows) - 1)
    # Whole weeks where that fits.
    week, least = (max(1, round(span / apart)) for span in (WEEK, _LEAST_MOVE))
    possible = range(least, len(rows) - least + 1, week)
    moves = [possible[i] for i in evenly_spaced(len(possible), _MOVES)]
    if len(rows) < _FEWEST_ROWS or len(moves) < _FEWEST_MOVES:
        raise DataError(
            f"{len(rows)} windows with {len(moves)} moves by a week are too few to tell whether "
            f"news helps; {_FEWEST_ROWS} and {_FEWEST_MOVES} are needed: give a longer table"
        )

    # Few shapes hold most of an error.
    shape_SH = np.linalg.svd(missed_RH, full_matrices=False)[2][:_SHAPES]
    y_RS = missed_RH @ shape_SH.T
    test = _Test(sample, y_RS, moves)
    by_chance = sorted(test.measure(np.roll(y_RS, move, axis=0)) for move in moves)
    seen = test.measure(y_RS)
    p_value = (1 + sum(value >= seen for value in by_chance)) / (1 + len(by_chance))
    limit = by_chance[-1 - int(_ALARMS * len(by_chance))]

    choice = sample.choose(rows, missed_RH)
    later_R = slice(len(rows) * 2 // 5, None)
    truth_RH, read_RH = missed_RH[later_R], choice.held_out_RH[later_R]
    if not sample.helps(choice, missed_RH):
        read_RH = np.zeros_like(read_RH)
    size = float(np.mean(list(scale.values())))
    own, none, swapped = (
        size * float(np.abs(truth_RH - of).mean())
        for of in (read_RH, np.zeros_like(read_RH), np.roll(read_RH, len(read_RH) // 2, axis=0))
    )
    return NewsAudit(
        articles=len({name for view in views for name in view.candidate_ids}),
        own=own,
        none=none,
        swapped=swapped,
        p_value=p_value,
        is_seen=seen > limit,
        power=test.find_power(shape_SH.sum(axis=1), limit),
    )


class _Test:
    """How closely errors follow one of the columns of the news."""

    def __init__(self, sample: NewsSample, missed_RS: FloatArray, moves: list[int]) -> None:
        self._missed_RS, self._moves = missed_RS, moves
        columns = []
        for ages in _SPANS:
            _, x_RK = sample.center(ages, True)
            words = len(sample.columns.words)
            left, sizes, _ = np.linalg.svd(x_RK[:, words:], full_matrices=False)
            columns += [x_RK[:, :words], (left * sizes)[:, :_DIRECTIONS]]
        x_RK = np.concatenate(columns, axis=1)
        size_K = np.sqrt((x_RK**2).sum(axis=0))
        is_used_K = size_K > _LEAST_WEIGHT
        self._x_RK = x_RK[:, is_used_K] / size_K[is_used_K]
        # What a column explains by chance: more where it and the errors change slowly.
        moved = [self._explain(np.roll(missed_RS, move, axis=0)) for move in moves]
        self._usual_K = np.mean(moved, axis=0)

        mean_W, x_RW = sample.center((1,), False)
        is_named_RW = np.abs(x_RW + mean_W) > _LEAST_WEIGHT
        share_W = is_named_RW.mean(axis=0)
        self._is_named_RW = is_named_RW[:, (share_W >= _COMMON[0]) & (share_W <= _COMMON[1])]

    def measure(self, missed_RS: FloatArray) -> float:
        """Return how much one column explains at most, in what it explains by chance."""
        return float((self._explain(missed_RS) / self._usual_K).max(initial=0.0))

    def _explain(self, missed_RS: FloatArray) -> FloatArray:
        """Return the share of the errors' variance that each column explains (K,)."""
        explained_K = ((self._x_RK.T @ missed_RS) ** 2).sum(axis=1)
        return np.asarray(explained_K / ((missed_RS**2).sum() or 1.0))

    def find_power(self, level_S: FloatArray, limit: float) -> float | None:
        """Return the smallest planted effect that is seen often enough; None for none."""
        words = self._is_named_RW.shape[1]
        for effect in EFFECTS if words else ():
            n_seen = 0
            for draw in range(_DRAWS):
                # Equal draws for all effects.
                rng = np.random.default_rng([draw, 17])
                is_named_R1 = self._is_named_RW[:, [rng.integers(words)]]
                moved_RS = np.roll(self._missed_RS, int(rng.choice(self._moves)), axis=0)
                planted_RS = moved_RS + effect * is_named_R1 * level_S
                n_seen += self.measure(planted_RS - planted_RS.mean(axis=0)) > limit
            if n_seen >= POWER * _DRAWS:
                return effect
        return None
