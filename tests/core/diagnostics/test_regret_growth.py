"""The growth of regret: exponents of known curves, the coverage of the interval, the summary."""

import json
import math

import numpy as np
import pytest

from compevo_core.diagnostics.regret_growth import (
    MIN_FIT_POINTS,
    fit_growth_exponent,
    summarize_regret_growth,
)


@pytest.mark.parametrize(("power", "expected"), [(0.5, 0.5), (1.0, 1.0), (0.25, 0.25)])
def test_an_exact_power_law_gives_its_exponent_with_a_closed_interval(
    power: float, expected: float
) -> None:
    fit = fit_growth_exponent(
        3.0 * np.arange(1, 201) ** power, generator=np.random.default_rng(0), samples=50
    )
    assert fit.exponent == pytest.approx(expected, abs=1e-9)
    assert fit.low == pytest.approx(expected, abs=1e-6)
    assert fit.high == pytest.approx(expected, abs=1e-6)
    assert (fit.n_used, fit.n_left_out) == (180, 20)


def test_the_interval_covers_the_true_exponent_of_noisy_square_root_regret_and_excludes_one() -> (
    None
):
    covered, excluded = 0, 0
    rounds = np.arange(1, 301)
    for seed in range(20):
        generator = np.random.default_rng(seed)
        steps = np.diff(5 * np.sqrt(rounds), prepend=0.0) + generator.normal(0, 0.3, 300)
        fit = fit_growth_exponent(np.cumsum(steps), generator=generator, samples=200)
        covered += fit.low <= 0.5 <= fit.high
        excluded += fit.high < 1
    assert covered >= 16
    assert excluded == 20


def test_the_interval_is_the_same_for_the_same_generator() -> None:
    regret = np.cumsum(np.random.default_rng(1).uniform(0, 1, 60))
    fits = [
        fit_growth_exponent(regret, generator=np.random.default_rng(2), samples=40)
        for _ in range(2)
    ]
    assert fits[0] == fits[1]


def test_negative_regret_has_no_exponent_and_says_why() -> None:
    fit = fit_growth_exponent(-np.arange(1.0, 50.0), generator=np.random.default_rng(0))
    assert math.isnan(fit.exponent)
    assert fit.n_left_out == 49
    assert "positive regret" in fit.reason


def test_a_square_root_is_fitted_for_agents_and_mean() -> None:
    root = np.sqrt(np.arange(1, 41))
    regrets = np.stack([root, 3 * root], axis=1).tolist()
    summary = summarize_regret_growth(regrets, seed=1)

    assert [fit["exponent"] for fit in summary["agents"]] == pytest.approx([0.5, 0.5])
    assert summary["mean"]["exponent"] == pytest.approx(0.5)
    assert summary["mean"]["low"] <= 0.5 <= summary["mean"]["high"]
    assert summarize_regret_growth(regrets, seed=1) == summary


def test_too_few_rounds_give_null_and_the_reason() -> None:
    short = summarize_regret_growth([[1.0]] * (MIN_FIT_POINTS - 1), seed=1)
    assert short["mean"]["exponent"] is None
    assert "positive regret" in short["mean"]["reason"]
    json.dumps(short, allow_nan=False)


def test_rounds_without_fixed_logics_have_no_growth() -> None:
    assert summarize_regret_growth([None, None], seed=0) is None
    assert summarize_regret_growth([], seed=0) is None
