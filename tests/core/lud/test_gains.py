"""What updates gained, and LUD by regime."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compevo_core.errors import DataError
from compevo_core.lud.degree import LUD_SCHEMA
from compevo_core.lud.gains import build_regime_table, measure_gains, summarize_gains
from tests.support.round_records import round_record


def test_regimes_by_hand_with_an_empty_middle() -> None:
    table = build_regime_table([0.0, 0.2, 0.9], [1.0, 3.0, 10.0], edges=(0.3, 0.6))
    assert table.select("regime", "n", "mean_lud", "mean_gain").rows() == [
        ("low", 2, 0.1, 2.0),
        ("medium", 0, None, None),
        ("high", 1, 0.9, 10.0),
    ]


@settings(deadline=None)
@given(arrays(float, 30, elements=st.floats(0, 2)))
def test_every_update_falls_into_exactly_one_regime(lud) -> None:
    table = build_regime_table(lud, lud)
    assert table["n"].sum() == 30
    assert sum(n * m for n, m in table.select("n", "mean_lud").rows() if n) == pytest.approx(
        lud.sum()
    )


def test_edges_that_do_not_rise_are_refused() -> None:
    with pytest.raises(DataError, match="edges rise"):
        build_regime_table([0.1], [1.0], edges=(0.6, 0.3))


def test_a_gain_is_the_reward_of_the_new_logic_less_that_of_the_old_on_the_same_windows() -> None:
    rounds = [
        round_record(
            0,
            logics=["a", "x"],
            group_logics=[["b", "c"], ["y", "z"]],
            group_rewards=[[-0.5, -0.25], [-1.0, -2.0]],
            played_rewards=[-0.75, -0.5],
        ),
        round_record(1, logics=["c", "y"], played_rewards=None),
        round_record(2, logics=["d", "y"]),
    ]
    # Agent 0 took its second sample; agent 1 its first, which is worse than what it had played.
    assert measure_gains(rounds).rows() == [(1, 0, 0.5), (1, 1, -0.5)]


def test_a_logic_that_no_sample_of_the_round_before_holds_has_no_gain() -> None:
    rounds = [round_record(0, group_logics=[["b"], ["y"]]), round_record(1, logics=["b", "other"])]
    assert measure_gains(rounds)["agent"].to_list() == [0]


def test_a_played_logic_that_stays_saved_nothing_and_a_round_without_rewriting_is_no_update() -> (
    None
):
    samples = {"group_logics": [["b"]], "group_rewards": [[-1.0]], "played_rewards": [-0.5]}
    nothing = {"group_logics": [], "group_rewards": [], "played_rewards": [], "evolved": False}
    rounds = [
        round_record(0, agents=1, logics=["a"], **samples),
        round_record(1, agents=1, logics=["a"], **nothing),
        round_record(2, agents=1, logics=["a"], **samples),
        round_record(3, agents=1, logics=["b"]),
    ]
    assert measure_gains(rounds).rows() == [(1, 0, 0.0), (3, 0, -0.5)]


def lud_rows(lud: list[float | None]) -> pl.DataFrame:
    nothing = pl.DataFrame(schema=LUD_SCHEMA)
    rows = {"round": range(1, len(lud) + 1), "agent": [0] * len(lud), "lud": lud}
    return pl.concat([nothing, pl.DataFrame(rows)], how="diagonal_relaxed")


def test_the_summary_joins_each_update_with_its_own_gain_and_leaves_out_unjudged_ones() -> None:
    gains = pl.DataFrame({"round": [4, 3, 1, 2], "agent": [0] * 4, "gain": [0.4, 0.3, 0.1, 9.0]})
    summary = summarize_gains(lud_rows([0.1, None, 0.3, 0.7]), gains)
    assert (summary["n"], summary["n_by_regime"]) == (3, [1, 1, 1])
    assert summary["mean_gain_by_regime"] == [0.1, 0.3, 0.4]
    assert summary["pearson_r"] == pytest.approx(
        np.corrcoef([0.1, 0.3, 0.7], [0.1, 0.3, 0.4])[0, 1]
    )


def test_a_run_without_gains_has_empty_regimes_and_no_correlation() -> None:
    summary = summarize_gains(lud_rows([0.1, 0.2]), measure_gains([]))
    assert (summary["n"], summary["pearson_r"], summary["pearson_p"]) == (0, None, None)
    assert summary["mean_lud_by_regime"] == [None, None, None]
