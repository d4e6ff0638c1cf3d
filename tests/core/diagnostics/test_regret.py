"""Regret against fixed logics: the sums by hand, the comparators, and a run that they only watch."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.config import RunConfig
from compevo_core.diagnostics.regret import RegretBook, fixed_logics, growth
from compevo_core.diagnostics.theory import MIN_FIT_POINTS, cumulative_regret, regret_of_sums
from compevo_core.errors import DataError
from compevo_core.training.trainer import train
from tests.support.population import news_pool, tiny, windows


def _train(out: Path, config: RunConfig, **options: object) -> dict[str, object]:
    return train(
        config, windows("train", 8), windows("val", 3, first_day=20), news_pool(), out, **options
    )


def _rounds(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def test_an_agent_is_held_against_its_own_seed_logic_and_the_ones_after_it() -> None:
    assert fixed_logics(2, 3) == [list(SEED_LOGICS[:3]), list(SEED_LOGICS[1:4])]
    assert fixed_logics(10, 2)[9] == [SEED_LOGICS[9], SEED_LOGICS[0]]
    assert fixed_logics(2, 0) == [[], []]


def test_two_rounds_by_hand_take_the_best_fixed_logic_in_hindsight() -> None:
    book = RegretBook.start(1, 2)
    first = book.add(np.array([[-1.0, -0.5, -2.0]]), np.array([0.25]))
    assert first == {
        "regret": [0.5],
        "fixed_rewards": [[-0.5, -2.0]],
        "played_rewards": [-1.0],
        "group_regret": [0.25],
    }
    second = book.add(np.array([[-1.0, -3.0, -0.25]]), np.array([0.5]))
    assert second["regret"] == [-0.25]  # -2.25 of the second logic against -2.0 played
    assert second["group_regret"] == [0.75]


@settings(deadline=None)
@given(
    arrays(
        float,
        st.tuples(st.integers(1, 9), st.just(2), st.integers(2, 4)),
        elements=st.floats(-9, 9),
    )
)
def test_the_running_sums_give_the_regret_of_the_whole_history(scores_tak: np.ndarray) -> None:
    book = RegretBook.start(2, scores_tak.shape[2] - 1)
    found = [
        RegretBook.restore(json.loads(json.dumps(book.saved())))
        and book.add(one, np.zeros(2))["regret"]
        for one in scores_tak
    ]
    expected = [cumulative_regret(scores_tak[:, a, 0], scores_tak[:, a, 1:]) for a in range(2)]
    np.testing.assert_allclose(np.array(found).T, expected, atol=1e-9)


def test_a_fixed_logic_equal_to_the_played_one_gives_no_regret() -> None:
    book = RegretBook.start(3, 1)
    for reward in (-1.0, -0.1, -7.5):
        assert book.add(np.full((3, 2), reward), np.zeros(3))["regret"] == [0.0, 0.0, 0.0]


def test_sums_of_different_agents_are_refused() -> None:
    with pytest.raises(DataError, match="score all"):
        regret_of_sums([1.0, 2.0], [[1.0]])


def test_without_fixed_logics_regret_is_absent_and_the_groups_is_kept() -> None:
    found = RegretBook.start(2, 0).add(np.zeros((2, 0)), np.array([0.5, 0.0]))
    assert found == {
        "regret": None,
        "fixed_rewards": None,
        "played_rewards": None,
        "group_regret": [0.5, 0.0],
    }
    assert growth([None, None], seed=0) is None


def test_growth_of_a_square_root_is_found_for_agents_and_mean_and_a_lack_of_rounds_is_said() -> (
    None
):
    root = np.sqrt(np.arange(1, 41))
    found = growth(np.stack([root, 3 * root], axis=1).tolist(), seed=1)
    assert [one["exponent"] for one in found["agents"]] == pytest.approx([0.5, 0.5])
    assert found["mean"]["exponent"] == pytest.approx(0.5)
    assert found["mean"]["low"] <= 0.5 <= found["mean"]["high"]
    assert growth(np.stack([root, 3 * root], axis=1).tolist(), seed=1) == found
    short = growth([[1.0]] * (MIN_FIT_POINTS - 1), seed=1)
    assert short["mean"]["exponent"] is None
    assert "positive regret" in short["mean"]["reason"]
    json.dumps(short, allow_nan=False)


def test_the_fixed_logics_are_scored_on_the_rounds_windows_and_watch_without_touching(
    tmp_path: Path,
) -> None:
    _train(tmp_path / "with", tiny(run__fixed_logics=2))
    summary = _train(tmp_path / "without", tiny(run__fixed_logics=0))
    seen, unseen = _rounds(tmp_path / "with"), _rounds(tmp_path / "without")
    added = {"regret", "fixed_rewards", "played_rewards", "seconds", "eta_seconds", "train_seconds"}
    strip = [
        [{k: v for k, v in one.items() if k not in added} for one in rounds]
        for rounds in (seen, unseen)
    ]
    assert strip[0] == strip[1]
    sealed = [
        json.loads((tmp_path / name / "model" / "manifest.json").read_text())["files"]
        for name in ("with", "without")
    ]
    assert {k: v for k, v in sealed[0].items() if k != "config.json"} == {
        k: v for k, v in sealed[1].items() if k != "config.json"
    }
    assert summary["regret_exponent"] is None
    assert all(one["regret"] is None for one in unseen)
    assert np.shape([one["fixed_rewards"] for one in seen]) == (4, 3, 2)
    assert [row[0] for row in seen[0]["fixed_rewards"]] == seen[0][
        "played_rewards"
    ]  # round 0 plays the seed logics
    played, fixed = (
        np.array([one[key] for one in seen]) for key in ("played_rewards", "fixed_rewards")
    )
    expected = [cumulative_regret(played[:, a], fixed[:, a])[-1] for a in range(3)]
    np.testing.assert_allclose(seen[-1]["regret"], expected, rtol=1e-12)
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
    rounds = _rounds(tmp_path)
    assert [row[0] for row in rounds[0]["fixed_rewards"]] == rounds[0]["played_rewards"]
    unchanged = [(r, a) for r in rounds for a in range(3) if r["logics"][a] == SEED_LOGICS[a]]
    assert all(r["fixed_rewards"][a][0] == r["played_rewards"][a] for r, a in unchanged)


class _Stopped(BaseException):
    """Stands for a kill between rounds."""


def test_a_resumed_run_goes_on_with_the_same_sums(tmp_path: Path) -> None:
    def stop(record: dict[str, object]) -> None:
        if record["round"] == 1:
            raise _Stopped

    config = tiny(run__fixed_logics=2, run__validate_every=0)
    whole = _train(tmp_path / "whole", config)
    with pytest.raises(_Stopped):
        _train(tmp_path / "parts", config, on_round=stop)
    parts = _train(tmp_path / "parts", config)
    keys = ("regret", "group_regret", "fixed_rewards", "played_rewards")
    assert [[one[key] for key in keys] for one in _rounds(tmp_path / "parts")] == [
        [one[key] for key in keys] for one in _rounds(tmp_path / "whole")
    ]
    assert parts["regret_exponent"] == whole["regret_exponent"] is not None
    assert _rounds(tmp_path / "whole")[-1]["regret"] != _rounds(tmp_path / "whole")[1]["regret"]
