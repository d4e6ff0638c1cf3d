"""Clocks of own tables: the offset that is a remedy, the zone of weekdays."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from compevo_pipeline.sources.own.stamps import (
    find_place_zone,
    find_standard_offset,
    list_zones,
    name_standard_offset,
    read_zone,
)

NOON = datetime(2024, 1, 1, 12)  # noqa: DTZ001 - wall clock


@pytest.mark.parametrize(
    ("zone", "offset"),
    [
        ("America/Los_Angeles", "-08:00"),
        ("Europe/Paris", "+01:00"),
        ("Australia/Adelaide", "+09:30"),
        ("America/St_Johns", "-03:30"),
        ("UTC", "+00:00"),
        ("+0530", "+05:30"),
    ],
)
def test_a_clock_without_daylight_saving_is_named_by_an_offset_that_reads_back(zone, offset):
    assert name_standard_offset(zone) == offset
    assert NOON.replace(tzinfo=read_zone(offset)).utcoffset() == find_standard_offset(zone)


@pytest.mark.parametrize("zone", ["-08:00", "+10:00", "+00:00"])
def test_weekdays_of_a_fixed_offset_are_those_of_that_offset(zone):
    place = ZoneInfo(find_place_zone(zone))
    assert NOON.replace(tzinfo=place).utcoffset() == find_standard_offset(zone)


def test_a_time_zone_is_its_own_place_and_half_an_hour_has_none():
    assert find_place_zone("Europe/Paris") == "Europe/Paris"
    assert find_place_zone("+09:30") == "UTC"


def test_the_zones_of_the_machine_are_looked_up_once_for_all_stamps():
    assert list_zones() is list_zones()
