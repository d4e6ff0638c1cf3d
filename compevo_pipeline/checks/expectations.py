"""Suites of checks of series: schema, grid, units, gaps, duplicates, ranges.

What belongs here: finding what breaks the rules of a data set, row by row, and saying it in a
sentence. What does not: the rules (``work.row_rules``), Dagster (``defs.asset_checks``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from compevo_core.data.schemas import FLAG_PATTERN, SERIES_SCHEMA
from compevo_pipeline.sources.registry import Rules
from compevo_pipeline.work.row_rules import is_off_grid, is_outside

SUITES = ("schema", "grid", "units", "gaps", "duplicates", "ranges")
_SERIES_COLUMNS = ["series_id", "variable"]
_SHOWN = 5


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
    judged, gaps = _judge_rows(frame, rules), _count_gaps(frame, rules)
    most = {"gaps": rules.max_gap_share}
    return [
        _summarise(name, gaps if name == "gaps" else judged, most.get(name, 0.0)) for name in suites
    ]


def _judge_rows(frame: pl.DataFrame, rules: Rules) -> pl.DataFrame:
    """Return the rows with a column for each rule, which says whether they break it."""
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
        # Two values on one day off (a holiday that publishes) count as minus one.
        .agg(missing=missing.clip(lower_bound=0).sum(), observed=pl.len())
        .select(
            *_SERIES_COLUMNS,
            gaps=pl.col("missing") / (pl.col("missing") + pl.col("observed")),
        )
    )


def _summarise(name: str, judged: pl.DataFrame, most: float) -> CheckOutcome:
    broken = judged.filter(pl.col(name) > most)
    shown = ["series_id", "gaps"] if name == "gaps" else ["series_id", "start_utc", "value", "unit"]
    examples = [" ".join(map(str, row)) for row in broken.select(shown).head(_SHOWN).iter_rows()]
    text = f"{broken.height} break the rule, for example {'; '.join(examples) or 'no row at all'}"
    # Without any row nothing was collected.
    passed = broken.is_empty() and (name != "schema" or not judged.is_empty())
    numbers = {"judged": judged.height, "broken_rows": broken.height}
    return CheckOutcome(name, passed, "all passed" if passed else text, numbers)
