"""Delta, RIUS, LUD, gains and the agreement of judges, by hand and by their properties."""

import math
import warnings
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import pearsonr

from compevo_core.errors import DataError
from compevo_core.paper.lud import (
    LUD_SCHEMA,
    REGIME_EDGES,
    build_lud_table,
    cohens_kappa,
    logic_update_degree,
    measure_agreement,
    measure_gains,
    pearson,
    summarize_gains,
    update_magnitude,
)
from compevo_core.paper.lud_judges import ANSWERS, JudgeVerdict
from tests.support.round_records import round_record


def test_magnitude_by_hand_same_orthogonal_opposite() -> None:
    delta = update_magnitude([[1, 0], [1, 0], [1, 0], [2, 0]], [[3, 0], [0, 1], [-1, 0], [1, 1]])
    np.testing.assert_allclose(delta, [0.0, 1.0, 2.0, 1 - math.sqrt(0.5)], atol=1e-12)


@settings(deadline=None)
@given(
    arrays(float, (5, 4), elements=st.floats(-10, 10)),
    arrays(float, (5, 4), elements=st.floats(-10, 10)),
    st.floats(0.1, 50),
)
def test_magnitude_is_symmetric_bounded_and_ignores_length(before, after, factor) -> None:
    assume(
        (np.linalg.norm(before, axis=1) > 1e-3).all()
        and (np.linalg.norm(after, axis=1) > 1e-3).all()
    )
    delta = update_magnitude(before, after)
    assert ((delta >= 0) & (delta <= 2)).all()
    np.testing.assert_allclose(delta, update_magnitude(after, before), atol=1e-9)
    np.testing.assert_allclose(delta, update_magnitude(before * factor, after), atol=1e-9)
    np.testing.assert_allclose(update_magnitude(before, before), 0.0, atol=1e-9)


def test_the_gate_passes_an_update_with_at_least_one_indicator() -> None:
    rius = [verdict.rius for verdict in ANSWERS]
    assert rius == [0, 1, 1, 2]
    assert logic_update_degree([0.3, 0.3, 0.4, 0.5], rius).tolist() == [0.0, 0.3, 0.4, 0.5]


def test_a_table_of_updates_compares_each_round_with_the_one_before_and_skips_unchanged_texts() -> (
    None
):
    vectors = {"north": [1.0, 0.0], "east": [0.0, 1.0], "south": [-1.0, 0.0]}
    asked: list[tuple[str, str]] = []

    def judge(pairs: list[tuple[str, str]]) -> list[JudgeVerdict]:
        asked.extend(pairs)
        return [JudgeVerdict(int(b == "east"), 0) for _, b in pairs]

    table = build_lud_table(
        [["north", "north"], ["east", "north"], ["south", "south"]],
        {text: np.array(vector) for text, vector in vectors.items()},
        judge,
    )
    assert asked == [("north", "east"), ("east", "south"), ("north", "south")]
    assert dict(table.schema) == LUD_SCHEMA
    assert table.select("round", "agent", "delta", "lud", "unchanged_text").rows() == [
        (1, 0, 1.0, 1.0, False),
        (1, 1, 0.0, 0.0, True),
        (2, 0, 1.0, 0.0, False),
        (2, 1, 2.0, 0.0, False),
    ]


def test_one_round_has_no_updates_and_ragged_rounds_are_refused() -> None:
    vectors = {"a": np.ones(2), "b": np.ones(2)}
    assert build_lud_table([["a"]], vectors, lambda p: []).height == 0
    with pytest.raises(DataError, match="different numbers"):
        build_lud_table([["a"], ["a", "b"]], vectors, lambda p: [])


def test_an_empty_logic_embedding_is_refused() -> None:
    with pytest.raises(DataError, match="zero or not finite"):
        update_magnitude([[0.0, 0.0]], [[1.0, 0.0]])


@settings(deadline=None)
@given(
    arrays(float, 12, elements=st.floats(-100, 100)),
    arrays(float, 12, elements=st.floats(-100, 100)),
)
def test_pearson_equals_numpy_and_is_undefined_only_for_constants(x, y) -> None:
    r, p = pearson(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert math.isnan(r) and math.isnan(p)
    elif np.std(x) > 1e-3 and np.std(y) > 1e-3:
        assert r == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)
        assert p == pearsonr(x, y).pvalue


def test_kappa_by_hand() -> None:
    # Agreement 0.7; chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5; kappa 0.4.
    first = [1] * 5 + [0] * 5
    second = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert cohens_kappa(first, second) == pytest.approx(0.4)
    assert cohens_kappa([0, 1], [1, 0]) == pytest.approx(-1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(cohens_kappa([1, 1], [1, 1]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=40))
def test_kappa_is_the_agreement_above_chance_over_the_most_there_could_be(labels) -> None:
    first, second = (np.array(side) for side in zip(*labels, strict=True))
    assume(len(np.union1d(first, second)) > 1)
    chance = sum((first == k).mean() * (second == k).mean() for k in range(4))
    by_definition = ((first == second).mean() - chance) / (1 - chance)
    assert cohens_kappa(first, second) == pytest.approx(by_definition, abs=1e-9)


def test_agreement_of_two_judges_gates_the_same_magnitudes() -> None:
    def tabulate(*verdicts: JudgeVerdict) -> pl.DataFrame:
        rius = [verdict.rius for verdict in verdicts]
        lud = logic_update_degree([0.2, 0.9, 0.6, 0.1], rius)
        rows = {"round": range(1, 5), "agent": [0] * 4, "unchanged_text": [False] * 4}
        marks = pl.DataFrame([asdict(verdict) for verdict in verdicts])
        return marks.with_columns(**pl.DataFrame(rows | {"rius": rius, "lud": lud}).to_dict())

    no, both = JudgeVerdict(0, 0), JudgeVerdict(1, 1)
    first = tabulate(JudgeVerdict(1, 0), no, both, no)
    second = tabulate(JudgeVerdict(0, 1), no, both, JudgeVerdict(1, 0))
    assert measure_agreement(first, second) == pytest.approx(
        {
            "n": 4,
            "kappa_gate": 0.5,
            "kappa_strategy_shift": 0.0,
            "kappa_evidence_recombination": 0.5,
            "pearson_lud": np.corrcoef([0.2, 0, 0.6, 0], [0.2, 0, 0.6, 0.1])[0, 1],
        }
    )
    assert measure_agreement(first, first)["kappa_gate"] == 1.0


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


@settings(deadline=None)
@given(arrays(float, 30, elements=st.one_of(st.floats(0, 2), st.sampled_from(REGIME_EDGES))))
def test_every_update_falls_into_exactly_one_regime(lud) -> None:
    gains = pl.DataFrame({"round": range(1, 31), "agent": [0] * 30, "gain": [0.5] * 30})
    summary = summarize_gains(lud_rows(lud.tolist()), gains)
    assert sum(summary["n_by_regime"]) == 30
    means = zip(summary["n_by_regime"], summary["mean_lud_by_regime"], strict=True)
    assert sum(n * mean for n, mean in means if n) == pytest.approx(lud.sum())


def test_a_run_without_gains_has_empty_regimes_and_no_correlation() -> None:
    summary = summarize_gains(lud_rows([0.1, 0.2]), measure_gains([]))
    assert (summary["n"], summary["pearson_r"], summary["pearson_p"]) == (0, None, None)
    assert summary["mean_lud_by_regime"] == [None, None, None]
