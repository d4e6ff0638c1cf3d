"""Delta, RIUS, LUD, gains and the agreement of judges, by hand and by their properties."""

import json
import math
import warnings
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from typer.testing import CliRunner

from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.lm import backbone
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper.lud import (
    LUD_SCHEMA,
    REGIME_EDGES,
    build_lud_table,
    cohens_kappa,
    logic_update_degree,
    measure_agreement,
    measure_gains,
    measure_lud,
    space_rounds,
    summarize_gains,
    tabulate_lud,
    update_magnitude,
    write_lud_rows,
)
from compevo_core.paper.lud_judges import ANSWERS, JudgeVerdict
from compevo_core.report.inputs import LUD_COLUMNS, read_inputs
from compevo_core.runtime.files import write_text
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.cli.main import app
from tests.support.lud import LOGICS, ScriptedJudge, finished_run
from tests.support.report_samples import NOW
from tests.support.round_records import round_record


def test_magnitude_by_hand_same_orthogonal_opposite():
    delta = update_magnitude([[1, 0], [1, 0], [1, 0], [2, 0]], [[3, 0], [0, 1], [-1, 0], [1, 1]])
    np.testing.assert_allclose(delta, [0.0, 1.0, 2.0, 1 - math.sqrt(0.5)], atol=1e-12)


def test_the_gate_passes_an_update_with_at_least_one_indicator():
    rius = [verdict.rius for verdict in ANSWERS]
    assert rius == [0, 1, 1, 2]
    assert logic_update_degree([0.3, 0.3, 0.4, 0.5], rius).tolist() == [0.0, 0.3, 0.4, 0.5]


def test_a_table_of_updates_compares_each_round_with_the_one_before_and_skips_unchanged_texts():
    vectors = {"north": [1.0, 0.0], "east": [0.0, 1.0], "south": [-1.0, 0.0]}
    asked = []

    def judge(pairs):
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


def test_one_round_has_no_updates_and_ragged_rounds_are_refused():
    vectors = {"a": np.ones(2), "b": np.ones(2)}
    assert build_lud_table([["a"]], vectors, lambda p: []).height == 0
    with pytest.raises(DataError, match="different numbers"):
        build_lud_table([["a"], ["a", "b"]], vectors, lambda p: [])


def test_an_empty_logic_embedding_is_refused():
    with pytest.raises(DataError, match="zero or not finite"):
        update_magnitude([[0.0, 0.0]], [[1.0, 0.0]])


