"""Regret against fixed logics: the sums by hand, the comparators, and a run that is not changed."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.config import RunConfig
from compevo_core.diagnostics.regret import RegretTracker, RoundRegret, assign_fixed_logics
from compevo_core.diagnostics.theory import regret_of_sums
from compevo_core.errors import DataError
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.trainer import train
from tests.support.population import news_pool, tiny, windows


def _train(out: Path, config: RunConfig, **options: object) -> dict[str, object]:
    return train(
        config, windows("train", 8), windows("val", 3, first_day=20), news_pool(), out, **options
    )


def _read_rounds(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def _regret_of_history(played_T: np.ndarray, fixed_TK: np.ndarray) -> np.ndarray:
    """Regret after each round, from the definition: best fixed logic in hindsight minus played."""
    return np.cumsum(fixed_TK, axis=0).max(axis=1) - np.cumsum(played_T)


def test_an_agent_is_compared_with_its_own_seed_logic_and_the_ones_after_it() -> None:
    assert assign_fixed_logics(2, 3) == [list(SEED_LOGICS[:3]), list(SEED_LOGICS[1:4])]
    assert assign_fixed_logics(10, 2)[9] == [SEED_LOGICS[9], SEED_LOGICS[0]]
    assert assign_fixed_logics(2, 0) == [[], []]


def test_two_rounds_by_hand_take_the_best_fixed_logic_in_hindsight() -> None:
    tracker = RegretTracker.start(1, 2)

    first = tracker.add_round(np.array([[-1.0, -0.5, -2.0]]), np.array([0.25]))
    assert first == RoundRegret(
        regret=[0.5], fixed_rewards=[[-0.5, -2.0]], played_rewards=[-1.0], group_regret=[0.25]
    )

    second = tracker.add_round(np.array([[-1.0, -3.0, -0.25]]), np.array([0.5]))
    assert second.regret == [-0.25]  # -2.25 of the second logic against -2.0 played
    assert second.group_regret == [0.75]


@settings(deadline=None)
@given(
    arrays(
        float,
        st.tuples(st.integers(1, 9), st.just(2), st.integers(2, 4)),
        elements=st.floats(-9, 9),
    )
)
def test_sums_restored_before_every_round_give_the_regret_of_the_whole_history(
    scores_TAK: np.ndarray,
) -> None:
    tracker = RegretTracker.start(2, scores_TAK.shape[2] - 1)
    measured = []
    for scores_AK in scores_TAK:
        tracker = RegretTracker.from_dict(json.loads(json.dumps(tracker.to_dict())))
        measured.append(tracker.add_round(scores_AK, np.zeros(2)).regret)

    expected = [_regret_of_history(scores_TAK[:, a, 0], scores_TAK[:, a, 1:]) for a in range(2)]
    np.testing.assert_allclose(np.array(measured).T, expected, atol=1e-9)


def test_a_fixed_logic_equal_to_the_played_one_gives_no_regret() -> None:
    tracker = RegretTracker.start(3, 1)
    for reward in (-1.0, -0.1, -7.5):
        assert tracker.add_round(np.full((3, 2), reward), np.zeros(3)).regret == [0.0, 0.0, 0.0]


def test_sums_of_different_agents_are_refused() -> None:
    with pytest.raises(DataError, match="score all"):
        regret_of_sums([1.0, 2.0], [[1.0]])


def test_without_fixed_logics_regret_is_absent_and_the_groups_is_measured() -> None:
    measured = RegretTracker.start(2, 0).add_round(np.zeros((2, 0)), np.array([0.5, 0.0]))
    assert measured == RoundRegret(
        regret=None, fixed_rewards=None, played_rewards=None, group_regret=[0.5, 0.0]
    )


def test_fixed_logics_are_scored_on_the_rounds_windows_and_change_nothing_in_the_run(
    tmp_path: Path,
) -> None:
    _train(tmp_path / "with", tiny(run__fixed_logics=2))
    summary = _train(tmp_path / "without", tiny(run__fixed_logics=0))
    scored, unscored = _read_rounds(tmp_path / "with"), _read_rounds(tmp_path / "without")

    # All that the two runs may differ in: what is measured, and time.
    added = {"regret", "fixed_rewards", "played_rewards", "seconds", "eta_seconds", "train_seconds"}
    shared = [
        [{k: v for k, v in record.items() if k not in added} for record in rounds]
        for rounds in (scored, unscored)
    ]
    assert shared[0] == shared[1]

    hashes = [
        json.loads((tmp_path / name / "model" / "manifest.json").read_text())["files"]
        for name in ("with", "without")
    ]
    assert {k: v for k, v in hashes[0].items() if k != "config.json"} == {
        k: v for k, v in hashes[1].items() if k != "config.json"
    }

    assert summary["regret_exponent"] is None
    assert all(record["regret"] is None for record in unscored)
    assert np.shape([record["fixed_rewards"] for record in scored]) == (4, 3, 2)

    # Round 0 plays the seed logics, which are the first fixed ones.
    assert [row[0] for row in scored[0]["fixed_rewards"]] == scored[0]["played_rewards"]

    played, fixed = (
        np.array([record[key] for record in scored]) for key in ("played_rewards", "fixed_rewards")
    )
    expected = [_regret_of_history(played[:, a], fixed[:, a])[-1] for a in range(3)]
    np.testing.assert_allclose(scored[-1]["regret"], expected, rtol=1e-12)
    assert np.ptp(fixed, axis=2).max() > 0


def test_dropout_of_the_training_pass_does_not_enter_the_comparison(tmp_path: Path) -> None:
    _train(
        tmp_path,
        tiny(
            population__dropout=0.5,
            run__rounds=3,
            run__fixed_logics=1,
            optim__forecast_lr=1e-2,
            evolution__temperature=5.0,
        ),
    )
    rounds = _read_rounds(tmp_path)
    assert [row[0] for row in rounds[0]["fixed_rewards"]] == rounds[0]["played_rewards"]
    unchanged = [(r, a) for r in rounds for a in range(3) if r["logics"][a] == SEED_LOGICS[a]]
    assert all(r["fixed_rewards"][a][0] == r["played_rewards"][a] for r, a in unchanged)


class _Stopped(BaseException):
    """Stand for a kill between rounds."""


def test_a_resumed_run_continues_the_same_sums(tmp_path: Path) -> None:
    def stop(record: RoundRecord) -> None:
        if record.round == 1:
            raise _Stopped

    config = tiny(run__fixed_logics=2, run__validate_every=0)
    whole = _train(tmp_path / "whole", config)
    with pytest.raises(_Stopped):
        _train(tmp_path / "parts", config, on_round=stop)
    parts = _train(tmp_path / "parts", config)

    keys = ("regret", "group_regret", "fixed_rewards", "played_rewards")
    resumed, uninterrupted = (
        [[record[key] for key in keys] for record in _read_rounds(tmp_path / name)]
        for name in ("parts", "whole")
    )
    assert resumed == uninterrupted
    assert parts["regret_exponent"] == whole["regret_exponent"] is not None
    assert uninterrupted[-1][0] != uninterrupted[1][0]
