"""What makes a stored series row another one, and which of two rows of one key stays."""

import polars as pl

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
