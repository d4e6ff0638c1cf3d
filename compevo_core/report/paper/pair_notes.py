"""What a reader must know of the comparisons by window in a table.

What belongs here: these sentences, and the cells of a comparison. What does not: making comparisons
(``evaluation.comparison``), their tables (``report.paper.rivals``, ``report.paper.variants``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from compevo_core.evaluation.comparison import FEWEST_BLOCKS
from compevo_core.report.paper.scores import Score
from compevo_core.report.wording import (
    MISSING,
    format_interval,
    format_number,
    join_items,
    method_name,
)

SEVERAL = 5
"""From so many intervals on, a table says how many of them miss zero by chance."""

Test = Mapping[str, Any]


def pair_cells(test: Test) -> list[str]:
    """Return difference, interval and p of a comparison."""
    return [
        format_number(test["mean_difference"]),
        format_interval(test),
        format_number(test["p_two_sided"]),
    ]


def describe_tests(
    tests: Sequence[Test], scores: Mapping[str, Score], *, side: str = "method_b"
) -> list[str]:
    """Return notes on how the comparisons of a table were made, and on what they cannot tell.

    Args:
        tests: the comparisons of one table.
        scores: of the methods in it, for how many trainings their errors are the mean of.
        side: the column that names the method of a line.
    """
    if not tests:
        return []
    intervals = [test for test in tests if test["interval_low"] is not None]
    notes = []
    if intervals:
        notes.append(
            "Interval: 95 %, blocks of days drawn again; p: Wilcoxon's of block means, two-sided. "
            "What other seeds would change is in neither."
        )
    blocks = [test.get("n_blocks") for test in tests]
    known = sorted({count for count in blocks if count is not None})
    if known:
        notes.append(f"Blocks of days: {join_items([str(count) for count in known])}.")
    if known and known[0] < FEWEST_BLOCKS:
        notes.append(
            f"{MISSING}: fewer than {FEWEST_BLOCKS} blocks that share no day are too few for an "
            "interval or a test."
        )
    if None in blocks:
        notes.append(
            "p is of an earlier version, by single windows: it takes the series of one day for "
            "independent of each other and is too small. The interval does not."
        )
    if len(intervals) >= SEVERAL:
        notes.append(f"Of {len(intervals)} intervals one in twenty misses zero by chance alone.")
    return [*notes, *_describe_seeds(tests, scores, side)]


def _describe_seeds(tests: Sequence[Test], scores: Mapping[str, Score], side: str) -> list[str]:
    """Name the methods that were paired with fewer trainings than their errors are the mean of."""
    seeds = "seeds_b" if side == "method_b" else "seeds_a"
    short = [
        method_name(test[side])
        for test in tests
        if test.get(seeds) is not None
        and test[side] in scores
        and test[seeds] < scores[test[side]].seeds
    ]
    return [f"Paired with the first training alone: {join_items(short)}."] if short else []
