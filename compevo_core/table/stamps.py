"""Stamps of a user's table: their clock and step, their grid, and the way back.

What belongs here: types of stamps, zones, months, the usual distance. What does not: texts
(``table.text_stamps``), other columns (``table.frames``), arithmetic of steps (``data.steps``).

Days of a zone differ in length where clocks change, and months always do. A grid of days or months
is counted on the zone's own clock, read as if it were UTC, and forecasts get their stamps back.
"""

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Protocol, Self, cast

import numpy as np
import polars as pl

from compevo_core.data.schemas import UTC_US
from compevo_core.data.series import find_calendar_step
from compevo_core.data.steps import DAY, MONTH, is_calendar_step, name_step, read_step
from compevo_core.errors import ConfigError, DataError
from compevo_core.table.cells import number_rows, read_names
from compevo_core.table.text_stamps import guess_format
from compevo_core.table.text_stamps import read_stamps as read_texts

_MOST_UNLIKE = 0.05  # share of distances that may differ from a multiple of the step
_MOST_LATE = 0.05  # of a step, for a stamp of a logger
_MINUTE = timedelta(minutes=1)
_MICROSECOND = timedelta(microseconds=1)
_INCLUSIVE_ENDS = (_MINUTE, _MINUTE / 60, timedelta(milliseconds=1), _MICROSECOND)
_HOUR = timedelta(hours=1)
_SHORT_MONTH = timedelta(days=27)
_LAST = 31  # as a day of the month: its last one
_FRIDAY = 5
_MOST_MOVED = 3  # days from one that is free to the next working day, such as over Easter
_NAMES_OF_STEPS = {
    "1min": ("min", "t", "minute", "minutes"),
    "1h": ("h", "bh", "hour", "hours", "hourly"),
    "1d": ("d", "b", "c", "day", "days", "daily"),
    "1w": ("w", "week", "weekly"),
    "1mo": ("M", "ms", "me", "bms", "bme", "month", "monthly"),
    "3mo": ("q", "qs", "qe", "bqs", "bqe", "quarter", "quarterly"),
    "12mo": ("y", "ys", "ye", "a", "as", "bys", "bye", "year", "yearly"),
}
"""Names of steps in pandas and Nixtla; a lone m is a minute to some and a month to others."""
_ALIASES = {name: step for step, names in _NAMES_OF_STEPS.items() for name in names}


