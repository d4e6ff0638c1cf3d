"""Ridge regressions judged on blocks of time that they have not seen.

What belongs here: the fit on columns, the same on added Gram matrices, and held-out predictions of
both. What does not: what the columns are (``agents.linear_reader``), whom they belong to
(``agents.joint_reader``).

Nothing that a block is read by knows its truth: its penalty is the one of the lowest error on the
other blocks, each read by a fit without that block and without this one.

Shapes: N windows, K columns, H horizon, P penalties.
"""

import dataclasses
from collections.abc import Sequence
from itertools import combinations
from typing import Self

import numpy as np

from compevo_core.data.arrays import BoolArray, FloatArray, IntArray

PENALTIES = 10.0 ** np.arange(-1.0, 4.0, 0.5)
SEARCHED = PENALTIES[::2]  # while hundreds of logics are compared

Blocks = Sequence[tuple[BoolArray, BoolArray]]
"""For each block of time its windows (N,), and the windows that a fit without it may use (N,)."""


@dataclasses.dataclass(frozen=True, eq=False)
class RidgeFit:
    """A fit on all usable rows, and one without each block of time."""

    weights_KH: FloatArray
    held_out_BKH: FloatArray

    def take(self, columns: slice) -> Self:
        """Return the weights of some of the columns."""
        return type(self)(self.weights_KH[columns], self.held_out_BKH[:, columns])

    def scale(self, factor: float) -> Self:
        """Return the weights of columns that were multiplied by a factor before the fit."""
        return type(self)(factor * self.weights_KH, factor * self.held_out_BKH)

    def hold_out(self, x_NK: FloatArray, blocks: Blocks) -> FloatArray:
        """Return predictions (N, H), each by the fit without the row's own block."""
        predicted_NH = np.zeros((len(x_NK), self.weights_KH.shape[1]))
        for weights_KH, (is_held_out_N, _) in zip(self.held_out_BKH, blocks, strict=True):
            predicted_NH[is_held_out_N] = x_NK[is_held_out_N] @ weights_KH
        return predicted_NH


def fit_ridge(
    x_NK: FloatArray,
    y_NH: FloatArray,
    blocks: Blocks,
    usable_N: BoolArray,
    penalties: FloatArray = PENALTIES,
) -> RidgeFit:
    """Fit ridges on the usable rows, whose blocks are in the order of time.

    Where no penalty errs less than predicting zero does, zero is predicted; so it is after train if
    that is so on the last block, fitted on earlier ones.
    """

    def solve(*left_out: int) -> FloatArray:
        rows_N = np.logical_and.reduce([usable_N, *(blocks[b][1] for b in left_out)])
        return _solve(x_NK[rows_N], y_NH[rows_N], penalties)

    def measure(block: int, weights_PKH: FloatArray) -> FloatArray:
        rows_N = blocks[block][0] & usable_N
        return _sum_errors(y_NH[rows_N], x_NK[rows_N] @ weights_PKH)

    errors = _CrossErrors(len(blocks))
    for first, second in combinations(range(len(blocks)), 2):
        weights_PKH = solve(first, second)
        errors.add(first, second, measure(second, weights_PKH))
        errors.add(second, first, measure(first, weights_PKH))

    # Behind the last penalty zero is predicted.
    zero_1KH = np.zeros((1, x_NK.shape[1], y_NH.shape[1]))
    total_P, held_out = np.zeros(len(penalties) + 1), []
    for block in range(len(blocks)):
        path_PKH = solve(block)
        total_P += measure(block, path_PKH)
        held_out.append(np.concatenate([path_PKH, zero_1KH])[errors.choose(block)])

    *later, zero = measure(len(blocks) - 1, path_PKH)
    best = -1 if min(later) > zero else _find_lowest(total_P)
    return RidgeFit(np.concatenate([solve(), zero_1KH])[best], np.stack(held_out))


def measure_later(
    x_NK: FloatArray, y_NH: FloatArray, is_before_N: BoolArray, is_later_N: BoolArray
) -> FloatArray:
    """Return the squared errors of later windows by fits on earlier ones, and of zero, (P + 1,)."""
    weights_PKH = _solve(x_NK[is_before_N], y_NH[is_before_N], PENALTIES)
    return _sum_errors(y_NH[is_later_N], x_NK[is_later_N] @ weights_PKH)