def test_kappa_by_hand():
    # Agreement 0.7; chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5; kappa 0.4.
    first = [1] * 5 + [0] * 5
    second = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert cohens_kappa(first, second) == pytest.approx(0.4)
    assert cohens_kappa([0, 1], [1, 0]) == pytest.approx(-1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert math.isnan(cohens_kappa([1, 1], [1, 1]))


def test_agreement_of_two_judges_gates_the_same_magnitudes():
    def tabulate(*verdicts):
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


def test_a_gain_is_the_reward_of_the_new_logic_less_that_of_the_old_on_the_same_windows():
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


def test_a_played_logic_that_stays_saved_nothing_and_a_round_without_rewriting_is_no_update():
    samples = {"group_logics": [["b"]], "group_rewards": [[-1.0]], "played_rewards": [-0.5]}
    nothing = {"group_logics": [], "group_rewards": [], "played_rewards": [], "evolved": False}
    rounds = [
        round_record(0, agents=1, logics=["a"], **samples),
        round_record(1, agents=1, logics=["a"], **nothing),
        round_record(2, agents=1, logics=["a"], **samples),
        round_record(3, agents=1, logics=["b"]),
    ]
    assert measure_gains(rounds).rows() == [(1, 0, 0.0), (3, 0, -0.5)]


def lud_rows(lud):
    nothing = pl.DataFrame(schema=LUD_SCHEMA)
    rows = {"round": range(1, len(lud) + 1), "agent": [0] * len(lud), "lud": lud}
    return pl.concat([nothing, pl.DataFrame(rows)], how="diagonal_relaxed")


def test_the_summary_joins_each_update_with_its_own_gain_and_leaves_out_unjudged_ones():
    gains = pl.DataFrame({"round": [4, 3, 1, 2], "agent": [0] * 4, "gain": [0.4, 0.3, 0.1, 9.0]})
    summary = summarize_gains(lud_rows([0.1, None, 0.3, 0.7]), gains)
    assert (summary["n"], summary["n_by_regime"]) == (3, [1, 1, 1])
    assert summary["mean_gain_by_regime"] == [0.1, 0.3, 0.4]
    assert summary["pearson_r"] == pytest.approx(
        np.corrcoef([0.1, 0.3, 0.7], [0.1, 0.3, 0.4])[0, 1]
    )


@settings(deadline=None)
@given(arrays(float, 30, elements=st.one_of(st.floats(0, 2), st.sampled_from(REGIME_EDGES))))
def test_every_update_falls_into_exactly_one_regime(lud):
    gains = pl.DataFrame({"round": range(1, 31), "agent": [0] * 30, "gain": [0.5] * 30})
    summary = summarize_gains(lud_rows(lud.tolist()), gains)
    assert sum(summary["n_by_regime"]) == 30
    means = zip(summary["n_by_regime"], summary["mean_lud_by_regime"], strict=True)
    assert sum(n * mean for n, mean in means if n) == pytest.approx(lud.sum())


ENCODER = HashingEncoder()


def measure_delta(before, after):
    return float(update_magnitude(ENCODER.encode([before]), ENCODER.encode([after]))[0])


def test_updates_are_measured_from_first_to_last_and_from_round_to_round(tmp_path):
    summary = measure_lud(finished_run(tmp_path / "run"), [ScriptedJudge()], ENCODER)
    first, second = summary["agents"]
    assert first["first_to_last"] == 0.0  # it came back to its seed logic
    steps = [measure_delta(LOGICS[t - 1][0], LOGICS[t][0]) if t != 2 else 0.0 for t in range(1, 5)]
    assert first["mean_delta"] == pytest.approx(sum(steps) / 4)
    assert (first["unchanged"], second["unchanged"]) == (1, 2)
    assert second["first_to_last"] == pytest.approx(measure_delta(LOGICS[0][1], LOGICS[4][1]))


def test_a_reply_in_prose_is_a_counted_failure_and_leaves_the_means(tmp_path):
    summary = measure_lud(
        finished_run(tmp_path / "run"), [ScriptedJudge(fails="outages")], ENCODER
    )["judges"][0]
    assert summary["failures"] == 1
    assert (summary["agents"][0]["pairs"], summary["agents"][1]["pairs"]) == (3, 4)


def test_rounds_that_rewrote_nothing_are_no_updates_and_nobody_is_asked_about_them(tmp_path):
    run = RunFolder(tmp_path / "run")
    finished_run(run.path, LOGICS[:1])
    write_text(run.rounds_file, "")
    # Two supervised rounds, then a rewriting every second round.
    played = ["seed", "seed", "seed", "storms", "storms", "outages"]
    rewrites = [False, False, True, False, True, False]
    for number, (logic, evolved) in enumerate(zip(played, rewrites, strict=True)):
        texts = [logic, f"{logic} too"]
        run.append_round(round_record(number, logics=texts, evolved=evolved))

    judge = ScriptedJudge()
    summary = measure_lud(run.path, [judge], ENCODER)
    assert (summary["rounds"], summary["updates_an_agent"]) == (6, 2)
    assert summary["judged_rounds"] == [3, 5]
    assert set(judge.asked) == {
        ("seed", "storms"),
        ("seed too", "storms too"),
        ("storms", "outages"),
        ("storms too", "outages too"),
    }
    rows = pl.read_csv(run.path / "lud.csv")
    assert sorted(rows["round"].to_list()) == [3, 3, 5, 5]
    assert summary["agents"][0]["unchanged"] == 0
    steps = [measure_delta("seed", "storms"), measure_delta("storms", "outages")]
    assert summary["agents"][0]["mean_delta"] == pytest.approx(sum(steps) / 2)


@pytest.mark.parametrize(
    ("updates", "count", "rounds"),
    [(59, 8, [1, 9, 18, 26, 34, 42, 51, 59]), (3, 8, [1, 2, 3]), (5, 1, [5]), (0, 8, [])],
)
def test_judged_rounds_are_few_and_evenly_spaced(updates, count, rounds):
    assert space_rounds(updates, count) == rounds


def test_a_folder_without_a_run_and_an_altered_model_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no rounds\.jsonl"):
        measure_lud(tmp_path, [ScriptedJudge()], ENCODER)
    run = finished_run(tmp_path / "run")
    (run / "model" / "config.json").write_text((run / "model" / "config.json").read_text() + " ")
    with pytest.raises(CheckpointMismatch, match="altered"):
        measure_lud(run, [ScriptedJudge()], ENCODER)


def test_the_command_judges_with_the_runs_own_backbone_which_is_loaded_only_to_be_asked(
    tmp_path, monkeypatch
):
    run = finished_run(tmp_path / "run")
    first = CliRunner().invoke(app, ["lud", str(run), "--pairs", "1"])
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["judges"][0]["name"] == "local:tiny-random/float32"
    monkeypatch.setattr(
        backbone, "load_backbone", lambda _: pytest.fail("loaded without a question")
    )
    second = CliRunner().invoke(app, ["lud", str(run), "--pairs", "1"])
    assert json.loads(second.stdout) == json.loads(first.stdout)


SUMMARY = {
    "encoder": "minilm",
    "config_hash": "c1",
    "artifact_hash": "a1",
    "agreement": [{"first": "x", "second": "y", "n": 9, "kappa_gate": 0.5, "pearson_lud": 0.6}],
    "judges": [
        {
            "name": "x",
            "gains": {
                "n": 4,
                "pearson_r": 0.3,
                "pearson_p": 0.2,
                "regimes": ["low", "high"],
                "n_by_regime": [3, 1],
                "mean_lud_by_regime": [0.1, 0.7],
                "mean_gain_by_regime": [0.0, 0.02],
            },
        }
    ],
}


def test_a_run_has_a_row_a_pair_of_judges_a_regime_and_one_over_all_updates():
    rows = tabulate_lud(SUMMARY, "electricity")
    assert rows["subject"].to_list() == ["x / y", "low", "high", "all"]
    assert rows["kappa"].to_list() == [0.5, None, None, None]
    assert rows["pearson_r"].to_list() == [0.6, None, None, 0.3]


def test_a_run_measured_again_replaces_its_rows_and_leaves_those_of_others(tmp_path):
    write_lud_rows(tmp_path, SUMMARY, "electricity")
    write_lud_rows(tmp_path, SUMMARY | {"artifact_hash": "a2"}, "electricity")
    write_lud_rows(tmp_path, SUMMARY, "electricity")
    lud = read_inputs(tmp_path, [], mode="archive", generated_at=NOW).lud
    assert [row["artifact_hash"] for row in lud] == ["a2"] * 4 + ["a1"] * 4
    assert set(LUD_COLUMNS) <= set(lud[0])
