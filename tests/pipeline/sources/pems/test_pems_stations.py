"""Chosen PeMS stations: the others of a file are left out, live and from the archive."""

import gzip

import pytest

from compevo_core.errors import ConfigError, SchemaDrift
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode, read_sample_files
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.sources.pems import source
from tests.pipeline.sources.pems.test_pems import NAME, line
from tests.support.sources import clock, raw

STATIONS = ("400001", "400017", "400030")
LINES = "\n".join(line(station=station) for station in STATIONS) + "\n"


def stations_of(frame):
    return set(frame["series_id"].str.extract("^PEMS/(.*)$").drop_nulls())


def parse_archive(folder, stations):
    (feed,) = default_feeds(pems_stations=stations)["traffic"]
    return feed.parsers[FrameKind.SERIES](list(feed.read_files(Mode.ARCHIVE, folder, clock)))


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / "archive" / "traffic"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.gz").write_bytes(gzip.compress(LINES.encode()))
    return folder.parent


def test_the_archive_gives_the_chosen_stations_and_all_where_none_is_chosen(archive):
    assert stations_of(parse_archive(archive, ())) == set(STATIONS)
    assert stations_of(parse_archive(archive, STATIONS[1:])) == set(STATIONS[1:])


def test_a_file_that_has_none_of_the_stations_is_refused_by_name(archive):
    with pytest.raises(SchemaDrift, match=rf"{NAME}: none of the stations 999, 1000; correct"):
        parse_archive(archive, ("999", "1000"))


def test_the_sample_and_the_benchmark_table_have_no_published_stations_and_stay_whole():
    invented = next(read_sample_files("pems"))
    assert source.parse_chosen(invented, stations=("999",)).equals(source.parse(invented))
    with pytest.raises(SchemaDrift, match="neither a header"):
        source.parse_chosen(raw("traffic.csv", "not,a,table\n", "pems"), stations=("999",))


def test_stations_come_from_the_environment_and_are_numbers():
    settings = Settings.from_environment({"COMPEVO_PEMS_STATIONS": " 400001,400017, "})
    assert settings.pems_stations == STATIONS[:2]
    assert Settings.from_environment({}).pems_stations == ()
    with pytest.raises(ConfigError, match="COMPEVO_PEMS_STATIONS holds 'S-101'"):
        Settings.from_environment({"COMPEVO_PEMS_STATIONS": "400001,S-101"})
