"""Totals: forecasts that add up, moved most where least is known."""

import dataclasses

import numpy as np
import pytest

from compevo_core.data.datasets import ALL_SERIES
from compevo_core.data.quantiles import LEVELS
from compevo_core.errors import DataError
from compevo_core.forecast.prediction import Prediction
from compevo_core.forecast.totals import reconcile
from tests.support.window_samples import make_window

NAMES = ("a", "total", "b")
VIEWS = [make_window(i, entity=name).view for i, name in enumerate(NAMES)]
LEVEL = np.array([30.0, 120.0, 60.0])  # the parts make 90


def predict(widths: np.ndarray) -> Prediction:
    values_NH = np.repeat(LEVEL[:, None], 48, axis=1)
    agents = np.stack([values_NH - 1, values_NH + 1])
    at = np.array(LEVELS) - 0.5
    return Prediction(
        aggregate=values_NH,
        agents=agents,
        step_weights=np.full((3, 2, 48), 0.5),
        quantiles=values_NH[:, None] + (widths[:, None] * at / 0.8)[:, :, None],
        chosen_news=[[()] * 3, [()] * 3],
        bases=agents - 2.0,
        levels=np.full_like(agents, 0.5),
        prior=None,
        n_unparsed=0,
    )


def test_a_sum_is_reached_by_moving_each_series_by_its_doubt() -> None:
    before = predict(np.array([1.0, 3.0, 2.0]))
    after = reconcile(before, VIEWS, {"total": ("a", "b")})

    # 30 are missing; squares of the widths are 1, 9 and 4 of 14 (Lagrange's method by hand).
    expected = LEVEL + 30 * np.array([1.0, -9.0, 4.0]) / 14
    np.testing.assert_allclose(after.aggregate[:, 0], expected)
    np.testing.assert_allclose(after.aggregate[1], after.aggregate[[0, 2]].sum(axis=0))

    # Parts add up as before: the change is one of levels. Bands keep their width.
    parts = after.step_weights.swapaxes(0, 1) * after.agents
    np.testing.assert_allclose(parts.sum(axis=0), after.aggregate)
    np.testing.assert_allclose(after.agents - after.levels, before.agents - before.levels)
    around = after.quantiles - after.aggregate[:, None]
    np.testing.assert_allclose(around, before.quantiles - before.aggregate[:, None])


def test_without_bands_all_series_count_alike_and_what_adds_up_stays() -> None:
    unknown_NQH = np.full((3, len(LEVELS), 48), np.nan)
    unknown = dataclasses.replace(predict(np.ones(3)), quantiles=unknown_NQH)
    after = reconcile(unknown, VIEWS, {"total": (ALL_SERIES,)})
    np.testing.assert_allclose(after.aggregate[:, 0], [40.0, 110.0, 70.0])
    again = reconcile(after, VIEWS, {"total": (ALL_SERIES,)})
    np.testing.assert_allclose(again.aggregate, after.aggregate)


def test_bounds_hold_and_totals_still_add_up() -> None:
    views = [dataclasses.replace(view, bounds=(35.0, None)) for view in VIEWS]
    high = predict(np.ones(3))
    low = dataclasses.replace(high, aggregate=high.aggregate * 0.1)
    after = reconcile(low, views, {"total": ("a", "b")})
    np.testing.assert_allclose(after.aggregate[:, 0], [35.0, 70.0, 35.0])


def test_a_total_without_one_of_its_parts_is_refused() -> None:
    with pytest.raises(DataError, match="no forecast of c, so that the totals cannot add up"):
        reconcile(predict(np.ones(3)), VIEWS, {"total": ("a", "c")})
