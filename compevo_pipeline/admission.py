"""What parsed rows must fulfil before anything of them is stored.

What belongs here: the rules of a data set (``series_rules``) and of time, applied to the frames
that a feed's files became. What does not: the formats of the files (``sources``), the checks of
what is stored, which a run can ask for alone (``checks``).

A series with one row that cannot be true is refused whole, by the name of its file: the store then
holds what it held before. Of news a single article is left out and counted, for one bad headline
must not cost a day of others.
"""

import math
from datetime import UTC, datetime, timedelta

import polars as pl

from compevo_core.data.schemas import UTC_US
from compevo_core.errors import SchemaDrift
from compevo_pipeline.series_rules import Rules, Variable

LONGEST_REACH = timedelta(days=17)
"""How far ahead anybody publishes a forecast, of the weather; a later stamp is a wrong one."""

MEASURED_REACH = timedelta(days=2)
"""How far ahead a series may reach: it holds the publisher's forecast of the next day."""

NEWS_REACH = timedelta(days=1)
"""How far a publisher's clock may be ahead."""

FIRST_NEWS = datetime(1990, 1, 1, tzinfo=UTC)
"""No page of the web is older; a stamp before is a clock that nobody set."""


def refuse_series(frame: pl.DataFrame, rules: Rules, now: datetime) -> None:
    """Refuse rows that break the rules of their data set.

    Args:
        frame: follows ``SERIES_SCHEMA``.
        rules: grid, units and bounds.
        now: the present.

    Raises:
        SchemaDrift: a stamp off the grid or of the future, another unit, or a value out of bounds;
            names the file and the first such row.
    """
    held = frame.filter(pl.col("value").is_not_null())

    step = int(rules.step.total_seconds())
    seconds = pl.col("start_utc").dt.epoch("s") + int(rules.clock.total_seconds())
    _refuse(held, seconds % step != 0, f"off the grid of {rules.step}", "correct the stamps")
    _refuse_unknowable(find_unknowable(held, now), "start_utc", now)

    for name in held["variable"].unique().sort():
        # A variable without a rule of its own counts or measures something, so it has a zero.
        rule = rules.variables.get(name) or Variable(unit="", low=0.0, high=None)
        rows = held.filter(pl.col("variable") == name)
        if rule.unit:
            problem = f"in another unit than {rule.unit}"
            _refuse(rows, pl.col("unit") != rule.unit, problem, "correct the file or the parser")

        low = -math.inf if rule.low is None else rule.low
        high = math.inf if rule.high is None else rule.high
        _refuse(
            rows,
            ~pl.col("value").is_between(low, high),
            f"outside the bounds of {name}, {low:g} to {high:g}",
            "the file may be in another unit: correct it, or the bounds of the data set",
        )


def refuse_future(frame: pl.DataFrame, now: datetime) -> None:
    """Refuse covariates and published forecasts that lie further ahead than anybody publishes.

    Raises:
        SchemaDrift: names the file and the first such row.
    """
    for column, dtype in frame.schema.items():
        if dtype == UTC_US:
            unknowable = frame.filter(pl.col(column) > now + LONGEST_REACH)
            _refuse_unknowable(unknowable, column, now)


def find_unknowable(frame: pl.DataFrame, now: datetime) -> pl.DataFrame:
    """Return the rows of a series whose value nobody can know yet."""
    # A file that was fetched later than now comes from a clock that is ahead of this one.
    present = pl.max_horizontal(pl.lit(now), "fetched_at")
    is_unknowable = pl.col("start_utc") > present + MEASURED_REACH
    return frame.filter(pl.col("value").is_not_null() & is_unknowable)


def drop_mistimed(frame: pl.DataFrame, now: datetime) -> tuple[pl.DataFrame, int]:
    """Leave out articles from the future or from before the web; return their number too."""
    kept = frame.filter(is_in_time(now))
    return kept, frame.height - kept.height


def is_in_time(now: datetime) -> pl.Expr:
    """Return the expression of "this article is not from the future, nor from before the web"."""
    return pl.col("available_at").is_between(FIRST_NEWS, now + NEWS_REACH)


def _refuse_unknowable(unknowable: pl.DataFrame, column: str, now: datetime) -> None:
    _refuse(
        unknowable,
        pl.lit(value=True),
        f"with a {column} that cannot be known on {now:%Y-%m-%d}",
        "correct the year in the file, or the clock of this machine",
    )


def _refuse(frame: pl.DataFrame, is_bad: pl.Expr, problem: str, remedy: str) -> None:
    bad = frame.filter(is_bad)
    if not bad.height:
        return

    first = bad.row(0, named=True)
    shown = ", ".join(
        f"{name} {first[name]}"
        for name in ("series_id", "entity", "name", "variable", "start_utc", "value", "unit")
        if name in first
    )
    raise SchemaDrift(
        f"{first['source']}: {bad.height} row(s) {problem}, first {shown}; {remedy}. "
        "Nothing was stored."
    )
