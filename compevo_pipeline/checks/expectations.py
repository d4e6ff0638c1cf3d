"""Great Expectations suites for series: schema, grid, units, gaps, duplicates, ranges.

What belongs here: running the rules of a data set (``sources.registry``) on a polars frame.
What does not: Dagster (``defs.asset_checks``). Great Expectations takes pandas frames and is slow
to import, so it is imported when a suite runs, without what no suite here uses.
"""

import functools
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType
from typing import Any

import polars as pl

from compevo_core.data.schemas import FLAG_PATTERN, SERIES_SCHEMA
from compevo_pipeline.sources.registry import Rules

SUITES = ("schema", "grid", "units", "gaps", "duplicates", "ranges")
UNIQUE_COLUMNS = ["series_id", "variable", "start_utc"]

# pandas warns of groups that it does not extract.
_FLAG_REGEX = FLAG_PATTERN.replace("(", "(?:")
_SERIES_COLUMNS = ["series_id", "variable"]
_SHOWN_VALUES = 5
_RESULTS = "BASIC"  # counts and a few examples, all that a summary shows
_UNUSED = ("altair", "jsonschema", "scipy.stats")
"""What Great Expectations imports for other expectations: half of the time that it takes."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """What a check found: its name, whether it passed, a sentence, and numbers to plot."""

    name: str
    passed: bool
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


def run_suites(
    frame: pl.DataFrame, rules: Rules, suites: Sequence[str] = SUITES
) -> list[CheckOutcome]:
    """Validate a series frame; return one outcome for each suite, in their order."""
    with _deferred(_UNUSED):
        import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_pandas("frames")

    share = rules.max_gap_share
    of_series = [
        _expect("gaps", "ColumnValuesToBeBetween", column="gap_share", max_value=share),
        _expect("units", "ColumnValuesToBeBetween", column="units", min_value=1, max_value=1),
    ]
    # Weeks begin where the first one does: of longer steps the days are held against the grid.
    step = int(min(rules.step, timedelta(days=1)).total_seconds())
    since = pl.col("start_utc").dt.epoch("s") + int(rules.clock.total_seconds())
    held = frame.with_columns(off_grid_seconds=since % step)
    # Gaps are a matter of a whole series, so they are counted first and validated a series a row.
    parts = {
        "rows": (held, _expect_of_rows(frame, rules)),
        "series": (_count_gaps(frame, rules), of_series),
    }
    results: dict[str, list[Any]] = {name: [] for name in suites}
    for part, (data, expectations) in parts.items():
        selected = [item for item in expectations if item.meta["check"] in results]
        if not selected:
            continue

        batch = (
            source.add_dataframe_asset(part)
            .add_batch_definition_whole_dataframe("all")
            .get_batch({"dataframe": data.to_pandas()})
        )
        suite = gx.ExpectationSuite(name=part, expectations=selected)
        for result in batch.validate(suite, result_format=_RESULTS).results:
            results[result.expectation_config.meta["check"]].append(result)

    return [_summarise(name, of_suite) for name, of_suite in results.items()]


class _Deferred(ModuleType):
    """Stands for a module that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - anything that the module has
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def _deferred(names: Sequence[str]) -> Iterator[None]:
    """Put off the import of modules by what is imported in the block; all others find them."""
    placed = {name: _Deferred(name) for name in names if name not in sys.modules}
    sys.modules.update(placed)
    try:
        yield
    finally:
        for name, module in placed.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def _count_gaps(frame: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return one row per series: the share of its grid without a value, and its number of holes.

    A hole is a period that was never collected (a missing file): it is counted, but it is not a
    fault of the stored data.
    """
    observed = frame.filter(pl.col("value").is_not_null()).sort(*_SERIES_COLUMNS, "start_utc")
    publishes_on_weekdays = pl.any_horizontal(
        pl.lit(False), *(pl.col("series_id").str.starts_with(p) for p in rules.weekdays_only)
    )

    # Steps from each value to the one before it; 1 where nothing is missing between them.
    previous = pl.col("start_utc").shift(1).over(_SERIES_COLUMNS)
    distance = pl.col("start_utc") - previous
    steps = (distance.dt.total_seconds() / rules.step.total_seconds()).round().cast(pl.Int64)
    weekdays = pl.business_day_count(previous.dt.date(), pl.col("start_utc").dt.date())
    skipped = pl.when(publishes_on_weekdays).then(weekdays.cast(pl.Int64)).otherwise(steps) - 1

    is_hole = (distance > rules.hole).fill_null(False)
    missing = pl.when(~pl.col("is_hole")).then(pl.col("skipped")).otherwise(0)
    return (
        observed.with_columns(is_hole.alias("is_hole"), skipped.fill_null(0).alias("skipped"))
        .group_by(_SERIES_COLUMNS)
        .agg(
            pl.col("is_hole").sum().alias("holes"),
            # Two values on one day off (a holiday that publishes) count as minus one.
            missing.clip(lower_bound=0).sum().alias("missing"),
            pl.len().alias("observed"),
            pl.col("unit").n_unique().alias("units"),
        )
        .with_columns(
            (pl.col("missing") / (pl.col("missing") + pl.col("observed"))).alias("gap_share")
        )
    )


def _expect_of_rows(frame: pl.DataFrame, rules: Rules) -> list[Any]:
    columns = [*SERIES_SCHEMA, "off_grid_seconds"]
    required = [column for column in SERIES_SCHEMA if column != "value"]
    return [
        _expect("schema", "TableColumnsToMatchSet", column_set=columns, exact_match=True),
        _expect("schema", "TableRowCountToBeBetween", min_value=1),
        _expect("schema", "ColumnValuesToMatchRegex", column="flag", regex=_FLAG_REGEX),
        *(_expect("schema", "ColumnValuesToNotBeNull", column=column) for column in required),
        _expect("grid", "ColumnValuesToBeInSet", column="off_grid_seconds", value_set=[0]),
        _expect("duplicates", "CompoundColumnsToBeUnique", column_list=UNIQUE_COLUMNS),
        *_expect_of_variables(frame, rules),
    ]


def _expect_of_variables(frame: pl.DataFrame, rules: Rules) -> Iterator[Any]:
    """Yield unit and bounds of the variables that the frame holds."""
    from great_expectations.expectations.row_conditions import Column

    variable = Column("variable")
    present = set(frame["variable"].unique().to_list())
    between = functools.partial(_expect, "ranges", "ColumnValuesToBeBetween", column="value")

    for name in sorted(present & set(rules.variables)):
        rule, rows = rules.variables[name], variable == name
        yield _expect(
            "units",
            "ColumnValuesToBeInSet",
            column="unit",
            value_set=[rule.unit],
            row_condition=rows,
        )
        # Great Expectations refuses bounds that are both open.
        if rule.low is not None or rule.high is not None:
            yield between(min_value=rule.low, max_value=rule.high, row_condition=rows)

    if present - set(rules.variables):
        others = variable.is_not_in(sorted(rules.variables))
        yield between(min_value=0, row_condition=others)


def _expect(check: str, kind: str, **arguments: Any) -> Any:  # noqa: ANN401 - as Great Expectations'
    """Return an expectation of the class ``Expect<kind>``, as a part of a check."""
    import great_expectations.expectations as gxe

    return getattr(gxe, f"Expect{kind}")(**arguments, meta={"check": check})


def _summarise(name: str, results: Sequence[Any]) -> CheckOutcome:
    failed = [result for result in results if not result.success]

    notes = []
    for result in failed:
        config = result.expectation_config
        subject = config.kwargs.get("row_condition") or config.kwargs.get("column") or ""
        examples = result.result.get("partial_unexpected_list", [])[:_SHOWN_VALUES]
        notes.append(
            f"{config.type} {subject}: {result.result.get('unexpected_count', '?')} row(s), "
            f"for example {examples or result.exception_info}"
        )

    numbers = {
        "expectations": len(results),
        # An expectation of the whole table has no rows to count.
        "broken_rows": sum(int(r.result.get("unexpected_count", 0) or 0) for r in failed),
    }
    return CheckOutcome(name, not failed, "; ".join(notes) or "all passed", numbers)
