"""PeMS: station-hour and five-minute files, chosen stations, and the 862-sensor table."""

import gzip
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.series import regularise_series, validate_series
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import FrameKind, Mode, read_sample_files
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.sources.pems import source as pems
from tests.support.sources import clock, raw

NAME = "d04_text_station_hour_2016_03.txt"
HOUR = timedelta(hours=1)


def line(stamp="03/01/2016 00:00:00", station="400001", percent="100", occupancy=".0123"):
    cells = [
        stamp,
        station,
        *["4", "101", "S", "ML", ".415", "480"],
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
    assert regularise_series(frame, HOUR)[1]["missing"] == 0


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
    flags = ["filled:pems-imputed", "missing", "nulled:out-of-range", "observed"]
    assert frame["flag"].to_list() == flags
    assert frame["value"].to_list() == [0.02, None, None, 0.0]


STATIONS = ("400001", "400017", "400030")


@pytest.fixture
def parse_archive(tmp_path):
    """Parse an archive of three stations, or those that are chosen of them."""
    lines = "\n".join(line(station=station) for station in STATIONS) + "\n"
    (tmp_path / "traffic").mkdir()
    (tmp_path / "traffic" / f"{NAME}.gz").write_bytes(gzip.compress(lines.encode()))

    def parse_stations(*stations):
        (feed,) = default_feeds(pems_stations=stations)["traffic"]
        files = list(feed.read_files(Mode.ARCHIVE, tmp_path, clock))
        frame = feed.parsers[FrameKind.SERIES](files)
        return set(frame["series_id"].str.extract("^PEMS/(.*)$").drop_nulls())

    return parse_stations


def test_the_archive_gives_the_chosen_stations_and_all_where_none_is_chosen(parse_archive):
    assert parse_archive() == set(STATIONS)
    assert parse_archive(*STATIONS[1:]) == set(STATIONS[1:])
    with pytest.raises(SchemaDrift, match=rf"{NAME}: none of the stations 999, 1000; correct"):
        parse_archive("999", "1000")


def test_the_sample_and_the_benchmark_table_have_no_published_stations_and_stay_whole():
    invented = next(read_sample_files("pems"))
    assert pems.parse_chosen(invented, stations=("999",)).equals(pems.parse(invented))
    with pytest.raises(SchemaDrift, match="neither a header"):
        pems.parse_chosen(raw("traffic.csv", "not,a,table\n", "pems"), stations=("999",))


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
        (dated("2015-01-01"), r"no sensor \['5'\]"),
    ],
    ids=["late", "hour-left-out", "862", "twice", "no-number", "not-there"],
)
def test_another_table_is_refused(text, match):
    with pytest.raises(SchemaDrift, match=match):
        pems.parse(raw("traffic.csv", text), only=["5"])


def test_the_headerless_original_is_read_by_position(monkeypatch):
    monkeypatch.setattr(pems, "HOURS", 48)
    row = ",".join(f"0.{sensor:03d}" for sensor in range(pems.SENSORS))
    frame = pems.parse(raw("traffic.txt", (row + "\n") * pems.HOURS), only=["7"])
    assert frame["series_id"].unique().to_list() == ["PEMS862/7"]
    assert frame["value"].unique().to_list() == [0.007]


FIVE_MINUTES = "d04_text_station_5min_2026_11_01.txt"


def local(*parts):
    return datetime(*parts, tzinfo=UTC)  # the wall clock: the file names no zone


def minute(stamp, station="400001", percent="100", occupancy=".03"):
    head = [f"{stamp:%m/%d/%Y %H:%M:%S}", station, "4", "101", "S", "ML", ".415", "80", percent]
    return ",".join([*head, "120", occupancy, "65.1", *["10"] * 20, *[""] * 20])


MORNING = local(2026, 10, 31, 8)


def hour(*, start=MORNING, drop=(), **changes):
    stamps = [start + timedelta(minutes=5) * step for step in range(12)]
    return [minute(stamp, **changes) for step, stamp in enumerate(stamps) if step not in drop]


def parse_minutes(*lines, only=None):
    return validate_series(
        pems.parse(raw(FIVE_MINUTES, "\n".join(lines) + "\n", "pems"), only=only)
    )


def test_twelve_intervals_are_an_hour_of_the_series_of_station_hour_files():
    rising = [
        minute(local(2026, 10, 31, 8, 5 * step), occupancy=f"{0.01 * (step + 1):.2f}", percent=p)
        for step, p in enumerate(["100"] * 6 + ["50"] * 6)
    ]
    frame = parse_minutes(*rising)
    rows = {row["series_id"]: row for row in frame.iter_rows(named=True)}
    assert rows["PEMS/400001"]["value"] == pytest.approx(0.065)
    assert rows["PEMS/400001"]["start_utc"] == datetime(2026, 10, 31, 15, tzinfo=UTC)
    assert rows["PEMS_OBSERVED/400001"]["value"] == 75.0


@pytest.mark.parametrize("occupancy_cell", [None, "", "5.3", "-.01"])
def test_an_hour_with_an_interval_missing_blank_or_impossible_has_no_value(occupancy_cell):
    lines = hour(drop=[3])
    if occupancy_cell is not None:
        lines.append(minute(local(2026, 10, 31, 8, 15), occupancy=occupancy_cell))
    assert occupancy(parse_minutes(*lines)).select("value", "flag").rows() == [(None, "missing")]


def test_the_repeated_hour_is_nulled_in_both_its_utc_hours():
    repeated = hour(start=local(2026, 11, 1, 1))
    frame = occupancy(parse_minutes(*repeated, *repeated, *hour(start=local(2026, 11, 1, 2))))
    assert frame["flag"].to_list() == ["nulled:ambiguous-dst-hour"] * 2 + ["observed"]


def test_stations_are_kept_apart_and_can_be_chosen():
    both = [*hour(), *hour(station="400002", occupancy=".09")]
    assert occupancy(parse_minutes(*both))["value"].to_list() == pytest.approx([0.03, 0.09])
    assert set(parse_minutes(*both, only=["400002"])["series_id"]) == {
        "PEMS/400002",
        "PEMS_OBSERVED/400002",
    }


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Timestamp,Station", *hour()], "line 1: 2 cells, not 52"),
        ([*hour(), hour()[0]], r"line 13: station 400001, .* is a duplicate"),
        ([minute(local(2026, 10, 31, 8, 2))], "08:02:00 is not a five-minute interval"),
    ],
)
def test_a_line_of_another_width_twice_or_off_the_grid_is_refused(lines, said):
    with pytest.raises(SchemaDrift, match=said):
        parse_minutes(*lines)


def test_a_file_read_in_parts_is_the_same_and_faults_name_their_line(monkeypatch):
    lines = [*hour(), *hour(station="400002"), *hour(station="400003", occupancy=".09")]
    whole = parse_minutes(*lines)
    monkeypatch.setattr(pems, "PART_CHARACTERS", 150)
    assert parse_minutes(*lines).equals(whole)
    with pytest.raises(SchemaDrift, match="line 30: occupancy is 'low'"):
        parse_minutes(*lines[:29], lines[29].replace(".09", "low"), *lines[30:])
