"""Which windows are scored together, and forecasts that stay with their windows."""

from datetime import date

import numpy as np
import polars as pl
import pytest

from compevo_core.data.build import build_windows
from compevo_core.data.datasets import ELECTRICITY, ELECTRICITY_OPERATIONAL
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.scopes import (
    read_forecasts,
    select_month_scopes,
    select_scopes,
    select_test_scopes,
    thin_windows,
    write_forecasts,
)
from tests.support.window_samples import (
    from_nem,
    make_daily_values,
    make_series,
    make_window,
    make_window_set,
)


def make_windows(days=4, subset="aemo-2021"):
    rows = [
        make_window(
            day,
            split="test",
            subsets=(subset,),
            entity=entity,
            series_id=entity,
            window_id=f"{entity}-{day}",
        )
        for day in range(days)
        for entity in ("NSW1", "SA1")
    ]
    return WindowSet(rows, dataset="electricity")


def test_thinning_keeps_whole_origins_and_says_so_in_the_name():
    scope = thin_windows(make_windows(), "aemo-2021", 2)
    assert scope.subset == "aemo-2021-every-2"
    assert [v.window_id for v in scope.windows.views()] == ["NSW1-0", "SA1-0", "NSW1-2", "SA1-2"]
    assert thin_windows(make_windows(), "aemo-2021", 1).subset == "aemo-2021"
    with pytest.raises(ConfigError):
        thin_windows(make_windows(), "aemo-2021", 0)


def test_named_subsets_are_scored_apart_and_a_data_set_without_them_as_a_whole():
    assert [s.subset for s in select_test_scopes(make_windows())] == ["aemo-2021"]
    assert [s.subset for s in select_test_scopes(make_windows(subset="other"))] == ["test"]
    with pytest.raises(DataError, match="no test window"):
        select_test_scopes(WindowSet([], dataset="electricity"))


def test_forecasts_come_back_in_the_order_of_the_windows_asked_for(tmp_path):
    whole = thin_windows(make_windows(), "aemo-2021", 1)
    values = np.arange(8)[:, None] * np.ones((8, 48))
    of_seeds = {"gbm": [values, values + 1], "persistence": [-values]}
    write_forecasts(tmp_path / "f.parquet", [(whole, of_seeds)])
    stored = read_forecasts(tmp_path / "f.parquet", whole)
    assert np.array_equal(stored["gbm"], [values, values + 1])
    assert np.array_equal(stored["persistence"], [-values])
    with pytest.raises(DataError, match="same settings"):
        read_forecasts(tmp_path / "f.parquet", thin_windows(make_windows(), "aemo-2021", 2))


def test_a_window_without_a_kept_forecast_is_an_error_and_no_gap(tmp_path):
    write_forecasts(
        tmp_path / "f.parquet",
        [(thin_windows(make_windows(2), "aemo-2021", 1), {"gbm": [np.ones((4, 48))]})],
    )
    with pytest.raises(DataError, match="lacks 4 window"):
        read_forecasts(tmp_path / "f.parquet", thin_windows(make_windows(4), "aemo-2021", 1))
    with pytest.raises(DataError, match="evaluation/baselines"):
        read_forecasts(tmp_path / "none.parquet", thin_windows(make_windows(), "aemo-2021", 1))


def test_the_command_scores_the_scopes_of_the_test_split_another_split_or_one_subset():
    with_val = WindowSet(
        [*make_windows(), make_windows(1)[0].change_view(window_id="v", split="val")],
        dataset="electricity",
    )
    scopes = [select_scopes(with_val), select_scopes(with_val, split="val")]
    scopes.append(select_scopes(with_val, subset="aemo-2021", every=2))
    assert [[s.subset for s in chosen] for chosen in scopes] == [
        ["aemo-2021"],
        ["val"],
        ["aemo-2021-every-2"],
    ]
    assert [view.window_id for view in scopes[1][0].windows.views()] == ["v"]


def test_views_that_know_less_are_a_scope_of_their_own_in_every_split():
    series = make_series(
        make_daily_values(8), first=from_nem(2026, 1, 5), series_id="AEMO/OPERATIONAL_DEMAND/NSW1"
    )
    windows = build_windows(ELECTRICITY_OPERATIONAL, series)
    for split in ("val", "test", "inference"):
        placed = WindowSet(
            [window.change_view(split=split) for window in windows], dataset=windows.dataset
        )
        midnight, five = select_scopes(placed, split=split)
        # The ending is that of the subsets of the test split.
        assert (midnight.subset, five.subset) == (split, f"{split}-known-1700")
        assert len(midnight.windows) + len(five.windows) == len(placed)
        for scope, unknown in ((midnight, 0), (five, 14)):
            assert {view.unknown_steps for view in scope.windows.views()} == {unknown}
            # A population in daily use lives through all days once, for both.
            assert scope.days.hash == placed.hash


def build_until(last_day):
    """Windows of operational demand from 18 February 2026 up to a day."""
    days = (last_day - date(2026, 2, 18)).days + 1
    values = make_daily_values(100, 5)[: 48 * days]
    series = make_series(
        values, first=from_nem(2026, 2, 18), series_id="AEMO/OPERATIONAL_DEMAND/NSW1"
    )
    return build_windows(ELECTRICITY, series)


def test_a_later_month_is_one_more_scope_and_changes_no_window_before_it():
    before, after = build_until(date(2026, 3, 30)), build_until(date(2026, 5, 2))
    assert [scope.subset for scope in select_month_scopes(before)] == [
        "inference-2026-02",
        "inference-2026-03",
    ]

    months = {scope.subset: scope.windows for scope in select_month_scopes(after)}
    assert {name: len(windows) for name, windows in months.items()} == {
        "inference-2026-02": 10,
        "inference-2026-03": 31,
        "inference-2026-04": 30,
        "inference-2026-05": 2,
    }
    for name in ("inference-2026-100", "inference-2026-200"):
        assert after.subset(name).hash == before.subset(name).hash
    february = select_month_scopes(before)[0]
    assert months["inference-2026-02"].hash == february.windows.hash
    thinned, *_ = select_month_scopes(after, every=2)
    assert thinned.subset == "inference-2026-02-every-2"


def test_forecasts_are_matched_by_window_when_the_file_holds_them_in_another_order(tmp_path):
    scope = thin_windows(make_window_set(4), "train", 1)
    values = np.arange(4)[:, None] * np.ones((4, 48))
    path = tmp_path / "forecasts.parquet"
    write_forecasts(path, [(scope, {"gbm": [values]})])

    pl.read_parquet(path).reverse().write_parquet(path)
    assert np.array_equal(read_forecasts(path, scope)["gbm"], [values])
