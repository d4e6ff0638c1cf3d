"""Local dates, weekdays and holidays of a window."""

from datetime import UTC, date, datetime

import pytest

from compevo_core.data.calendar import Calendar, Place, build_calendar
from compevo_core.data.datasets import NEM_PLACES
from compevo_core.errors import DataError
from tests.support.window_samples import SYDNEY, from_nem


@pytest.mark.parametrize("region", sorted(NEM_PLACES))
@pytest.mark.parametrize(
    "origin", [from_nem(2021, 1, 26), from_nem(2021, 1, 25, 23, 30), from_nem(2021, 7, 6)]
)
def test_a_market_day_is_called_by_the_local_date_it_covers(region, origin):
    calendar = build_calendar(origin, NEM_PLACES[region])
    assert calendar.target_date in (date(2021, 1, 26), date(2021, 7, 6))
    assert calendar.target_weekday == 1


def test_holidays_are_those_of_the_region():
    cup = from_nem(2021, 11, 2)
    assert build_calendar(cup, NEM_PLACES["VIC1"]).target_holiday == "Melbourne Cup Day"
    assert build_calendar(cup, NEM_PLACES["NSW1"]).target_holiday == ""


def test_the_day_before_keeps_its_own_holiday():
    calendar = build_calendar(from_nem(2021, 1, 27), SYDNEY)
    assert calendar.previous_holiday == "Australia Day"
    assert (calendar.target_is_day_off, calendar.previous_is_day_off) == (False, True)
    assert calendar.target_weekday_name == "Wednesday"
    assert calendar.previous_weekday_name == "Tuesday"


def test_a_place_without_holidays_has_none_and_an_unknown_country_is_refused():
    new_year = datetime(2021, 1, 1, tzinfo=UTC)
    assert build_calendar(new_year, Place(timezone="UTC")).target_holiday == ""
    with pytest.raises(DataError, match="no holiday calendar"):
        build_calendar(new_year, Place(timezone="UTC", country="XX"))


def test_a_calendar_survives_its_dictionary():
    calendar = build_calendar(from_nem(2024, 2, 29), SYDNEY)
    assert Calendar.from_dict(calendar.as_dict()) == calendar
    assert calendar.day_of_year == 60


def test_an_origin_without_a_time_zone_is_refused():
    with pytest.raises(DataError, match="time zone"):
        build_calendar(from_nem(2021, 1, 1).replace(tzinfo=None), SYDNEY)
