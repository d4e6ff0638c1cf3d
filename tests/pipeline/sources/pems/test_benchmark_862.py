"""The 862-sensor table in its three forms, and its clock."""

from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.pems import source as pems
from tests.support.sources import clock, raw


def dated(first, header="date,0,OT", rows=pems.HOURS):
    start = datetime.fromisoformat(first)
    lines = (f"{start + timedelta(hours=hour)},0.0{hour % 9},0.5" for hour in range(rows))
    return header + "\n" + "\n".join(lines)


def test_the_misdated_common_table_is_put_on_its_right_hours():
    frame = pems.parse(raw("traffic.csv", dated("2016-07-01 02:00")))
    last = frame.filter(pl.col("series_id") == "PEMS862/861")
    assert last.height == pems.HOURS
    assert last["start_utc"][0] == datetime(2015, 1, 1, 8, tzinfo=UTC)
    assert last["start_utc"][-1] == datetime(2017, 1, 1, 7, tzinfo=UTC)


def leave_out(number):
    lines = dated("2015-01-01").split("\n")
    return "\n".join([*lines[:number], *lines[number + 1 :]])


SENSORS = "not distinct numbers from 0 to 861"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (dated("2015-01-02"), "line 2: first timestamp 2015-01-02"),
        (leave_out(100), "line 101: .*rows are missing"),
        (dated("2015-01-01", header="date,0,862"), SENSORS),
        (dated("2015-01-01", header="date,0,0"), SENSORS),
        (dated("2015-01-01", header="date,0,temperature"), SENSORS),
    ],
    ids=["late", "hour-left-out", "862", "twice", "no-number"],
)
def test_another_table_is_refused(text, match):
    with pytest.raises(SchemaDrift, match=match):
        pems.parse(raw("traffic.csv", text))


def test_the_headerless_original_is_read_by_position(monkeypatch):
    monkeypatch.setattr(pems, "HOURS", 48)
    row = ",".join(f"0.{sensor:03d}" for sensor in range(pems.SENSORS))
    frame = pems.parse(raw("traffic.txt", (row + "\n") * pems.HOURS), only=["7"])
    assert frame["series_id"].unique().to_list() == ["PEMS862/7"]
    assert frame["value"].unique().to_list() == [0.007]


def test_a_sensor_that_is_not_there_is_named():
    with pytest.raises(SchemaDrift, match=r"no sensor \['5'\]"):
        pems.parse(raw("traffic.csv", dated("2015-01-01")), only=["5"])


def parse_real_sensor(archive_dir):
    (file,) = pems.read_files(Mode.ARCHIVE, archive=archive_dir, clock=clock)
    return validate_series(pems.parse(file))


def test_the_real_sensor_has_17544_hours_and_its_known_range(archive_dir):
    frame = parse_real_sensor(archive_dir)
    assert frame.height == 17_544
    assert (frame["value"].min(), frame["value"].max()) == (0.0, 0.4747)
    assert frame["value"].mean() == pytest.approx(0.0493, abs=5e-5)
    assert (frame["value"] == 0).sum() == 15


def test_the_real_sensors_clock_is_standard_time_all_year(archive_dir):
    """The morning rush is an hour later on the table's clock once daylight saving ends."""
    frame = parse_real_sensor(archive_dir).with_columns(
        local=pl.col("start_utc").dt.offset_by("-8h")
    )
    workdays = frame.filter(
        pl.col("local").dt.weekday() < 6, pl.col("local").dt.hour().is_between(4, 10)
    )

    def rush(first, last):
        days = workdays.filter(pl.col("local").dt.date().is_between(first, last))
        weight = days["value"].sum()
        return (days["local"].dt.hour() * days["value"]).sum() / weight

    autumn = rush(date(2016, 10, 24), date(2016, 11, 4))
    winter = rush(date(2016, 11, 7), date(2016, 11, 18))
    assert 0.6 < winter - autumn < 1.4
