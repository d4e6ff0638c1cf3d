"""Frames that accompany the series: merged by key, written once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime

import polars as pl
import pytest

from compevo_core.data.schemas import COVARIATE_SCHEMA
from compevo_core.errors import StorageError
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.storage.frame_store import FrameStore


def make_covariates(*values, day=15):
    rows = [
        {
            "entity": entity,
            "name": "max_temp_k",
            "valid_date": date(2020, 1, day),
            "value": value,
            "available_at": datetime(2020, 1, day + 1, tzinfo=UTC),
            "source": "archive:test",
        }
        for entity, value in zip(("NSW1", "SA1"), values, strict=True)
    ]
    return pl.DataFrame(rows, schema=COVARIATE_SCHEMA)


@pytest.fixture
def store(tmp_path):
    return FrameStore(tmp_path)


def test_a_frame_is_read_back_and_an_absent_one_is_none(store):
    assert store.read("electricity", FrameKind.COVARIATES) is None
    assert store.write("electricity", FrameKind.COVARIATES, make_covariates(300.0, 310.0)) == 2
    found = store.read("electricity", FrameKind.COVARIATES)
    assert found.equals(make_covariates(300.0, 310.0))


def test_writing_twice_changes_no_byte(store):
    store.write("electricity", FrameKind.COVARIATES, make_covariates(300.0, 310.0))
    folder = store.folder("electricity", FrameKind.COVARIATES)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert store.write("electricity", FrameKind.COVARIATES, make_covariates(300.0, 310.0)) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert len(list(folder.glob("[!.]*.parquet"))) == 1, "rows by day are few, and are one file"


def test_of_two_rows_of_one_key_the_one_written_last_stays(store):
    store.write("electricity", FrameKind.COVARIATES, make_covariates(300.0, 310.0))
    store.write("electricity", FrameKind.COVARIATES, make_covariates(301.0, 310.0))
    rows = store.write("electricity", FrameKind.COVARIATES, make_covariates(299.0, 309.0, day=16))
    assert rows == 4
    stored = store.read("electricity", FrameKind.COVARIATES).filter(entity="NSW1")
    assert stored["value"].to_list() == [301.0, 299.0]


def test_rows_of_several_writers_at_a_time_are_all_kept(store):
    days = range(1, 25)
    with ThreadPoolExecutor(8) as pool:
        for day in days:
            pool.submit(
                store.write,
                "electricity",
                FrameKind.COVARIATES,
                make_covariates(300.0, 310.0, day=day),
            )
    assert store.read("electricity", FrameKind.COVARIATES).height == 2 * len(days)


def test_a_torn_frame_is_named_and_says_what_to_do(store):
    store.write("electricity", FrameKind.COVARIATES, make_covariates(300.0, 310.0))
    (path,) = store.folder("electricity", FrameKind.COVARIATES).glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(StorageError, match=r"covariates/all-\w+\.parquet.*torn: restore it"):
        store.read("electricity", FrameKind.COVARIATES)
