"""What makes a stored series row another one, and which of two rows of one key stays."""

import polars as pl

from compevo_pipeline.sources.common.nem import INCOMPLETE
from compevo_pipeline.storage.series_store import SeriesStore
from tests.support.store_workers import series


def test_a_correction_that_was_fetched_in_the_same_instant_replaces(tmp_path):
    store = SeriesStore(tmp_path)
    store.write("electricity", series(values=(1.0, 2.0, 3.0)))
    report = store.write("electricity", series(values=(1.0, 20.0, 3.0)))
    assert (report.changed, report.superseded) == (1, 0)
    assert store.read("electricity")["value"].to_list() == [1.0, 20.0, 3.0]


def test_another_reason_for_a_missing_value_is_a_change(tmp_path):
    store = SeriesStore(tmp_path)
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


def test_a_day_issued_again_without_its_values_loses_none(tmp_path):
    store = SeriesStore(tmp_path)
    store.write("electricity", series(values=(1.0, 2.0, 3.0)))
    report = store.write("electricity", series(values=(None, None, 4.0)))
    assert (report.nulls_kept_out, report.changed) == (2, 1)
    assert store.read("electricity")["value"].to_list() == [1.0, 2.0, 4.0]
    assert set(store.read("electricity")["flag"]) == {"observed"}


def test_a_file_cut_inside_a_half_hour_takes_no_value_away(tmp_path):
    store = SeriesStore(tmp_path)
    whole = labelled(series(values=(1.0, 2.0, 3.0, 4.0)), "a.csv")
    store.write("electricity", whole)
    cut = whole.head(2).with_columns(
        pl.Series("value", [1.0, None]), pl.Series("flag", ["observed", INCOMPLETE])
    )
    report = store.write("electricity", cut)
    assert (report.nulls_kept_out, report.removed, report.absent) == (1, 0, 2)
    assert store.read("electricity").equals(whole)


def test_of_two_rows_given_at_once_the_value_counts_whichever_was_fetched_later(tmp_path):
    store = SeriesStore(tmp_path)
    empty = series(values=(None,)).with_columns(pl.col("fetched_at").dt.offset_by("1d"))
    store.write("electricity", pl.concat([series(values=(1.0,)), empty]))
    assert store.read("electricity")["value"].to_list() == [1.0]


def test_the_owner_of_a_whole_file_may_take_a_value_out(tmp_path):
    store = SeriesStore(tmp_path)
    store.write("electricity", series(values=(1.0, 2.0)))
    store.write("electricity", series(values=(1.0, None)), replace=True)
    assert store.read("electricity")["value"].to_list() == [1.0, None]


def test_rows_of_a_mistyped_year_go_when_their_file_is_corrected(tmp_path):
    store = SeriesStore(tmp_path)
    right = labelled(series(values=(1.0, 2.0, 3.0)), "a.csv")
    wrong = right.with_columns(pl.col("start_utc").dt.offset_by("40y"))
    store.write("electricity", pl.concat([wrong, labelled(series(values=(9.0,)), "b.csv")]))
    report = store.write("electricity", right)
    assert (report.removed, report.added, report.changed) == (3, 2, 1)
    assert store.read("electricity")["value"].to_list() == [1.0, 2.0, 3.0]


def test_a_file_that_only_became_shorter_takes_nothing_away(tmp_path):
    store = SeriesStore(tmp_path)
    whole = labelled(series(values=(1.0, 2.0, 3.0)), "a.csv")
    store.write("electricity", whole)
    report = store.write("electricity", whole.head(1))
    assert (report.removed, report.absent, report.files_written) == (0, 2, 0)
    assert store.read("electricity").height == 3


def test_a_page_that_moves_on_keeps_the_history_that_it_no_longer_shows(tmp_path):
    store = SeriesStore(tmp_path)
    whole = labelled(series(values=(1.0, 2.0, 3.0)), "page.html")
    store.write("electricity", whole.head(2))
    assert store.write("electricity", whole.tail(2)).removed == 0
    assert store.read("electricity")["value"].to_list() == [1.0, 2.0, 3.0]
