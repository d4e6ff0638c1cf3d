"""Pairs of stored forecasts: a population's runs against every method whose forecasts are kept.

What belongs here: finding forecasts in files and pairing them by window. What does not: making them
(``evaluation.scoring``, the benchmark), the tests (``evaluation.comparison``).

Rows hold means; only forecasts of the same windows can be paired. Whoever fits a method keeps them,
so that pairing costs no second training. Shapes: N windows, H horizon (48).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA, compare_with_opponents
from compevo_core.evaluation.scopes import Scope, read_forecasts

_FILE = re.compile(r"^(?P<method>.+?)(?:-(?P<budget>quick|standard|tuned))?-seed\d+$")
_PREFERRED = ("tuned", "standard", None, "quick")
"""Budgets in the order in which their forecasts are paired: one budget a method."""


def pair_stored(
    scopes: Sequence[Scope], runs: Sequence[Path], stored: Path, method: str
) -> pl.DataFrame:
    """Return the paired tests of a method with every other that has stored forecasts.

    Args:
        scopes: the windows, by subset; those that a file lacks are left out for it.
        runs: files of forecasts of the method, one a seed.
        stored: folder of the others' files, named by method, budget and seed.
        method: name of the method in its files.

    Returns:
        Rows of ``PAIRED_TEST_SCHEMA``.

    Raises:
        DataError: a run has no forecast of the method, or no other method has any.
    """
    files = list_files(stored)
    if not files:
        raise DataError(f"no forecasts in {stored}: run `compevo benchmark` for this data set")

    tests = []
    for scope in scopes:
        own = _read(runs, scope).get(method, [])
        if len(own) != len(runs):
            raise DataError(
                f"{len(own)} of {len(runs)} runs have forecasts of {method} for {scope.subset}: "
                "`compevo evaluate` them first"
            )
        others = _read(files, scope)
        tests += compare_with_opponents(scope, {method: own, **others}, method)
    return pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")


def list_files(stored: Path) -> list[Path]:
    """Return the files of a folder, of each method those of one budget alone."""
    by_method: dict[str, dict[str | None, list[Path]]] = {}
    for path in sorted(stored.glob("*.parquet")):
        if found := _FILE.match(path.stem):
            by_budget = by_method.setdefault(found["method"], {})
            by_budget.setdefault(found["budget"], []).append(path)
    return [
        path
        for budgets in by_method.values()
        for path in budgets[min(budgets, key=_PREFERRED.index)]
    ]


def _read(paths: Iterable[Path], scope: Scope) -> Mapping[str, list[FloatArray]]:
    """Return the forecasts (N, H) of every seed by method, of files that hold the scope."""
    forecasts: dict[str, list[FloatArray]] = {}
    for path in paths:
        # A method that cannot answer every window of a scope has none of it.
        subsets = pl.scan_parquet(path).select(pl.col("subset").unique()).collect()["subset"]
        if scope.subset not in subsets.to_list():
            continue
        for name, values_NH in read_forecasts(path, scope).items():
            forecasts.setdefault(name, []).append(values_NH)
    return forecasts
