"""Tables of a user as the library's series, and forecasts as tables of the same kind.

What belongs here: pandas and polars, names and types of columns, the windows that suit a table.
What does not: stamps (``table.stamps``), fitting (``table.forecaster``), files (the pipeline).
"""

import dataclasses
import itertools
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from numbers import Real
from statistics import median
from typing import Any, Literal

import polars as pl

from compevo_core.data.calendar import Place
from compevo_core.data.content import is_code
from compevo_core.data.datasets import ALL_SERIES, DatasetSpec
from compevo_core.data.quantiles import FEWEST
from compevo_core.data.schemas import SERIES_SCHEMA, UTC_US
from compevo_core.data.series import (
    choose_season,
    find_closed,
    find_minutes,
    measure_gaps,
    select_going_on,
    skip_closed,
)
from compevo_core.data.splits import divide_days
from compevo_core.data.steps import (
    DAY,
    FEWEST_INPUTS,
    choose_bridge,
    choose_horizon,
    choose_lookback,
    choose_stride,
    count_steps,
    is_calendar_step,
    name_step,
    shift,
)
from compevo_core.errors import DataError, import_package, list_some
from compevo_core.table.cells import MOST, guess_decimal, is_numeric, number_rows, read_names
from compevo_core.table.cells import read_numbers as read_cells
from compevo_core.table.stamps import Clock, DateOffset, read_stamps
from compevo_core.table.text_stamps import list_zones

SERIES, START, VALUE = "series", "start_utc", "value"
"""Columns of a table once it is read."""
COLUMN, KNOWN_AT = "column:", "known_at"
"""What names of a user's other columns then begin with, and when those were known."""

Frame = Any
"""A table of the user's kind: a DataFrame of pandas or polars."""

PREFIX = "TABLE/"
_LABELS = {"int": int, "float": float, "str": str}
_ONE_SERIES = "y"  # what the one series of a table without names is called
_VALIDATION_SHARE = 0.2
_LEAST_WINDOWS = 10  # of train, as a ridge needs
_LEAST_HORIZONS = 3  # of validation, where there is room for them
_MOST_HALVINGS = 6  # of the usual horizon and look-back, where a table is short
_MOST_TWICE = 0.01  # share of rows that share their stamp where clocks change


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableForm:
    """How a user's table was formed, so that forecasts come in the same form."""

    kind: str  # pandas or polars
    time: str
    value: str
    series: str  # empty where the table is one series
    clock: Clock  # of its stamps
    unit: Literal["ns", "us", "ms"] = "us"  # of a polars table's stamps
    label: str  # type of the names of series: int, float or str
    ahead: tuple[str, ...] = ()  # columns known ahead
    past: tuple[str, ...] = ()  # columns known when their step is over
    static: tuple[str, ...] = ()  # columns with one value for each series
    words: tuple[str, ...] = ()  # those of all three that hold categories
    known_at: str = ""  # column of the time those ahead were known; empty: from the start
    ahead_apart: bool = False  # whether those ahead come in a table of their own
    closed: tuple[int, ...] = ()  # minutes of the week at which no row has a value

    def is_open(self, starts: Sequence[datetime]) -> pl.Series:
        """Return whether the table has values at the time of the week of each step."""
        minutes = find_minutes(
            pl.Series(starts, dtype=UTC_US), self.clock.step, self.clock.place_zone
        )
        return ~minutes.is_in(list(self.closed))

    def write(self, names: Sequence[str], starts: Sequence[datetime], **columns: Any) -> Frame:  # noqa: ANN401 - cells
        """Return rows as a table of the user's kind: series, stamps on its clock, columns.

        Steps at which the table never has a value, such as weekends, are left out.
        """
        head = {self.series: list(map(_LABELS[self.label], names))} if self.series else {}
        frame = pl.DataFrame({**head, self.time: self.clock.read(starts, self.time), **columns})
        frame = frame.filter(self.is_open(starts))
        if self.kind == "polars":  # which joins no stamps of another unit
            frame = frame.with_columns(pl.selectors.datetime().dt.cast_time_unit(self.unit))
        return frame.to_pandas() if self.kind == "pandas" else frame

    def write_scored(
        self,
        names: Sequence[str],
        starts: Sequence[datetime],
        cutoffs: Sequence[datetime],
        truth: pl.Series,
        columns: Mapping[str, pl.Series],
    ) -> Frame:
        """Return forecasts after some cutoffs with their true values; as :meth:`write`."""
        if self.value in ("cutoff", *columns):
            raise DataError(f"{self.value!r} is the name of a result, too: rename the column")
        cutoff = self.clock.read(cutoffs, "cutoff")
        return self.write(names, starts, **{"cutoff": cutoff, self.value: truth, **columns})


