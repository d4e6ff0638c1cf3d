"""Columns of words and of what describes a series: read by trees, unknown words, both doors."""

import warnings

import numpy as np
import pandas as pd
import pytest

from compevo_core import Forecaster
from compevo_core.errors import DataError

DAYS = 250
TREES = Forecaster("lagged-gbm", horizon=7, ahead=["promo"], static=["kind"])


def make_shops(count=6):
    """Days of shops of two kinds, whose weeks are opposite; on promotion they sell 20 more."""
    parts = []
    for number in range(count):
        rng = np.random.default_rng(number)
        stamps = pd.date_range("2024-01-01", periods=DAYS + 7)
        kind = "town" if number % 2 else "village"
        week = 10 * np.sin(2 * np.pi * stamps.day_of_week / 7) * (1 if number % 2 else -1)
        promo = np.where(rng.random(DAYS + 7) < 0.3, "yes", "no")
        sold = 100 + week + 20 * (promo == "yes") + rng.normal(size=DAYS + 7)
        table = {"unique_id": f"shop-{number}", "ds": stamps, "y": sold}
        parts.append(pd.DataFrame(table | {"promo": promo, "kind": kind}))
    shops = pd.concat(parts)
    is_known = shops["ds"] < shops["ds"].min() + pd.Timedelta(days=DAYS)
    return shops[is_known], shops[~is_known]


@pytest.fixture(scope="module")
def fitted():
    return Forecaster(**TREES.get_params()).fit(make_shops()[0])


def measure(forecast, truth):
    both = forecast.merge(truth, on=["unique_id", "ds"])
    return (both["mean"] - both["y"]).abs().mean()


def test_known_words_and_static_kinds_are_learnt(fitted, tmp_path):
    _, later = make_shops()
    future = later[["unique_id", "ds", "promo"]]
    forecast = fitted.predict(future=future)
    assert measure(forecast, later) < 2
    assert Forecaster.load(fitted.save(tmp_path / "kept")).predict(future=future).equals(forecast)

    # A word that was not in the fit is none of those that were.
    unknown = fitted.predict(future=future.assign(promo="half price"))
    none = fitted.predict(future=future.assign(promo="no"))
    assert (unknown["mean"] - none["mean"]).abs().max() < 25
    with pytest.raises(DataError, match="needs 'promo' ahead, but it is not known"):
        fitted.predict(future=future.iloc[::2])


@pytest.mark.parametrize("method", ["calendar-ridge", "lagged-gbm"])
def test_a_method_that_reads_no_static_values_says_so(method):
    params = TREES.get_params() | {"method": method, "ahead": ()}
    shops = make_shops(2)[0].drop(columns="promo")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Forecaster(**params).fit(shops)
    unread = [str(each.message) for each in said if "static" in str(each.message)]
    expected = "calendar-ridge learns each series by itself and reads no static values (kind)"
    assert [text.partition(";")[0] for text in unread] == [expected] * (method == "calendar-ridge")


def test_a_new_series_is_described_by_its_rows(fitted):
    before, later = (part[part["unique_id"] == "shop-7"] for part in make_shops(8))
    all_later = make_shops()[1]
    future = pd.concat([all_later, later])[["unique_id", "ds", "promo"]]
    with pytest.warns(UserWarning, match="not in the fit: shop-7"):
        forecast = fitted.predict(before, future=future)
    assert measure(forecast, later) < 4


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("kind", np.resize(["town", "village"], 6 * DAYS), "'kind' changes within series 'shop-0'"),
        ("promo", [f"day {n}" for n in range(6 * DAYS)], "'promo' has 1500 different words, such"),
    ],
)
def test_what_is_no_description_or_category_is_refused(column, values, message):
    with pytest.raises(DataError, match=message):
        Forecaster(**TREES.get_params()).fit(make_shops()[0].assign(**{column: values}))
