"""Scores of quantiles against examples worked by hand and the formulas of their source."""

import numpy as np
import pytest

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError
from compevo_core.evaluation.quantile_scores import (
    PINBALL_COLUMNS,
    QUANTILE_COLUMNS,
    WQL_LEVELS,
    name_level,
    score_quantiles,
)
from compevo_core.quantiles import LEVELS

RNG = np.random.default_rng(0)


def make(by_level: dict[float, float], windows: int = 1, steps: int = 4) -> FloatArray:
    """Return constant quantiles (N, Q, H); NaN at the levels that are not given."""
    found = np.full((windows, len(LEVELS), steps), np.nan)
    for level, value in by_level.items():
        found[:, LEVELS.index(level)] = value
    return found


def test_levels_have_short_names() -> None:
    assert [name_level(level) for level in (0.025, 0.05, 0.1, 0.5, 0.975)] == [
        "q025",
        "q05",
        "q10",
        "q50",
        "q975",
    ]


def test_pinball_coverage_and_width_are_those_worked_by_hand() -> None:
    # Truths 80, 100, 130 and one that is missing; quantiles 90, 100 and 120 at 0.1, 0.5 and 0.9.
    truth = np.array([[80.0, 100.0, 130.0, np.nan]])
    found = score_quantiles(truth, make({0.1: 90.0, 0.5: 100.0, 0.9: 120.0}))

    # At 0.1: 0.9 * 10 below, 0.1 * 10 and 0.1 * 40 above: 9 + 1 + 4 over three points.
    assert found["pinball_q10"] == pytest.approx(14 / 3)
    # At 0.5: half of 20, 0 and 30. At 0.9: 0.1 * 40, 0.1 * 20, 0.9 * 10.
    assert found["pinball_q50"] == pytest.approx(25 / 3)
    assert found["pinball_q90"] == pytest.approx(15 / 3)
    assert found["pinball_10_50_90"] == pytest.approx((14 + 25 + 15) / 9)
    assert found["coverage_80"] == pytest.approx(1 / 3)
    assert found["width_80"] == 30.0
    # A truth at its quantile is at or below it.
    assert [found[f"below_{q}"] for q in ("q10", "q50", "q90")] == pytest.approx(
        [1 / 3, 2 / 3, 2 / 3]
    )


def test_what_needs_a_level_that_is_not_there_is_none_and_not_a_score_of_fewer() -> None:
    truth = np.full((1, 4), 100.0)
    found = score_quantiles(truth, make({0.1: 90.0, 0.5: 100.0, 0.9: 120.0}))
    assert set(found) == set(QUANTILE_COLUMNS)
    empty = {name for name, value in found.items() if value is None}
    assert {"wql", "coverage_95", "width_95", "pinball_q05", "below_q975"} <= empty
    assert not {"pinball_10_50_90", "coverage_80", "width_80", "pinball_q50"} & empty

    # One window without the level: no score, since it would be one of other windows.
    partly = make({0.5: 100.0}, windows=2)
    partly[1] = np.nan
    assert set(score_quantiles(np.full((2, 4), 100.0), partly).values()) == {None}


def test_the_weighted_quantile_loss_is_that_of_its_formula() -> None:
    truth = RNG.normal(0, 50, (5, 4))
    truth[0, 0] = np.nan
    quantiles = np.sort(RNG.normal(0, 50, (5, len(LEVELS), 4)), axis=1)

    # GluonTS: sum of 2 |(q - y) ((y <= q) - level)| over sum of |y|, the mean over levels.
    losses = []
    for level in WQL_LEVELS:
        q = quantiles[:, LEVELS.index(level)]
        loss = 2 * np.abs((q - truth) * ((truth <= q) - level))
        losses.append(np.nansum(loss) / np.nansum(np.abs(truth)))
    assert score_quantiles(truth, quantiles)["wql"] == pytest.approx(np.mean(losses))
    assert score_quantiles(truth * 0, quantiles)["wql"] is None


def test_the_quantiles_of_the_truths_own_distribution_have_the_lowest_pinball_loss() -> None:
    truth = RNG.normal(0, 1, (500, 48))
    own = np.quantile(truth, LEVELS)
    best = score_quantiles(truth, make(dict(zip(LEVELS, own, strict=True)), 500, 48))
    for moved in (own + 0.2, own * 1.3, own * 0.7):
        other = score_quantiles(truth, make(dict(zip(LEVELS, moved, strict=True)), 500, 48))
        for column in ("pinball_10_50_90", "wql"):
            assert best[column] < other[column]  # type: ignore[operator]
    assert best["coverage_80"] == pytest.approx(0.8, abs=1e-3)
    assert best["coverage_95"] == pytest.approx(0.95, abs=1e-3)
    assert [best[f"below_{name_level(level)}"] for level in LEVELS] == pytest.approx(
        LEVELS, abs=1e-3
    )


def test_crossing_quantiles_and_other_shapes_are_refused() -> None:
    truth = np.full((1, 4), 100.0)
    crossing = make({0.1: 120.0, 0.9: 90.0})
    with pytest.raises(DataError, match="window 0, step 0 cross"):
        score_quantiles(truth, crossing)
    with pytest.raises(DataError, match=r"a quantile at each of 0\.025"):
        score_quantiles(truth, np.zeros((1, 3, 4)))


def test_a_masked_truth_makes_no_score_and_no_error() -> None:
    nothing = np.full((2, 4), np.nan)
    found = score_quantiles(nothing, make(dict.fromkeys(LEVELS, 1.0), windows=2))
    assert set(found.values()) == {None}
    assert set(PINBALL_COLUMNS.values()) < set(found)
