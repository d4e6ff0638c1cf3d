"""What AEMO's file names say: the report, its region, and its time.

What belongs here: spellings of names and their stamps. What does not: listings (``live``), content.

A stamp is in NEM time. The first one of a report's name is the end of its interval, of a forecast
the end of its first interval, of rooftop solar power the issue, of MMSDM the start of its month.
"""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.nem import HALF_HOUR, NEM_OFFSET, NEM_ZONE
from compevo_pipeline.sources.common.tables import Period, expect_month

ACTUAL_REPORT = "PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH"
FORECAST_REPORT = "PUBLIC_FORECAST_OPERATIONAL_DEMAND_HH"
ROOFTOP_REPORT = "PUBLIC_ROOFTOP_PV_FORECAST"
REPORTS = (ACTUAL_REPORT, FORECAST_REPORT, ROOFTOP_REPORT)
MMSDM_ACTUAL = "DEMANDOPERATIONALACTUAL"  # MMSDM's monthly table of the actuals
DAY = timedelta(days=1)
LONGEST_FORECAST = timedelta(days=10)  # AEMO's reach eight days
LONGEST_DELAY = timedelta(hours=6)  # between a forecast's issue and the first stamp of its name

_FIRST_YEAR, _LAST_YEAR = 1990, 2200
_NEM_TIME = ZoneInfo(NEM_ZONE)
_STAMP = re.compile(r"(?<!\d)(\d{14}|\d{12}|\d{8})(?!\d)")
_STAMP_FORMATS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_PRICE = re.compile(r"PRICE_AND_DEMAND_(\d{4})(\d\d)_([A-Z]+1)\.CSV")
_DAY_FILE = re.compile(r"(\d{4}-\d\d-\d\d)\.JSON")
_MMSDM = re.compile(
    rf"(?:DISPATCHREGIONSUM|TRADINGREGIONSUM|{MMSDM_ACTUAL})\D.*?(\d{{4}})(\d\d)010000\."
)


def read_periods(raw: RawFile) -> list[Period]:
    """Return the periods of rows that the names of a file and of its zip allow."""
    # The zip of one report has its name; the zip of a week or month adds nothing.
    names = dict.fromkeys((raw.name, raw.packed_in))
    return [period for name in names for period in _read_name(unquote(unquote(name)).upper())]


def find_report(name: str) -> str:
    """Return the report that a file is one of, or ""; AEMO writes names in capitals or not."""
    name = name.upper()
    if MMSDM_ACTUAL in name:
        return ACTUAL_REPORT
    return next((report for report in REPORTS if name.startswith(report)), "")


def read_stamp(name: str) -> tuple[datetime, bool] | None:
    """Return the first stamp of a name in UTC and whether it is a whole day; None without one."""
    match = _STAMP.search(name)
    if match is None:
        return None
    try:
        stamp = datetime.strptime(match[1], _STAMP_FORMATS[len(match[1])])  # noqa: DTZ007 - NEM time
    except ValueError:
        return None
    # Digits that are not a year of the market are not a stamp.
    if not _FIRST_YEAR <= stamp.year < _LAST_YEAR:
        return None
    return (stamp - NEM_OFFSET).replace(tzinfo=UTC), len(match[1]) == 8


def _read_name(name: str) -> list[Period]:
    try:
        if price := _PRICE.search(name):
            return [expect_month(int(price[1]), int(price[2]), _NEM_TIME, price[3])]
        if table := _MMSDM.search(name):
            month = expect_month(int(table[1]), int(table[2]), _NEM_TIME)
            # A table holds what was recorded in a month: intervals at its ends may be of the next.
            return [Period(first=month.first - DAY, end=month.end + DAY)]
        if day := _DAY_FILE.search(name):
            start = datetime.fromisoformat(day[1]).replace(tzinfo=_NEM_TIME).astimezone(UTC)
            return [Period(first=start, end=start + DAY)]
    except ValueError:
        return []  # no month or day of any calendar

    named = read_stamp(name)
    if named is None:
        return []
    stamp, is_day = named
    if name.startswith("PUBLIC_HISTDEMAND") and is_day:
        return [Period(first=stamp, end=stamp + DAY)]

    report = "" if is_day else find_report(name)
    if report == ACTUAL_REPORT:
        return [Period(first=stamp - HALF_HOUR, end=stamp)]
    if not report:
        return []
    # A rooftop forecast's first interval begins at the issue or in the half-hour around it. A
    # forecast is issued within hours of its first interval.
    return [
        Period(first=stamp - HALF_HOUR, end=stamp + LONGEST_FORECAST),
        Period(first=stamp - LONGEST_DELAY, end=stamp + LONGEST_DELAY, column="available_at"),
    ]