class KernelFolds:
    """Held-out residuals of ridges that are given by their Gram matrices, on fixed windows.

    Leaving a block out takes no fit of its own: with ``Q`` the inverse of Gram matrix plus penalty,
    the residuals of left-out rows S are ``inv(Q[S, S]) @ (Q @ y)[S]``.
    """

    def __init__(self, y_NH: FloatArray, blocks: Blocks, penalties: FloatArray = SEARCHED) -> None:
        """Take what is predicted, known in every window, and the blocks of its windows."""
        self.y_NH = y_NH
        self._penalties = penalties
        self._rows = [np.flatnonzero(is_held_out_N) for is_held_out_N, _ in blocks]
        # What a fit without the block may not use: the block, and what overlaps with it.
        self._near = [np.flatnonzero(~is_kept_N) for _, is_kept_N in blocks]

    def hold_out(self, kernel_NN: FloatArray) -> FloatArray:
        """Return the held-out residuals (N, H), ``y`` itself where nothing can be read."""
        count, horizon = self.y_NH.shape
        shifted_PNN = kernel_NN + self._penalties[:, None, None] * np.eye(count)
        inverse_PNN = np.linalg.inv(shifted_PNN)
        dual_PNH = inverse_PNN @ self.y_NH

        def leave_out(rows: IntArray) -> FloatArray:
            residual_PNH = np.zeros((len(self._penalties), count, horizon))
            square_PSS = inverse_PNN[:, rows[:, None], rows]
            residual_PNH[:, rows] = np.linalg.solve(square_PSS, dual_PNH[:, rows])
            return residual_PNH

        def measure(block: int, residual_PNH: FloatArray) -> FloatArray:
            rows = self._rows[block]
            return _sum_errors(self.y_NH[rows], self.y_NH[rows] - residual_PNH[:, rows])

        errors = _CrossErrors(len(self._rows))
        for first, second in combinations(range(len(self._rows)), 2):
            residual_PNH = leave_out(np.union1d(self._near[first], self._near[second]))
            errors.add(first, second, measure(second, residual_PNH))
            errors.add(second, first, measure(first, residual_PNH))

        held_out_NH = self.y_NH.copy()
        for block, rows in enumerate(self._rows):
            best = errors.choose(block)
            if 0 <= best < len(self._penalties):
                held_out_NH[rows] = leave_out(self._near[block])[best, rows]
        return held_out_NH


class _CrossErrors:
    """Squared errors on each block of fits without it and without another one, by penalty.

    The last number of each is the error of predicting zero.
    """

    def __init__(self, blocks: int) -> None:
        self._of: list[list[FloatArray]] = [[] for _ in range(blocks)]

    def add(self, chosen_for: int, judged: int, errors_P: FloatArray) -> None:
        """Add the errors on ``judged``, which count in the choice for another block."""
        assert chosen_for != judged  # noqa: S101 - a block is not to judge its own penalty
        self._of[chosen_for].append(errors_P)

    def choose(self, block: int) -> int:
        """Return the position of the penalty for a block; that behind the last one is for zero."""
        # Where there is no other block nothing can judge, and zero is predicted: the last position.
        of_block = self._of[block]
        return _find_lowest(np.sum(of_block, axis=0)) if of_block else -1


def _find_lowest(errors_P: FloatArray) -> int:
    """Return the position of the lowest error, of equal ones the last: nothing gained, no fit."""
    return len(errors_P) - 1 - int(errors_P[::-1].argmin())


def _sum_errors(y_NH: FloatArray, predicted_PNH: FloatArray) -> FloatArray:
    """Return the sums of squared errors by penalty, and last of predicting zero, (P + 1,)."""
    errors_P = ((y_NH - predicted_PNH) ** 2).sum((1, 2))
    return np.append(errors_P, (y_NH**2).sum())


def _solve(x_NK: FloatArray, y_NH: FloatArray, penalties: FloatArray) -> FloatArray:
    """Return the weights (P, K, H) for each penalty, by the smaller of both Gram matrices."""
    is_wide = x_NK.shape[0] < x_NK.shape[1]
    gram = x_NK @ x_NK.T if is_wide else x_NK.T @ x_NK
    shifted = gram + penalties[:, None, None] * np.eye(len(gram))
    solved = np.linalg.solve(shifted, y_NH if is_wide else x_NK.T @ y_NH)
    return np.asarray(x_NK.T @ solved if is_wide else solved)
