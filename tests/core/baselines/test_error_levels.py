"""Levels of known errors in the unit of a series: what is known when, and what is kept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from compevo_core.baselines.error_levels import ErrorLevels, follow_levels
from compevo_core.baselines.known_errors import NO_LEVEL, LevelRule
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import Window
from compevo_core.errors import DataError
from tests.support import population as small

TRAIN = small.windows("train", 6)
LATER = small.windows("val", 3, first_day=60)
SCALER = Scaler.fit(TRAIN)
RULE = LevelRule("mean", 2.0)
HIGH = 40.0


def _one_series(windows: list[Window]) -> list[Window]:
    return [window for window in windows if window.view.entity == windows[0].view.entity]


def _too_high(windows: list[Window], by: float = HIGH) -> np.ndarray:
    """Return forecasts of two forecasters: one too high, one right."""
    truth_NH = np.stack([window.y for window in windows])
    return np.stack([truth_NH + by, truth_NH], axis=1)


def test_each_forecaster_is_lowered_by_what_it_was_too_high_on_known_windows() -> None:
    days = _one_series(list(TRAIN))
    levels = ErrorLevels(RULE, SCALER, 2)
    levels.observe(days, _too_high(days))

    views = [window.view for window in days]
    added_NPH = levels.apply(views, np.zeros((len(days), 2, 48)))
    assert np.allclose(added_NPH[:, 0], -HIGH)
    assert np.allclose(added_NPH[:, 1], 0.0)


def test_a_level_is_kept_in_units_of_the_spread_so_that_series_can_lend_it() -> None:
    first = _one_series(list(TRAIN))
    other = next(w for w in TRAIN if w.view.entity != first[0].view.entity)
    levels = ErrorLevels(RULE, SCALER, 2)
    levels.observe(first, _too_high(first, SCALER.std[first[0].view.entity]))

    lent_H = levels.apply([other.view], np.zeros((1, 2, 48)))[0, 0]
    assert np.allclose(lent_H, -SCALER.std[other.view.entity])


def test_a_window_gets_the_level_of_the_windows_that_ended_before_its_origin() -> None:
    days = _one_series(list(TRAIN))
    followed_NPH = follow_levels(RULE, SCALER, days, _too_high(days))
    truth_NH = np.stack([window.y for window in days])

    # At the first origin nothing is known; from the second on the error of the first day is.
    assert np.allclose(followed_NPH[0, 0], truth_NH[0] + HIGH)
    assert np.allclose(followed_NPH[1:, 0], truth_NH[1:])


def test_a_view_of_the_afternoon_before_does_not_know_how_that_day_ended() -> None:
    days = [
        Window(view=replace(window.view, unknown_steps=14), y=window.y)
        for window in _one_series(list(TRAIN))
    ]
    followed_NPH = follow_levels(RULE, SCALER, days, _too_high(days))
    truth_NH = np.stack([window.y for window in days])

    # The first day ends with the origin of the second, hours after that one's view was made.
    assert np.allclose(followed_NPH[:2, 0], truth_NH[:2] + HIGH)
    assert np.allclose(followed_NPH[2:, 0], truth_NH[2:])


@pytest.mark.parametrize("poisoned", range(4))
def test_no_truth_at_or_after_an_origin_reaches_its_forecast(poisoned: int) -> None:
    days = _one_series(list(TRAIN))
    forecast_NPH = _too_high(days)
    origin_utc = days[poisoned].view.origin_utc
    later = [
        Window(view=w.view, y=w.y + (1e6 if w.view.end_utc > origin_utc else 0.0)) for w in days
    ]

    clean = follow_levels(RULE, SCALER, days, forecast_NPH)
    dirty = follow_levels(RULE, SCALER, later, forecast_NPH)
    assert np.array_equal(clean[: poisoned + 1], dirty[: poisoned + 1])
    assert not np.array_equal(clean[poisoned + 1 :], dirty[poisoned + 1 :])


def test_the_order_in_which_windows_are_given_does_not_matter() -> None:
    days = list(TRAIN)
    forecast_NPH = _too_high(days) * np.linspace(1.0, 1.1, len(days))[:, None, None]
    turned = follow_levels(RULE, SCALER, days[::-1], forecast_NPH[::-1])
    expected = follow_levels(RULE, SCALER, days, forecast_NPH)
    assert np.allclose(turned[::-1], expected, rtol=1e-12)


def test_without_a_rule_forecasts_are_left_alone_to_the_last_bit() -> None:
    days = list(TRAIN)
    forecast_NPH = _too_high(days)
    assert np.array_equal(follow_levels(NO_LEVEL, SCALER, days, forecast_NPH), forecast_NPH)


def test_levels_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    days = list(TRAIN)
    levels = ErrorLevels(RULE, SCALER, 2)
    levels.observe(days, _too_high(days))
    levels.save(tmp_path / "levels.safetensors")

    read = ErrorLevels(RULE, SCALER, 2)
    read.load(tmp_path / "levels.safetensors")
    assert read.minute == levels.minute
    # They also go on alike, with the days that come later.
    for one in (levels, read):
        one.observe(list(LATER), _too_high(list(LATER), 5.0))
    zeros = np.zeros((len(LATER), 2, 48))
    assert np.array_equal(levels.apply(LATER.views(), zeros), read.apply(LATER.views(), zeros))


def test_forecasts_of_other_windows_and_unknown_series_are_refused() -> None:
    days = list(TRAIN)
    levels = ErrorLevels(RULE, SCALER, 2)
    with pytest.raises(DataError, match="forecast every window once"):
        levels.observe(days, _too_high(days)[1:])

    few = Scaler(mean={"X": 0.0}, std={"X": 1.0})
    with pytest.raises(DataError, match="series of the train split"):
        ErrorLevels(RULE, few, 2).observe(days, _too_high(days))
