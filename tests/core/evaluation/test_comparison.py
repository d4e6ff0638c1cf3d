"""Variants are paired with the full method window by window, whatever seed they had."""

from dataclasses import replace

import numpy as np
import pytest

from compevo_core.data.view import HORIZON
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.comparison import (
    PAIRED_TEST_SCHEMA,
    compare_with_opponents,
    compare_with_reference,
    label_blocks,
)
from compevo_core.evaluation.scopes import Scope
from tests.support import population as small

SCOPE = Scope(subset="first", windows=small.windows("test", 12))
TRUTH_NH = SCOPE.windows.truth()


def test_errors_are_averaged_over_seeds_before_they_are_paired():
    # By single seeds the differences would be 1 and 7; forecasts averaged first would have none.
    forecasts = {
        "compevo": [TRUTH_NH + 2, TRUTH_NH - 2],
        "no-grpo": [TRUTH_NH + 3, TRUTH_NH - 9],
    }
    (test,) = compare_with_reference(SCOPE, forecasts, "compevo")
    assert list(test) == list(PAIRED_TEST_SCHEMA)
    assert (test["method_a"], test["method_b"]) == ("no-grpo", "compevo")
    assert test["n"] == len(SCOPE.windows), "a window counts once, however many seeds there are"
    assert test["mean_difference"] == pytest.approx(4.0)
    assert test["rank_sign"] == 1 and test["p_two_sided"] < 0.01 < 0.99 < test["p_value"]


def test_the_reference_may_stand_anywhere_and_have_other_seeds():
    forecasts = {"a": [TRUTH_NH + 1], "full": [TRUTH_NH + 4, TRUTH_NH + 6], "b": [TRUTH_NH + 5]}
    tests = compare_with_reference(SCOPE, forecasts, "full")
    assert [test["method_a"] for test in tests] == ["a", "b"]
    assert [test["mean_difference"] for test in tests] == pytest.approx([-4.0, 0.0])


def test_a_window_that_is_masked_for_all_is_left_out():
    first, *others = SCOPE.windows
    masked = replace(first, y=np.full_like(first.y, np.nan))
    scope = Scope(subset="first", windows=WindowSet([masked, *others], dataset="electricity"))
    (test,) = compare_with_reference(scope, {"a": [TRUTH_NH + 1], "b": [TRUTH_NH]}, "b")
    assert test["n"] == len(SCOPE.windows) - 1


def test_without_the_reference_there_is_nothing_to_compare():
    assert compare_with_reference(SCOPE, {"no-grpo": [TRUTH_NH]}, "compevo") == []


def make_daily(days):
    """Windows of 48 days that begin on following days."""
    half_hourly = small.windows("test", days, entities=("NSW1",))
    daily = [replace(w, view=replace(w.view, step_minutes=24 * 60)) for w in half_hourly]
    return Scope(subset="test", windows=WindowSet(daily, dataset="electricity"))


def test_a_few_spans_of_overlapping_windows_give_a_difference_and_no_more():
    # 200 windows of 48 days: a block of four horizons and a piece of the next.
    scope = make_daily(200)
    truth_NH = scope.windows.truth()
    by_block = np.repeat([1.0, 3.0], [4 * HORIZON, 8])

    (test,) = compare_with_opponents(
        scope, {"a": [truth_NH], "b": [truth_NH + by_block[:, None]]}, "a"
    )

    assert label_blocks(scope.windows.views()) == [0] * 4 * HORIZON + [1] * 8
    assert (test["n"], test["n_blocks"]) == (200, 2)
    # The mean of windows, as in a table of errors: the short block does not weigh as the long one.
    assert test["mean_difference"] == pytest.approx(-(192 * 1.0 + 8 * 3.0) / 200)
    unknown = ("p_value", "p_two_sided", "rank_sign", "interval_low", "interval_high")
    assert [test[name] for name in unknown] == [None] * 5


def test_series_of_one_day_are_one_piece_of_evidence():
    scope = Scope(subset="test", windows=small.windows("test", 12))
    truth_NH = scope.windows.truth()
    rng = np.random.default_rng(0)
    by_day = np.repeat(rng.normal(0.3, 1.0, 12), 2)
    of_all = {"a": [truth_NH + 5], "b": [truth_NH + 5 + by_day[:, None]]}
    of_one = Scope(subset="test", windows=small.windows("test", 12, entities=("NSW1",)))
    one_NH = of_one.windows.truth()
    by_window = {"a": [one_NH + 5], "b": [one_NH + 5 + by_day[::2, None]]}

    (both,) = compare_with_opponents(scope, of_all, "a")
    (single,) = compare_with_opponents(of_one, by_window, "a")

    assert label_blocks(scope.windows.views()) == sorted([*range(12), *range(12)])
    assert (both["n"], single["n"], both["n_blocks"], single["n_blocks"]) == (24, 12, 12, 12)
    # A second series that errs alike says nothing new.
    for name in ("mean_difference", "p_two_sided", "interval_low", "interval_high"):
        assert both[name] == pytest.approx(single[name])


def test_a_comparison_says_how_many_trainings_each_side_is_the_mean_of():
    forecasts = {"a": [TRUTH_NH + 1] * 3, "b": [TRUTH_NH + 2] * 5}
    (test,) = compare_with_opponents(SCOPE, forecasts, "a")
    assert (test["seeds_a"], test["seeds_b"]) == (3, 5)
