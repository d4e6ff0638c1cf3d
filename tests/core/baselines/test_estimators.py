"""Estimators of other libraries as methods: handed in, registered, by their path, kept."""

import pickle
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, Ridge

from compevo_core import Forecaster
from compevo_core.baselines import PRIORS, register_estimator
from compevo_core.errors import CompEvoError, ConfigError
from tests.core.table.test_doors import make_days

TABLE = make_days(200, series=["a", "b"])


@pytest.fixture(autouse=True)
def registry():
    """Forget what a test registers."""
    with patch.dict(PRIORS):
        yield


class Mean:
    """What another library may hand in: no more than the two methods."""

    def fit(self, rows, targets):
        self.mean = targets.mean()

    def predict(self, rows):
        return np.full(len(rows), self.mean)


def test_an_estimator_is_restored_from_its_rows(tmp_path):
    model = Forecaster(LinearRegression(), horizon=5).fit(TABLE)
    forecast = model.predict()
    truth = make_days(205)["y"].tail(5).to_numpy()
    assert np.abs(forecast["mean"].to_numpy().reshape(2, 5) - truth).mean() < 3
    assert model.method_ == "LinearRegression()" and forecast["q0.9"].notna().all()
    assert clone(model).fit(TABLE).predict().equals(forecast)

    assert pickle.loads(pickle.dumps(model)).predict().equals(forecast)  # noqa: S301 - our own
    kept = model.save(tmp_path / "kept")
    assert not [path for path in kept.rglob("*") if path.suffix in (".pkl", ".joblib")]
    assert Forecaster.load(kept).predict().equals(forecast)
    PRIORS.pop("LinearRegression()")
    with pytest.raises(CompEvoError, match="LinearRegression"):
        Forecaster.load(kept).predict()
    register_estimator(LinearRegression())
    assert Forecaster.load(kept).predict().equals(forecast)


def test_estimators_share_windows_and_draws():
    forest = RandomForestRegressor(5)
    methods = [Ridge(alpha=2), Mean(), forest, "persistence"]
    back = Forecaster(horizon=5).backtest(TABLE, windows=2, methods=methods)
    names = ["Ridge(alpha=2)", "Mean", "RandomForestRegressor(n_estimators=5)", "persistence"]
    assert list(back.columns[4:]) == names
    errors = back[names].sub(back["y"], axis=0).abs().mean()
    assert errors["Ridge(alpha=2)"] < 3 < errors["Mean"]
    again = Forecaster(forest, horizon=5).backtest(TABLE, windows=2)
    assert np.array_equal(again["mean"], back[names[2]]) and forest.random_state is None


def test_missing_known_ahead_values_are_trains_mean():
    table = TABLE.assign(plan=np.where(np.arange(400) % 3, 2.0, np.nan))
    model = Forecaster(Ridge(), horizon=5, ahead=["plan"]).fit(table)
    future = pd.DataFrame({"ds": pd.date_range("2024-07-19", periods=5), "plan": 2.0})
    assert model.predict(future=future)["mean"].notna().all()


def test_auto_tries_registered_estimators_and_paths_name_them():
    register_estimator(Ridge(), "own-ridge")
    chosen = Forecaster(horizon=5).fit(TABLE)
    assert "own-ridge" in {score.name for score in chosen.choice_.scores}
    with pytest.raises(ConfigError, match="'own-ridge' already"):
        register_estimator(Ridge(), "own-ridge")

    lasso = Forecaster("sklearn.linear_model.Lasso", horizon=5).fit(TABLE)
    assert lasso.method_ == "sklearn.linear_model.Lasso"
    for name in ("sklearn.linear_model.NoSuch", "sklearn.none.Lasso", "os.path.join"):
        with pytest.raises(ConfigError, match=f"no method '{name}'"):
            Forecaster(name, horizon=5).fit(TABLE)
