"""Health figures of a population on hand-computed cases."""

import numpy as np
import pytest

from compevo_core.diagnostics.health import measure_health
from compevo_core.errors import DataError

TRUTH = np.zeros((2, 2))


def _forecasts(*errors: list[float]) -> np.ndarray:
    return np.array(errors).reshape(len(errors), 2, 2)


def test_agents_whose_errors_are_unrelated_count_as_many_and_their_mean_beats_the_best() -> None:
    # Orthogonal errors without a mean: the correlation is 0.
    health = measure_health(_forecasts([1, 1, -1, -1], [2, -2, 2, -2]), TRUTH)
    assert health.error_correlation == pytest.approx(0.0)
    assert health.effective_agents == pytest.approx(2.0)
    # The mean's absolute errors are 1.5, 0.5, 0.5, 1.5; the best agent's are 1.
    assert health.gain_over_best == pytest.approx(0.0)

    better = measure_health(_forecasts([2, 1, -1, -2], [-1, 2, -2, 1]), TRUTH)
    assert better.gain_over_best == pytest.approx(100 * (1.5 - 1.0) / 1.5)


def test_a_correlation_of_a_half_makes_three_agents_worth_one_and_a_half() -> None:
    # Every two rows share half of their variance.
    base = np.eye(4)[:3] - 0.25
    unit = base / np.linalg.norm(base, axis=1, keepdims=True)
    gram = np.full((3, 3), 0.5) + 0.5 * np.eye(3)
    mixed = np.linalg.cholesky(gram) @ np.linalg.inv(np.linalg.cholesky(unit @ unit.T)) @ unit
    health = measure_health(mixed.reshape(3, 2, 2), TRUTH)
    assert health.error_correlation == pytest.approx(0.5)
    assert health.effective_agents == pytest.approx(3 / 2)


@pytest.mark.parametrize("error", [[1.0, 2.0, 3.0, 5.0], [1.0, 1.0, 1.0, 1.0], [0.0] * 4])
@pytest.mark.parametrize("agents", [1, 3])
def test_identical_agents_and_a_lone_one_are_worth_one(agents: int, error: list[float]) -> None:
    health = measure_health(_forecasts(*[error] * agents), TRUTH)
    assert health.error_correlation == 1.0
    assert health.effective_agents == 1.0
    assert health.gain_over_best == pytest.approx(0.0)


def test_a_population_that_is_worse_than_its_best_agent_says_so() -> None:
    health = measure_health(_forecasts([1, 1, 1, 1], [3, 3, 3, 5]), TRUTH)
    assert health.gain_over_best == pytest.approx(100 * (1.0 - 2.25))
    assert health.error_correlation == 0.0  # one error does not vary


def test_errors_that_cancel_count_no_more_agents_than_there_are() -> None:
    health = measure_health(_forecasts([1, -1, 1, -1], [-1, 1, -1, 1]), TRUTH)
    assert health.error_correlation == pytest.approx(-1.0)
    assert health.effective_agents == 2.0
    assert health.gain_over_best == pytest.approx(100.0)


def test_masked_targets_do_not_count() -> None:
    forecast = _forecasts([1, 2, 3, 9], [3, 2, 1, -50])
    masked = measure_health(forecast, [[0.0, 0.0], [0.0, np.nan]])
    assert masked.error_correlation == pytest.approx(-1.0)
    assert masked.gain_over_best == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("values", "truth"),
    [
        (np.zeros((2, 2, 2)), np.full((2, 2), np.nan)),
        (np.full((2, 2, 2), np.nan), TRUTH),
        (np.zeros((2, 2, 3)), TRUTH),
        (np.zeros((0, 2, 2)), TRUTH),
    ],
)
def test_what_cannot_be_measured_is_refused(values: np.ndarray, truth: np.ndarray) -> None:
    with pytest.raises(DataError):
        measure_health(values, truth)
