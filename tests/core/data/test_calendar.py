from datetime import UTC, date, datetime

import pytest

from compevo_core.data.calendar import Calendar, Place, build_calendar
from compevo_core.data.datasets import NEM_PLACES
from compevo_core.errors import DataError
from tests.support.window_samples import SYDNEY, nem


@pytest.mark.parametrize("region", sorted(NEM_PLACES))
@pytest.mark.parametrize("origin", [nem(2021, 1, 26), nem(2021, 1, 25, 23, 30), nem(2021, 7, 6)])
def test_a_market_day_is_called_by_the_local_date_it_covers(region, origin):
    found = build_calendar(origin, NEM_PLACES[region])
    assert found.target_date in (date(2021, 1, 26), date(2021, 7, 6))
    assert found.target_weekday == 1


def test_holidays_are_those_of_the_region():
    cup = nem(2021, 11, 2)
    assert build_calendar(cup, NEM_PLACES["VIC1"]).target_holiday == "Melbourne Cup Day"
    assert build_calendar(cup, NEM_PLACES["NSW1"]).target_holiday == ""


def test_the_day_before_keeps_its_own_holiday():
    after = build_calendar(nem(2021, 1, 27), SYDNEY)
    assert after.previous_holiday == "Australia Day"
    assert (after.target_is_day_off, after.previous_is_day_off) == (False, True)
    assert after.target_weekday_name == "Wednesday"
    assert after.previous_weekday_name == "Tuesday"


def test_a_place_without_holidays_has_none_and_an_unknown_country_is_refused():
    new_year = datetime(2021, 1, 1, tzinfo=UTC)
    assert build_calendar(new_year, Place(timezone="UTC")).target_holiday == ""
    with pytest.raises(DataError, match="no holiday calendar"):
        build_calendar(new_year, Place(timezone="UTC", country="XX"))


def test_a_calendar_survives_its_dictionary():
    found = build_calendar(nem(2024, 2, 29), SYDNEY)
    assert Calendar.from_dict(found.as_dict()) == found
    assert found.day_of_year == 60


def test_an_origin_without_a_time_zone_is_refused():
    with pytest.raises(DataError, match="time zone"):
        build_calendar(nem(2021, 1, 1).replace(tzinfo=None), SYDNEY)
