"""Runs of forecast weather: what they become, when they count as known, what is refused."""

import json
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from compevo_core.errors import SchemaDrift, SourceAbsent, SourceRejected
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.weather import forecast as weather_runs
from compevo_pipeline.sources.weather import observed as weather
from tests.support.sources import clock, raw
from tests.support.weather import RUN, make_run

NAME = weather_runs.name_run(RUN)
HALF_HOUR = timedelta(minutes=30)


def parse(document, name=NAME):
    content = document if isinstance(document, str | bytes) else json.dumps(document)
    return weather_runs.parse(raw(name, content, weather_runs.SOURCE))


def values(frame, name, entity="NSW1"):
    return frame.filter(name=name, entity=entity).sort("start_utc")["value"].to_list()


def test_a_run_is_known_twelve_hours_after_its_start_whenever_it_is_fetched():
    frame = parse(make_run())
    assert NAME == "ecmwf_ifs_20251110T1800Z.json"
    assert frame["available_at"].unique().to_list() == [RUN + timedelta(hours=12)]
    assert frame["start_utc"].min() == RUN
    assert set(frame["entity"]) == set(weather_runs.PLACES)


def test_half_hours_lie_between_the_hours_of_a_state_and_share_the_mean_of_an_hour():
    document = make_run(hours=4)
    for place in document:
        place["hourly"]["temperature_2m"] = [10.0, 12.0, None, 20.0]
        place["hourly"]["shortwave_radiation"] = [0.0, 100.0, 300.0, None]
    frame = parse(document)

    temperature = frame.filter(name="temperature_c", entity="QLD1").sort("start_utc")
    at = [(stamp - RUN) / HALF_HOUR for stamp in temperature["start_utc"]]
    # Between a value and none there is none.
    assert list(zip(at, temperature["value"], strict=True)) == [
        (0, 10.0),
        (1, 11.0),
        (2, 12.0),
        (6, 20.0),
    ]
    # The value at the run's own stamp is of the hour before it: no forecast.
    assert values(frame, "solar_radiation_w_m2", "QLD1") == [100.0, 100.0, 300.0, 300.0]


def test_a_run_kept_before_more_variables_were_asked_for_can_still_be_read():
    document = make_run()
    for place in document:
        for added in ("dew_point_2m", "cloud_cover", "sunshine_duration"):
            del place["hourly"][added], place["hourly_units"][added]
    assert set(parse(document)["name"]) == {
        *("temperature_c", "wind_speed_m_s", "solar_radiation_w_m2")
    }


def test_an_error_message_is_no_run():
    with pytest.raises(SourceRejected, match="Cannot initialize"):
        parse({"error": True, "reason": "Cannot initialize WeatherVariable"})


def change(**changes):
    document = make_run()
    document[1] |= changes
    return document


def change_hours(**changes):
    return change(hourly=make_run(hours=2)[1]["hourly"] | changes)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"hourly": {}}, "at the document: .* list"),
        (make_run()[:4], "at the document: .* 5 items .* not 4"),
        (list(reversed(make_run())), "-37.8 degrees are not near -33.87, the place of NSW1"),
        (change(utc_offset_seconds=36000), r"at 1\.utc_offset_seconds: .* 0 .* '36000'"),
        (change_hours(time=["2025-11-10T18:00", "2025-11-10T20:00"]), "no stamps an hour apart"),
        (change_hours(time=["10/11/2025", "2025-11-10T18:00"]), "no stamps an hour apart"),
        (change_hours(time=["2025-11-10T18:00"]), "without a value for each stamp"),
        (
            "[" + json.dumps(make_run()[0]).replace("21.0", "1e999", 1) + ",{},{},{},{}]",
            r"0\.hourly\.temperature_2m\.0: .* finite",
        ),
        (change(hourly_units={"temperature_2m": "°F"}), "temperature_2m is in '°F', not '°C'"),
    ],
)
def test_what_is_not_the_known_structure_is_named(document, message):
    with pytest.raises(SchemaDrift, match=f"{NAME}.*{message}.*; fetch"):
        parse(document)


def test_a_file_without_the_time_of_its_run_is_refused():
    with pytest.raises(SchemaDrift, match="its name is not of the form"):
        parse(make_run(), name="forecast.json")


def test_runs_of_an_archive_folder_are_read_and_the_sample_has_none(tmp_path):
    folder = tmp_path / weather_runs.SOURCE
    folder.mkdir()
    (folder / NAME).write_text(json.dumps(make_run()))
    (found,) = weather_runs.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock)
    assert weather_runs.parse(found).height == parse(make_run()).height
    assert not list(weather_runs.read_files(Mode.SAMPLE, archive=None, clock=clock))
    with pytest.raises(SourceAbsent, match="open_meteo_runs"):
        list(weather_runs.read_files(Mode.ARCHIVE, archive=tmp_path / "none", clock=clock))


def test_a_run_of_the_evening_before_last_covers_the_day_that_is_forecast():
    # Known at 17:00 on the market's clock, 07:00 UTC, for the day that starts at 14:00 UTC.
    frame = parse(make_run(hours=72))
    issue_time = datetime(2025, 11, 11, 7, tzinfo=UTC)
    assert frame["available_at"].max() <= issue_time
    start = issue_time + timedelta(hours=7)
    day = frame.filter(pl.col("start_utc").is_between(start, start + timedelta(hours=23.5)))
    assert day.height == 5 * len(weather_runs.VARIABLES) * 48


TABLE_HEADER = ",".join(weather.HEADER)
ROW = "2020-01-15,NSW,294.17,301.15,10.3,83.0,1007.0,294.78,295.96,9.56"


def parse_table(*rows, header=TABLE_HEADER):
    return weather.parse(
        raw("combined_weather_data.csv", "\r\n".join([header, *rows]) + "\r\n", weather.SOURCE)
    )


def at(frame, name):
    return frame.filter(name=name).row(0, named=True)


def test_a_days_readings_are_known_that_evening_and_its_extremes_the_next_morning_local_time():
    frame = parse_table(ROW)
    assert at(frame, "afternoon_temp_k")["available_at"] == datetime(2020, 1, 15, 7, 0, tzinfo=UTC)
    assert at(frame, "max_temp_k")["available_at"] == datetime(2020, 1, 15, 22, 0, tzinfo=UTC)
    assert at(frame, "max_temp_k")["value"] == 301.15
    assert frame["entity"].unique().to_list() == ["NSW1"]
    assert frame["valid_date"].unique().to_list() == [date(2020, 1, 15)]
    assert frame.height == 8


def test_local_time_is_each_states_own():
    frame = parse_table(
        ROW, ROW.replace("NSW", "QLD"), ROW.replace("NSW", "SA"), ROW.replace("2020-01", "2020-07")
    )
    found = frame.filter(name="afternoon_temp_k").select("entity", "available_at").rows()
    hours = {(entity, stamp.month): stamp.hour + stamp.minute / 60 for entity, stamp in found}
    assert hours == {("NSW1", 1): 7.0, ("QLD1", 1): 8.0, ("SA1", 1): 7.5, ("NSW1", 7): 8.0}


def test_a_missing_value_has_no_row():
    frame = parse_table("2020-01-15,NSW,294.17,,NA,83.0,1007.0,294.78,295.96,NA")
    assert set(frame["name"]) == set(parse_table(ROW)["name"]) - {
        "max_temp_k",
        "max_wind_m_s",
        "precipitation_mm",
    }


def test_an_unknown_state_is_named_with_its_line():
    with pytest.raises(SchemaDrift, match="line 2: State is 'WA'"):
        parse_table(ROW.replace("NSW", "WA"))
