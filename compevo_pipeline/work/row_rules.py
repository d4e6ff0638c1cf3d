"""What parsed rows must fulfil before any of them is stored.

What belongs here: what cannot be true of series, forecasts, covariates and articles of any
publisher. What does not: parsing (``sources``), storing (``work.ingest``), what an asset check
shows of stored rows (``checks``). A file with impossible rows is refused whole, by its name; a few
values out of bounds are nulled and counted. From news, single articles are left out and counted,
because one bad headline must not cost a day of others.
"""

from datetime import UTC, datetime, timedelta

import polars as pl

from compevo_core.data.content import find_faults
from compevo_core.data.context import PUBLISHED
from compevo_core.data.schemas import UTC_US
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.nem import OUTSIDE
from compevo_pipeline.sources.registry import Rules, Variable

LONGEST_REACH = timedelta(days=17)  # of forecasts of the weather; later stamps are wrong
MEASURED_REACH = timedelta(days=2)  # of a series, with its publisher's forecast of a day
NEWS_REACH = timedelta(days=1)  # how far a publisher's clock may be ahead
MOST_OUTSIDE = 0.02  # share of a file's rows that may be out of bounds, and are nulled one by one
FAR_PUBLISHED = 3.0
"""How many times the level of the days before a published forecast may have, up or down.

AEMO's of May 2025 to April 2026 are between 0.74 and 1.46 times the median of seven days.
"""
FAR_COVARIATE = 30.0
"""The same for other quantities; one cloudy day of rooftop solar power had a tenth."""

_LEVEL_DAYS = 7
LEVEL_REACH = timedelta(days=40)  # how far back values are read for it
LEVEL_COLUMNS = ("entity", "name", "start_utc", "value")
_NAMES = ("series_id", "entity", "name", "variable", "quantile")
_SHOWN_COLUMNS = (*_NAMES, "start_utc", "value", "unit", "recent")

FIRST_NEWS = datetime(1990, 1, 1, tzinfo=UTC)  # no page of the web is older


def refuse_series(frame: pl.DataFrame, rules: Rules, now: datetime) -> None:
    """Refuse rows that break the rules of their data set.

    SchemaDrift if a stamp is off the grid or in the future, a unit is not the declared one, or a
    value is out of bounds: it names the file and the first such row.
    """
    held = frame.filter(pl.col("value").is_not_null())

    _refuse(held, is_off_grid(rules), f"off the grid of {rules.step}", "correct the stamps")
    _refuse_unknowable(find_unknowable(held, now), "start_utc", now)

    for name in held["variable"].unique().sort():
        # A variable without a rule of its own counts or measures something, so it has a zero.
        rule = rules.variables.get(name) or Variable(unit="", low=0.0, high=None)
        rows = held.filter(pl.col("variable") == name)
        if rule.unit:
            problem = f"in another unit than {rule.unit}"
            _refuse(rows, pl.col("unit") != rule.unit, problem, "correct the file or the parser")

        _refuse_outside(rows, name, rule)


def is_off_grid(rules: Rules) -> pl.Expr:
    """Return the expression of "this stamp is not on the grid of the data set"."""
    # Weeks begin where the first one does, which the rows of one file cannot show: with a day.
    step = int(min(rules.step, timedelta(days=1)).total_seconds())
    seconds = pl.col("start_utc").dt.epoch("s") + int(rules.clock.total_seconds())
    return seconds % step != 0


def is_outside(rules: Rules) -> pl.Expr:
    """Return the expression of "this value is beyond the bounds of its variable and region"."""
    is_bad = pl.lit(value=False)
    for name, rule in rules.variables.items():
        for is_beyond in _find_outside(rule, "series_id").values():
            is_bad |= is_beyond.fill_null(value=False) & (pl.col("variable") == name)
    return is_bad


def quarantine_outside(frame: pl.DataFrame, rules: Rules) -> tuple[pl.DataFrame, int]:
    """Return rows with the few values of a file that are out of bounds nulled, and their number.

    A publisher may never correct them, and the rest of the month counts. If they are more than
    ``MOST_OUTSIDE`` of a file, the file is wrong, and is left to :func:`refuse_series`.
    """
    is_bad = is_outside(rules)
    if not frame.select(is_bad.any()).item():
        return frame, 0
    is_few = is_bad.sum().over("source") <= MOST_OUTSIDE * pl.len().over("source")
    rows = frame.with_columns(_out=is_bad & is_few)
    nulled = rows.with_columns(
        value=pl.when("_out").then(None).otherwise("value"),
        flag=pl.when("_out").then(pl.lit(OUTSIDE)).otherwise("flag"),
    )
    return nulled.drop("_out"), int(rows["_out"].sum())


def quarantine_faults(
    frame: pl.DataFrame, earlier: pl.DataFrame, rules: Rules
) -> tuple[pl.DataFrame, int]:
    """Return rows with the values of stuck and collapsed meters nulled, and their number.

    ``earlier`` has the stored values of the days before, which show what is usual, and stay.
    """
    steady = [name for name, rule in rules.variables.items() if rule.is_steady]
    key = ["series_id", "variable", "start_utc"]
    given = frame.filter(pl.col("variable").is_in(steady)).select(*key, "value")
    known = earlier.select(given.columns).join(given, on=key, how="anti")
    rows = pl.concat([known, given]).drop_nulls().sort(key).unique(key, maintain_order=True)
    flags = [
        part.filter(pl.Series(is_faulty)).select(*key, _flag=pl.lit(f"nulled:{kind}"))
        for part in rows.partition_by("series_id", "variable")
        for kind, is_faulty in find_faults(part, rules.step).items()
    ]
    if not flags:
        return frame, 0
    marked = frame.join(
        pl.concat(flags).unique(key, keep="first"), on=key, how="left", maintain_order="left"
    )
    is_faulty = pl.col("_flag").is_not_null() & pl.col("value").is_not_null()
    nulled = marked.with_columns(
        value=pl.when(~is_faulty).then("value"),
        flag=pl.when(is_faulty).then("_flag").otherwise("flag"),
    )
    return nulled.drop("_flag"), marked.select(is_faulty.sum()).item()


