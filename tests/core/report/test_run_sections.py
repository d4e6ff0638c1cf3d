"""Runs with a supervised stage and rounds that rewrite nothing are shown as what they are."""

from dataclasses import replace

import pytest

from compevo_core.report.calibration_tables import calibration_table
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.logic_tables import logics_view
from compevo_core.report.page import render_page
from compevo_core.report.rows import empty_rows
from compevo_core.report.run_sections import health_view, list_facts
from compevo_core.report.theory_tables import theory_view
from compevo_core.report.training_plots import plot_losses, plot_policy, plot_theory
from compevo_core.training.round_record import RoundRecord
from tests.support.report_samples import make_inputs, make_rounds, make_run

SUPERVISED, EVERY, ROUNDS = 8, 4, 20
NOTHING = {
    "evolved": False,
    "group_rewards": [],
    "candidates": [],
    "group_logics": [],
    "best_response_gap": [],
    "fixed_rewards": None,
    "played_rewards": None,
    "kl": 0.0,
    "clip_fraction": 0.0,
    "equal_groups": 0,
}


def staged_rounds() -> list[RoundRecord]:
    """Eight supervised rounds, then a rewriting every fourth round; agent 0 keeps its logic."""
    rounds = make_rounds(ROUNDS)
    made = []
    logics = ["watch storms", "read policy", "count holidays"]
    for record in rounds:
        is_supervised = record.round < SUPERVISED
        evolved = not is_supervised and (record.round - SUPERVISED) % EVERY == 0
        changes: dict[str, object] = {
            "stage": "supervised" if is_supervised else "evolution",
            "logics": list(logics),
            "empty_logics": 3 if evolved else 0,
            "error_correlation": 0.5,
            "gain_over_best": 2.0 + record.round,
            "effective_agents": 1.5,
        }
        made.append(record.model_copy(update=changes | ({} if evolved else NOTHING)))
        if evolved:
            logics = [logics[0], *(f"{text} again" for text in logics[1:])]
    return made


def staged_run() -> TrainingRun:
    return replace(make_run(), rounds=staged_rounds(), lud={}, lud_rows=())


PAGE = render_page(make_inputs(runs=(staged_run(),), rows=empty_rows()))


def test_a_run_says_how_many_rounds_were_supervised_and_how_many_rewrote() -> None:
    assert ("rounds", "20, 8 supervised, 3 rewriting logics") in list_facts(staged_run())
    assert ("rounds", "24") in list_facts(make_run())


def test_a_dashed_line_and_a_sentence_mark_the_end_of_the_supervised_stage() -> None:
    plot = plot_losses(staged_run())[0]
    assert "the first 8 of them supervised" in plot.alt
    (axis,) = plot.figure.axes
    assert [7.5, 7.5] in [list(line.get_xdata()) for line in axis.get_lines()]
    assert "The dashed line marks" in PAGE

    unstaged = render_page(make_inputs(rows=empty_rows()))
    assert "The dashed line marks" not in unstaged and "supervised" not in unstaged


def test_rounds_that_sampled_nothing_leave_no_point_in_what_samples_are_needed_for() -> None:
    kl, _, _ = plot_policy(staged_run())
    (axis,) = kl.figure.axes
    assert list(axis.get_lines()[0].get_xdata()) == [8, 12, 16]
    gap = plot_theory(staged_run())[0].figure.axes[0]
    assert list(gap.get_lines()[0].get_xdata()) == [8, 12, 16]
    # What every round has keeps every point.
    loss = plot_losses(staged_run())[0].figure.axes[0]
    assert len(loss.get_lines()[0].get_xdata()) == ROUNDS


def test_regret_at_the_end_is_that_of_the_last_round_that_has_one() -> None:
    rounds = staged_rounds()
    rounds[-1] = rounds[-1].model_copy(update={"regret": []})
    growth = theory_view(replace(staged_run(), rounds=rounds))["growth"]
    assert growth.rows[0][1] == f"{rounds[-2].regret[0]:.4f}"
    assert growth.rows[0][4] == "21 of 3"


