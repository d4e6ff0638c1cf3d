"""How often the interval of a mean difference holds it, in simulations of correlated days.

What belongs here: days that follow an autoregression, and the share of intervals that hold their
mean, 0. What does not: the interval (``compevo_core.evaluation.comparison``).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.signal import lfilter

from benchmarks.rows import Benchmark, Row
from compevo_core.evaluation.comparison import BLOCK_DAYS, USUAL_BLOCKS, measure_interval

RUNS = 2000
SETTLING = 60  # days before the first one that counts


def measure_coverage(*, days: int, correlation: float, block_days: int, runs: int) -> float:
    """Return the share of intervals that hold the mean of an AR(1) process, one error a day."""
    noise = np.random.default_rng(0).standard_normal((runs, SETTLING + days))
    errors = lfilter([1.0], [1.0, -correlation], noise, axis=1)[:, SETTLING:]
    numbers = np.arange(days)
    intervals = [measure_interval(row, numbers, numbers // block_days) for row in errors]
    return float(np.mean([low <= 0 <= high for low, high in intervals]))


def measure(case: str, folder: Path) -> Iterator[Row]:
    """Yield the coverage of so many days by correlation, with the blocks that results have."""
    days = int(case)
    usual = max(1, min(BLOCK_DAYS, days // USUAL_BLOCKS))
    for correlation in (0.0, 0.15, 0.3, 0.45, 0.6):
        row = {"days": days, "block_days": usual, "correlation": correlation, "runs": RUNS}
        coverage = measure_coverage(days=days, correlation=correlation, block_days=usual, runs=RUNS)
        yield row | {"coverage": coverage}


BENCHMARK = Benchmark(
    name="intervals",
    cases=("40", "100", "365"),
    measure=measure,
    key=("days", "correlation"),
)

if __name__ == "__main__":
    BENCHMARK.main()
