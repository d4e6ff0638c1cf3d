"""Clocks of a user's own table: time zones, and fixed offsets.

What belongs here: what a declaration or ``compevo init`` says about a clock, and its offset. What
does not: reading stamps (``own.stamps``).
"""

import re
from datetime import datetime, timedelta, timezone
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

_OFFSET = re.compile(r"([+-])(\d{2}):?(\d{2})")
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
# A year without a change of any zone's standard time still has its daylight saving.
_MONTHS = tuple(datetime(2024, month, 15) for month in range(1, 13))  # noqa: DTZ001 - wall clock


@cache
def list_zones() -> frozenset[str]:
    """Return the names of all time zones, read once: the standard library walks its folders."""
    return frozenset(available_timezones())


def read_zone(name: str) -> ZoneInfo | timezone:
    """Return a clock: a time zone, or a fixed offset such as +01:00.

    Raises:
        ValueError: there is no such clock.
    """
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        if offset < _DAY:
            return timezone(offset if match[1] == "+" else -offset)
    if name in list_zones():
        return ZoneInfo(name)
    raise ValueError(f"{name!r} is no time zone; write Europe/Paris, UTC or an offset as +01:00")


def find_standard_offset(zone: str) -> timedelta:
    """Return a clock's offset without daylight saving: the smaller one of the year."""
    clock = read_zone(zone)
    offsets = [moment.replace(tzinfo=clock).utcoffset() for moment in _MONTHS]
    return min(offset for offset in offsets if offset is not None)


def name_standard_offset(zone: str) -> str:
    """Return a clock's offset without daylight saving as declarations write it: ``-08:00``."""
    offset = find_standard_offset(zone)
    minutes = round(abs(offset) / timedelta(minutes=1))
    return f"{'-' if offset < timedelta(0) else '+'}{minutes // 60:02}:{minutes % 60:02}"


def find_place_zone(zone: str) -> str:
    """Return the time zone of weekdays where the stamps are on a clock.

    A fixed offset is no place. Where it is whole hours there is a zone with that offset all year.
    """
    if zone in list_zones():
        return zone
    hours, rest = divmod(find_standard_offset(zone), _HOUR)
    # These zones count the other way round: Etc/GMT+8 is eight hours behind UTC.
    name = f"Etc/GMT{-hours:+d}"
    return name if not rest and name in list_zones() else "UTC"
