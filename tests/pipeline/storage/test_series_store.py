"""Series on disk: idempotent, atomic, safe for parallel writers."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta

import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_pipeline.storage.series_store import SeriesStore
from tests.support.store_workers import FETCHED, series, write_series

LATER = FETCHED + timedelta(days=1)
EARLIER = FETCHED - timedelta(days=1)


def tree(root):
    # A lock's time says who took it last; it holds nothing.
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".lock" not in path.name)
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
    }


def test_what_was_written_is_read_back(tmp_path):
    store = SeriesStore(tmp_path)
    report = store.write("electricity", series(values=(1.0, None, 3.0)))
    counted = {name: count for name, count in report.as_dict().items() if count}
    assert counted == {"rows": 3, "added": 3, "files_written": 1}
    assert store.read("electricity").equals(series(values=(1.0, None, 3.0)))


def test_writing_twice_changes_no_byte_even_when_fetched_again_later(tmp_path):
    store = SeriesStore(tmp_path)
    store.write("electricity", pl.concat([series(), series("AEMO/TOTALDEMAND/SA1")]))
    before = tree(tmp_path)
    again = store.write(
        "electricity", pl.concat([series(fetched=LATER), series("AEMO/TOTALDEMAND/SA1")])
    )
    assert (again.unchanged, again.files_written) == (6, 0)
    assert tree(tmp_path) == before


def test_a_value_fetched_later_replaces_and_one_fetched_earlier_does_not(tmp_path):
    store = SeriesStore(tmp_path)
    store.write("electricity", series(values=(1.0, 2.0, 3.0)))
    later = store.write("electricity", series(values=(1.0, 20.0, 3.0), fetched=LATER))
    assert (later.changed, later.unchanged) == (1, 2)
    older = store.write("electricity", series(values=(1.0, -5.0, 3.0), fetched=EARLIER))
    assert (older.superseded, older.changed) == (1, 0)
    assert store.read("electricity")["value"].to_list() == [1.0, 20.0, 3.0]


def test_of_two_rows_of_one_key_in_one_frame_the_later_fetch_wins_and_the_loss_is_counted(tmp_path):
    store = SeriesStore(tmp_path)
    frame = pl.concat([series(values=(9.0,), fetched=LATER), series(values=(1.0,))])
    assert store.write("electricity", frame).superseded == 1
    assert store.read("electricity")["value"].to_list() == [9.0]


def test_a_prefix_selects_series_and_other_frames_in_the_folder_are_not_series(tmp_path):
    store = SeriesStore(tmp_path)
    store.write("electricity", pl.concat([series(), series("AEMO/HISTDEMAND/NSW1")]))
    pl.DataFrame({"record": [1]}).write_parquet(
        tmp_path / "series" / "electricity" / "benchmark.parquet"
    )
    assert store.read("electricity", "AEMO/HIST")["series_id"].unique().to_list() == [
        "AEMO/HISTDEMAND/NSW1"
    ]
    assert store.read("electricity").height == 6


def test_a_bad_frame_is_refused_before_anything_is_touched(tmp_path):
    store = SeriesStore(tmp_path)
    store.write("electricity", series())
    before = tree(tmp_path)
    bad = pl.concat(
        [
            series(fetched=LATER, values=(7.0,)),
            series("AEMO/X/Y").with_columns(flag=pl.lit("guess")),
        ]
    )
    with pytest.raises(DataError, match="unknown flag"):
        store.write("electricity", bad)
    for name in ("../outside", "noslash", "AEMO/a b"):
        with pytest.raises(DataError, match="not SOURCE/NAME"):
            store.write("electricity", series(name))
    with pytest.raises(DataError, match="no folder name"):
        store.write("../elsewhere", series())
    assert tree(tmp_path) == before


def test_reading_what_is_not_there_says_what_to_materialize(tmp_path):
    with pytest.raises(DataError, match="materialize series/traffic"):
        SeriesStore(tmp_path).read("traffic")


def test_a_write_that_dies_leaves_the_old_file_and_no_part(tmp_path, monkeypatch):
    store = SeriesStore(tmp_path)
    store.write("electricity", series())
    before = tree(tmp_path)

    def full_disk(_frame, target):
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", full_disk)
    with pytest.raises(OSError, match="No space left"):
        store.write("electricity", series(values=(5.0,), fetched=LATER))
    assert tree(tmp_path) == before


def test_processes_writing_one_series_lose_no_row(tmp_path):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        done = [pool.submit(write_series, str(tmp_path), worker, 4) for worker in range(3)]
        assert sorted(future.result(timeout=120) for future in done) == [0, 1, 2]
    assert SeriesStore(tmp_path).read("electricity").height == 3 * 4 * 3
