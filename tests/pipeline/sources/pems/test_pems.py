"""PeMS station-hour files: daylight saving, imputed values, bad lines."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.series import is_synthetic, regularise_series, validate_series
from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.pems import source as pems
from tests.support.sources import clock, raw

NAME = "d04_text_station_hour_2016_03.txt"
HOUR = timedelta(hours=1)


def line(stamp="03/01/2016 00:00:00", station="400001", percent="100", occupancy=".0123"):
    cells = [
        stamp,
        station,
        "4",
        "101",
        "S",
        "ML",
        ".415",
        "480",
        percent,
        "1200",
        occupancy,
        "65.1",
    ]
    return ",".join([*cells, *["0"] * 6, *[""] * 24])


def parse(*lines, name=NAME):
    return validate_series(pems.parse(raw(name, "\n".join(lines) + "\n", "pems")))


def occupancy(frame):
    return frame.filter(pl.col("variable") == "occupancy").sort("start_utc")


def test_a_local_hour_in_winter_and_in_summer_becomes_utc():
    frame = occupancy(parse(line("03/13/2016 01:00:00"), line("03/13/2016 03:00:00")))
    assert frame["start_utc"].to_list() == [
        datetime(2016, 3, 13, 9, tzinfo=UTC),
        datetime(2016, 3, 13, 10, tzinfo=UTC),
    ]
    assert frame["series_id"].unique().to_list() == ["PEMS/400001"]
    assert frame["value"].to_list() == [0.0123, 0.0123]


@pytest.mark.parametrize("copies", [1, 2])
def test_the_repeated_hour_of_november_is_nulled_in_both_its_utc_hours(copies):
    hours = [
        line("11/06/2016 00:00:00"),
        *[line("11/06/2016 01:00:00")] * copies,
        line("11/06/2016 02:00:00"),
    ]
    frame = occupancy(parse(*hours))
    assert frame["flag"].to_list() == ["observed", *["nulled:ambiguous-dst-hour"] * 2, "observed"]
    assert regularise_series(frame, HOUR)[1].missing == 0


def test_a_stamp_in_the_hour_that_is_skipped_is_an_error():
    with pytest.raises(
        SchemaDrift, match=r"line 2: 2016-03-13 02:00:00 does not exist in America/Los_Angeles"
    ):
        parse(line("03/13/2016 01:00:00"), line("03/13/2016 02:00:00"))


def test_blank_imputed_and_impossible_occupancies_have_different_flags():
    lines = [
        line(f"03/01/2016 0{hour}:00:00", percent=percent, occupancy=value)
        for hour, (percent, value) in enumerate(
            [("0", ".02"), ("100", ""), ("100", "1.7"), ("1", "0")]
        )
    ]
    frame = occupancy(parse(*lines))
    assert frame["flag"].to_list() == [
        "filled:pems-imputed",
        "missing",
        "nulled:out-of-range",
        "observed",
    ]
    assert frame["value"].to_list() == [0.02, None, None, 0.0]


def test_the_share_of_observed_samples_is_a_series_of_its_own():
    frame = parse(line(percent="73")).filter(pl.col("variable") == "pct_observed")
    assert frame["series_id"].to_list() == ["PEMS_OBSERVED/400001"]
    assert frame["value"].to_list() == [73.0]


def test_an_unknown_file_name_is_refused():
    with pytest.raises(SchemaDrift, match="neither a station_hour or station_5min file nor"):
        pems.parse(raw("notes.txt", "x"))


def test_only_the_requested_stations_are_parsed():
    frame = pems.parse(raw(NAME, line() + "\n" + line(station="400002")), only=["400002"])
    assert set(frame["series_id"]) == {"PEMS/400002", "PEMS_OBSERVED/400002"}


def test_the_sample_is_synthetic_and_regular():
    files = list(pems.read_files(Mode.SAMPLE, archive=None, clock=clock))
    frame = validate_series(pl.concat(pems.parse(file) for file in files))
    assert is_synthetic(frame)
    assert frame["series_id"].n_unique() == 2 * 3
    for station in (400001, 400045, 401234):
        report = regularise_series(frame.filter(pl.col("series_id") == f"PEMS/{station}"), HOUR)[1]
        assert report.rows == 91 * 24 - 1
        assert report.missing < 20


def test_an_archive_without_traffic_files_says_what_to_add(tmp_path):
    (tmp_path / "traffic").mkdir()
    (tmp_path / "traffic" / "readme.txt").write_text("x")
    with pytest.raises(
        SourceAbsent, match=r"no file traffic/traffic\.\* or \*_text_station_hour_\*"
    ):
        list(pems.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock))
