"""Great Expectations suites for series: schema, grid, units, gaps, duplicates, ranges.

What belongs here: the rules and their numbers, and running them on a polars frame. What does not: Dagster (``checks``).
Great Expectations takes pandas frames and is slow to import, so it is imported when a suite runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import polars as pl

from compevo_core.data.series import FLAG_PATTERN, SERIES_SCHEMA

NAMES = ("schema", "grid", "units", "gaps", "duplicates", "ranges")
_FLAG_REGEX = FLAG_PATTERN.replace("(", "(?:")  # pandas warns of groups it does not extract
KEYS = ["series_id", "variable", "start_utc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """What a variable's rows must look like: unit, and bounds in it."""

    unit: str
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of one data set; a variable that is not named must only be non-negative.

    ``max_gap_share`` is the largest share of a series' grid without a value, not counting stretches above ``hole``.
    """

    step: timedelta
    variables: Mapping[str, Variable]
    max_gap_share: float
    hole: timedelta
    weekdays_only: tuple[str, ...] = field(default=())
    """Prefixes of series that publish on business days; weekends and holidays are no gaps there."""


_RATE_BOUNDS = {"aud": (0.4, 1.3), "gbp": (0.9, 2.5), "cad": (0.5, 1.3), "chf": (0.4, 1.6), "cny": (0.1, 0.2),
                "jpy": (0.004, 0.02), "nzd": (0.3, 1.1), "sgd": (0.4, 1.0), "eur": (0.7, 1.8)}  # fmt: skip

RULES: dict[str, Rules] = {
    "electricity": Rules(
        step=timedelta(minutes=30),
        variables={
            "demand_mw": Variable(unit="MW", low=-1000, high=20000),
            "demand_forecast_mw": Variable(unit="MW", low=-1500, high=20000),
            "price_aud_per_mwh": Variable(unit="AUD/MWh", low=-1000, high=25000),
        },
        max_gap_share=0.01,
        hole=timedelta(days=2),
    ),
    "exchange": Rules(
        step=timedelta(days=1),
        variables={
            f"rate_usd_per_{c}": Variable(unit=f"USD per {c.upper()}", low=low, high=high)
            for c, (low, high) in _RATE_BOUNDS.items()
        },
        max_gap_share=0.05,
        hole=timedelta(days=14),
        weekdays_only=("ECB/", "N2F/"),
    ),
    "bitcoin": Rules(
        step=timedelta(days=1),
        variables={"price_usd": Variable(unit="USD", low=0, high=1e6)},
        max_gap_share=0.05,
        hole=timedelta(days=120),
    ),
    "traffic": Rules(
        step=timedelta(hours=1),
        variables={
            "occupancy": Variable(unit="fraction", low=0, high=1),
            "observed_percent": Variable(unit="%", low=0, high=100),
        },
        max_gap_share=0.05,
        hole=timedelta(days=14),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One check: whether it held, how many rows broke it, and examples."""

    name: str
    passed: bool
    expectations: int
    broken: int
    detail: str


