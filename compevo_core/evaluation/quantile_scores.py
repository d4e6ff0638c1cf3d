"""Scores of quantile forecasts: pinball loss, weighted quantile loss, coverage and width of bands.

What belongs here: the scores of quantiles at ``compevo_core.quantiles.LEVELS`` against truths. What
does not: errors of point forecasts (``evaluation.metrics``), result rows
(``evaluation.result_rows``), making quantiles (``compevo_core.quantiles``).

The weighted quantile loss is GluonTS's ``mean_weighted_sum_quantile_loss`` (Alexandrov et al.,
JMLR 21(116), 2020), which fev calls WQL: at each level twice the sum of the pinball losses over the
sum of absolute truths, then the mean over levels. Its levels are the nine of ``WQL_LEVELS``.

Shapes: N windows, Q levels, H horizon, P observed points.
"""

from dataclasses import dataclass

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError
from compevo_core.quantiles import LEVELS

PUBLISHED_LEVELS = (0.1, 0.5, 0.9)
"""Levels that AEMO publishes (its POE90, POE50, POE10); all methods are compared on them."""
WQL_LEVELS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


def name_level(level: float) -> str:
    """Return a level as the end of a column's name: ``q10`` for 0.1, ``q025`` for 0.025."""
    return f"q{level:.3f}".replace("0.", "").removesuffix("0")


PINBALL_COLUMNS = {level: f"pinball_{name_level(level)}" for level in LEVELS}
BELOW_COLUMNS = {level: f"below_{name_level(level)}" for level in LEVELS}
SUMMARY_COLUMNS = (
    "pinball_10_50_90",
    "wql",
    "coverage_80",
    "width_80",
    "coverage_95",
    "width_95",
)
QUANTILE_COLUMNS = (*SUMMARY_COLUMNS, *PINBALL_COLUMNS.values(), *BELOW_COLUMNS.values())
"""Columns of a result row that say how good quantiles are; null where a method has none."""


@dataclass(frozen=True, slots=True)
class _Points:
    """Observed truths (P,) and their quantiles by level (P,), of the levels that all windows have.

    A level that one window lacks is left out: its score would be one of other windows.
    """

    truth: FloatArray
    by_level: dict[float, FloatArray]

    def pinball(self, level: float) -> float | None:
        """Return the mean pinball loss of a level."""
        if level not in self.by_level:
            return None
        error = self.truth - self.by_level[level]
        return float(np.maximum(level * error, (level - 1) * error).mean())

    def below(self, level: float) -> float | None:
        """Return the share of truths at or below the quantile of a level."""
        if level not in self.by_level:
            return None
        return float((self.truth <= self.by_level[level]).mean())

    def band(self, low: float, high: float) -> tuple[float | None, float | None]:
        """Return the share of truths between two quantiles and the mean width between them."""
        if low not in self.by_level or high not in self.by_level:
            return None, None
        lower, upper = self.by_level[low], self.by_level[high]
        is_inside = (lower <= self.truth) & (self.truth <= upper)
        return float(is_inside.mean()), float((upper - lower).mean())

    def mean_pinball(self, levels: tuple[float, ...]) -> float | None:
        """Return the mean of the pinball losses of some levels; None if one is missing."""
        losses = [loss for level in levels if (loss := self.pinball(level)) is not None]
        return float(np.mean(losses)) if len(losses) == len(levels) else None


def score_quantiles(y_NH: FloatArray, quantiles_NQH: FloatArray) -> dict[str, float | None]:
    """Score quantiles against truths.

    Args:
        y_NH: truths (N, H); NaN is masked.
        quantiles_NQH: quantiles at ``LEVELS`` in the same unit, NaN where there is none.

    Returns:
        The score of each of ``QUANTILE_COLUMNS``: None where a window lacks a level of it.
        Pinball losses and widths are in the unit of the truths, coverages and shares in [0, 1].

    Raises:
        DataError: shapes differ, or quantiles of a step cross.
    """
    if quantiles_NQH.shape != (len(y_NH), len(LEVELS), *y_NH.shape[1:]):
        raise DataError(
            f"truth is {y_NH.shape} but the quantiles are {quantiles_NQH.shape}; give (N, "
            f"{len(LEVELS)}, H): a quantile at each of {', '.join(map(str, LEVELS))}"
        )
    points = _select_points(y_NH, quantiles_NQH)

    coverage_80, width_80 = points.band(0.1, 0.9)
    coverage_95, width_95 = points.band(0.025, 0.975)
    summary = (
        points.mean_pinball(PUBLISHED_LEVELS),
        _weigh(points.mean_pinball(WQL_LEVELS), points.truth),
        coverage_80,
        width_80,
        coverage_95,
        width_95,
    )
    return (
        dict(zip(SUMMARY_COLUMNS, summary, strict=True))
        | {column: points.pinball(level) for level, column in PINBALL_COLUMNS.items()}
        | {column: points.below(level) for level, column in BELOW_COLUMNS.items()}
    )


def _select_points(y_NH: FloatArray, quantiles_NQH: FloatArray) -> _Points:
    has_level_Q = np.isfinite(quantiles_NQH).all(axis=(0, 2))
    known_NQH = quantiles_NQH[:, has_level_Q]
    if (np.diff(known_NQH, axis=1) < 0).any():
        window, _, step = np.argwhere(np.diff(known_NQH, axis=1) < 0)[0]
        raise DataError(
            f"quantiles of window {window}, step {step} cross; a higher level needs a higher value"
        )

    is_observed_NH = np.isfinite(y_NH)
    levels = np.array(LEVELS)[has_level_Q].tolist()
    return _Points(
        truth=y_NH[is_observed_NH],
        by_level={
            level: known_NQH[:, row][is_observed_NH]
            for row, level in enumerate(levels)
            if is_observed_NH.any()
        },
    )


def _weigh(mean_pinball: float | None, truth: FloatArray) -> float | None:
    """Return twice a mean loss over the mean absolute truth: 2 sum(loss) / sum(abs(truth))."""
    size = float(np.abs(truth).mean()) if truth.size else 0.0
    return None if mean_pinball is None or size == 0 else 2 * mean_pinball / size
