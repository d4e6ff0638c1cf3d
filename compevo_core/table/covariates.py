"""Columns next to the values, each with the instant from which a forecaster knows it.

What belongs here: values known ahead by step, measured values by day, words as articles, what a
forecast lacks of them. What does not: reading the table (``table.frames``), who learns from them
(``baselines``).
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from compevo_core.data.context import OWN
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.schemas import ARTICLE_SCHEMA, COVARIATE_SCHEMA, UTC_US
from compevo_core.data.steps import DAY, shift
from compevo_core.data.view import WindowView
from compevo_core.errors import DataError
from compevo_core.runtime.files import hash_text
from compevo_core.table.frames import COLUMN, KNOWN_AT, SERIES, START, Frame, TableForm, to_polars
from compevo_core.table.stamps import Clock, read_stamps

_ALWAYS = datetime(1900, 1, 1, tzinfo=UTC)  # before any origin
_PUBLISHED = "published_at"
_INSTANT = timedelta(microseconds=1)
_ID_DIGITS = 32  # of an article's hash
_MOST_CATEGORIES = 100  # of a column of words


def list_covariates(rows: pl.DataFrame, form: TableForm, spec: DatasetSpec) -> dict[str, Any]:
    """Return the frames of covariates that views and windows are built with, by argument.

    DataError for measured columns where steps are longer than a day.
    """
    frames, by_step = {}, []
    if form.ahead:
        known = pl.col(KNOWN_AT) if form.known_at else pl.lit(_ALWAYS, dtype=UTC_US)
        values = _unpivot(rows, form.ahead, START, KNOWN_AT if form.known_at else START)
        by_step.append(values.with_columns(available_at=known))
    if form.static:
        reach = spec.lookback_steps + spec.horizon_steps
        values = _unpivot(rows, form.static)
        held = repeat_static(values, SERIES, rows[START], spec.step, reach)
        by_step.append(held.with_columns(available_at=pl.lit(_ALWAYS, dtype=UTC_US)))
    if by_step:
        frames["step_covariates"] = pl.concat(by_step, how="diagonal").select(
            entity=SERIES,
            name=OWN + pl.col("name"),
            start_utc=START,
            value=pl.col("value").cast(pl.Float64),
            available_at="available_at",
            source=pl.lit("table"),
        )

    if form.past:
        frames["covariates"] = _summarize_days(_unpivot(rows, form.past, START), spec)
    return frames


def require_ahead(
    views: Sequence[WindowView], form: TableForm, steps: int, end: datetime, spec: DatasetSpec
) -> None:
    """Raise a DataError where the next steps lack a value that is known ahead."""
    is_open = form.is_open([shift(end, number, spec.step) for number in range(steps)]).to_numpy()
    for view in views:
        for name in form.ahead if view.entity not in spec.totals else ():
            # A column of words has one of numbers for each of them.
            values = [
                values_H[:steps]
                for key, values_H in view.step_covariates.items()
                if key == OWN + name
                or (key.startswith(f"{OWN}{name}=") and not key.endswith("_lag1"))
            ]
            is_known = np.isfinite(values).any(axis=0) if values else False
            is_missing = is_open & np.logical_not(is_known)
            if not is_missing.any():
                continue
            first = shift(end, int(np.argmax(is_missing)), spec.step)
            raise DataError(
                f"the forecast of {view.entity} needs {name!r} ahead, but it is not known for "
                f"{form.clock.say(first)}: give a table with {form.time!r} and {name!r} for "
                f"its {steps} steps as future=..."
            )


def read_news(table: Frame, clock: Clock, *, time: str, text: str) -> pl.DataFrame:
    """Return the texts of a table as articles, each known at its stamp on the clock of the grid.

    Stamps may also be in ``published_at``, as in files of news. A date without a time is known when
    its day is over; rows without words are none. DataError if a column is missing or of another
    type.
    """
    _, frame = to_polars(table, time)
    if time not in frame.columns and _PUBLISHED in frame.columns:
        time = _PUBLISHED
    for name in (time, text):
        if name not in frame.columns:
            raise DataError(f"news needs a column {name!r}; the columns are {frame.columns}")

    if frame.schema[text] not in (pl.String, pl.Null):
        raise DataError(f"column {text!r} holds {frame.schema[text]}, not text; name another")
    stamps, _, are_days = read_stamps(frame[time])
    titles = [" ".join((words or "").split()) for words in frame[text].cast(pl.String)]
    known = clock.locate(stamps + DAY if are_days else stamps)
    rows = pl.DataFrame({"title": titles, _PUBLISHED: known}, schema_overrides={"title": pl.String})

    rows = rows.filter(pl.col("title") != "").unique(maintain_order=True)
    address = pl.concat_str(
        pl.lit("table/"), pl.col(_PUBLISHED).dt.epoch("us"), pl.lit("/"), pl.col("title")
    )
    articles = rows.with_columns(
        url=address,
        article_id=address.map_elements(lambda it: hash_text(it)[:_ID_DIGITS], pl.String),
        available_at=_PUBLISHED,
        fetched_at=_PUBLISHED,
        source=pl.lit("table"),
    )
    return pl.concat([pl.DataFrame(schema=ARTICLE_SCHEMA), articles], how="diagonal")


def _unpivot(rows: pl.DataFrame, names: Sequence[str], *index: str) -> pl.DataFrame:
    """Return one row for each known value of some columns."""
    keys = list(dict.fromkeys([SERIES, *index]))
    parts = []
    for are_words in (False, True):
        columns = [COLUMN + n for n in names if (rows.schema[COLUMN + n] == pl.String) == are_words]
        if not columns:
            continue
        long = rows.select(*keys, *columns).unpivot(
            columns, index=keys, variable_name="name", value_name="value"
        )
        long = long.with_columns(pl.col("name").str.strip_prefix(COLUMN)).drop_nulls("value")
        parts.append(encode_categories(long) if are_words else long)
    return pl.concat(parts)


def encode_categories(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of words (``name``, ``value``) as rows of 1 and 0 for each category of a name.

    They are named as ``promo=yes``. DataError for a column of too many words.
    """
    categories = rows.select("name", category="value").unique().sort("name", "category")
    counts = categories["name"].value_counts(sort=True)
    if counts.height and counts["count"][0] > _MOST_CATEGORIES:
        name = counts["name"][0]
        example = categories.filter(name=name)["category"][0]
        raise DataError(
            f"column {name!r} has {counts['count'][0]} different words, such as {example!r}: leave "
            f"it out, or give numbers or at most {_MOST_CATEGORIES} categories"
        )
    each = rows.join(categories, on="name", maintain_order="left_right")
    return each.with_columns(
        name=pl.col("name") + "=" + pl.col("category"),
        value=(pl.col("value") == pl.col("category")).cast(pl.Float64),
    ).drop("category")


