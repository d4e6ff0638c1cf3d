"""The rules of the benchmark, for every numeric method of the table by its line alone."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.data.window import WindowSet
from compevo_core.errors import LeakageError
from compevo_core.paper.method import LANGUAGE_MODEL_SEEDS, Budget, FitInputs
from compevo_core.paper.method_table import METHODS
from tests.support.population import windows

TINY = Budget(
    name="tiny",
    meaning="seconds",
    passes=1,
    patience=1,
    pass_windows=16,
    learning_rates=(1e-3,),
    tuning_passes=0,
    rounds=2,
    round_windows=2,
)
TRAIN, VAL = windows("train", 12), windows("val", 6, first_day=30)
TEST = windows("test", 4, first_day=40)

# Methods with a language model have these tests on tiny backbones, beside their code.
EVERY_METHOD = pytest.mark.parametrize(
    "name",
    [
        method.name
        for method in METHODS.values()
        if method.seeds != LANGUAGE_MODEL_SEEDS
        and all(method.is_applicable(part) for part in (TRAIN, VAL, TEST))
    ],
)


def inputs(**changes):
    return replace(FitInputs(train=TRAIN, val=VAL, seed=3, budget=TINY), **changes)


@cache
def fitted(name):
    """Return a method fitted on the train windows; one fit serves several tests."""
    return METHODS[name].fit(inputs())


@EVERY_METHOD
def test_every_window_is_forecast_once_in_order_whatever_the_batches(name):
    parts = [WindowSet(TEST[i : i + 3], dataset=TEST.dataset) for i in range(0, len(TEST), 3)]

    together = fitted(name).predict(TEST.views())
    in_parts = np.concatenate([fitted(name).predict(part.views()) for part in parts])
    backwards = fitted(name).predict(TEST.views()[::-1])[::-1]

    assert together.shape == (len(TEST), DEFAULT_STEPS)
    assert np.isfinite(together).all() and fitted(name).predict([]).shape == (0, DEFAULT_STEPS)
    np.testing.assert_allclose(in_parts, together, rtol=1e-5)
    np.testing.assert_allclose(backwards, together, rtol=1e-5)


@EVERY_METHOD
def test_a_seed_settles_a_fit(name):
    again = METHODS[name].fit(inputs())
    assert fitted(name).predict(TEST.views()).tobytes() == again.predict(TEST.views()).tobytes()


@EVERY_METHOD
@pytest.mark.parametrize("split", ["test", "inference"])
def test_no_method_is_fitted_on_a_later_split(name, split):
    with pytest.raises(LeakageError, match=split):
        METHODS[name].fit(inputs(train=windows(split, 12)))

    # Methods without a choice to make do not look at validation.
    if METHODS[name].has_budget:
        with pytest.raises(LeakageError, match=split):
            METHODS[name].fit(inputs(val=windows(split, 6, first_day=30)))
