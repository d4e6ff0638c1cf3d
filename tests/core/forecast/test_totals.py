"""Totals: forecasts that add up, moved most where least is known."""

import dataclasses

import numpy as np
import pytest

from compevo_core.data.datasets import ALL_SERIES
from compevo_core.data.quantiles import FEWEST, LEVELS, PastErrors, estimate_quantiles
from compevo_core.errors import DataError
from compevo_core.forecast.prediction import Prediction, centre_sparse, reconcile
from tests.support.window_samples import make_window

NAMES = ("a", "total", "b")
VIEWS = [make_window(i, entity=name).view for i, name in enumerate(NAMES)]
LEVEL = np.array([30.0, 120.0, 60.0])  # the parts make 90
TOTAL = {"total": ("a", "b")}
WIDTHS = np.array([1.0, 3.0, 2.0])
# 30 are missing; squares of the widths are 1, 9 and 4 of 14 (Lagrange's method by hand).
BY_WIDTH = LEVEL + 30 * np.array([1.0, -9.0, 4.0]) / 14


def past_errors(days=0):
    """Errors only of the total; the parts have none."""
    end_G = np.array([VIEWS[0].origin_utc.timestamp() / 60 - 1440 * day for day in range(days)])
    error_G = np.random.default_rng(0).normal(size=days)
    return PastErrors(
        entities=NAMES * days,
        until_N=np.repeat(end_G - 1440, 3).astype(np.int64),
        end_N=np.repeat(end_G, 3).astype(np.int64),
        unknown_N=np.zeros(3 * days, dtype=np.int64),
        error_NH=np.stack([0 * error_G, error_G, 0 * error_G], axis=1).reshape(-1, 1)
        * np.ones((1, 48)),
        forecast_NH=np.zeros((3 * days, 48)),
        scale_NH=np.full((3 * days, 48), np.nan),
        spread_N=np.ones(3 * days),
    )


def predict(widths):
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


def test_a_sum_moves_series_by_their_doubt():
    before = predict(WIDTHS)
    after, _ = reconcile(before, VIEWS, TOTAL, past_errors())

    np.testing.assert_allclose(after.aggregate[:, 0], BY_WIDTH)
    np.testing.assert_allclose(after.aggregate[1], after.aggregate[[0, 2]].sum(axis=0))

    # Parts add up as before: the change is one of levels.
    parts = after.step_weights.swapaxes(0, 1) * after.agents
    np.testing.assert_allclose(parts.sum(axis=0), after.aggregate)
    np.testing.assert_allclose(after.agents - after.levels, before.agents - before.levels)


def test_bands_are_of_errors_that_were_moved_alike():
    past = past_errors(2 * FEWEST)
    after, moved = reconcile(predict(np.ones(3)), VIEWS, TOTAL, past)
    # An error of the total is shared by all three alike, and the three still add up.
    error_GN = past.error_NH[:, 0].reshape(-1, 3)
    moved_GN = moved.error_NH[:, 0].reshape(-1, 3)
    np.testing.assert_allclose(moved_GN, np.outer(error_GN[:, 1], [1 / 3, 2 / 3, 1 / 3]))
    alone = estimate_quantiles(past, VIEWS, after.aggregate) - after.aggregate[:, None]
    around = after.quantiles - after.aggregate[:, None]
    np.testing.assert_allclose(around[1], 2 / 3 * alone[1])
    np.testing.assert_allclose(around[0], around[1] / 2)

    # Where a part is not known, errors stay as they were.
    past.error_NH[0] = np.nan
    _, moved = reconcile(predict(np.ones(3)), VIEWS, TOTAL, past)
    assert np.array_equal(moved.error_NH[:3], past.error_NH[:3], equal_nan=True)
    assert not np.array_equal(moved.error_NH[3:6], past.error_NH[3:6])


def test_without_bands_all_series_count_alike():
    unknown_NQH = np.full((3, len(LEVELS), 48), np.nan)
    unknown = dataclasses.replace(predict(np.ones(3)), quantiles=unknown_NQH)
    after, _ = reconcile(unknown, VIEWS, {"total": (ALL_SERIES,)}, past_errors())
    np.testing.assert_allclose(after.aggregate[:, 0], [40.0, 110.0, 70.0])
    again, _ = reconcile(after, VIEWS, {"total": (ALL_SERIES,)}, past_errors())
    np.testing.assert_allclose(again.aggregate, after.aggregate)


@pytest.mark.parametrize(
    ("method", "expected"), [("ols", [40.0, 110.0, 70.0]), ("bottom-up", [30.0, 90.0, 60.0])]
)
def test_every_reconciliation_adds_up(method, expected):
    after, _ = reconcile(predict(WIDTHS), VIEWS, TOTAL, past_errors(), method)
    np.testing.assert_allclose(after.aggregate[:, 0], expected)


def test_series_move_by_the_covariance_of_their_errors():
    # Errors without correlation count by their variance: 1, 9 and 4 of 14, as in the first test.
    past = past_errors(3000)
    error_GN = np.random.default_rng(1).normal(size=(3000, 3)) * WIDTHS
    past.error_NH[:] = error_GN.reshape(-1, 1)
    after, _ = reconcile(predict(np.ones(3)), VIEWS, TOTAL, past, "mint")
    np.testing.assert_allclose(after.aggregate[:, 0], BY_WIDTH, atol=1.5)
    # Without errors of all series they count by their bands.
    few, _ = reconcile(predict(np.ones(3)), VIEWS, TOTAL, past_errors(9), "mint")
    np.testing.assert_allclose(few.aggregate[:, 0], [40.0, 110.0, 70.0])


def test_bounds_hold_and_totals_still_add_up():
    views = [dataclasses.replace(view, bounds=(35.0, None)) for view in VIEWS]
    high = predict(np.ones(3))
    low = dataclasses.replace(high, aggregate=high.aggregate * 0.1)
    after, _ = reconcile(low, views, TOTAL, past_errors())
    np.testing.assert_allclose(after.aggregate[:, 0], [35.0, 70.0, 35.0])
    with pytest.raises(DataError, match="no forecast of c"):
        reconcile(high, VIEWS, {"total": ("a", "c")}, past_errors())


def test_totals_change_with_sparse_parts():
    sold = np.where(np.arange(len(VIEWS[0].x)) % 5 == 0, 10.0, 0.0)
    views = [dataclasses.replace(view, origin_utc=VIEWS[0].origin_utc) for view in VIEWS]
    views[0] = dataclasses.replace(views[0], x=sold)
    before = predict(np.ones(3))
    after = centre_sparse(before, views, {"total": (ALL_SERIES,)})

    change_NH = after.aggregate - before.aggregate
    np.testing.assert_allclose(after.aggregate[0].mean(), sold.mean())
    np.testing.assert_allclose(change_NH[1], change_NH[0])
    assert (change_NH[2] == 0).all()
    # Parts still add up to the forecast.
    np.testing.assert_allclose(after.agents.mean(axis=0), after.aggregate)
    np.testing.assert_array_equal(after.quantiles, before.quantiles)


def test_what_the_season_says_is_not_lifted():
    # Each day has sixteen half-hours of sun; in another order they are as rare as sales.
    sun = np.where(np.arange(336) % 48 < 16, 5.0, 0.0)
    before = predict(np.ones(3)).take([0])
    same = centre_sparse(before, [make_window(x=sun).view], {})
    np.testing.assert_array_equal(same.aggregate, before.aggregate)

    shuffled = np.random.default_rng(0).permutation(sun)
    lifted = centre_sparse(before, [make_window(x=shuffled).view], {})
    assert (lifted.aggregate < 5).mean() > 0.9
