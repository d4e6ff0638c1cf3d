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
