"""The weather table, and when each value counts as known."""

from datetime import UTC, date, datetime

import polars as pl
import pytest

from compevo_core.data.series import is_synthetic
from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.weather import observed as weather
from tests.support.sources import clock, raw

HEADER = ",".join(weather.HEADER)
ROW = "2020-01-15,NSW,294.17,301.15,10.3,83.0,1007.0,294.78,295.96,9.56"


def parse(*rows, header=HEADER):
    return weather.parse(
        raw("combined_weather_data.csv", "\r\n".join([header, *rows]) + "\r\n", weather.SOURCE)
    )


def at(frame, name):
    return frame.filter(name=name).row(0, named=True)


def test_a_days_readings_are_known_that_evening_and_its_extremes_the_next_morning_local_time():
    frame = parse(ROW)
    assert at(frame, "afternoon_temp_k")["available_at"] == datetime(2020, 1, 15, 7, 0, tzinfo=UTC)
    assert at(frame, "max_temp_k")["available_at"] == datetime(2020, 1, 15, 22, 0, tzinfo=UTC)
    assert at(frame, "max_temp_k")["value"] == 301.15
    assert frame["entity"].unique().to_list() == ["NSW1"]
    assert frame["valid_date"].unique().to_list() == [date(2020, 1, 15)]
    assert frame.height == 8


def test_local_time_is_each_states_own():
    frame = parse(
        ROW, ROW.replace("NSW", "QLD"), ROW.replace("NSW", "SA"), ROW.replace("2020-01", "2020-07")
    )
    found = frame.filter(name="afternoon_temp_k").select("entity", "available_at").rows()
    hours = {(entity, stamp.month): stamp.hour + stamp.minute / 60 for entity, stamp in found}
    assert hours == {("NSW1", 1): 7.0, ("QLD1", 1): 8.0, ("SA1", 1): 7.5, ("NSW1", 7): 8.0}


def test_a_missing_value_has_no_row():
    frame = parse("2020-01-15,NSW,294.17,,NA,83.0,1007.0,294.78,295.96,NA")
    assert set(frame["name"]) == set(parse(ROW)["name"]) - {
        "max_temp_k",
        "max_wind_m_s",
        "precipitation_mm",
    }


def test_an_unknown_state_is_named_with_its_line():
    with pytest.raises(SchemaDrift, match="line 2: State is 'WA'"):
        parse(ROW.replace("NSW", "WA"))


def test_the_sample_covers_the_sample_demand_and_says_it_is_synthetic():
    frame = weather.parse(next(weather.read_files(Mode.SAMPLE, None, clock=clock)))
    assert is_synthetic(frame)
    days = frame.filter(entity="SA1", name="max_temp_k")["valid_date"]
    assert {date(2019, 9, 30), date(2020, 1, 31), date(2021, 1, 31), date(2026, 3, 30)} <= set(days)
    warm = frame.filter(pl.col("valid_date").dt.month() == 1, name="max_temp_k")["value"]
    assert 280 < warm.min() < warm.mean() < 310
    with pytest.raises(SourceAbsent, match="no live endpoint"):
        next(weather.read_files(Mode.LIVE, None, clock=clock))
