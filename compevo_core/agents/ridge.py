"""Ridge regressions judged on blocks of time that they have not seen.

What belongs here: the fit on columns, the same on added Gram matrices, and held-out predictions of
both. What does not: what the columns are (``agents.linear_reader``), whom they belong to
(``agents.joint_reader``).

No fit or penalty by which a block is read uses its truth: the penalty has the lowest error on the
other blocks, each read by a fit without that block and without this one.

Shapes: N windows, K columns, H horizon, P penalties.
"""

import dataclasses
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Self

import numpy as np

from compevo_core.data.arrays import BoolArray, FloatArray

PENALTIES = 10.0 ** np.arange(-1.0, 4.0, 0.5)
SEARCHED = PENALTIES[::2]  # fewer, for comparing hundreds of logics

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

    Zero is predicted where no penalty has a lower error than predicting zero. After train it is
    also predicted if that holds on the last block.
    """

    def solve(*left_out: int) -> FloatArray:
        rows_N = np.logical_and.reduce([usable_N, *(blocks[b][1] for b in left_out)])
        return _solve(x_NK[rows_N], y_NH[rows_N], penalties)

    def measure(block: int, weights_PKH: FloatArray) -> FloatArray:
        rows_N = blocks[block][0] & usable_N
        return _sum_errors(y_NH[rows_N], x_NK[rows_N] @ weights_PKH)

    # The position after the last penalty predicts zero.
    zero_1KH = np.zeros((1, x_NK.shape[1], y_NH.shape[1]))
    total_P, held_out = np.zeros(len(penalties) + 1), []
    for block, chosen in enumerate(_choose_penalties(len(blocks), solve, measure)):
        path_PKH = solve(block)
        total_P += measure(block, path_PKH)
        held_out.append(np.concatenate([path_PKH, zero_1KH])[chosen])

    *later, zero = measure(len(blocks) - 1, path_PKH)
    best = -1 if min(later) > zero else _find_lowest(total_P)
    return RidgeFit(np.concatenate([solve(), zero_1KH])[best], np.stack(held_out))


def measure_later(
    x_NK: FloatArray, y_NH: FloatArray, is_before_N: BoolArray, is_later_N: BoolArray
) -> FloatArray:
    """Return the squared errors of later windows by fits on earlier ones, and of zero, (P + 1,)."""
    weights_PKH = _solve(x_NK[is_before_N], y_NH[is_before_N], PENALTIES)
    return _sum_errors(y_NH[is_later_N], x_NK[is_later_N] @ weights_PKH)


def hold_out_by_kernel(
    kernel_NN: FloatArray, y_NH: FloatArray, blocks: Blocks, penalties: FloatArray = SEARCHED
) -> FloatArray:
    """Return held-out residuals (N, H) of the ridge of a Gram matrix; ``y`` where it reads nothing.

    Leaving a block out takes no fit of its own: with ``Q`` the inverse of Gram matrix plus penalty,
    the residuals of left-out rows S are ``inv(Q[S, S]) @ (Q @ y)[S]``.
    """
    shifted_PNN = kernel_NN + penalties[:, None, None] * np.eye(len(y_NH))
    inverse_PNN = np.linalg.inv(shifted_PNN)
    dual_PNH = inverse_PNN @ y_NH

    def leave_out(*left_out: int) -> FloatArray:
        # What a fit without a block may not use: the block, and what overlaps with it.
        rows = np.flatnonzero(np.logical_or.reduce([~blocks[b][1] for b in left_out]))
        residual_PNH = np.zeros((len(penalties), *y_NH.shape))
        square_PSS = inverse_PNN[:, rows[:, None], rows]
        residual_PNH[:, rows] = np.linalg.solve(square_PSS, dual_PNH[:, rows])
        return residual_PNH

    def measure(block: int, residual_PNH: FloatArray) -> FloatArray:
        rows_N = blocks[block][0]
        return _sum_errors(y_NH[rows_N], y_NH[rows_N] - residual_PNH[:, rows_N])

    held_out_NH = y_NH.copy()
    for block, chosen in enumerate(_choose_penalties(len(blocks), leave_out, measure)):
        if 0 <= chosen < len(penalties):
            rows_N = blocks[block][0]
            held_out_NH[rows_N] = leave_out(block)[chosen, rows_N]
    return held_out_NH


def _choose_penalties(
    blocks: int,
    leave_out: Callable[[int, int], FloatArray],
    measure: Callable[[int, FloatArray], FloatArray],
) -> list[int]:
    """Return the position of each block's penalty; the one after the last predicts zero.

    ``measure`` gives the errors on a block by penalty, and last of predicting zero. A block never
    judges its own penalty: its errors count only in the choice for others.
    """
    errors: list[list[FloatArray]] = [[] for _ in range(blocks)]
    for first, second in combinations(range(blocks), 2):
        fitted = leave_out(first, second)
        errors[first].append(measure(second, fitted))
        errors[second].append(measure(first, fitted))
    # Without another block nothing can judge, and zero is predicted.
    return [_find_lowest(np.sum(of_block, axis=0)) if of_block else -1 for of_block in errors]


def _find_lowest(errors_P: FloatArray) -> int:
    """Return the position of the lowest error; of equal ones the last, which fits least."""
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
