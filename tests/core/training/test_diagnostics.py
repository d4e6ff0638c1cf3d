"""Instruments of appendix B: gaps, conflict, regret and its growth, health of a population."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.errors import DataError
from compevo_core.training import diagnostics
from tests.support.population import tiny
from tests.support.tiny_run import read_records, train_days

numbers = st.floats(-100, 100, allow_nan=False, width=32)


def test_the_gap_is_never_below_zero():
    gap = diagnostics.best_response_gap([[-3.0, -1.0, -2.0], [-5.0, -4.0, -6.0]], [-2.0, -3.0])
    assert gap.tolist() == [1.0, 0.0]


def test_masked_targets_count_as_nothing():
    group = np.array([[[[2.0, 50.0]], [[1.0, -50.0]]]])
    gap = diagnostics.aggregate_best_response_gap(group, group[:, 0], [1.0], [[1.0, np.nan]])
    assert gap.tolist() == [1.0]

    # The second agent counts only in the second window: in the first it could gain nothing.
    weights = [[1.0, 0.0], [0.5, 0.5]]
    samples = np.ones((2, 1, 2, 1)), np.zeros((2, 2, 1))
    gap = diagnostics.aggregate_best_response_gap(*samples, weights, [[1.0], [1.0]])
    assert gap.tolist() == [0.875, 0.375]


@settings(deadline=None)
@given(
    arrays(float, (3, 4, 2, 5), elements=numbers),
    arrays(float, (2, 5), elements=numbers),
    arrays(float, 3, elements=st.floats(0, 1)),
)
def test_the_aggregate_gap_equals_trying_every_switch(group, truth, raw):
    weights = (raw + 0.1) / (raw + 0.1).sum()
    played = group[:, 0]
    aggregate = np.tensordot(weights, played, 1)
    # Agents, samples, windows and steps: the aggregate with one agent's sample in its place.
    switched = aggregate + weights[:, None, None, None] * (group - played[:, None])
    losses = ((switched - truth) ** 2).mean(axis=(2, 3))
    expected = np.maximum(0.0, np.mean((aggregate - truth) ** 2) - losses.min(axis=1))

    gap = diagnostics.aggregate_best_response_gap(group, played, weights, truth)

    np.testing.assert_allclose(gap, expected, atol=1e-8)
    assert (gap >= 0).all()


def _conflict_of(main, strategy):
    main_P, strategy_P = np.asarray(main), np.asarray(strategy)
    norms = (float(np.linalg.norm(gradient)) for gradient in (main_P, strategy_P))
    return diagnostics.gradient_conflict(*norms, float(main_P @ strategy_P))


@pytest.mark.parametrize(
    ("main", "strategy", "cosine", "margin"),
    [([1.0, 0.0], [-2.0, 0.0], -1.0, -1.0), ([3.0, 0.0], [-2.0, 0.0], -1.0, 1.0)],
)
def test_opposed_gradients_conflict_by_hand(main, strategy, cosine, margin):
    assert _conflict_of(main, strategy) == (cosine, margin)
    assert _conflict_of([1.0, 0.0], [0.0, 5.0])[1] > 0
    # Zero gradients have no direction.
    assert diagnostics.gradient_conflict(2.0, 0.0, 0.0) == (0.0, 2.0)
    assert diagnostics.gradient_conflict(0.0, 2.0, 0.0) == (0.0, 0.0)


@settings(deadline=None)
@given(arrays(float, 6, elements=numbers), arrays(float, 6, elements=numbers))
def test_the_margin_tells_whether_a_step_descends(main, strategy):
    progress = float(main @ (main + strategy))
    norm = float(np.linalg.norm(main))
    _, margin = _conflict_of(main, strategy)

    if norm > 1e-3 and abs(progress) > 1e-6 * norm * (norm + float(np.linalg.norm(strategy))):
        assert (margin > 0) == (progress > 0)
        assert margin * norm == pytest.approx(progress, rel=1e-5, abs=1e-6)


def test_entropy_by_hand():
    assert diagnostics.weight_entropy([1.0, 0.0]) == 0.0
    assert diagnostics.weight_entropy([0.25] * 4) == pytest.approx(math.log(4))


@pytest.mark.parametrize(
    "call",
    [
        lambda: diagnostics.best_response_gap([[1.0, np.nan]], [1.0]),
        lambda: diagnostics.gradient_conflict(float("inf"), 1.0, 0.0),
        lambda: diagnostics.gradient_conflict(-1.0, 1.0, 0.0),
        lambda: diagnostics.weight_entropy([0.5, 0.6]),
        lambda: diagnostics.measure_health(np.zeros((2, 2, 2)), np.full((2, 2), np.nan)),
        lambda: diagnostics.measure_health(np.full((2, 2, 2), np.nan), np.zeros((2, 2))),
    ],
)
def test_unusable_input_is_refused(call):
    with pytest.raises(DataError):
        call()


def test_an_agents_comparators_begin_with_its_own():
    assert diagnostics.assign_fixed_logics(2, 3) == [list(SEED_LOGICS[:3]), list(SEED_LOGICS[1:4])]
    assert diagnostics.assign_fixed_logics(10, 2)[9] == [SEED_LOGICS[9], SEED_LOGICS[0]]
    assert diagnostics.assign_fixed_logics(2, 0) == [[], []]


def test_two_rounds_take_the_best_fixed_logic():
    tracker = diagnostics.RegretTracker.start(1, 2)

    first = tracker.add_round(np.array([[-1.0, -0.5, -2.0]]), np.array([0.25]))
    of_fixed = {"regret": [0.5], "fixed_rewards": [[-0.5, -2.0]], "played_rewards": [-1.0]}
    assert first == of_fixed | {"group_regret": [0.25]}
    second = tracker.add_round(np.array([[-1.0, -3.0, -0.25]]), np.array([0.5]))
    assert second["regret"] == [-0.25]  # -2.25 of the second logic against -2.0 played
    assert second["group_regret"] == [0.75]

    # Without fixed logics the regret of the group remains.
    alone = diagnostics.RegretTracker.start(2, 0).add_round(np.zeros((2, 0)), np.array([0.5, 0.0]))
    assert alone == {"regret": None, "group_regret": [0.5, 0.0]}


ROUNDS = st.tuples(st.integers(1, 9), st.just(2), st.integers(2, 4))


@settings(deadline=None)
@given(arrays(float, ROUNDS, elements=st.floats(-9, 9)))
def test_restored_sums_give_the_whole_regret(scores_TAK):
    tracker = diagnostics.RegretTracker.start(2, scores_TAK.shape[2] - 1)
    measured = []
    for scores_AK in scores_TAK:
        tracker = diagnostics.RegretTracker(**json.loads(json.dumps(dataclasses.asdict(tracker))))
        measured.append(tracker.add_round(scores_AK, np.zeros(2))["regret"])

    # The best fixed logic in hindsight minus what was played, after each round.
    sum_TAK = scores_TAK.cumsum(axis=0)
    expected_TA = sum_TAK[..., 1:].max(axis=2) - sum_TAK[..., 0]
    np.testing.assert_allclose(np.array(measured), expected_TA, atol=1e-9)


@pytest.mark.slow
def test_scoring_fixed_logics_changes_no_run(tmp_path):
    train_days(tiny(run__fixed_logics=2), tmp_path / "with")
    summary = train_days(tiny(run__fixed_logics=0), tmp_path / "without")
    scored, unscored = read_records(tmp_path / "with"), read_records(tmp_path / "without")

    # All that the two runs may differ in: what is measured, and time.
    added = dict.fromkeys(("regret", "fixed_rewards", "played_rewards"))
    shared = [[record | added for record in rounds] for rounds in (scored, unscored)]
    assert shared[0] == shared[1]

    manifests = (tmp_path / name / "model" / "manifest.json" for name in ("with", "without"))
    with_hashes, hashes = (json.loads(path.read_text())["files"] for path in manifests)
    assert with_hashes | {"config.json": hashes["config.json"]} == hashes

    assert summary["regret_exponent"] is None
    assert all(record["regret"] is None for record in unscored)
    # Round 0 plays the seed logics, which are the first fixed ones.
    assert [row[0] for row in scored[0]["fixed_rewards"]] == scored[0]["played_rewards"]
    assert np.ptp(scored[-1]["fixed_rewards"], axis=1).max() > 0


@pytest.mark.parametrize(("power", "expected"), [(0.5, 0.5), (1.0, 1.0), (0.25, 0.25)])
def test_an_exact_power_law_gives_its_exponent(power, expected):
    regret, generator = 3.0 * np.arange(1, 201) ** power, np.random.default_rng(0)
    fit = diagnostics.fit_growth_exponent(regret, generator=generator, samples=50)

    assert fit["exponent"] == pytest.approx(expected, abs=1e-9)
    assert (fit["low"], fit["high"]) == pytest.approx((expected, expected), abs=1e-6)
    assert (fit["n_used"], fit["n_left_out"]) == (180, 20)


def test_the_interval_covers_the_true_exponent():
    covered, excluded = 0, 0
    rounds = np.arange(1, 301)
    for seed in range(20):
        generator = np.random.default_rng(seed)
        steps = np.diff(5 * np.sqrt(rounds), prepend=0.0) + generator.normal(0, 0.3, 300)
        fit = diagnostics.fit_growth_exponent(np.cumsum(steps), generator=generator, samples=200)
        covered += fit["low"] <= 0.5 <= fit["high"]
        excluded += fit["high"] < 1

    assert covered >= 16
    assert excluded == 20


def test_agents_and_mean_grow_by_square_roots():
    root = np.sqrt(np.arange(1, 41))
    regrets = np.stack([root, 3 * root], axis=1).tolist()
    summary = diagnostics.summarize_regret_growth(regrets, seed=1)

    assert [fit["exponent"] for fit in summary["agents"]] == pytest.approx([0.5, 0.5])
    assert summary["mean"]["exponent"] == pytest.approx(0.5)
    assert summary["mean"]["low"] <= 0.5 <= summary["mean"]["high"]
    assert diagnostics.summarize_regret_growth(regrets, seed=1) == summary

    # Of few positive regrets there is a reason, and no exponent.
    falling = (-np.arange(1.0, 50.0))[:, None].tolist()
    negative = diagnostics.summarize_regret_growth(falling, seed=0)
    short = diagnostics.summarize_regret_growth([[1.0]] * (diagnostics.MIN_FIT_POINTS - 1), seed=1)
    assert negative["mean"]["n_left_out"] == 49
    for unfitted in (negative, short):
        assert unfitted["mean"]["exponent"] is None and unfitted["mean"]["reason"]
    assert diagnostics.summarize_regret_growth([None, None], seed=0) is None
    assert diagnostics.summarize_regret_growth([], seed=0) is None


TRUTH = np.zeros((2, 2))


def _forecasts(*errors):
    return np.array(errors).reshape(len(errors), 2, 2)


@pytest.mark.parametrize(
    ("errors", "truth", "correlation", "agents", "gain"),
    [
        # The mean's absolute errors are 1.5, 0.5, 0.5, 1.5; the best agent's are 1.
        (([1, 1, -1, -1], [2, -2, 2, -2]), TRUTH, 0.0, 2.0, 0.0),
        (([2, 1, -1, -2], [-1, 2, -2, 1]), TRUTH, 0.0, 2.0, 100 * (1.5 - 1.0) / 1.5),
        # Errors that cancel; what is not known does not count: the last of four targets.
        (([1, -1, 0, 9], [-1, 1, 0, -50]), [[0.0, 0.0], [0.0, np.nan]], -1.0, 2.0, 100.0),
        # Every two of three agents share half of their variance.
        (([1, -1, 0, 0], [1, 0, -1, 0], [1, 0, 0, -1]), TRUTH, 0.5, 3 / 2, 0.0),
        # Worse than the best agent, and one error that does not vary.
        (([1, 1, 1, 1], [3, 3, 3, 5]), TRUTH, 0.0, 2.0, 100 * (1.0 - 2.25)),
    ],
)
def test_health_is_that_of_errors_by_hand(errors, truth, correlation, agents, gain):
    health = diagnostics.measure_health(_forecasts(*errors), truth)
    names = ("error_correlation", "effective_agents", "gain_over_best")
    assert [health[name] for name in names] == pytest.approx([correlation, agents, gain])


@pytest.mark.parametrize("error", [[1.0, 2.0, 3.0, 5.0], [1.0, 1.0, 1.0, 1.0], [0.0] * 4])
@pytest.mark.parametrize("agents", [1, 3])
def test_identical_and_lone_agents_count_once(agents, error):
    health = diagnostics.measure_health(_forecasts(*[error] * agents), TRUTH)
    assert health["error_correlation"] == 1.0
    assert health["effective_agents"] == 1.0
    assert health["gain_over_best"] == pytest.approx(0.0)
