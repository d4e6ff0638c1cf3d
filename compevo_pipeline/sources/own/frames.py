"""A user's tables as frames: series, covariates by day, articles; with counts of repairs.

What belongs here: stamps to interval starts, duplicates, rows off the grid, days and when a value
of one was known, which words keep an article. What does not: what a cell is
(``compevo_core.table``), gaps between rows (``data.series``), GDELT's format (``sources.gdelt``).

What can be decided is repaired and counted: equal duplicates, another order of rows, units in
cells. Anything else is an error that names its row. Articles are named by their data set.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import polars as pl

from compevo_core.data.content import is_code
from compevo_core.data.context import OWN
from compevo_core.data.datasets import ALL_SERIES
from compevo_core.data.news import deduplicate_articles, derive_article_id, holds_word
from compevo_core.data.schemas import COVARIATE_SCHEMA, STEP_COVARIATE_SCHEMA, UTC_US
from compevo_core.data.series import resample_to_step
from compevo_core.data.steps import (
    DAY,
    MONTH,
    count_steps,
    is_calendar_step,
    name_step,
    read_step,
    shift,
)
from compevo_core.errors import DataError
from compevo_core.table import text_stamps
from compevo_core.table.cells import LINE, DecimalMark, TextColumn, is_numeric, read_numbers
from compevo_core.table.covariates import average_days, encode_categories, repeat_static
from compevo_core.table.frames import SERIES, START, VALUE, add_totals
from compevo_core.table.stamps import settle
from compevo_pipeline.sources.common.articles import NewsRecord, build_article_frame
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.tables import build_series_frame, flag_missing
from compevo_pipeline.sources.own.declaration import (
    SERIES_PREFIX,
    AheadKeys,
    CovariateKeys,
    Declaration,
    SeriesKeys,
    make_label,
    make_spec,
    name_variable,
)
from compevo_pipeline.sources.own.table import read_columns, read_text_table, select_columns

CODES = "code(s) of a missing value"  # how the count of each begins
_START, _STAMP = "_start", "_stamp"
_VALUE = "_value"
_PARTS_OF_DAY = (24, 48, 96, 288)
PART_OF_DAY = r"(?i)^\s*(?:he?|hr|hour|sp|p)?[ _]?(\d{1,3})\s*$"
"""How a cell numbers a part of the day: 1 to 50 half-hours where clocks go back."""
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock
_ALWAYS = datetime(1900, 1, 1, tzinfo=UTC)  # before any origin


def parse_series(
    raw: RawFile, declaration: Declaration, text: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, Counter[str]]:
    """Parse the table of values; count, in words, what was repaired or left empty.

    ``text`` is the file's table as text, if that was read before.
    """
    keys = declaration.series
    if text is None:
        text = read_text_table(raw.content, raw.name)
    named = filter(None, [keys.id, keys.period])
    table = select_columns(text, raw.name, [keys.time, *keys.values, *named])
    times = join_clock(TextColumn(table, raw.name, keys.time), keys.period)
    stamps, report = read_stamps(
        times,
        keys.period,
        zone=keys.time_zone,
        time_format=keys.time_format,
        by=keys.id,
        repeated_hour=keys.repeated_hour,
        are_ends=keys.stamps == "end",
    )
    starts = _find_starts(times, stamps, declaration)
    entities = _name_entities(table, raw.name, declaration)
    repairs = Counter({"repeated hours": report.repeated})
    if not keys.aggregate:
        is_off = (stamps - starts).dt.total_seconds() % 60 != 0
        repairs["stamps seconds off"] = int(is_off.sum())

    step = read_step(declaration.grid.step)
    offset = text_stamps.find_standard_offset(keys.time_zone)
    frames = []
    for column, entity in entities:
        values, cells = read_numbers(TextColumn(table, raw.name, column), keys.decimal)
        repairs.update(
            {"rows": table.height, "empty cells": cells.empty, "cells with unit": cells.with_unit}
        )
        times_and_values = (starts.alias(_START), stamps.alias(_STAMP), values.alias(_VALUE))
        rows = table.select(LINE, *times_and_values, entity)
        is_missing = is_code(_VALUE, "_entity")
        for code, count in rows.filter(is_missing)[_VALUE].value_counts(sort=True).iter_rows():
            repairs[f"{CODES}, {code:.10g}"] += count
        rows = rows.with_columns(pl.when(~is_missing).then(_VALUE).alias(_VALUE))
        if keys.aggregate:
            value = getattr(pl.col(_VALUE).drop_nulls(), keys.aggregate)()
            known = pl.when(pl.col(_VALUE).count() > 0).then(value)
            key = ["_entity", _START]
            rows = rows.sort(_STAMP).group_by(key).agg(known, pl.col(LINE).first()).sort(key)
        else:
            rows, joined = _join_duplicates(TextColumn(rows, raw.name, column), keys.duplicates)
            repairs.update(joined)
        if keys.fill is not None:
            # Every step from the first of a series to the table's last.
            first, last = cast(datetime, rows[_START].min()), cast(datetime, rows[_START].max())
            steps = [shift(first, i, step) for i in range(count_steps(first, last, step) + 1)]
            begins = rows.group_by("_entity", maintain_order=True).agg(_first=pl.col(_START).min())
            all_steps = pl.DataFrame({_START: steps}, schema={_START: rows.schema[_START]})
            grid = begins.join(all_steps, how="cross").filter(pl.col(_START) >= pl.col("_first"))
            rows = grid.join(rows, on=["_entity", _START], how="left", maintain_order="left")
            rows = rows.drop("_first").with_columns(pl.col(_VALUE).fill_null(keys.fill))
        for of_series in rows.partition_by("_entity", maintain_order=True):
            frame = build_series_frame(
                of_series,
                raw,
                series_id=pl.concat_str(pl.lit(f"{SERIES_PREFIX}/"), pl.col("_entity")),
                variable=name_variable(declaration),
                # Steps begin at midnight of the clock, which need not be one of UTC.
                start_utc=pl.col(_START) + offset,
                value=pl.col(_VALUE),
                unit=keys.unit,
            )
            frames.append(resample_to_step(frame, step).with_columns(pl.col("start_utc") - offset))
    return _add_totals(pl.concat(frames), raw.name, declaration), repairs


def join_clock(times: TextColumn, period: str) -> TextColumn:
    """Return days with the clock times of another column, if that has clock times."""
    if not period or not text_stamps.are_clock_times(times.table[period]):
        return times
    return times.add(**{times.name: text_stamps.add_clock(times.text, pl.col(period))})


def read_stamps(
    times: TextColumn,
    period: str,
    *,
    zone: str,
    time_format: str,
    by: str,
    repeated_hour: text_stamps.RepeatedHour,
    are_ends: bool,
) -> tuple[pl.Series, text_stamps.StampReport]:
    """Read stamps in UTC; move days to the start, or end, of the part that a column numbers.

    Parts have one length, so that a day has more or fewer of them where clocks change. Where a
    stamp of a series ``by`` would come twice, they number the hours that the clock shows. Clock
    times are in the stamps already. DataError if a number is not whole, or a day has too many.
    """
    stamps, report = text_stamps.read_stamps(
        times, zone=zone, time_format=time_format, by=by, repeated_hour=repeated_hour
    )
    if not period or text_stamps.are_clock_times(times.table[period]):
        return stamps, report
    parts = TextColumn(times.table, times.file, period).add(
        _part=pl.col(period).str.extract(PART_OF_DAY, 1).cast(pl.Int64)
    )
    parts.raise_if(
        pl.col("_part").is_null(),
        "numbers no part of the day",
        "number the parts of each day 1, 2, 3 and so on, with more of them where clocks go back",
    )
    number = parts.table["_part"]
    first, last = cast(int, number.min()), cast(int, number.max())
    count = min(_PARTS_OF_DAY, key=lambda usual: abs(last + 1 - first - usual))
    has_summer = text_stamps.find_standard_offset(zone) != text_stamps.find_summer_offset(zone)
    if last + 1 - first > count and not has_summer:
        raise DataError(
            f"{times.file}: {period!r} numbers more parts of a day than {count}, as where clocks "
            "go back; say whose clock it is with --zone, such as --zone Europe/London"
        )
    since_midnight = (number - first) * (DAY // count)
    starts = stamps + since_midnight
    key = parts.table.select(starts, *filter(None, [by]))
    if last + 1 - first == count and key.is_duplicated().any():
        walls = text_stamps.to_wall_clock(stamps, zone) + since_midnight
        starts, _ = text_stamps.read_on_clock(
            parts.add(**{text_stamps.LOCAL: pl.lit(walls)}), zone, by, repeated_hour
        )
    return starts + first * (DAY // count) if are_ends else starts, report


def _add_totals(frame: pl.DataFrame, name: str, declaration: Declaration) -> pl.DataFrame:
    """Return a frame with a series for each declared total, as the ``Forecaster`` adds them."""
    totals = {
        _name_series(total): parts if parts == [ALL_SERIES] else [*map(_name_series, parts)]
        for total, parts in declaration.totals.items()
    }
    if not totals:
        return frame
    if own := {*totals} & {*frame["series_id"].unique()}:
        raise DataError(f"{name}: the total {min(own)} is a series of its own; rename it")

    sums = add_totals(frame.rename({"series_id": SERIES}), totals).rename({SERIES: "series_id"})
    sums = sums.filter(pl.col("series_id").is_in([*totals])).select("series_id", START, VALUE)
    facts = frame.select("variable", "unit", "source", "fetched_at").head(1)
    named = sums.with_columns(flag=flag_missing(pl.col(VALUE))).join(facts, how="cross")
    return pl.concat([frame, named.select(frame.columns)])


def _name_series(text: str) -> str:
    return f"{SERIES_PREFIX}/{make_label(text)}"


def _name_entities(
    table: pl.DataFrame, name: str, declaration: Declaration
) -> list[tuple[str, pl.Expr]]:
    """Return each column of values with the expression of its series' name."""
    keys = declaration.series
    if keys.id:
        ids = TextColumn(table, name, keys.id)
        ids.raise_if(pl.col(keys.id).is_null(), "names no series", "fill the cell")
        texts = table[keys.id].unique(maintain_order=True).to_list()
    else:
        texts = list(keys.values)

    labels = {text: make_label(text) for text in texts}
    counts = Counter(labels.values())
    if alike := [text for text, label in labels.items() if not label or counts[label] > 1]:
        raise DataError(
            f"{name}: the names {', '.join(map(repr, alike[:4]))} have the same letters and "
            "digits, or none at all; rename the columns or series"
        )
    if keys.id:
        entity = pl.col(keys.id).replace_strict(labels)
        return [(keys.values[0], entity.alias("_entity"))]
    return [(column, pl.lit(labels[column]).alias("_entity")) for column in keys.values]