class DateOffset(Protocol):
    """A step as pandas has it."""

    @property
    def freqstr(self) -> str:
        """Its name, such as ``D``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clock:
    """How the stamps of a table follow a grid of equal steps, days of a zone, or months."""

    step: timedelta  # of months the mean one
    zone: str = ""  # of the stamps; empty: they have none, and are read as UTC
    is_date: bool = False  # stamps are days, not instants
    by_day: bool = False  # steps follow the days of the zone, of any length
    day: int = 1  # of the month, on which stamps of months are; 31: the last, as their step ends

    @classmethod
    def find(
        cls,
        stamps: pl.DataFrame,
        freq: str | timedelta | DateOffset | None,
        *,
        zone: str,
        is_date: bool,
    ) -> Self:
        """Find the clock of the instants of each series (columns ``series, start``), in order.

        ConfigError if ``freq`` is not a step; DataError if the stamps are too unlike each other.
        """
        starts = stamps["start"]
        on_clock = _put_on_clock(starts, zone) if zone else starts
        by_day = zone not in ("", "UTC") and on_clock.dt.time().n_unique() == 1
        days = stamps.with_columns(start=on_clock)
        step = _find_step(days if by_day else stamps, freq)
        clock = cls(step=step, zone=zone, is_date=is_date, by_day=by_day and step >= DAY)
        if not is_calendar_step(step):
            return clock
        local = clock.locate(starts)
        is_last = (local.dt.month_end().dt.date() == local.dt.date()).mean()
        usual = int(np.bincount(local.dt.day().to_numpy()).argmax())
        is_end = isinstance(is_last, float) and is_last > 0.5
        return dataclasses.replace(clock, day=_LAST if is_end else usual)

    @property
    def place_zone(self) -> str:
        """Zone in which an instant of the grid has the date that it has on the clock."""
        return "UTC" if self.by_day else self.zone or "UTC"

    def locate(self, instants: pl.Series) -> pl.Series:
        """Return instants on the clock of the grid."""
        return _put_on_clock(instants, self.zone) if self.by_day else instants

    def find_starts(self, instants: pl.Series) -> pl.Series:
        """Return the start of each stamp's step on the grid.

        A month's day may be moved by a weekend, and its last one by holidays as well. DataError if
        a stamp is on another day of the month than the others, or in a month where no step
        begins.
        """
        local = self.locate(instants)
        if self.step < DAY:
            return settle(local, self.step)
        if not is_calendar_step(self.step):
            return local
        begins = local.dt.truncate("1mo")
        rows = pl.DataFrame({"stamp": local, "begin": begins})
        expected = pl.min_horizontal(pl.lit(self.day), pl.col("begin").dt.days_in_month())
        moved = pl.col("stamp").dt.day().cast(pl.Int64) - expected
        weekday = (pl.col("begin").dt.weekday() + expected - 2) % 7 + 1
        is_free = (weekday > _FRIDAY) | ((pl.col("begin").dt.month() == 1) & (expected == 1))
        may_move = is_free | ((moved < 0) & (self.day == _LAST))
        on_day = "the last day" if self.day == _LAST else f"day {self.day}"
        self._refuse(
            rows.filter((moved != 0) & ~(may_move & (moved.abs() <= _MOST_MOVED))),
            f"stamps are on {on_day} of a month: correct it, or drop the row",
        )

        first = begins.min()
        number = 12 * pl.col("begin").dt.year() + pl.col("begin").dt.month()
        if isinstance(first, datetime):
            steps = number - 12 * first.year - first.month
            self._refuse(
                rows.filter(steps % self._months != 0),
                f"step begins in {first:%Y-%m}: correct it, drop the row, or give another freq",
            )

        return begins.dt.offset_by(f"-{self._months - 1}mo") if self.day == _LAST else begins

    def read(self, starts: Sequence[datetime], name: str) -> pl.Series:
        """Return instants of the grid as stamps of the table's kind."""
        stamps = pl.Series(name, list(starts), dtype=UTC_US)
        if is_calendar_step(self.step):
            months = stamps.dt.offset_by(f"{self._months - 1}mo") if self.day == _LAST else stamps
            rows = pl.DataFrame(
                {"day": months + (self.day - 1) * DAY, "end": months.dt.month_end()}
            )
            stamps = rows.select(pl.min_horizontal("day", "end").alias(name)).to_series()

        if self.is_date:
            return stamps.dt.date()
        if self.by_day:
            walls = stamps.dt.replace_time_zone(None)
            hour_later = _find_instants(walls + _HOUR, self.zone)
            return _find_instants(walls, self.zone).fill_null(hour_later)
        local = stamps.dt.convert_time_zone(self.zone or "UTC")
        return local if self.zone else local.dt.replace_time_zone(None)

    def read_local(self, starts: Sequence[datetime]) -> pl.Series:
        """Return instants of the grid as the clock shows them, without a zone, as axes want it."""
        stamps = self.read(starts, "")
        return stamps if self.is_date else stamps.dt.replace_time_zone(None)

    def say(self, start: datetime) -> str:
        """Return an instant of the grid in words."""
        return f"{start:%Y-%m-%d}" if self.step >= DAY else f"{start:%Y-%m-%d %H:%M} UTC"

    @property
    def _months(self) -> int:
        return self.step // MONTH

    def _refuse(self, wrong: pl.DataFrame, rule: str) -> None:
        if wrong.height:
            rows = f" ({wrong.height} such rows)" if wrong.height > 1 else ""
            raise DataError(
                f"{wrong['stamp'][0]:%Y-%m-%d} is off the grid of {name_step(self.step)}, whose "
                f"{rule}{rows}"
            )


def _find_instants(walls: pl.Series, zone: str) -> pl.Series:
    """Return the instants at which a clock shows these times; null where it skips them."""
    return walls.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")


def _put_on_clock(instants: pl.Series, zone: str) -> pl.Series:
    """Return what the clock of a zone shows, as if it were UTC.

    A day whose midnight the clock skips begins an hour later; it counts as midnight.
    """
    walls = instants.dt.convert_time_zone(zone).dt.replace_time_zone(None)
    midnights = walls.dt.truncate("1d")
    starts_late = _find_instants(midnights, zone).is_null() & (walls - midnights <= _HOUR)
    return midnights.zip_with(starts_late, walls).dt.replace_time_zone("UTC")