def _find_outside(rule: Variable, entity: str) -> dict[tuple[str, float, float], pl.Expr]:
    """Return whether a value is out of bounds, by the place and bounds that say so."""
    region = pl.col(entity).str.split("/").list.last()
    return {
        (place, low, high): ~pl.col("value").is_between(low, high)
        & (region == place if place else pl.lit(value=True))
        for place, (low, high) in {"": rule.bounds, **rule.regions}.items()
    }


def _refuse_outside(rows: pl.DataFrame, name: str, rule: Variable) -> None:
    by_place = _find_outside(rule, "entity" if "entity" in rows.columns else "series_id")
    if not rows.select(pl.any_horizontal(*by_place.values()).any()).item():
        return

    for (place, low, high), is_bad in by_place.items():
        _refuse(
            rows,
            is_bad,
            f"outside the bounds of {name}{f' in {place}' if place else ''}, {low:g} to {high:g}",
            "the file may be in another unit: correct it, or the bounds of the data set",
        )


def refuse_forecasts(frame: pl.DataFrame, rules: Rules, recent: pl.DataFrame) -> None:
    """Refuse published forecasts that are impossible, or far from the last days.

    A level is the median of a file's median forecast of the target. For other quantities with a
    zero it is the mean: at night they are zero. Temperatures have only bounds.

    ``recent`` has ``LEVEL_COLUMNS``: the target as measured, covariates as forecast before.
    SchemaDrift if a value is not finite or out of bounds, quantiles are in another order, or the
    level of a file is far off: it names the file and the first such row.
    """
    is_target = "quantile" in frame.columns
    rows = frame.with_columns(pl.lit(PUBLISHED).alias("name")) if is_target else frame
    _refuse(rows, ~pl.col("value").is_finite(), "that are not numbers", "fetch the file again")
    for (name,), of_name in rows.partition_by("name", as_dict=True).items():
        if name in rules.forecasts:
            _refuse_outside(of_name, name, rules.forecasts[name])

    level = pl.col("value").mean()
    levelled = [name for name, rule in rules.forecasts.items() if rule.low == 0]
    if is_target:
        issue = ["source", "entity", "start_utc", "available_at"]
        below = pl.col("value").shift(1).over(issue, order_by="quantile")
        remedy = "columns may be swapped: correct the file or the parser"
        _refuse(rows, pl.col("value") < below, "below a lower quantile of the same issue", remedy)
        rows, level = rows.filter(pl.col("quantile") == 0.5), pl.col("value").median()
        levelled = [PUBLISHED] if PUBLISHED in rules.forecasts else []

    # A day counts from its end on, so no file is compared with itself.
    by_series = ["entity", "name"]
    end = pl.col("start_utc").dt.truncate("1d").dt.offset_by("1d")
    days = recent.group_by(*by_series, end).agg(level.alias("recent")).sort("start_utc")
    usual = pl.col("recent").rolling_median(_LEVEL_DAYS, min_samples=1).over(by_series)
    files = rows.filter(pl.col("name").is_in(levelled)).group_by("source", *by_series)
    pairs = (
        files.agg(pl.col("start_utc").min(), level)
        .sort("start_utc", "source")
        .join_asof(
            days.with_columns(usual),
            on="start_utc",
            by=by_series,
            tolerance="28d",
            check_sortedness=False,
        )
        .filter(pl.col("recent") > 0)
    )
    factor = FAR_PUBLISHED if is_target else FAR_COVARIATE
    _refuse(
        pairs,
        ~(pl.col("value") / pl.col("recent")).is_between(1 / factor, factor),
        f"with a level more than {factor:g} times the level of the days before, or less than a "
        f"{factor:g}th of it",
        "the unit or sign may be wrong: fetch the file again when its publisher has corrected it",
    )


def refuse_future(frame: pl.DataFrame, now: datetime) -> None:
    """Refuse covariates and published forecasts that are further ahead than any publisher's.

    SchemaDrift names the file and the first such row.
    """
    for column, dtype in frame.schema.items():
        if dtype == UTC_US:
            unknowable = frame.filter(pl.col(column) > now + LONGEST_REACH)
            _refuse_unknowable(unknowable, column, now)


def find_unknowable(frame: pl.DataFrame, now: datetime) -> pl.DataFrame:
    """Return the rows of a series whose value cannot be known yet."""
    # A file that was fetched later than now comes from a clock that is ahead of this one.
    present = pl.max_horizontal(pl.lit(now), "fetched_at")
    is_unknowable = pl.col("start_utc") > present + MEASURED_REACH
    return frame.filter(pl.col("value").is_not_null() & is_unknowable)


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
    shown = ", ".join(f"{name} {first[name]}" for name in _SHOWN_COLUMNS if name in first)
    raise SchemaDrift(
        f"{first['source']}: {bad.height} row(s) {problem}, first {shown}; {remedy}. "
        "Nothing was stored."
    )