def _find_starts(
    times: TextColumn, stamps: pl.Series, declaration: Declaration, *, is_whole_step: bool = False
) -> pl.Series:
    """Return the start of each interval in UTC, on the clock without daylight saving for days.

    With ``is_whole_step`` no row may be finer than a step.
    """
    keys = declaration.series
    step = read_step(declaration.grid.step)
    offset = text_stamps.find_standard_offset(keys.time_zone)

    if is_calendar_step(step):
        # Of the first or the last day of a month; what ends with the first ended the month before.
        local = text_stamps.to_wall_clock(stamps, keys.time_zone)
        is_end = keys.stamps == "end"
        months = (local - timedelta(microseconds=1) if is_end else local).dt.truncate("1mo")
        if not is_end and (local.dt.date() == local.dt.month_end().dt.date()).all():
            months = months.dt.offset_by(f"-{step // MONTH - 1}mo")  # a quarter by its last day
        first = cast(datetime, months.min())
        number = 12 * pl.col("_month").dt.year() + pl.col("_month").dt.month()
        times.add(_month=pl.lit(months)).raise_if(
            (number - 12 * first.year - first.month) % (step // MONTH) != 0,
            f"is off the grid of {name_step(step)}, which begins {first:%Y-%m}",
            "correct the stamp, or write one row for each step",
        )
        return (months - offset).dt.replace_time_zone("UTC")
    if step >= DAY:
        # A day keeps its date: midnights of a clock with daylight saving are not a day apart.
        days = text_stamps.to_wall_clock(stamps, keys.time_zone).dt.truncate("1d")
        first = cast(datetime, days.min())
        if keys.aggregate:
            days = first + (days - first).dt.total_days() // step.days * step
        starts = (days - offset).dt.replace_time_zone("UTC")
        times.add(_since=pl.lit(days - first)).raise_if(
            pl.col("_since").dt.total_microseconds() % (step // timedelta(microseconds=1)) != 0,
            f"is off the grid of {name_step(step)}, which begins {first:%Y-%m-%d}",
            "correct the stamp, or write one row for each step: longer ones than a day are not "
            "made of finer rows",
        )
        if keys.stamps != "end":
            return starts
        # A date ends with its day, and a midnight with the day before.
        has_times = times.table.select(text_stamps.has_time(times.text).any()).item()
        return starts - (step if has_times else step - DAY)

    distance = step
    if not (is_whole_step or keys.aggregate):
        distances = stamps.unique().sort().diff().drop_nulls()
        common = distances.mode().min() if len(distances) else step
        # Finer rows, whose distance divides the step, are averaged.
        if isinstance(common, timedelta) and common < step and not step % common:
            distance = common
    are_ends = keys.stamps == "end"
    starts = stamps - distance if are_ends else stamps
    clock = settle((starts + offset).dt.replace_time_zone(None), distance, are_ends=are_ends)
    if keys.aggregate:
        clock = clock.dt.truncate(f"{step // timedelta(seconds=1)}s")
    delays = find_delays(clock, distance)
    if delays.n_unique() == 1 and not is_whole_step:
        return (clock - delays - offset).dt.replace_time_zone("UTC")
    times.add(_delay=pl.lit(delays)).raise_if(
        pl.col("_delay") != timedelta(0),
        f"is off the grid of {distance}",
        "correct the stamp, give --step (grid.step) a length that all stamps fit, or --aggregate "
        "sum, mean or last for events",
    )
    return (clock - offset).dt.replace_time_zone("UTC")


def find_delays(clock: pl.Series, step: timedelta) -> pl.Series:
    """Return how long after a step begins each stamp of a clock comes."""
    microseconds = (clock - _EPOCH).dt.total_microseconds() % (step // timedelta(microseconds=1))
    return microseconds.cast(pl.Duration("us"))


def _join_duplicates(column: TextColumn, rule: str) -> tuple[pl.DataFrame, dict[str, int]]:
    """Return one row a stamp and series, in order; series by series, since all are large."""
    rows = column.table
    # A file whose newest row comes first is in order as well.
    is_reversed = rows[_START][0] > rows[_START][-1]
    joined: dict[str, pl.DataFrame] = {}
    contradicting: list[pl.DataFrame] = []
    found: Counter[str] = Counter()
    for part in rows.partition_by("_entity", maintain_order=True):
        starts = part[_START].reverse() if is_reversed else part[_START]
        # The same value twice is the same row twice; an empty cell gives way to a value.
        distinct = part.unique([_START, _VALUE], keep="first", maintain_order=True)
        has_value = pl.col(_VALUE).is_not_null().any().over(_START)
        distinct = distinct.filter(pl.col(_VALUE).is_not_null() | ~has_value)

        other = pl.col(_VALUE).first().over(_START)
        first_row = pl.col(LINE).first().over(_START)
        marked = distinct.with_columns(other.alias("_other"), first_row.alias("_first"))
        contradicting.append(marked.filter(pl.col(_VALUE) != pl.col("_other")))
        value = getattr(pl.col(_VALUE), "first" if rule == "refuse" else rule)()
        grouped = distinct.group_by("_entity", _START, maintain_order=True)
        one_each = grouped.agg(value, pl.col(LINE).first()).sort(_START)
        joined[part["_entity"][0]] = one_each
        found += {
            "out of order": int((starts < starts.cum_max()).sum()),
            "equal duplicates": part.height - distinct.height,
            "joined duplicates": distinct.height - one_each.height,
        }

    wrong = pl.concat(contradicting)
    if wrong.height and rule == "refuse":
        row = wrong.sort(LINE).row(0, named=True)
        raise DataError(
            f"{column.file}, row {row[LINE]}, column {column.name!r}: the stamp of row "
            f"{row['_first']} again, with {row[_VALUE]:g} where that has {row['_other']:g}"
            f" ({wrong.height:,} such rows); remove one, give --duplicates first, last or "
            "mean (duplicates in the declaration), or name the column of series with --id (id)"
        )
    return pl.concat([joined[entity] for entity in sorted(joined)]), found


def parse_covariates(
    raw: RawFile, declaration: Declaration, keys: CovariateKeys, entities: Sequence[str]
) -> pl.DataFrame:
    """Parse the table of daily values.

    A value of a day is known when the day of the data set is over; plans and forecasts when it
    begins. ``entities`` are the series that a table without a column of series is for.
    """
    # Which of two equal hours a value is in makes no other day.
    times, stamps, report = _read_stamped(raw, declaration, keys, keys.values, keys.id)
    days = text_stamps.to_wall_clock(stamps, declaration.series.time_zone).dt.date()
    times = times.add(valid_date=pl.lit(days))
    if report.are_days:
        times.raise_if(
            ~pl.struct("valid_date", "entity").is_first_distinct(),
            "comes twice",
            "keep one row a day, or name the column of series as covariates.id",
        )

    frames = []
    for column in keys.values:
        values, _ = read_numbers(replace(times, name=column), keys.decimal)
        named = times.table.with_columns(value=values, name=pl.lit(make_label(column)))
        frames.append(named.drop_nulls("value"))
    keys_of_day = ["entity", "valid_date", "name"]
    frame = average_days(pl.concat(frames), keys_of_day, are_days=report.are_days)

    spec, is_over = make_spec(declaration), DAY if keys.known == "after" else DAY * 0
    known = {day: spec.from_market(day + is_over) for day in frame["valid_date"].unique()}
    midnight = pl.col("valid_date").replace_strict(known, return_dtype=UTC_US)
    # Known before the origin: a plan that is out at midnight sharp was out the instant before.
    frame = frame.with_columns(available_at=midnight - pl.duration(microseconds=1))
    return _select(frame, raw, COVARIATE_SCHEMA, () if keys.id else entities)


def _read_stamped(
    raw: RawFile,
    declaration: Declaration,
    keys: CovariateKeys | AheadKeys | SeriesKeys,
    columns: Sequence[str],
    by: str,
) -> tuple[TextColumn, pl.Series, text_stamps.StampReport]:
    """Return columns with ``entity``, and the stamps as :func:`text_stamps.read_stamps` does."""
    named = [keys.time, *columns, *filter(None, [keys.id])]
    names = pl.col(keys.id).map_elements(make_label, pl.String) if keys.id else pl.lit("")
    times = TextColumn(read_columns(raw.content, raw.name, named), raw.name, keys.time)
    zone, form = declaration.series.time_zone, keys.time_format
    read = text_stamps.read_stamps(times, zone=zone, time_format=form, by=by, repeated_hour="first")
    return times.add(entity=names), *read


def parse_ahead(
    raw: RawFile, declaration: Declaration, keys: AheadKeys, entities: Sequence[str]
) -> pl.DataFrame:
    """Parse the table of values that are known ahead, one for each step of the series' grid.

    Arguments as of :func:`parse_covariates`.
    """
    columns = [*keys.values, *filter(None, [keys.known_at])]
    times, stamps, _ = _read_stamped(raw, declaration, keys, columns, keys.id or keys.known_at)
    starts = _find_starts(times, stamps, declaration, is_whole_step=True)
    known = pl.lit(_ALWAYS)
    if keys.known_at:
        moments, about = text_stamps.read_stamps(
            replace(times, name=keys.known_at),
            zone=declaration.series.time_zone,
            time_format=keys.time_format,
            # The later of two possible hours: a value is never known too early.
            repeated_hour="second",
        )
        # A date without a time is known when its day is over.
        known = pl.lit(moments + DAY if about.are_days else moments)

    times = times.add(start_utc=pl.lit(starts), available_at=known)
    key = ["entity", "start_utc", "available_at"]
    times.raise_if(
        ~pl.struct(key).is_first_distinct(),
        "comes twice" + (f" with one {keys.known_at}" if keys.known_at else ""),
        "keep one row, name the column of series as ahead.id, or the column with the time at which "
        "each value was known as ahead.known_at",
    )

    frame = _read_values(times, keys.values, keys.decimal, key)
    return _select(frame, raw, STEP_COVARIATE_SCHEMA, () if keys.id else entities)


def parse_static(raw: RawFile, declaration: Declaration) -> pl.DataFrame:
    """Parse what describes each series as values of all its steps, and of those to come."""
    keys, grid = declaration.series, declaration.grid
    times, stamps, _ = _read_stamped(raw, declaration, keys, keys.static, keys.id)
    starts = _find_starts(times, stamps, declaration)
    values = _read_values(times, keys.static, keys.decimal, ["entity"])
    reach = grid.horizon_steps + grid.lookback_steps
    held = repeat_static(values, "entity", starts, read_step(grid.step), reach)
    held = held.with_columns(available_at=pl.lit(_ALWAYS))
    return _select(held, raw, STEP_COVARIATE_SCHEMA, ())


def _read_values(
    rows: TextColumn, columns: Sequence[str], decimal: DecimalMark, key: Sequence[str]
) -> pl.DataFrame:
    """Return a row for each known value of some columns, words as categories."""
    frames = []
    for column in columns:
        cells = replace(rows, name=column)
        label = pl.lit(OWN + make_label(column)).alias("name")
        if is_numeric(cells):
            values, _ = read_numbers(cells, decimal)
            part = rows.table.select(*key, label, values.alias("value")).drop_nulls("value")
        else:
            words = pl.when(~cells.is_blank).then(
                pl.col(column).map_elements(make_label, pl.String)
            )
            part = encode_categories(
                rows.table.select(*key, label, words.alias("value")).drop_nulls("value")
            )
        frames.append(part)
    return pl.concat(frames)


def _select(
    frame: pl.DataFrame, raw: RawFile, schema: Mapping[str, pl.DataType], entities: Sequence[str]
) -> pl.DataFrame:
    """Return values in the columns of a schema; those that name no series, for each of some."""
    if entities:
        names = pl.DataFrame({"entity": list(entities)}, schema={"entity": pl.String})
        frame = frame.drop("entity").join(names, how="cross")
    labelled = frame.with_columns(source=pl.lit(raw.label))
    return labelled.select(pl.col(name).cast(kind) for name, kind in schema.items())


def parse_articles(raw: RawFile, declaration: Declaration) -> tuple[pl.DataFrame, dict[str, int]]:
    """Parse the table of articles; count the rows that repeat an address and time.

    Without an address the headline identifies an article. A date without a time is known when
    its day is over: nothing says that it was earlier.
    """
    news = declaration.news
    optional = [column for column in (news.url, news.body) if column]
    table = read_columns(raw.content, raw.name, [news.time, news.title, *optional])
    titles = TextColumn(table, raw.name, news.title)
    titles.raise_if(titles.text == "", "is not a headline", "write one, or remove the row")
    if news.url:
        wrong = []
        for cell in table[news.url].fill_null("").unique():
            try:
                derive_article_id(cell)
            except ValueError:
                wrong.append(cell)
        TextColumn(table, raw.name, news.url).raise_if(
            pl.col(news.url).fill_null("").is_in(wrong),
            "is not an address of a page, nor a name",
            "correct it, or leave the cell empty",
        )

    stamps, report = text_stamps.read_stamps(
        TextColumn(table, raw.name, news.time),
        zone=declaration.series.time_zone,
        time_format=news.time_format,
        # The later of two possible hours: an article is never known too early.
        repeated_hour="second",
    )
    if report.are_days:
        stamps = stamps + DAY

    records = [
        NewsRecord(
            url=f"{moment:%Y%m%dT%H%M%S}/{row.get(news.url, '').strip() or row[news.title]}",
            title=row[news.title],
            body=row.get(news.body, ""),
            published_at=moment,
            seen_at=moment,
        )
        for row, moment in zip(table.fill_null("").iter_rows(named=True), stamps, strict=True)
    ]
    frame = build_article_frame(records, raw, raw.fetched_at)
    page = pl.col("url").str.extract(r"^[^/]*/(https?://.*)$").fill_null(pl.col("url"))
    claimed = claim_articles(frame, declaration).with_columns(url=page)
    return claimed, {"repeated": table.height - frame.height}


def claim_articles(frame: pl.DataFrame, declaration: Declaration) -> pl.DataFrame:
    """Return the articles that the declared words keep, as articles of this data set."""
    if declaration.news.keywords:
        frame = frame.filter(holds_word(declaration.news.keywords))

    ids = [derive_article_id(f"{declaration.name}:{url}") for url in frame["url"]]
    named = frame.with_columns(pl.Series("article_id", ids, dtype=pl.String))
    return deduplicate_articles(named)