def read_stamps(stamps: pl.Series) -> tuple[pl.Series, str, bool]:
    """Return stamps in UTC, their zone (empty without one), and whether they are days."""
    kind = stamps.dtype
    # Years, days as 20240101, and seconds since 1970 are numbers in many tables.
    if kind.is_numeric() or isinstance(kind, pl.Categorical | pl.Enum):
        stamps = read_names(stamps)
    if stamps.dtype == pl.String:
        cells = number_rows(stamps)
        instants, about = read_texts(
            cells, zone="UTC", time_format=guess_format(cells), repeated_hour="first"
        )
        return instants, "UTC" if about.with_offset else "", about.are_days

    if not kind.is_temporal() or kind in (pl.Time, pl.Duration):
        raise DataError(
            f"column {stamps.name!r} holds {kind}, not stamps; convert it, or name another by "
            "Forecaster(time=...)"
        )

    zone = getattr(kind, "time_zone", None) or ""
    instants = stamps.cast(pl.Datetime("us", zone or None))
    if zone:
        return instants.dt.convert_time_zone("UTC"), zone, False
    return instants.dt.replace_time_zone("UTC"), "", kind == pl.Date


def settle(stamps: pl.Series, step: timedelta, *, are_ends: bool = False) -> pl.Series:
    """Return stamps without the seconds of a logger's delay, up to a twentieth of a step.

    The last second, or minute, of every step, as 23:59:59, stands for the step, of which it is the
    end where ``are_ends``. Unchanged where any is further from a step: they are on another grid, or
    on none.
    """
    room, every = _MOST_LATE * step, f"{step // _MICROSECOND}us"
    starts = stamps.dt.truncate(every)
    lacking = (starts + step - stamps).unique().to_list()
    if not are_ends and len(lacking) == 1 and lacking[0] in _INCLUSIVE_ENDS and lacking[0] <= room:
        return starts
    nearest = (stamps + room).dt.truncate(every)
    furthest = (stamps - nearest).max()
    return nearest if isinstance(furthest, timedelta) and furthest <= room else stamps


def _find_step(stamps: pl.DataFrame, freq: str | timedelta | DateOffset | None) -> timedelta:
    """Return the length of a step: as named, or the usual distance between stamps."""
    try:
        named = None if freq is None else read_step(_name_as_ours(freq))
    except ValueError as error:
        raise ConfigError(f"freq: {error}") from error

    distances = stamps.select(pl.col("start").diff().over("series").drop_nulls())["start"]
    if not len(distances):
        if named is None:
            raise DataError("no series has two rows, so the step is unknown; give freq='1h'")
        return named
    calendar = find_calendar_step(distances)
    step: timedelta = calendar or distances.mode().min()  # type: ignore[assignment]  # of durations
    if named is not None:
        least: timedelta = distances.min()  # type: ignore[assignment]  # of durations
        if step < (1 - _MOST_LATE) * named and not (named == MONTH and step > _SHORT_MONTH):
            raise DataError(
                f"rows are {_say(step)} apart and freq says {name_step(named)}: sum or "
                "average them to that step first, or leave out freq"
            )
        if least > (1 + _MOST_LATE) * named:
            raise DataError(
                f"no rows are {name_step(named)} apart, as freq says, but {_say(least)} "
                "or more: leave out freq, or name that step"
            )
    if named or calendar:
        return named or step

    unlike = (distances.dt.total_microseconds() % (step // _MICROSECOND) != 0).mean()
    if isinstance(unlike, float) and unlike > _MOST_UNLIKE:
        raise DataError(
            f"{unlike:.0%} of the stamps are not a whole number of steps of {_say(step)} apart: "
            "give freq, or sum the values to days, weeks or months"
        )
    problem = f"stamps are {step} apart, which is not a step"
    if step % _MINUTE:
        raise DataError(f"{problem}: average or sum the values to minutes")
    try:
        return read_step(name_step(step))
    except ValueError as error:
        raise DataError(f"{problem}: {error}") from error


def _say(distance: timedelta) -> str:
    return str(distance) if distance % _MINUTE else name_step(distance)


def _name_as_ours(freq: str | timedelta | DateOffset) -> str:
    """Return pandas' and Nixtla's names of steps (h, D, 15min, MS) as ``1h``, ``1d``, ``15min``."""
    if isinstance(freq, np.timedelta64):
        freq = cast(timedelta, freq.astype("timedelta64[us]").item())
    if isinstance(freq, timedelta) and not freq % _MINUTE:
        return name_step(freq)
    name = str(getattr(freq, "freqstr", freq))
    digits = "".join(letter for letter in name if letter.isdigit()) or "1"
    word = name.strip().lstrip("0123456789 ").partition("-")[0]
    ours = _ALIASES.get(word) or _ALIASES.get(word.lower())
    if ours is None:
        return digits + word.lower()
    count = ours.rstrip("abcdefghijklmnopqrstuvwxyz")
    return f"{int(digits) * int(count)}{ours[len(count) :]}"
