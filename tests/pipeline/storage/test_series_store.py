"""Series on disk: idempotent, atomic, safe for parallel writers."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta

import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_pipeline.sources.common.nem import INCOMPLETE
from compevo_pipeline.storage.series_store import SeriesStore
from tests.support.store_workers import FETCHED, series, write_series

LATER = FETCHED + timedelta(days=1)
EARLIER = FETCHED - timedelta(days=1)


@pytest.fixture
def store(tmp_path):
    return SeriesStore(tmp_path)


def values(store):
    return store.read("electricity")["value"].to_list()


def tree(root):
    # A lock's time says who took it last; it holds nothing.
    files = sorted(path for path in root.rglob("*") if path.is_file() and ".lock" not in path.name)
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in files
    }


def test_what_was_written_is_read_back(store):
    report = store.write("electricity", series(values=(1.0, None, 3.0)))
    counted = {name: count for name, count in report.as_dict().items() if count}
    assert counted == {"rows": 3, "added": 3, "files_written": 1}
    assert store.read("electricity").equals(series(values=(1.0, None, 3.0)))


def test_writing_twice_changes_no_byte_even_when_fetched_again_later(store, tmp_path):
    store.write("electricity", pl.concat([series(), series("AEMO/TOTALDEMAND/SA1")]))
    before = tree(tmp_path)
    again = store.write(
        "electricity", pl.concat([series(fetched=LATER), series("AEMO/TOTALDEMAND/SA1")])
    )
    assert (again.unchanged, again.files_written) == (6, 0)
    assert tree(tmp_path) == before


def test_a_value_fetched_later_replaces_and_one_fetched_earlier_does_not(store):
    store.write("electricity", series(values=(1.0, 2.0, 3.0)))
    later = store.write("electricity", series(values=(1.0, 20.0, 3.0), fetched=LATER))
    assert (later.changed, later.unchanged) == (1, 2)
    older = store.write("electricity", series(values=(1.0, -5.0, 3.0), fetched=EARLIER))
    assert (older.superseded, older.changed) == (1, 0)
    assert values(store) == [1.0, 20.0, 3.0]


def test_of_two_rows_of_one_key_in_one_frame_the_later_fetch_wins_and_the_loss_is_counted(store):
    frame = pl.concat([series(values=(9.0,), fetched=LATER), series(values=(1.0,))])
    assert store.write("electricity", frame).superseded == 1
    assert values(store) == [9.0]


def test_a_prefix_selects_series_and_other_frames_in_the_folder_are_not_series(store, tmp_path):
    store.write("electricity", pl.concat([series(), series("AEMO/HISTDEMAND/NSW1")]))
    pl.DataFrame({"record": [1]}).write_parquet(
        tmp_path / "series" / "electricity" / "benchmark.parquet"
    )
    assert store.read("electricity", "AEMO/HIST")["series_id"].unique().to_list() == [
        "AEMO/HISTDEMAND/NSW1"
    ]
    assert store.read("electricity").height == 6


def test_a_bad_frame_is_refused_before_anything_is_touched(store, tmp_path):
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
    with pytest.raises(DataError, match="not a folder name"):
        store.write("../elsewhere", series())
    assert tree(tmp_path) == before


def test_reading_what_is_not_there_says_what_to_materialize(tmp_path):
    with pytest.raises(DataError, match="compevo fit traffic"):
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


@pytest.mark.slow
def test_processes_writing_one_series_lose_no_row(tmp_path):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        done = [pool.submit(write_series, str(tmp_path), worker, 4) for worker in range(3)]
        assert sorted(future.result(timeout=120) for future in done) == [0, 1, 2]
    assert SeriesStore(tmp_path).read("electricity").height == 3 * 4 * 3


def test_a_correction_that_was_fetched_in_the_same_instant_replaces(store):
    store.write("electricity", series(values=(1.0, 2.0, 3.0)))
    report = store.write("electricity", series(values=(1.0, 20.0, 3.0)))
    assert (report.changed, report.superseded) == (1, 0)
    assert values(store) == [1.0, 20.0, 3.0]


def test_another_reason_for_a_missing_value_is_a_change(store):
    store.write("electricity", series(values=(1.0, None, 3.0)))
    nulled = series(values=(1.0, None, 3.0)).with_columns(
        pl.when(pl.col("value").is_null())
        .then(pl.lit("nulled:stuck"))
        .otherwise(pl.col("flag"))
        .alias("flag")
    )
    assert store.write("electricity", nulled).changed == 1
    assert store.read("electricity")["flag"].to_list() == ["observed", "nulled:stuck", "observed"]


def labelled(frame, name):
    return frame.with_columns(pl.lit(f"archive:aemo/{name}").alias("source"))


def test_a_day_issued_again_without_its_values_loses_none(store):
    store.write("electricity", series(values=(1.0, 2.0, 3.0)))
    report = store.write("electricity", series(values=(None, None, 4.0)))
    assert (report.nulls_kept_out, report.changed) == (2, 1)
    assert values(store) == [1.0, 2.0, 4.0]
    assert set(store.read("electricity")["flag"]) == {"observed"}


def test_a_file_cut_inside_a_half_hour_takes_no_value_away(store):
    whole = labelled(series(values=(1.0, 2.0, 3.0, 4.0)), "a.csv")
    store.write("electricity", whole)
    cut = whole.head(2).with_columns(
        pl.Series("value", [1.0, None]), pl.Series("flag", ["observed", INCOMPLETE])
    )
    report = store.write("electricity", cut)
    assert (report.nulls_kept_out, report.removed, report.absent) == (1, 0, 2)
    assert store.read("electricity").equals(whole)


def test_of_two_rows_given_at_once_the_value_counts_whichever_was_fetched_later(store):
    empty = series(values=(None,)).with_columns(pl.col("fetched_at").dt.offset_by("1d"))
    store.write("electricity", pl.concat([series(values=(1.0,)), empty]))
    assert values(store) == [1.0]


def test_the_owner_of_a_whole_file_may_take_a_value_out(store):
    store.write("electricity", series(values=(1.0, 2.0)))
    store.write("electricity", series(values=(1.0, None)), replace=True)
    assert values(store) == [1.0, None]


def test_rows_of_a_mistyped_year_go_when_their_file_is_corrected(store):
    right = labelled(series(values=(1.0, 2.0, 3.0)), "a.csv")
    wrong = right.with_columns(pl.col("start_utc").dt.offset_by("40y"))
    store.write("electricity", pl.concat([wrong, labelled(series(values=(9.0,)), "b.csv")]))
    report = store.write("electricity", right)
    assert (report.removed, report.added, report.changed) == (3, 2, 1)
    assert values(store) == [1.0, 2.0, 3.0]


def test_a_file_that_only_became_shorter_takes_nothing_away(store):
    whole = labelled(series(values=(1.0, 2.0, 3.0)), "a.csv")
    store.write("electricity", whole)
    report = store.write("electricity", whole.head(1))
    assert (report.removed, report.absent, report.files_written) == (0, 2, 0)
    assert store.read("electricity").height == 3


def test_a_page_that_moves_on_keeps_the_history_that_it_no_longer_shows(store):
    whole = labelled(series(values=(1.0, 2.0, 3.0)), "page.html")
    store.write("electricity", whole.head(2))
    assert store.write("electricity", whole.tail(2)).removed == 0
    assert values(store) == [1.0, 2.0, 3.0]