def read_table(
    table: Frame,
    columns: Any,  # noqa: ANN401 - their names, by attribute, as TableForm or Forecaster has them
    clock: Clock | str | timedelta | DateOffset | None = None,
) -> tuple[pl.DataFrame, TableForm]:
    """Return the rows of a table in the columns ``series, start_utc, value``, and its form.

    Columns have the names given. A table of two columns, or a pandas Series with stamps, may name
    them as it likes. Without a name of values, the table is one of columns known ahead. ``clock``
    comes from an earlier table, or is a step; both are found where it is None. DataError if the
    argument is no table, a column is missing or of another type, or a series has two different rows
    of one stamp (without values: of one stamp and ``known_at``).
    """
    series, time, value, known_at = columns.series, columns.time, columns.value, columns.known_at
    lists = {"ahead": columns.ahead, "past": columns.past, "static": columns.static}
    kind, frame = to_polars(table, time)
    names = frame.columns
    if value in lists["ahead"]:
        raise DataError(f"{value!r} is the column of values, which is not known ahead")
    if value and len(names) == 2 and series not in names and not {time, value} <= set(names):
        # The column of stamps comes first.
        is_stamp = {name: name == time or frame.schema[name].is_temporal() for name in names}
        time, value = sorted(names, key=lambda name: not is_stamp[name])
    if isinstance(columns, TableForm):  # series that were known need no description again
        lists["static"] = [name for name in columns.static if name in names]
        words = columns.words
    else:
        words = find_words(frame, [name for given in lists.values() for name in given])
    wanted = [(time, "time"), (value, "value"), (known_at, "known_at")]
    wanted += [(name, argument) for argument, given in lists.items() for name in given]
    for name, argument in wanted:
        if name and name not in names:
            wide = ", or unpivot columns that are series, by pandas' melt" if name == value else ""
            raise DataError(
                f"no column {name!r}; the columns are {', '.join(map(repr, names))}: name it by "
                f"Forecaster({argument}=...){wide}"
            )
    has_series = series in names
    if not frame.height:
        raise DataError("the table has no rows")
    for name in filter(None, [series if has_series else "", time, known_at]):
        is_empty = frame[name].is_null()
        if frame.schema[name] == pl.String:
            is_empty |= frame[name].str.strip_chars() == ""
        if count := is_empty.sum():
            raise DataError(f"column {name!r} is empty in {count} row(s); drop or fill them")

    stamps, zone, is_date = read_stamps(frame[time])
    label = frame[series] if has_series else pl.Series([_ONE_SERIES] * frame.height)
    rows = pl.DataFrame(
        {
            SERIES: read_names(label),
            START: stamps,
            VALUE: _read_numbers(frame, value, "value") if value else None,
            **{
                COLUMN + name: frame[name].cast(pl.String)
                if name in words
                else _read_numbers(frame, name, argument)
                for argument, given in lists.items()
                for name in given
            },
        },
        schema_overrides={VALUE: pl.Float64},
    )
    rows = _drop_codes(rows, value)
    if known_at:
        known, _, are_days = read_stamps(frame[known_at])
        # A date without a time is known when its day is over.
        rows = rows.with_columns((known + DAY if are_days else known).alias(KNOWN_AT))
    # A table without values may hold a stamp several times, each known at another time.
    key = [SERIES, START, *([KNOWN_AT] if known_at and not value else [])]
    rows = _join_duplicates(rows, key, columns.time, has_series=has_series, zone=zone)
    rows = rows.sort(SERIES, START)
    if not (is_joined := isinstance(clock, Clock)):
        stamps_of_series = rows.select(series=SERIES, start=START)
        clock = Clock.find(stamps_of_series, clock, zone=zone, is_date=is_date)
    elif bool(clock.zone) != bool(zone) and (clock.step < DAY or "UTC" not in (clock.zone, zone)):
        without = "localize(None)" if clock.step >= DAY else "convert('UTC').dt.tz_localize(None)"
        raise DataError(
            f"stamps in {time!r} have {'a' if zone else 'no'} zone and the stamps of the fit "
            f"{clock.zone or 'none'}: give both alike, as by df[{time!r}].dt.tz_"
            + (without if zone else f"localize({clock.zone!r})")
        )
    rows = rows.with_columns(clock.find_starts(rows[START]).alias(START))
    if not is_joined:
        least = rows.select(pl.col(START).diff().over(SERIES)).to_series().min()
        # Finer rows that divide a step are averaged.
        if not (isinstance(least, timedelta) and least < clock.step and not clock.step % least):
            require_steps(rows[START], clock.step, rows[START])
    if known_at:
        rows = rows.with_columns(clock.locate(rows[KNOWN_AT]).alias(KNOWN_AT))
    named = frame[series].dtype if has_series else pl.String()
    stamped = frame.schema[time]
    form = TableForm(
        kind=kind,
        time=time,
        value=value,
        series=series if has_series else "",
        clock=clock,
        unit=stamped.time_unit if isinstance(stamped, pl.Datetime) else "us",
        label="int" if named.is_integer() else "float" if named.is_float() else "str",
        ahead=tuple(columns.ahead),
        past=tuple(columns.past),
        static=tuple(columns.static),
        words=words,
        known_at=known_at,
        closed=find_closed(rows.drop_nulls(VALUE)[START], clock.step, clock.place_zone),
    )
    return rows, form