def repeat_static(
    values: pl.DataFrame, key: str, starts: pl.Series, step: timedelta, ahead: int
) -> pl.DataFrame:
    """Return the values of each series at all steps of a table, and at so many after the last.

    DataError where a column has two values in a series.
    """
    values = values.unique()
    twice = values.filter(values.select(key, "name").is_duplicated())
    if twice.height:
        name, series = twice.sort(key, "name").select("name", key).row(0)
        raise DataError(
            f"{name.removeprefix(OWN).partition('=')[0]!r} changes within series {series!r}, so it "
            "is not static; name it as one known ahead"
        )
    last: datetime = starts.max()  # type: ignore[assignment]  # of a column of instants
    later = pl.Series([shift(last, i + 1, step) for i in range(ahead)], dtype=starts.dtype)
    steps = pl.concat([starts, later]).unique().alias(START)
    return values.join(steps.to_frame(), how="cross")


def average_days(rows: pl.DataFrame, keys: Sequence[str], *, are_days: bool) -> pl.DataFrame:
    """Return values as one a day, by ``keys`` with a name; of finer rows mean, lowest and highest.

    Their kind is part of their names.
    """
    value = pl.col("value")
    summaries = {"": value.first()}
    if not are_days:
        summaries = {"_mean": value.mean(), "_min": value.min(), "_max": value.max()}
    by_day = rows.group_by(keys, maintain_order=True)
    return pl.concat(
        by_day.agg(summary).with_columns(pl.col("name") + suffix)
        for suffix, summary in summaries.items()
    )


def _summarize_days(values: pl.DataFrame, spec: DatasetSpec) -> pl.DataFrame:
    """Return measured values by the day that ends where windows begin, known when it is over.

    Of steps below a day their mean, lowest and highest.
    """
    if spec.step > DAY:
        raise DataError(
            "columns of measured values (past=...) are read by day, and a step of this table is "
            "longer; leave them out, or give the table by day"
        )
    clock = -spec.market_offset
    begin = pl.col(START) if spec.step == DAY else (pl.col(START) - clock).dt.truncate("1d") + clock
    days = values.with_columns(end=begin + DAY)

    # A view's calendar names the local day of its origin; the day before it is the last one over.
    local = pl.col("end").dt.convert_time_zone(spec.default_place.timezone).dt.date()
    return (
        average_days(days, [SERIES, "name", "end"], are_days=spec.step == DAY)
        .select(
            entity=SERIES,
            name="name",
            valid_date=local - pl.duration(days=1),
            value="value",
            available_at=pl.col("end") - _INSTANT,
            source=pl.lit("table"),
        )
        .cast(dict(COVARIATE_SCHEMA))  # type: ignore[arg-type]  # names to types
    )
