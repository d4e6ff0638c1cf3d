"""Frames by step are a file a month: a write touches its months alone, and all of them at once."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.schemas import COVARIATE_SCHEMA, PUBLISHED_SCHEMA
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.storage import series_store
from compevo_pipeline.storage.series_store import FrameStore

DATASET, KIND = "electricity-operational", FrameKind.PUBLISHED


def issue(month, *, days=2, value=1.0, year=2026):
    """Half-hours of the first days of a month, known a day before."""
    first = datetime(year, month, 1, tzinfo=UTC)
    rows = [
        ("NSW1", first + n * timedelta(minutes=30), value, first - timedelta(days=1), 0.5, "x")
        for n in range(48 * days)
    ]
    return pl.DataFrame(rows, schema=PUBLISHED_SCHEMA, orient="row")


def both(value):
    """An issue that crosses the end of a month."""
    return pl.concat([issue(6, value=value), issue(7, value=value)])


@pytest.fixture
def store(tmp_path):
    return FrameStore(tmp_path)


def visible(store):
    return {path.name: path.stat().st_mtime_ns for path in store.folder(DATASET, KIND).glob("20*")}


def test_a_write_replaces_the_files_of_its_months_alone(store):
    assert store.write(DATASET, KIND, pl.concat([issue(5), both(1.0)])) == 3 * 96
    before = visible(store)
    assert [name[:7] for name in sorted(before)] == ["2026-05", "2026-06", "2026-07"]

    assert store.write(DATASET, KIND, both(1.0)) == 3 * 96
    assert visible(store) == before, "equal rows touch no file"
    assert store.write(DATASET, KIND, issue(7, days=3, value=2.0)) == 3 * 96 + 48
    after = visible(store)
    assert len(after) == 3
    assert {name[:7] for name, _ in after.items() - before.items()} == {"2026-07"}
    values = store.read(DATASET, KIND).group_by(pl.col("start_utc").dt.month()).agg("value")
    assert {month: set(found) for month, found in values.iter_rows()} == {5: {1}, 6: {1}, 7: {2}}


def test_rows_are_read_by_month_and_by_key_whatever_order_they_came_in(store):
    for month in (7, 5, 6):
        store.write(DATASET, KIND, issue(month).sample(fraction=1.0, shuffle=True, seed=0))
    found = store.read(DATASET, KIND)
    assert found.equals(pl.concat([issue(5), issue(6), issue(7)]))
    assert dict(found.schema) == PUBLISHED_SCHEMA


def test_a_query_gives_what_it_gives_on_the_whole_frame_and_opens_no_row_of_another_month(store):
    store.write(DATASET, KIND, pl.concat([issue(5), both(1.0)]))

    def from_july(rows):
        return rows.filter(pl.col("start_utc") >= datetime(2026, 7, 1, tzinfo=UTC))

    assert store.read(DATASET, KIND, from_july).equals(issue(7))
    # The rows of another month are spoilt, and its footer, which has the bounds, is whole.
    (may,) = store.folder(DATASET, KIND).glob("2026-05-*")
    content = bytearray(may.read_bytes())
    content[4:200] = bytes(196)
    may.write_bytes(content)
    assert store.read(DATASET, KIND, from_july).equals(issue(7))
    with pytest.raises(pl.exceptions.ComputeError):
        store.read(DATASET, KIND)


def test_rows_that_replace_all_others_leave_no_month_behind(store):
    store.write(DATASET, KIND, pl.concat([issue(5), both(1.0)]))
    assert store.write(DATASET, KIND, issue(6), replace=True) == 96
    assert store.read(DATASET, KIND).equals(issue(6))
    assert len(visible(store)) == 1


def test_each_value_that_changes_is_recorded_with_what_was_before(store):
    store.write(DATASET, KIND, both(1.0))
    store.write(DATASET, KIND, both(1.0))
    assert store.read_changes(DATASET).is_empty()

    # A later issue is another forecast; the same one with other values is a change.
    later = issue(7, value=3.0).with_columns(pl.col("available_at") + timedelta(hours=1))
    store.write(DATASET, KIND, later)
    assert store.read_changes(DATASET).is_empty()
    store.write(DATASET, KIND, issue(7, value=2.0, days=1))
    changes = store.read_changes(DATASET)
    assert changes.height == 48 and changes["source"].unique().to_list() == ["x"]
    assert changes.select("before", "after").unique().rows() == [(1.0, 2.0)]
    assert changes["variable"].unique().to_list() == ["forecast q0.5"]
    store.write(DATASET, KIND, issue(7, value=1.0, days=1))
    assert store.read_changes(DATASET).height == 96


def test_a_reader_whose_month_is_replaced_meanwhile_reads_the_new_one(store, monkeypatch):
    store.write(DATASET, KIND, both(1.0))
    scan, done = series_store._scan, iter([True])

    def replace_first(path):
        if next(done, False):
            store.write(DATASET, KIND, both(2.0))
        return scan(path)

    monkeypatch.setattr(series_store, "_scan", replace_first)
    assert set(store.read(DATASET, KIND)["value"]) == {2.0}


def make_covariates(*values, day=15):
    known = datetime(2020, 1, day + 1, tzinfo=UTC)
    rows = [
        (entity, "max_temp_k", date(2020, 1, day), value, known, "archive:test")
        for entity, value in zip(("NSW1", "SA1"), values, strict=True)
    ]
    return pl.DataFrame(rows, schema=COVARIATE_SCHEMA, orient="row")


def write_covariates(store, *values, day=15):
    frame = make_covariates(*values, day=day)
    return store.write("electricity", FrameKind.COVARIATES, frame)


def test_of_two_rows_of_one_key_the_one_written_last_stays(store):
    write_covariates(store, 300.0, 310.0)
    write_covariates(store, 301.0, 310.0)
    rows = write_covariates(store, 299.0, 309.0, day=16)
    assert rows == 4
    stored = store.read("electricity", FrameKind.COVARIATES).filter(entity="NSW1")
    assert stored["value"].to_list() == [301.0, 299.0]


def test_rows_of_several_writers_at_a_time_are_all_kept(store):
    days = range(1, 25)
    with ThreadPoolExecutor(8) as pool:
        for day in days:
            pool.submit(write_covariates, store, 300.0, 310.0, day=day)
    assert store.read("electricity", FrameKind.COVARIATES).height == 2 * len(days)
