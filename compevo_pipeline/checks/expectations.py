"""Great Expectations suites for series: schema, grid, units, gaps, duplicates, ranges.

What belongs here: counting what breaks the rules of a data set, series by series, and expecting
that it is nothing. What does not: the rules (``work.row_rules``), Dagster (``defs.asset_checks``).
Great Expectations takes pandas frames, so it sees the counts and not millions of rows; it is slow
to import, so it is imported when a suite runs, without what no suite here uses.
"""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import polars as pl

from compevo_core.data.schemas import FLAG_PATTERN, SERIES_SCHEMA
from compevo_pipeline.sources.registry import Rules
from compevo_pipeline.work.row_rules import is_off_grid, is_outside

SUITES = ("schema", "grid", "units", "gaps", "duplicates", "ranges")
_OF_ROWS = tuple(name for name in SUITES if name != "gaps")
_SERIES_COLUMNS = ["series_id", "variable"]
_SHOWN = 5
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
    import great_expectations.expectations as gxe
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    judged = _judge_rows(frame, rules)
    broken = judged.group_by(_SERIES_COLUMNS).agg(pl.col(_OF_ROWS).sum())
    counts = broken.join(_count_gaps(frame, rules), on=_SERIES_COLUMNS, how="left")
    batch = (
        context.data_sources.add_pandas("frames")
        .add_dataframe_asset("series")
        .add_batch_definition_whole_dataframe("all")
        .get_batch({"dataframe": counts.to_pandas()})
    )

    most = {name: rules.max_gap_share if name == "gaps" else 0 for name in suites}
    expectations = [
        gxe.ExpectColumnValuesToBeBetween(column=name, max_value=limit, meta={"check": name})
        for name, limit in most.items()
    ]
    if "schema" in suites:
        rows = {"min_value": 1, "meta": {"check": "schema"}}
        expectations.append(gxe.ExpectTableRowCountToBeBetween(**rows))
    suite = gx.ExpectationSuite(name="series", expectations=expectations)
    results: dict[str, list[Any]] = {name: [] for name in suites}
    for result in batch.validate(suite, result_format="BASIC").results:
        results[result.expectation_config.meta["check"]].append(result)
    return [
        _summarise(name, of_suite, (counts if name == "gaps" else judged), most[name])
        for name, of_suite in results.items()
    ]


class _Deferred(ModuleType):
    """A placeholder of a module that is imported when something of it is used."""

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


def _judge_rows(frame: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return the rows with a column for each rule: whether they break it."""
    required = [column for column in SERIES_SCHEMA if column != "value"]
    is_right = pl.all_horizontal(pl.col(required).is_not_null())
    is_right &= pl.col("flag").str.contains(FLAG_PATTERN)
    units = {name: rule.unit for name, rule in rules.variables.items()}
    first_unit = pl.col("unit").first().over(_SERIES_COLUMNS)
    unit = pl.col("variable").replace_strict(units, default=first_unit)
    is_unknown = ~pl.col("variable").is_in(list(rules.variables))
    return frame.with_columns(
        schema=~is_right.fill_null(value=False),
        grid=is_off_grid(rules),
        units=pl.col("unit") != unit,
        duplicates=~pl.struct(*_SERIES_COLUMNS, "start_utc").is_first_distinct(),
        # A variable without a rule of its own counts or measures something, so it has a zero.
        ranges=is_outside(rules) | (is_unknown & (pl.col("value") < 0)),
    )


def _count_gaps(frame: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return one row per series: the share of its grid without a value.

    A hole is a period that was never collected: it is counted, and no fault of the stored data.
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
        # Two values on one day off (a holiday that publishes) count as minus one.
        .agg(missing=missing.clip(lower_bound=0).sum(), observed=pl.len())
        .select(*_SERIES_COLUMNS, gaps=pl.col("missing") / (pl.col("missing") + pl.col("observed")))
    )


def _summarise(
    name: str, results: Sequence[Any], judged: pl.DataFrame, most: float
) -> CheckOutcome:
    broken = judged.filter(pl.col(name) > most)
    shown = ["series_id", "gaps"] if name == "gaps" else ["series_id", "start_utc", "value", "unit"]
    examples = [" ".join(map(str, row)) for row in broken.select(shown).head(_SHOWN).iter_rows()]
    text = f"{broken.height} break the rule, for example {'; '.join(examples) or 'no row at all'}"
    passed = all(result.success for result in results)
    numbers = {"expectations": len(results), "broken_rows": broken.height}
    return CheckOutcome(name, passed, "all passed" if passed else text, numbers)