def run_suite(frame: pl.DataFrame, rules: Rules) -> list[Outcome]:
    """Validates a series frame; one outcome for each of :data:`NAMES`."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_pandas("frames")
    found: dict[str, list[Any]] = {name: [] for name in NAMES}
    for part, data in (("rows", _rows(frame, rules)), ("series", _per_series(frame, rules))):
        batch = (
            source.add_dataframe_asset(part)
            .add_batch_definition_whole_dataframe("all")
            .get_batch({"dataframe": data.to_pandas()})
        )
        suite = gx.ExpectationSuite(name=part, expectations=_suite(part, frame, rules))
        for result in batch.validate(suite).results:
            found[result.expectation_config.meta["check"]].append(result)
    return [_outcome(name, results) for name, results in found.items()]


def _rows(frame: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """The rows, with how far each stamp is off the grid in seconds."""
    step = int(rules.step.total_seconds())
    return frame.with_columns((pl.col("start_utc").dt.epoch("s") % step).alias("off_grid_seconds"))


def _per_series(frame: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """One row a series: the share of its grid without a value, and how many holes longer than ``rules.hole`` it has.

    A hole is a stretch nobody collected (a file that is not there), counted but not a fault of what is there.
    """
    keys = ["series_id", "variable"]
    held = frame.filter(pl.col("value").is_not_null()).sort(*keys, "start_utc")
    business = pl.any_horizontal(
        pl.lit(False), *(pl.col("series_id").str.starts_with(p) for p in rules.weekdays_only)
    )
    before = pl.col("start_utc").shift(1).over(keys)
    wait = pl.col("start_utc") - before
    steps = wait.dt.total_seconds() // int(rules.step.total_seconds())
    weekdays = pl.business_day_count(before.dt.date(), pl.col("start_utc").dt.date()).cast(pl.Int64)
    skipped = pl.when(business).then(weekdays).otherwise(steps) - 1
    return (
        held.with_columns(
            (wait > rules.hole).fill_null(False).alias("is_hole"),
            skipped.fill_null(0).alias("skipped"),
        )
        .group_by(keys)
        .agg(
            pl.col("is_hole").sum().alias("holes"),
            pl.when(~pl.col("is_hole"))
            .then(pl.col("skipped"))
            .otherwise(0)
            .clip(lower_bound=0)
            .sum()
            .alias("missing"),
            pl.len().alias("held"),
            pl.col("unit").n_unique().alias("units"),
        )
        .with_columns((pl.col("missing") / (pl.col("missing") + pl.col("held"))).alias("gap_share"))
    )


def _suite(part: str, frame: pl.DataFrame, rules: Rules) -> list[Any]:
    import great_expectations.expectations as gxe
    from great_expectations.expectations.row_conditions import Column

    if part == "series":
        limit = rules.max_gap_share
        return [
            gxe.ExpectColumnValuesToBeBetween(
                column="gap_share", max_value=limit, meta={"check": "gaps"}
            ),
            gxe.ExpectColumnValuesToBeBetween(
                column="units", min_value=1, max_value=1, meta={"check": "units"}
            ),
        ]
    suite: list[Any] = [
        gxe.ExpectTableColumnsToMatchSet(
            column_set=[*SERIES_SCHEMA, "off_grid_seconds"],
            exact_match=True,
            meta={"check": "schema"},
        ),
        gxe.ExpectTableRowCountToBeBetween(min_value=1, meta={"check": "schema"}),
        gxe.ExpectColumnValuesToMatchRegex(
            column="flag", regex=_FLAG_REGEX, meta={"check": "schema"}
        ),
        *(
            gxe.ExpectColumnValuesToNotBeNull(column=c, meta={"check": "schema"})
            for c in SERIES_SCHEMA
            if c != "value"
        ),
        gxe.ExpectColumnValuesToBeInSet(
            column="off_grid_seconds", value_set=[0], meta={"check": "grid"}
        ),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=KEYS, meta={"check": "duplicates"}),
    ]
    present = set(frame["variable"].unique().to_list())
    variable = Column("variable")
    for name in sorted(present & set(rules.variables)):
        rule, here = rules.variables[name], variable == name
        bounds = {"column": "value", "min_value": rule.low, "max_value": rule.high}
        suite.append(
            gxe.ExpectColumnValuesToBeBetween(
                **bounds, row_condition=here, meta={"check": "ranges"}
            )
        )
        units = {"column": "unit", "value_set": [rule.unit]}
        suite.append(
            gxe.ExpectColumnValuesToBeInSet(**units, row_condition=here, meta={"check": "units"})
        )
    if present - set(rules.variables):
        others = variable.is_not_in(sorted(rules.variables))
        bounds = {"column": "value", "min_value": 0}
        suite.append(
            gxe.ExpectColumnValuesToBeBetween(
                **bounds, row_condition=others, meta={"check": "ranges"}
            )
        )
    return suite


def _outcome(name: str, results: list[Any]) -> Outcome:
    failed = [r for r in results if not r.success]
    notes = []
    for result in failed:
        config = result.expectation_config
        about = config.kwargs.get("row_condition") or config.kwargs.get("column") or ""
        seen = result.result.get("partial_unexpected_list", [])[:5] or result.exception_info
        notes.append(
            f"{config.type} {about}: {result.result.get('unexpected_count', '?')} row(s), for example {seen}"
        )
    broken = sum(int(r.result.get("unexpected_count", 0) or 0) for r in failed)
    return Outcome(
        name=name,
        passed=not failed,
        expectations=len(results),
        broken=broken,
        detail="; ".join(notes) or "all held",
    )
