"""PeMS five-minute files: hours of twelve intervals."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.series import validate_series
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.pems import source as pems
from tests.support.sources import raw

NAME = "d04_text_station_5min_2026_11_01.txt"


def local(*parts):
    return datetime(*parts, tzinfo=UTC)  # the wall clock: the file names no zone


def line(stamp, station="400001", percent="100", occupancy=".03"):
    head = [f"{stamp:%m/%d/%Y %H:%M:%S}", station, "4", "101", "S", "ML", ".415", "80", percent]
    return ",".join([*head, "120", occupancy, "65.1", *["10"] * 20, *[""] * 20])


MORNING = local(2026, 10, 31, 8)


def hour(*, start=MORNING, drop=(), **changes):
    stamps = [start + timedelta(minutes=5) * step for step in range(12)]
    return [line(stamp, **changes) for step, stamp in enumerate(stamps) if step not in drop]


def parse(*lines, only=None):
    return validate_series(pems.parse(raw(NAME, "\n".join(lines) + "\n", "pems"), only=only))


def occupancy(frame):
    return frame.filter(pl.col("variable") == "occupancy").sort("start_utc")


def test_twelve_intervals_are_an_hour_of_the_series_of_station_hour_files():
    rising = [
        line(local(2026, 10, 31, 8, 5 * step), occupancy=f"{0.01 * (step + 1):.2f}", percent=p)
        for step, p in enumerate(["100"] * 6 + ["50"] * 6)
    ]
    frame = parse(*rising)
    rows = {row["series_id"]: row for row in frame.iter_rows(named=True)}
    assert rows["PEMS/400001"]["value"] == pytest.approx(0.065)
    assert rows["PEMS/400001"]["start_utc"] == datetime(2026, 10, 31, 15, tzinfo=UTC)
    assert rows["PEMS_OBSERVED/400001"]["value"] == 75.0


@pytest.mark.parametrize("occupancy_cell", [None, "", "5.3", "-.01"])
def test_an_hour_with_an_interval_missing_blank_or_impossible_has_no_value(occupancy_cell):
    lines = hour(drop=[3])
    if occupancy_cell is not None:
        lines.append(line(local(2026, 10, 31, 8, 15), occupancy=occupancy_cell))
    assert occupancy(parse(*lines)).select("value", "flag").rows() == [(None, "missing")]


def test_an_hour_without_any_observed_sample_is_flagged_as_imputed():
    assert occupancy(parse(*hour(percent="0")))["flag"].to_list() == ["filled:pems-imputed"]


def test_the_repeated_hour_is_nulled_in_both_its_utc_hours():
    repeated = hour(start=local(2026, 11, 1, 1))
    frame = occupancy(parse(*repeated, *repeated, *hour(start=local(2026, 11, 1, 2))))
    assert frame["flag"].to_list() == ["nulled:ambiguous-dst-hour"] * 2 + ["observed"]


def test_stations_are_kept_apart_and_can_be_chosen():
    both = [*hour(), *hour(station="400002", occupancy=".09")]
    assert occupancy(parse(*both))["value"].to_list() == pytest.approx([0.03, 0.09])
    assert set(parse(*both, only=["400002"])["series_id"]) == {
        "PEMS/400002",
        "PEMS_OBSERVED/400002",
    }


def test_a_line_of_another_width_twice_or_off_the_grid_is_refused():
    with pytest.raises(SchemaDrift, match="line 1: 2 cells, not 52"):
        parse("Timestamp,Station", *hour())
    with pytest.raises(SchemaDrift, match=r"line 13: station 400001, .* is a duplicate"):
        parse(*hour(), hour()[0])
    with pytest.raises(SchemaDrift, match="08:02:00 is not a five-minute interval"):
        parse(line(local(2026, 10, 31, 8, 2)))


def test_a_file_read_in_parts_is_the_same_and_faults_name_their_line(monkeypatch):
    lines = [*hour(), *hour(station="400002"), *hour(station="400003", occupancy=".09")]
    whole = parse(*lines)
    monkeypatch.setattr(pems, "PART_CHARACTERS", 150)
    assert parse(*lines).equals(whole)
    with pytest.raises(SchemaDrift, match="line 30: occupancy is 'low'"):
        parse(*lines[:29], lines[29].replace(".09", "low"), *lines[30:])
