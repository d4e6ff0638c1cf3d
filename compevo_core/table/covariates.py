"""Columns beside the values, each with the instant from which a forecaster knows it.

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
from compevo_core.data.schemas import (
    ARTICLE_SCHEMA,
    COVARIATE_SCHEMA,
    STEP_COVARIATE_SCHEMA,
    UTC_US,
)
from compevo_core.data.steps import DAY, shift
from compevo_core.data.view import WindowView
from compevo_core.errors import DataError
from compevo_core.runtime.files import hash_text
from compevo_core.table.frames import (
    COLUMN,
    KNOWN_AT,
    SERIES,
    START,
    Frame,
    TableForm,
    to_polars,
)
from compevo_core.table.stamps import Clock, read_stamps

_ALWAYS = datetime(1900, 1, 1, tzinfo=UTC)  # before any origin
_INSTANT = timedelta(microseconds=1)
_ID_DIGITS = 32  # of an article's hash


def list_covariates(rows: pl.DataFrame, form: TableForm, spec: DatasetSpec) -> dict[str, Any]:
    """Return the frames of covariates that views and windows are built with, by argument.

    DataError for measured columns beside steps longer than a day.
    """
    frames = {}
    if form.ahead:
        known = pl.col(KNOWN_AT) if form.known_at else pl.lit(_ALWAYS, dtype=UTC_US)
        by_step = _unpivot(rows, form.ahead, START, KNOWN_AT if form.known_at else START)
        frames["step_covariates"] = by_step.select(
            entity=SERIES,
            name=OWN + pl.col("name"),
            start_utc=START,
            value="value",
            available_at=known,
            source=pl.lit("table"),
        ).cast(dict(STEP_COVARIATE_SCHEMA))  # type: ignore[arg-type]  # names to types

    if form.past:
        frames["covariates"] = _summarize_days(_unpivot(rows, form.past, START), spec)
    return frames


def require_ahead(
    views: Sequence[WindowView], form: TableForm, steps: int, end: datetime, spec: DatasetSpec
) -> None:
    """Raise a DataError where the next steps lack a value that is known ahead."""
    is_open = form.is_open([shift(end, number, spec.step) for number in range(steps)]).to_numpy()
    for view in views:
        for name in form.ahead:
            values = view.step_covariates.get(OWN + name)
            is_known = False if values is None else np.isfinite(values[:steps])
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

    A date without a time is known when its day is over; rows without words are none. DataError if a
    column is missing or of another type.
    """
    _, frame = to_polars(table, time)
    for name in (time, text):
        if name not in frame.columns:
            raise DataError(
                f"news needs a column {name!r}; the columns are "
                f"{', '.join(map(repr, frame.columns))}"
            )

    if frame.schema[text] not in (pl.String, pl.Null):
        raise DataError(f"column {text!r} holds {frame.schema[text]}, not text; name another")
    stamps, _, are_days = read_stamps(frame[time])
    titles = [" ".join((words or "").split()) for words in frame[text].cast(pl.String)]
    known = clock.locate(stamps + DAY if are_days else stamps)
    rows = pl.DataFrame(
        {"title": titles, "published_at": known}, schema_overrides={"title": pl.String}
    )

    rows = rows.filter(pl.col("title") != "").unique(maintain_order=True)
    address = pl.concat_str(
        pl.lit("table/"), pl.col("published_at").dt.epoch("us"), pl.lit("/"), pl.col("title")
    )
    articles = rows.with_columns(
        url=address,
        article_id=address.map_elements(lambda it: hash_text(it)[:_ID_DIGITS], pl.String),
        available_at="published_at",
        fetched_at="published_at",
        source=pl.lit("table"),
    )
    return pl.concat([pl.DataFrame(schema=ARTICLE_SCHEMA), articles], how="diagonal")


def _unpivot(rows: pl.DataFrame, names: Sequence[str], *index: str) -> pl.DataFrame:
    """Return one row for each known value of some columns."""
    keys = list(dict.fromkeys([SERIES, *index]))
    columns = [COLUMN + name for name in names]
    long = rows.select(*keys, *columns).unpivot(
        columns, index=keys, variable_name="name", value_name="value"
    )
    return long.with_columns(pl.col("name").str.strip_prefix(COLUMN)).drop_nulls("value")


def average_days(rows: pl.DataFrame, keys: Sequence[str], *, are_days: bool) -> pl.DataFrame:
    """Return values as one a day, by ``keys`` with a name; of finer rows mean, lowest and highest.

    Names of the three say which they are.
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