def _drop_codes(rows: pl.DataFrame, value: str) -> pl.DataFrame:
    """Return rows without the numbers that stand for a missing value, and warn of each column."""
    for name, kind in rows.schema.items():
        if kind != pl.Float64:
            continue
        is_code_here = rows.select(is_code(name, SERIES)).to_series()
        if count := int(is_code_here.sum()):
            codes = rows.filter(is_code_here)[name].unique().sort().head(3)
            warnings.warn(
                f"column {(value if name == VALUE else name.removeprefix(COLUMN))!r}: {count:,} "
                f"value(s) are read as missing: {', '.join(f'{code:.10g}' for code in codes)}",
                stacklevel=4,
            )
            rows = rows.with_columns(pl.when(~is_code_here).then(pl.col(name)).alias(name))
    return rows


def _join_duplicates(
    rows: pl.DataFrame, key: Sequence[str], time: str, *, has_series: bool, zone: str
) -> pl.DataFrame:
    """Return each row once; DataError where a series has two different rows of one ``key``."""
    if rows.select(key).is_duplicated().any():
        rows = rows.unique(maintain_order=True)
    twice = rows.filter(rows.select(key).is_duplicated())
    if not twice.height:
        return rows

    stamps, remedy = twice[START], "keep one row of each"
    if (
        not zone
        and twice.height <= _MOST_TWICE * rows.height
        and stamps.dt.hour().max() in range(5)
        and rows[START].dt.hour().n_unique() > 1
    ):
        remedy = (
            "if clocks change then, give stamps their zone, as "
            f"df[{time!r}].dt.tz_localize('Europe/Paris', ambiguous='infer'); or {remedy}"
        )
    elif not has_series:
        remedy = f"name the column of series names by Forecaster(series=...), or {remedy}"

    raise DataError(
        f"{twice.height} rows share a stamp, the first {stamps[0]:%Y-%m-%d %H:%M} UTC: {remedy}"
    )


