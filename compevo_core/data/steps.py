"""Steps of a grid: their names, and the look-back, horizon and stride that suit them.

What belongs here: ``15min`` to a length and back, and the defaults that follow from a length. What
does not: keys of a declaration (the pipeline), seasons of a view (``data.view``).

Months are refused: they differ in length, and every instant of a window is its origin plus so many
equal steps.
"""

import re
from datetime import timedelta

DAY = timedelta(days=1)
WEEK = 7 * DAY

_STEP = re.compile(r"(\d{1,4})\s*(min|h|d|w)")
_UNITS = {"min": timedelta(minutes=1), "h": timedelta(hours=1), "d": DAY, "w": WEEK}
_LONGEST = 53 * WEEK
_HALF_HOUR = timedelta(minutes=30)
_DAILY_WEEKS = 8
_SPARE_WEEKS = 4  # that daily inputs hold beside those that cover the horizon
_YEAR_WEEKS = 52
_ENOUGH_WINDOWS = 6_000


def read_step(text: str) -> timedelta:
    """Return the length of a step.

    Raises:
        ValueError: the text is no length, or days and steps do not divide each other.
    """
    match = _STEP.fullmatch(text)
    if match is None or not int(match[1]):
        months = "months and quarters differ in length and are no steps; " if "mo" in text else ""
        raise ValueError(f"{text!r} is no step; {months}write 5min, 15min, 30min, 1h, 1d or 1w")

    step = int(match[1]) * _UNITS[match[2]]
    if (DAY % step if step < DAY else step % DAY) or step > _LONGEST:
        raise ValueError(
            f"a day is no whole number of steps of {text}, nor the other way round; write 30min, "
            "1h, 1d or 1w"
        )
    return step


def name_step(step: timedelta) -> str:
    """Return a length as :func:`read_step` reads it."""
    unit = next(unit for unit, length in reversed(_UNITS.items()) if not step % length)
    return f"{step // _UNITS[unit]}{unit}"


def choose_horizon(step: timedelta) -> int:
    """Return the usual steps of a forecast: 48, a day on finer grids, a quarter on coarser ones."""
    if step > DAY:
        return max(1, 13 * WEEK // step)
    return max(48, DAY // step)


def choose_lookback(step: timedelta, horizon: int) -> int:
    """Return the steps that a forecast of a horizon usually looks back on.

    They reach the same step of the week before for every target step, on grids coarser than a day
    the same step of the year before. More than one week or year says what is usual.
    """
    if step > DAY:
        years = 1 + -(-horizon * step // (_YEAR_WEEKS * WEEK))
        return years * _YEAR_WEEKS * WEEK // step
    weeks = -(-horizon * step // WEEK)
    if step == DAY:
        return max(_DAILY_WEEKS, weeks + _SPARE_WEEKS) * WEEK // step
    # A week of five minutes is 2,016 steps already.
    return (weeks + (step >= _HALF_HOUR)) * WEEK // step


def choose_stride(step: timedelta, horizon: int, steps: int, series: int) -> int:
    """Return the steps from one origin to the next: enough windows of so many steps, not more.

    Below a day origins are at the same times of each day, a horizon apart or a day.
    """
    wanted = max(1, round(steps * series / _ENOUGH_WINDOWS))
    if step >= DAY:
        # Windows shall begin on every day of the week.
        return wanted + 1 if wanted % 7 == 0 else wanted
    per_day = DAY // step
    return next(
        stride
        for stride in range(1, per_day + 1)
        if per_day % stride == 0 and stride >= min(max(horizon, wanted), per_day)
    )
