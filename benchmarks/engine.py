"""The engine against ordinary ways of doing the same.

What belongs here: which cases are measured for how many agents, and rows derived from others. What
does not: the measuring (``cases``); what each case measures is in
``docs/explanation/benchmarks.md``.

A ratio is reference over ours, in processor seconds (on a GPU in wall-clock seconds): above 1, ours
is faster. Its limit is the ratio if all but the products with frozen weights, which both ways need,
took no time. Rows whose ratio is another number are described in ``table.TEXTS``.

``dtype`` is our own type (``backbone.dtype``); references by other libraries have the same types,
see ``cases``.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from benchmarks.cases import measure_case
from benchmarks.rows import LIBRARIES, Benchmark, Row, merge_rows
from benchmarks.world import Case

KEY = ("backbone", "case", "agents", "dtype")
_BY_AGENTS = ("backward", "gradient", "inference", "memory-by-agent", "memory-joint", "round")
CASES = [
    *(f"{case}/{agents}" for case in _BY_AGENTS for agents in (1, 3, 10)),
    *(f"{case}/3" for case in ("preset-rewriting", "preset-round", "sampling", "token")),
    "product/1",
]


def measure(case: str, folder: Path) -> Iterable[Row]:
    """Return the rows of a case on the packaged backbone."""
    name, agents = case.split("/")
    return measure_case(Case(name=name, agents=int(agents)))


def derive_rows(rows: list[Row]) -> list[Row]:
    """Return sorted rows, with how time and memory grow with the agents of a kind of backbone."""

    def sort_key(row: Row) -> tuple[str, str, int, str]:
        return row["backbone"], row["case"], int(row["agents"]), row["dtype"]

    groups = defaultdict(list)
    rows = sorted(rows, key=sort_key)
    for row in rows:
        # Rows of another machine may be in the same table.
        groups[row["case"], row["backbone"], row["dtype"], row["machine"]].append(row)
    derived = []
    for (case, *_), measured in groups.items():
        if case in _DERIVATIONS and len(measured) > 1:
            name, derive = _DERIVATIONS[case]
            empty = dict.fromkeys(_MEASURED)
            derived.append(measured[-1] | empty | {"case": name, "ratio": derive(measured)})
    return sorted(merge_rows(rows, derived, KEY), key=sort_key)


def fit_exponent(rows: list[Row]) -> float:
    """Return the slope of log seconds over log agents by least squares."""
    agents = [math.log(int(row["agents"])) for row in rows]
    seconds = [math.log(float(row["ours_seconds"])) for row in rows]
    return statistics.linear_regression(agents, seconds).slope


def _divide_peaks(rows: list[Row]) -> float:
    fewest, *_, most = (float(row["peak_memory_gb"]) - float(row["state_gb"]) for row in rows)
    return most / fewest


_DERIVATIONS = {
    "round": ("round-exponent", fit_exponent),
    "memory-joint": ("memory-joint-ratio", _divide_peaks),
    "memory-by-agent": ("memory-by-agent-ratio", _divide_peaks),
}
_MEASURED = ("reference", "ours_seconds", "reference_seconds", "limit", "tokens")
_MEASURED += ("peak_memory_gb", "state_gb")  # of a row, and in none that is derived

BENCHMARK = Benchmark(
    name="engine",
    cases=CASES,
    measure=measure,
    key=KEY,
    libraries=LIBRARIES,
    threads=1,
    finish=derive_rows,
)

if __name__ == "__main__":
    BENCHMARK.main()
