"""The calendar of a window, all of it known before the origin.

What belongs here: local weekday and public holidays of the first target day and of the day before
it. What does not: learned seasonality, prompts. Regions keep local time, with daylight saving:
demand follows people, not the market's clock.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from importlib.metadata import version
from zoneinfo import ZoneInfo

from compevo_core.errors import DataError

HOLIDAYS_VERSION = version("holidays")
"""Release of the library of public holidays, whose rules change between releases."""

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Time zone and public holidays of the people of a series ("" where none apply)."""

    timezone: str
    country: str = ""
    subdivision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """Local facts of the target day (the day of the first target steps) and of the day before.

    Weekdays count from Monday = 0 and days of the year from 1. A holiday is its English name or "".
    """

    target_date: date
    target_weekday: int
    target_holiday: str
    previous_weekday: int
    previous_holiday: str
    day_of_year: int
    timezone: str


# A night writes and reads every window that there is, and series share their days.
@lru_cache(maxsize=4096)
def write_calendar(calendar: Calendar) -> str:
    """Return a calendar as JSON that :func:`read_calendar` reads back."""
    return json.dumps(asdict(calendar), sort_keys=True, default=str)


@lru_cache(maxsize=4096)
def read_calendar(text: str) -> Calendar:
    """Read what :func:`write_calendar` wrote."""
    raw = json.loads(text)
    return Calendar(**(raw | {"target_date": date.fromisoformat(raw["target_date"])}))


# Building a year of holidays takes milliseconds and every window asks for two days.
@lru_cache(maxsize=256)
def _holidays(country: str, subdivision: str, year: int) -> Mapping[date, str]:
    import holidays  # the calendars of all countries take a third of a second

    try:
        # By default the names follow the locale, and with them the prompts and hashes of windows.
        names: Mapping[date, str] = holidays.country_holidays(
            country, subdiv=subdivision or None, years=year, language="en_US"
        )
    except NotImplementedError as error:
        raise DataError(
            f"no holiday calendar for {country!r} {subdivision!r}: {error}; "
            "correct the place of the data set"
        ) from error
    return names


def find_holiday(day: date, place: Place) -> str:
    """Return the English name of the public holiday on ``day``, or ""."""
    names = _holidays(place.country, place.subdivision, day.year) if place.country else {}
    return str(names.get(day) or "")


def count_holidays(start_utc: datetime, end_utc: datetime, place: Place) -> int:
    """Return the public holidays in an interval: days that begin in it, or its day."""
    zone = ZoneInfo(place.timezone)
    # A day of a market may begin an hour before or after the one of the place.
    moment = start_utc + min(end_utc - start_utc, timedelta(days=1)) / 2
    days = max(1, round((end_utc - start_utc) / timedelta(days=1)))
    first = moment.astimezone(zone).date()
    return sum(bool(find_holiday(first + timedelta(days=i), place)) for i in range(days))


@lru_cache(maxsize=4096)
def build_calendar(
    origin_utc: datetime, place: Place, horizon: timedelta = timedelta(days=1)
) -> Calendar:
    """Return the calendar of the window whose first target interval starts at ``origin_utc``.

    DataError if the origin has no time zone, or the place has no holiday calendar.
    """
    if origin_utc.tzinfo is None:
        raise DataError(f"origin {origin_utc} has no time zone; give an aware UTC datetime")

    # A market day can start at 23:30 or 01:00 local time. The local date in the middle of the first
    # day of the horizon is the date it covers in either case.
    middle = origin_utc + min(horizon, timedelta(days=1)) / 2
    target = middle.astimezone(ZoneInfo(place.timezone)).date()
    previous = target - timedelta(days=1)

    return Calendar(
        target_date=target,
        target_weekday=target.weekday(),
        target_holiday=find_holiday(target, place),
        previous_weekday=previous.weekday(),
        previous_holiday=find_holiday(previous, place),
        day_of_year=target.timetuple().tm_yday,
        timezone=place.timezone,
    )
