"""Raw files of the archive and sample modes."""

import gzip

import pytest

from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.common import base
from compevo_pipeline.sources.common.base import Mode
from tests.support.sources import clock, raw


def test_the_archive_says_what_it_lacks(tmp_path):
    with pytest.raises(SourceAbsent, match="COMPEVO_ARCHIVE"):
        base.find_archive_files(None, "x", "*.csv")
    with pytest.raises(SourceAbsent, match=r"no file x/\*\.csv"):
        base.find_archive_files(tmp_path, "x", "*.csv")


def test_a_raw_file_knows_its_hash_its_label_and_where_it_lay(tmp_path):
    (tmp_path / "x").mkdir()
    path = tmp_path / "x" / "a.csv.gz"
    path.write_bytes(gzip.compress(b"1"))
    found = base.read_archive_file(path, tmp_path, source="aemo", clock=clock)
    assert (found.name, found.content, found.url, found.label) == (
        "a.csv",
        b"1",
        "file:x/a.csv.gz",
        "archive:aemo/a.csv",
    )
    assert found.sha256 == raw("a", b"1").sha256
    sample = base.wrap_sample("aemo", "a.csv", b"1")
    assert (sample.mode, sample.label) == (Mode.SAMPLE, "sample:aemo/a.csv")
