"""The packaged archive of the sample mode."""

import zipfile

import pytest

from compevo_pipeline.sources.common.base import (
    SAMPLE_ARCHIVE,
    SAMPLE_FETCHED_AT,
    Mode,
    read_sample_files,
)
from tools.sample_world.__main__ import make_members


def test_files_come_by_name_labelled_as_invented_and_without_a_clock():
    months = list(read_sample_files("pems"))
    assert [raw.label for raw in months] == [
        f"sample:pems/d04_text_station_hour_2016_{month:02d}.txt.gz" for month in (1, 2, 3)
    ]
    assert {(raw.mode, raw.fetched_at) for raw in months} == {(Mode.SAMPLE, SAMPLE_FETCHED_AT)}
    assert list(read_sample_files("no-such-product")) == []


@pytest.mark.slow
def test_the_archive_is_what_the_script_writes():
    with zipfile.ZipFile(SAMPLE_ARCHIVE) as bundle:
        packed = {name: bundle.read(name) for name in bundle.namelist()}
    assert packed == dict(make_members())
