"""Steps of a grid: their names, and the look-back, horizon and stride that suit them.

What belongs here: ``15min`` to a length and back, an instant so many steps later, and the defaults
that follow from a length. What does not: keys of a declaration (the pipeline), seasons of a view
(``data.view``).

Months, quarters and years are steps of the calendar: their length is the mean one, and an instant
so many of them later keeps its day of the month. Grids of months begin with a month on some clock.
"""

import math
import re
from datetime import datetime, timedelta

DAY = timedelta(days=1)
WEEK = 7 * DAY
MONTH = timedelta(days=30.4375)  # in the mean; whole numbers of it are steps of the calendar
FEWEST_INPUTS = 4  # steps that a look-back has at least
_STEP = re.compile(r"(\d{1,4})\s*(min|mo|h|d|w)")
_UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": DAY, "w": WEEK, "mo": MONTH}
_LARGEST_OFFSET = timedelta(hours=14)  # of a clock
_DAILY_WEEKS = 8
_SPARE_WEEKS = 4  # that daily inputs hold in addition to those that cover the horizon
_FEWEST_INPUTS = 8  # of coarse grids
_ENOUGH_WINDOWS = 3_000
_MOST_WINDOWS = 50_000
_RARE_GAPS = 0.05  # share of steps without a value up to which gaps are faults
_OFTEN_CLOSED = 0.6  # share of steps without a value in a table of short market hours
_LONGEST_BRIDGE = 6  # steps; a long weekend with holidays
_VALIDATION_ORIGINS = 4  # that the validation split has at least
_ENOUGH_DAYS = 180  # with a window, of each series
_VALIDATION_DAYS = 30  # of validation with one, whose errors become bands


def read_step(text: str) -> timedelta:
    """Return the length of a step.

    ValueError if the text is not a length, or days and steps do not divide each other.
    """
    match = _STEP.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError(
            f"{text!r} is not a step; write 5min, 15min, 30min, 1h, 1d, 1w, 1mo or 3mo"
        )

    step = int(match[1]) * _UNITS[match[2]]
    fits = is_calendar_step(step) or not (DAY % step if step < DAY else step % DAY)
    if not fits or step > 53 * WEEK:
        raise ValueError(
            f"a day is not a whole number of steps of {text}, nor the other way round; write "
            "30min, 1h, 1d, 1w or 1mo"
        )
    return step


def name_step(step: timedelta) -> str:
    """Return a length as :func:`read_step` reads it."""
    unit = next(unit for unit, length in reversed(_UNITS.items()) if not step % length)
    return f"{step // _UNITS[unit]}{unit}"


def is_calendar_step(step: timedelta) -> bool:
    """Whether a step is a month or several, which differ in length."""
    return not step % MONTH


def shift(instant: datetime, steps: int, step: timedelta) -> datetime:
    """Return the instant so many steps later, or earlier where they are below zero."""
    if not is_calendar_step(step):
        return instant + steps * step
    begin = _find_month(instant)
    years, month = divmod(begin.month - 1 + steps * (step // MONTH), 12)
    return begin.replace(year=begin.year + years, month=month + 1) + (instant - begin)


def count_steps(first: datetime, instant: datetime, step: timedelta) -> int:
    """Return the whole steps from one instant to another, below zero where that is earlier."""
    if not is_calendar_step(step):
        return (instant - first) // step
    begin, end = _find_month(first), _find_month(instant)
    months = 12 * (end.year - begin.year) + end.month - begin.month
    return (months - (instant - end < first - begin)) // (step // MONTH)


def _find_month(instant: datetime) -> datetime:
    """Return the nearest midnight that begins a month, on any clock."""
    day = instant + _LARGEST_OFFSET
    return day.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def count_year(step: timedelta) -> int:
    """Return the steps of a year: of whole weeks, so that weekdays meet; at least one."""
    return max(1, 12 * MONTH // step if is_calendar_step(step) else 52 * WEEK // step)


def choose_horizon(step: timedelta) -> int:
    """Return the usual steps of a forecast.

    48, a day on finer grids, a quarter of weeks, a year of months.
    """
    if is_calendar_step(step):
        return count_year(step)
    if step > DAY:
        return max(1, 13 * WEEK // step)
    return max(48, DAY // step)


def choose_lookback(step: timedelta, horizon: int) -> int:
    """Return the steps that a forecast of a horizon usually looks back on.

    They reach the same step of the week before for every target step, on grids coarser than a day
    the same step of the year before. More than one week or year says what is usual.
    """
    if step > DAY:
        year = count_year(step)
        return max(_FEWEST_INPUTS, (1 + math.ceil(horizon / year)) * year)
    weeks = math.ceil(horizon * step / WEEK)
    if step == DAY:
        return max(_DAILY_WEEKS, weeks + _SPARE_WEEKS) * WEEK // step
    # A week of five minutes is 2,016 steps already.
    return (weeks + (step >= timedelta(minutes=30))) * WEEK // step


def choose_bridge(
    step: timedelta, share: float, longest: int, usual: int, lookback: int
) -> tuple[int, int] | None:
    """Return the longest gap and the number of inputs that may be carried over.

    Weekends need it, and shops that are closed at night. ``share`` of the steps have no value;
    ``longest`` is the longest gap, ``usual`` the longest that comes once in a fortnight. None where
    gaps are rare: then they are faults.
    """
    if share <= _RARE_GAPS:
        return None

    # What is usual, and half as much again for holidays; more than two thirds would be invented,
    # where a market is not closed for longer.
    is_market = step < DAY and share > _OFTEN_CLOSED
    most = min(1.1 * share, 0.9) * lookback if is_market else 2 * lookback // 3
    filled = min(int(most), max(lookback // 4, math.ceil(lookback * share * 1.5)))
    return min(longest, max(_LONGEST_BRIDGE, DAY // step, math.ceil(1.5 * usual))), filled


def choose_stride(
    step: timedelta, horizon: int, steps: int, series: int, validation: int = 0
) -> int:
    """Return the steps from one origin to the next, so that there are enough windows, not too many.

    Below a day origins are at the same times of each day: a horizon apart or a day, or some days
    where many series of years would make too many windows. From a day on, ``validation``, the
    length of that split, has several of them; with thousands of series, one. It is never a multiple
    of seven, so that windows begin on every day of the week.
    """
    # For about _ENOUGH_WINDOWS over all series, and for no more than _MOST_WINDOWS.
    wanted, least = (
        max(1, round(steps * series / windows)) for windows in (_ENOUGH_WINDOWS, _MOST_WINDOWS)
    )
    if step >= DAY:
        # Targets are within the split and a horizon after the split before it.
        apart = max(1, validation - 2 * horizon)
        wanted = min(max(min(wanted, apart // _VALIDATION_ORIGINS), least), apart)
        return wanted + 1 if wanted % 7 == 0 else wanted

    per_day = DAY // step
    spare = min(steps // _ENOUGH_DAYS, validation // _VALIDATION_DAYS) // per_day
    days = min(math.ceil(least / per_day), spare)
    if days > 1:
        return (days - 1 if days % 7 == 0 else days) * per_day
    return next(
        stride
        for stride in range(1, per_day + 1)
        if per_day % stride == 0 and stride >= min(max(horizon, wanted), per_day)
    )