def test_the_logics_table_says_what_became_of_each_and_how_often_it_was_replaced() -> None:
    view = logics_view(staged_run())
    assert view["change"].rows == [
        ["agent 0", "watch storms", "as at the start", "0 of 3"],
        ["agent 1", "read policy", "read policy again again again", "3 of 3"],
        ["agent 2", "count holidays", "count holidays again again again", "3 of 3"],
    ]
    # One candidate and one sample of each of three agents, in three rounds.
    assert "Of 18 texts written, 50.0 % were empty or a placeholder" in view["samples"]
    assert [shown["number"] for shown in view["rounds"]] == [0, 9, 13, 17]


def test_a_run_that_never_rewrote_shows_its_logics_and_claims_nothing_of_samples() -> None:
    fixed = [record.model_copy(update=NOTHING) for record in make_rounds(3)]
    view = logics_view(replace(make_run(), rounds=fixed))
    assert view["samples"] == ""
    assert [row[3] for row in view["change"].rows] == ["0 of 0"] * 3
    page = render_page(make_inputs(runs=(replace(make_run(), rounds=fixed),), rows=empty_rows()))
    assert "Logics by round" in page


def test_health_is_shown_with_what_is_good_where_it_was_measured() -> None:
    view = health_view(staged_run())
    assert view["means"] == {
        "error_correlation": "0.5000",
        "gain_over_best": "16.50",  # of the last ten rounds: 12 to 21
        "effective_agents": "1.50",
    }
    assert "Effective agents 1.50 of 3: more is better." in PAGE
    assert "Health of the population" not in render_page(make_inputs(rows=empty_rows()))


@pytest.mark.parametrize("key", ["loss_own", "cut_prompts"])
def test_what_a_run_did_not_do_is_not_mentioned(key: str) -> None:
    own = [record.model_copy(update={key: 2}) for record in staged_rounds()]
    changed = render_page(make_inputs(runs=(replace(staged_run(), rounds=own),), rows=empty_rows()))
    sentence = "40 prompts were longer than the context"
    assert (sentence in changed) == (key == "cut_prompts") and sentence not in PAGE
    labels = [
        line.get_label()
        for line in plot_losses(replace(staged_run(), rounds=own))[0].figure.axes[0].get_lines()
    ]
    assert ("own errors of agents" in labels) == (key == "loss_own")


CALIBRATION = {
    "windows": 464,
    "prior_mae": 0.2,
    "raw_mae": 0.21,
    "calibrated_mae": 0.19,
    "blend": [0.5, 0.0, 1.0],
    "known_errors": "mean",
    "half_life_days": 90.0,
    "history_windows": 464,
    "guard": "equal",
}


def test_calibration_is_shown_with_what_each_agent_keeps_and_what_the_guard_did() -> None:
    table = calibration_table(replace(staged_run(), summary={"calibration": CALIBRATION}))
    assert [row[1] for row in table.rows] == ["0.2000", "0.2100", "0.1900"]
    assert "50.0 % of agent 0, 0.0 % of agent 1 and 100.0 % of agent 2" in table.notes[0]
    assert "(mean, half-life 90 days)" in table.notes[1]
    assert table.notes[2].startswith("The guard weighs all agents alike")


def test_a_run_without_calibration_or_level_says_no_more_than_it_did() -> None:
    assert calibration_table(replace(staged_run(), summary={"calibration": None})) is None
    assert calibration_table(replace(staged_run(), summary={})) is None
    plain = CALIBRATION | {"half_life_days": None, "known_errors": "none", "guard": "none"}
    notes = calibration_table(replace(staged_run(), summary={"calibration": plain})).notes
    assert notes[1:3] == ["No level of known errors is added.", "Selection weighs the agents."]