def find_words(frame: pl.DataFrame, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that hold categories and no numbers."""
    return tuple(
        name
        for name in names
        if isinstance(kind := frame.schema.get(name), pl.Categorical | pl.Enum)
        or (kind == pl.String and not is_numeric(number_rows(frame[name])))
    )


def _read_numbers(frame: pl.DataFrame, name: str, argument: str) -> pl.Series:
    """Return a column as numbers, null where it is missing."""
    column = frame[name]
    if column.dtype == pl.String:
        cells = number_rows(column)
        return read_cells(cells, guess_decimal(cells))[0]
    if not column.dtype.is_numeric() and column.dtype not in (pl.Boolean, pl.Null):
        raise DataError(
            f"column {name!r} holds {column.dtype}, not numbers; convert it, or name another by "
            f"Forecaster({argument}=...)"
        )
    numbers = column.cast(pl.Float64).fill_nan(None)
    # The largest numbers stand for a missing value in many files.
    if count := int((numbers.abs() > MOST).sum()):
        raise DataError(
            f"column {name!r} is infinite or beyond {MOST:g} in {count} row(s); set them to missing"
        )
    return numbers


def to_polars(table: Frame, time: str) -> tuple[str, pl.DataFrame]:
    """Return which library the answer is for, and the table with its stamps in a column."""
    if isinstance(table, pl.LazyFrame):
        table = table.collect()
    if isinstance(table, pl.DataFrame):
        return "polars", table
    if type(table).__module__.partition(".")[0] == "pandas":
        if hasattr(table, "to_frame") and not hasattr(table, "columns"):
            table = table.to_frame(name=table.name or VALUE)
        # Stamps are often the index, which polars does not know.
        if time not in table.columns and hasattr(table.index, "freqstr"):
            table = table.rename_axis(index=table.index.name or time)
        if table.index.names != [None]:
            table = table.reset_index(allow_duplicates=True)
        if table.columns.nlevels > 1:  # as names over two rows of a file
            names = [" ".join(dict.fromkeys(filter(None, map(str, name)))) for name in table]
            table = table.set_axis(names, axis="columns")
        if not table.columns.is_unique:
            twice = table.columns[table.columns.duplicated()][0]
            raise DataError(f"several columns are named {twice!r}; rename or drop all but one")
        # Nor does it know periods, such as months, and offsets, such as +05:30.
        for name, kind in table.dtypes.items():
            if str(kind).startswith("period"):
                table = table.assign(**{name: table[name].dt.to_timestamp()})
            elif getattr(kind, "tz", None) is not None and str(kind.tz) not in list_zones():
                table = table.assign(**{name: table[name].dt.tz_convert("UTC")})
        return "pandas", pl.DataFrame({str(name): _read_column(table[name]) for name in table})
    if hasattr(table, "__arrow_c_stream__"):
        return "polars", pl.DataFrame(table)

    raise DataError(
        f"the table is a {type(table).__name__}; give a pandas or polars DataFrame with stamps and "
        "values, and a number of steps as horizon=..."
    )


def _read_column(column: Any) -> pl.Series:  # noqa: ANN401 - of pandas
    """Return a column of pandas; numbers with words such as n/a among them as text."""
    arrow = import_package("pyarrow")
    try:
        read = pl.Series(pl.from_pandas(column))
        if read.dtype == pl.Binary:  # UUIDs, which Arrow holds as their bytes
            read = pl.Series(pl.from_pandas(column.map(str, na_action="ignore")))
        return read
    except arrow.ArrowException as error:
        if all(isinstance(cell, str | Real) for cell in column.dropna()):
            return pl.Series(pl.from_pandas(column.astype("string")))
        raise DataError(
            f"column {column.name!r} holds values of several kinds ({error}); convert it to text "
            "or numbers"
        ) from error


def require_steps(starts: pl.Series, step: timedelta, known: pl.Series) -> None:
    """Raise DataError where a stamp is between the steps that most ``known`` ones follow."""
    if is_calendar_step(step):
        return
    length = step // timedelta(microseconds=1)
    usual = (known.dt.epoch("us") % length).mode().min()
    between = starts.filter(starts.dt.epoch("us") % length != usual)
    if len(between):
        raise DataError(
            f"{len(between):,} row(s) are between the steps of the table, which are "
            f"{name_step(step)} apart, the first {between[0]:%Y-%m-%d %H:%M} UTC: sum or average "
            "them to these, correct or drop them, or fit again"
        )


def join_rows(rows: pl.DataFrame, added: pl.DataFrame, step: timedelta) -> pl.DataFrame:
    """Return rows with newer ones, each stamp once; once a time at which columns were known."""
    require_steps(added[START], step, rows[START])
    joined = pl.concat([rows, added], how="diagonal")
    key = [name for name in (SERIES, START, KNOWN_AT) if name in joined.columns]
    return joined.unique(key, keep="last").sort(key)


def add_totals(rows: pl.DataFrame, totals: Mapping[str, Sequence[str]]) -> pl.DataFrame:
    """Return rows and a series for each total: the sums of its parts, as far as each reaches.

    Where a part lacks a value between its first and last, the sum has none. DataError for a part
    that is no series.
    """
    parts = rows.filter(~pl.col(SERIES).is_in(list(totals)))
    known = keep_values(parts).drop_nulls(VALUE).select(SERIES, START, VALUE)
    reach = known.group_by(SERIES).agg(first=pl.col(START).min(), last=pl.col(START).max())
    steps = known.select(pl.col(START).unique())
    sums = []
    for total, names in totals.items():
        wanted = reach if list(names) == [ALL_SERIES] else reach.filter(pl.col(SERIES).is_in(names))
        if missing := set(names) - {*wanted[SERIES], ALL_SERIES}:
            raise DataError(
                f"the total {total!r} has no part {min(missing)!r}; the series are "
                f"{list_some(reach[SERIES].sort().to_list())}: correct the totals"
            )
        grid = wanted.join(steps, how="cross").filter(pl.col(START).is_between("first", "last"))
        values = grid.join(known, on=[SERIES, START], how="left").group_by(START)
        whole = pl.when(pl.col(VALUE).null_count() == 0).then(pl.col(VALUE).sum())
        sums.append(values.agg(whole).with_columns(pl.lit(total).alias(SERIES)))
    return pl.concat([parts, *sums], how="diagonal").sort(SERIES, START)


def keep_values(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each stamp once, with its value where a row has one."""
    if KNOWN_AT not in rows.columns:
        return rows
    known = rows.sort(SERIES, START, pl.col(VALUE).is_not_null(), maintain_order=True)
    return known.unique([SERIES, START], keep="last", maintain_order=True)


def put_on_series(rows: pl.DataFrame, unit: str = "") -> pl.DataFrame:
    """Return rows as ``SERIES_SCHEMA`` has them."""
    is_known = pl.col(VALUE).is_not_null()
    series = keep_values(rows).select(
        series_id=PREFIX + pl.col(SERIES),
        variable=pl.lit(VALUE),
        start_utc=pl.col(START),
        value=pl.col(VALUE),
        unit=pl.lit(unit),
        flag=pl.when(is_known).then(pl.lit("observed")).otherwise(pl.lit("missing")),
        source=pl.lit("table"),
        fetched_at=pl.col(START).max(),
    )
    return series.cast(dict(SERIES_SCHEMA))  # type: ignore[arg-type]  # names to types


def find_ends(
    rows: pl.DataFrame, step: timedelta, zone: str, closed: Sequence[int]
) -> dict[str, datetime]:
    """Return the end of each series: of its last value, and of closed times after it.

    DataError if no row has a value.
    """
    known = rows.filter(pl.col(VALUE).is_not_null()).group_by(SERIES).agg(pl.col(START).max())
    if not known.height:
        raise DataError("no row has a value; name the column that has them")
    return {
        str(name): skip_closed(shift(last, 1, step), step, zone, closed)
        for name, last in sorted(known.iter_rows())
    }


def find_current_ends(rows: pl.DataFrame, form: TableForm, horizon: int) -> dict[str, datetime]:
    """Return the end of each series that continues; see :func:`select_going_on`."""
    step = form.clock.step
    ends = find_ends(rows, step, form.clock.place_zone, form.closed)
    return select_going_on(ends, horizon, step)


def plan_windows(
    rows: pl.DataFrame,
    step: timedelta,
    zone: str,
    *,
    horizon: int | None = None,
    lookback: int | None = None,
    country: str = "",
    bounds: tuple[float | None, float | None] = (None, None),
) -> DatasetSpec:
    """Plan the windows of rows (``series, start_utc, value``), on the clock of a zone.

    The spans are train, validation up to the table's end, and what is later. Windows of grids below
    a day begin at the time of day at which the table ended, and where the horizon is shorter a
    stride after it.

    Every door plans by this. What is None is found: forecasts stay at 0 or above where no value
    is below. DataError if there are too few rows.
    """
    first: datetime = rows[START].min()  # type: ignore[assignment]  # of a column of instants
    closed = find_closed(rows.drop_nulls(VALUE)[START], step, zone)
    ends = find_ends(rows, step, zone, closed)
    whole, n_series = count_steps(first, max(ends.values()), step), rows[SERIES].n_unique()
    usual = min(choose_horizon(step), max(1, whole // 8))

    def divide(
        ahead: int, end: datetime, halvings: int = 0
    ) -> tuple[bool, int, datetime, int, datetime]:
        """Return whether train has a window, the look-back, and where and how far validation is."""
        steps = count_steps(first, end, step)
        longest = max(FEWEST_INPUTS, (steps // 3) >> halvings)
        back = lookback or min(choose_lookback(step, ahead), longest)
        # Bands need the errors of some windows: below a day those are a stride apart.
        apart = choose_stride(step, ahead, steps, n_series) if step < DAY else 1
        usable = steps - back - 2 * ahead - _LEAST_WINDOWS * apart
        validation = max(
            int(_VALIDATION_SHARE * (steps - back)),
            _LEAST_HORIZONS * ahead,
            min(2 * ahead + FEWEST * apart, usable),
        )
        # Days are counted by a clock on which the table ends at midnight.
        last = end.replace(hour=0, minute=0, second=0, microsecond=0) if step < DAY else end
        begin = shift(last, -validation, step).replace(hour=0, minute=0, second=0, microsecond=0)
        stride = choose_stride(step, ahead, steps, n_series, validation)
        n_train = count_steps(first, begin + (end - last), step)
        return n_train >= back + ahead + max(ahead, stride), back, last, stride, begin

    # Halved until train has room, as a short table on a fine grid needs: spans are whole days.
    for halvings in range(_MOST_HALVINGS):
        ahead = horizon or max(1, usual >> halvings)
        end = min(select_going_on(ends, ahead, step).values())
        has_room, back, last, stride, begin = divide(ahead, end, halvings)
        if has_room:
            break
    else:
        later = (shift(end, more, step) for more in itertools.count(1))
        enough = next(count_steps(first, e, step) for e in later if divide(ahead, e, halvings)[0])
        shorter = next((h for h in range(ahead - 1, 0, -1) if divide(h, end)[0]), 0)
        raise DataError(
            f"{whole:,} steps of {name_step(step)} are too few for a look-back of "
            f"{back} and a horizon of {ahead}: give {enough:,} or more"
            + (f", or a horizon of {shorter}" if shorter else "")
        )

    low, high = bounds
    lowest = rows[VALUE].min()
    if low is None and isinstance(lowest, float) and lowest >= 0:
        low = 0.0
    longest_fill, most_filled = _allow_gaps(rows, step, back)
    pattern = f"^{PREFIX}(.+)$"
    return DatasetSpec(
        name="table",
        variable=VALUE,
        step=step,
        stride_steps=stride,
        series=((pattern, ""),),
        default_place=Place(timezone=zone, country=country),
        market_offset=last - end,
        align_to_market_day=step < DAY,
        lookback_steps=back,
        horizon_steps=ahead,
        season_steps=choose_season(put_on_series(rows).partition_by("series_id"), step, back),
        year_evidence=True,
        spans=divide_days(pattern, begin.date(), last.date()),
        max_fill_steps=longest_fill,
        max_filled_inputs=most_filled,
        bounds=(low, high),
        task=f"Predict the next {ahead} values of {{entity}}",
    )


def select_later(spec: DatasetSpec, since: datetime | None = None) -> DatasetSpec:
    """Return the plan of only the windows after a fit, of which no split keeps a distance."""
    first = spec.to_market(since).date() if since else spec.spans[-1].first_day
    return dataclasses.replace(spec, spans=(dataclasses.replace(spec.spans[-1], first_day=first),))


def find_distance(spec: DatasetSpec) -> timedelta:
    """Return the time from an instant at which a window may begin to the next one."""
    return spec.step if spec.step >= DAY else min(spec.stride_steps * spec.step, DAY)


def _allow_gaps(rows: pl.DataFrame, step: timedelta, lookback: int) -> tuple[int, int]:
    """Return the longest gap, and the inputs of a window, that may be carried over."""
    usual_gap = max(1, min(3 * max(1, DAY // step), lookback // 8))
    parts = rows.drop_nulls(VALUE).partition_by(SERIES)
    gaps = [(len(part), *measure_gaps(part[START], step)) for part in parts if len(part) > 1]
    bridge = None
    if gaps:
        # Gaps of one series in many are its own; those of most of them belong to the table.
        share = median(1 - count / steps for count, steps, _, _ in gaps)
        longest, usual = (int(median(gap[at] for gap in gaps)) for at in (2, 3))
        bridge = choose_bridge(step, share, longest, usual, lookback)
    return (usual_gap, lookback // 4) if bridge is None else (max(usual_gap, bridge[0]), bridge[1])
