"""Positions chosen at even distances."""

import pytest

from compevo_core.data.arrays import evenly_spaced


@pytest.mark.parametrize(
    ("total", "count", "positions"),
    [
        (10, 4, [0, 3, 6, 9]),
        (7, 3, [0, 3, 6]),
        (4, 3, [0, 2, 3]),
        (5, 1, [0]),
        (3, 3, [0, 1, 2]),
        (2, 6, [0, 1]),
        (0, 6, []),
    ],
)
def test_positions_run_from_the_first_to_the_last_at_even_distances(total, count, positions):
    assert evenly_spaced(total, count) == positions


def test_ties_round_as_numpy_rounds_them():
    # Exact arithmetic would give 14.5 -> 14; the step of linspace is a little above it.
    assert evenly_spaced(30, 15)[7] == 15


@pytest.mark.parametrize("total", range(7, 200))
def test_six_positions_are_the_ones_of_exact_arithmetic(total):
    exact = [round(k * (total - 1) / 5) for k in range(6)]
    assert evenly_spaced(total, 6) == exact
