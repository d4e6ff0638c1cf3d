"""Stored forecasts belong to windows by their ids, not by their place in the file."""

import numpy as np
import polars as pl

from compevo_core.evaluation.scopes import read_forecasts, thin_windows, write_forecasts
from tests.support.window_samples import make_window_set


def test_forecasts_are_matched_by_window_when_the_file_holds_them_in_another_order(tmp_path):
    scope = thin_windows(make_window_set(4), "train", 1)
    values = np.arange(4)[:, None] * np.ones((4, 48))
    path = tmp_path / "forecasts.parquet"
    write_forecasts(path, [(scope, {"gbm": [values]})])

    pl.read_parquet(path).reverse().write_parquet(path)
    assert np.array_equal(read_forecasts(path, scope)["gbm"], [values])
