"""Numbers of a window: standardised by train, exact on disk, and whole where weather is missing."""

from dataclasses import replace

import numpy as np
import pytest

from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.data.view import Window
from compevo_core.data.window import WindowSet
from compevo_core.training.prior import make_examples
from tests.support.models import ARTICLE_SIZE, fit_inputs, make_batch, make_priors
from tests.support.population import tiny, windows

BLEND = tiny(forecast__prior="blend")


def vary_weather(drawn):
    changed = [
        Window(view=replace(one.view, covariates={"noon_temp_k_lag1": 285.0 + number}), y=one.y)
        for number, one in enumerate(drawn)
    ]
    return WindowSet(changed, dataset=drawn.dataset)


def test_context_columns_have_mean_zero_and_spread_one_on_train():
    train = vary_weather(windows("train", 20))
    inputs = fit_inputs(BLEND, train)
    arrays = inputs.extract(make_examples(train, make_priors(train, BLEND), inputs.scaler))

    assert arrays.context_BC.shape == (len(train), inputs.n_context)
    assert np.allclose(arrays.context_BC.mean(0), 0.0, atol=1e-9)
    spread_C = arrays.context_BC.std(0)
    assert np.all(np.isclose(spread_C, 1.0) | np.isclose(spread_C, 0.0))
    assert np.isclose(spread_C, 1.0).sum() > 5


def test_values_are_scaled_by_series_and_the_season_is_the_last_day():
    inputs = fit_inputs(BLEND)
    examples = make_batch(BLEND)
    arrays = inputs.extract(examples)
    for row, example in enumerate(examples):
        view = example.view
        scaled = (view.x - inputs.scaler.mean[view.entity]) / inputs.scaler.std[view.entity]
        assert np.allclose(arrays.history_BH[row], scaled)
        assert np.allclose(arrays.season_BH[row], scaled)  # 48 half-hours are one day
        assert np.array_equal(arrays.priors_BPH[row], example.priors_PH)


def test_missing_weather_is_the_train_mean_and_never_a_gap():
    train = vary_weather(windows("train", 20))
    inputs = fit_inputs(BLEND, train)
    example = make_batch(BLEND)[0]
    bare = replace(example, view=replace(example.view, covariates={}))
    columns = inputs.extract([bare]).context_BC
    assert np.isfinite(columns).all()
    assert np.allclose(columns[0, -3:], 0.0)


def test_the_spread_of_priors_is_that_of_their_differences():
    train = windows("train", 6)
    priors_NPH = make_priors(train, BLEND)
    inputs = NumericInputs.fit(train, priors_NPH, ARTICLE_SIZE)
    scale_N = np.array([inputs.scaler.std[view.entity] for view in train.views()])
    half = (priors_NPH[:, 1] - priors_NPH[:, 0]) / 2 / scale_N[:, None]
    assert inputs.spread_of_priors == pytest.approx(np.concatenate([half, -half]).std())
    assert fit_inputs(tiny(forecast__prior="none")).spread_of_priors == 1.0
