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
from compevo_core.evaluation.budget_order import BUDGET_ORDER, rank_budget
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA, compare_with_opponents
from compevo_core.evaluation.scopes import Scope, read_forecasts

# The name of a pretrained model may end like a budget (chronos-bolt-small), and it spends none.
_FILE = re.compile(
    r"^(?P<method>zero-shot-.+|.+?)"
    rf"(?:-(?P<budget>{'|'.join(BUDGET_ORDER)}))?-seed\d+$"
)
_Files = Mapping[str, Mapping[str | None, list[Path]]]
"""Files of every seed, by method and budget."""


def pair_stored(
    scopes: Sequence[Scope], runs: Sequence[Path], stored: Path, method: str
) -> pl.DataFrame:
    """Return the paired tests of a method with every other that has stored forecasts.

    Of the others the largest budget that is stored is paired. Where the method itself is stored
    under a budget, it is paired once more under it, with those that had the same or spend nothing;
    without runs of its own, under that alone.

    Args:
        scopes: the windows, by subset; those that a file lacks are left out for it.
        runs: files of forecasts of the method, one a seed.
        stored: folder of the others' files, named by method, budget and seed.
        method: name of the method in its files.

    Returns:
        Rows of ``PAIRED_TEST_SCHEMA``; ``budget`` is that of both sides, or empty.

    Raises:
        DataError: a run has no forecast of the method, no other method has any, or there is neither
            a run nor a stored forecast of the method.
    """
    files = _find_files(stored)
    if not files:
        raise DataError(f"no forecasts in {stored}: run `compevo benchmark` for this data set")
    if not runs and method not in files:
        raise DataError(
            f"no run of {method}, and no forecasts of it in {stored}: train it, or run "
            f"`compevo benchmark --methods {method}`"
        )

    tests = []
    others_files = _choose_largest({name: of for name, of in files.items() if name != method})
    for scope in scopes if runs else ():
        own = _read(runs, scope).get(method, [])
        if len(own) != len(runs):
            raise DataError(
                f"{len(own)} of {len(runs)} runs have forecasts of {method} for {scope.subset}: "
                "`compevo evaluate` them first"
            )
        others = _read(others_files, scope)
        tests += compare_with_opponents(scope, {method: own, **others}, method)

    for budget in files.get(method, {}):
        # What spends nothing had no less than the others.
        equal = [path for of in files.values() for path in of.get(budget, of.get(None, ()))]
        for scope in scopes:
            forecasts = _read(equal, scope)
            if method in forecasts:
                found = compare_with_opponents(scope, forecasts, method)
                tests += [{**test, "budget": budget} for test in found]
    return pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")


def list_files(stored: Path) -> list[Path]:
    """Return the files of a folder, of each method those of its largest budget alone."""
    return _choose_largest(_find_files(stored))


def _find_files(stored: Path) -> _Files:
    files: dict[str, dict[str | None, list[Path]]] = {}
    for path in sorted(stored.glob("*.parquet")):
        if found := _FILE.match(path.stem):
            by_budget = files.setdefault(found["method"], {})
            by_budget.setdefault(found["budget"], []).append(path)
    return files


def _choose_largest(files: _Files) -> list[Path]:
    return [path for budgets in files.values() for path in budgets[min(budgets, key=rank_budget)]]


def _read(paths: Iterable[Path], scope: Scope) -> Mapping[str, list[FloatArray]]:
    """Return the forecasts (N, H) of every seed by method, of files that hold the scope."""
    forecasts: dict[str, list[FloatArray]] = {}
    for path in paths:
        # A method that cannot answer every window of a scope has none of it.
        subsets = pl.scan_parquet(path).select(pl.col("subset").unique()).collect()["subset"]
        if scope.subset not in subsets.to_list():
            continue
        for name, of_seeds in read_forecasts(path, scope).items():
            forecasts.setdefault(name, []).extend(of_seeds)
    return forecasts
