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

SCOPE = Scope(subset="first", windows=small.windows("test", 6))
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


def test_windows_of_a_daily_series_that_overlap_are_one_piece_of_evidence_a_horizon():
    # 96 days of 48-day windows: two spans without a common day, however many windows they have.
    half_hourly = small.windows("test", 96, entities=("NSW1",))
    daily = [replace(w, view=replace(w.view, step_minutes=24 * 60)) for w in half_hourly]
    scope = Scope(subset="test", windows=WindowSet(daily, dataset="electricity"))
    truth_NH = scope.windows.truth()
    # The other method's error changes with the span, so that days of a span tell the same.
    by_span = np.repeat([1.0, 3.0], HORIZON)
    forecasts = {"a": [truth_NH], "b": [truth_NH + by_span[:, None]]}

    (test,) = compare_with_opponents(scope, forecasts, "a")

    assert label_blocks(scope.windows.views()) == [0] * HORIZON + [1] * HORIZON
    assert test["n"] == 2
    assert test["mean_difference"] == pytest.approx(-2.0)
    assert (test["interval_low"], test["interval_high"]) == pytest.approx((-3.0, -1.0))


def test_windows_of_one_day_each_are_pairs_of_their_own_and_drawn_by_day():
    scope = Scope(subset="test", windows=small.windows("test", 5))
    truth_NH = scope.windows.truth()
    forecasts = {"a": [truth_NH], "b": [truth_NH + 1.0]}

    (test,) = compare_with_opponents(scope, forecasts, "a")

    assert label_blocks(scope.windows.views()) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert test["n"] == len(scope.windows)
