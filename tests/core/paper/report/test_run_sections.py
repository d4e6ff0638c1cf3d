"""Runs with a supervised stage and rounds that rewrite nothing are shown as what they are."""

from dataclasses import replace
from functools import cache

import pytest

from compevo_core.paper.report import run_sections
from compevo_core.paper.report.inputs import empty_rows
from tests.support.report_samples import (
    GAINS,
    LUD,
    make_inputs,
    make_rounds,
    make_run,
    render_undrawn,
)

SUPERVISED, EVERY, ROUNDS = 8, 4, 20
LISTS = ("group_rewards", "candidates", "group_logics", "best_response_gap")
NOTHING = {name: [] for name in LISTS} | {"fixed_rewards": None, "played_rewards": None}
NOTHING |= {"evolved": False, "kl": 0.0, "clip_fraction": 0.0, "equal_groups": 0}


def staged_rounds():
    """Eight supervised rounds, then a rewriting every fourth round; agent 0 keeps its logic."""
    made = []
    logics = ["watch storms", "read policy", "count holidays"]
    for record in make_rounds(ROUNDS):
        is_supervised = record.round < SUPERVISED
        evolved = not is_supervised and (record.round - SUPERVISED) % EVERY == 0
        changes = {
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


def staged_run():
    return replace(make_run(), rounds=staged_rounds(), lud={}, lud_rows=())


def render(run):
    return render_undrawn(make_inputs(runs=(run,), rows=empty_rows()))


@cache
def render_staged():
    return render(staged_run())


def test_rounds_without_samples_leave_no_point():
    kl, _, _ = run_sections.plot_values(staged_run(), run_sections.POLICY)
    assert list(kl.draw().get_lines()[0].get_xdata()) == [8, 12, 16]
    gap = run_sections.plot_values(staged_run(), run_sections.THEORY)[0].draw()
    assert list(gap.get_lines()[0].get_xdata()) == [8, 12, 16]

    # What every round has keeps every point.
    loss = run_sections.plot_losses(staged_run())[0].draw()
    assert len(loss.get_lines()[0].get_xdata()) == ROUNDS


def test_final_regret_is_the_last_measured_one():
    rounds = staged_rounds()
    rounds[-1] = rounds[-1].model_copy(update={"regret": []})

    growth = run_sections.growth_table(replace(staged_run(), rounds=rounds))
    assert growth.rows[0][1] == f"{rounds[-2].regret[0]:.4f}"
    assert growth.rows[0][4] == "21 of 3"


def test_the_logics_table_says_what_became_of_each():
    view = run_sections.view_logics(staged_run(), [])
    assert view["table"].rows == [
        ["agent 0", "watch storms", "as at the start"],
        ["agent 1", "read policy", "read policy again again again"],
        ["agent 2", "count holidays", "count holidays again again again"],
    ]
    # One candidate and one sample of each of three agents, in three rounds.
    assert (view["samples"]["written"], view["samples"]["empty"]) == (18, "50.0 %")
    assert "18 texts" in render_staged()


def test_an_unchanged_run_claims_no_samples():
    fixed = [record.model_copy(update=NOTHING) for record in make_rounds(3)]
    run = replace(make_run(), rounds=fixed)
    page = render(run)

    assert run_sections.view_logics(run, [])["samples"]["written"] == 0
    assert 'id="logics-0"' in page and "texts written" not in page


def audited(kind, group, n, own, none, swapped):
    """Rows of one group of the audit of a run on test windows."""
    shared = {"dataset": "electricity", "source": "run", "split": "test", "subset": "s"}
    shared |= {"artifact_hash": "sealed", "unit": "MW", "group_kind": kind, "group": group}
    shared |= {"interval_low": None, "interval_high": None, "n_windows": n}
    return [
        shared | {"news": news, "mae": mae, "difference": own - mae, "n_with_news": n // k}
        for news, mae, k in (("own", own, 1), ("none", none, 1000), ("swapped", swapped, 2))
    ]


AUDIT = [
    *audited("all", "all", 160, 105.0, 120.0, 121.0),
    *audited("moved", "most", 40, 120.0, 200.0, 210.0),
    *audited("moved", "rest", 120, 100.0, 99.0, 111.0),
    *audited("agent 0", "fuel prices", 90, 101.0, 100.0, 99.0),
    *audited("agent 0", "power outages", 30, 110.0, 180.5, 190.0),
]


def searched_run():
    """A run that scored its logics by what their news gained, and found a topic."""
    seeds, found = (
        f"Watch news about {topic} in any region, at any time of day, as a sign of lower values."
        for topic in ("public holidays", "power outages")
    )
    rounds = []
    for record in staged_rounds():
        gains = [0.1 * record.round, 0.0, 0.2] if record.evolved else []
        changes = {"logics": [seeds if record.round < 9 else found] * 3, "news_gains": gains}
        rounds.append(record.model_copy(update=changes))
    return replace(staged_run(), rounds=rounds, summary={"artifact_hash": "sealed"})


def test_the_first_section_shows_what_was_learnt():
    page = run_sections.build_run_sections([searched_run()], AUDIT)
    assert page[0].anchor == "logics-0" and page[0].view["swapped"] == "80 of 160"
    topics, gains, errors = (plot.draw() for plot in page[0].view["picture"].plots)
    labels = [label.get_text() for label in topics.get_yticklabels()]

    assert labels == ["power outages", "public holidays"]
    assert list(gains.get_lines()[0].get_ydata()) == pytest.approx([0.8, 1.2, 1.6])
    assert [bar.get_height() for bar in errors.patches] == [120, 100, 200, 99, 210, 111]
    read = [row[3] for row in page[0].view["table"].rows]
    assert read == ["power outages (30, 70.50), fuel prices (90, -1.00)", "n/a", "n/a"]


def test_an_audit_of_another_model_is_ignored():
    for change in ({"artifact_hash": "other"}, {"split": "val"}):
        others = [row | change for row in AUDIT]
        (section, *_) = run_sections.build_run_sections([searched_run()], others)
        assert len(section.view["picture"].plots) == 2 and not section.view["swapped"]
    # A run in free text that kept no record of gains has no picture, and its page renders.
    assert not run_sections.view_logics(staged_run(), [])["picture"].plots


def test_health_is_shown_where_measured():
    view = run_sections.view_health(staged_run())
    # The gain of the last ten rounds: 12 to 21.
    means = {"error_correlation": "0.5000", "gain_over_best": "16.50", "effective_agents": "1.50"}
    assert view["means"] == means
    assert 'id="health-0"' in render_staged()
    # Nor where agents are read together: none of them is a forecast that has errors of its own.
    run = staged_run()
    joint = replace(run, config=run.config | {"news": {"fit": "joint"}})

    for shown in (make_run(), joint):
        assert "health-0" not in [
            section.anchor for section in run_sections.build_run_sections([shown])
        ]


CALIBRATION = {"windows": 464, "prior_mae": 0.2, "raw_mae": 0.21, "calibrated_mae": 0.19}
CALIBRATION |= {"blend": [0.5, 0.0, 1.0], "guard": "equal"}


def test_calibration_shows_shares_and_the_guard():
    run = replace(staged_run(), summary={"calibration": CALIBRATION})
    view = run_sections.view_calibration(run)

    assert [row[1] for row in view["table"].rows] == ["0.2000", "0.2100", "0.1900"]
    assert view["shares"].count(" % for agent") == 3 and "50.0 % for" in view["shares"]
    assert "equal weights" in render(run)


def test_regret_growth_has_intervals_or_reasons():
    rows = run_sections.growth_table(make_run()).rows
    assert [row[3] for row in rows] == ["0.31 to 0.74", "0.80 to 1.12", "", "1.20 to 1.60"]
    words = ("below 1", "includes 1", "fewer than 8 rounds", "above 1")
    assert all(word in row[5] for word, row in zip(words, rows, strict=True))

    unmeasured = make_rounds(3, regret=None, fixed_rewards=None, played_rewards=None)
    assert run_sections.growth_table(replace(make_run(), rounds=unmeasured)) is None
    assert run_sections.growth_table(replace(make_run(), summary={})) is None


LUD_TABLES = ("distances", "scores", "agreement", "gains")


def test_lud_is_shown_by_agent_and_judge():
    view = run_sections.view_lud(make_run())
    distances, scores, agreement, gains = (view[name] for name in LUD_TABLES)

    assert view["has_local_judge"]
    assert distances.rows[1] == ["agent 1", "1.41", "0.2100", "1 of 23"]
    assert scores.rows[0][-1] == "0.1234"
    assert "2 of 18" in view["failures"] and "endpoint:m-1" in view["failures"]
    assert agreement.rows[0][2:5] == ["16", "0.6100", "n/a"]
    medium, high = gains.rows[1:]
    assert medium[1:] == ["medium", "0.265 to 0.6", "7", "0.3819", "0.0172"]
    assert high[3:] == ["0", "n/a", "n/a"], "an empty regime has no means"
    assert "0.4600 by endpoint:m-1" in view["correlations"] and "18 updates" in view["correlations"]


@pytest.mark.parametrize("gains", [{}, {"gains": GAINS | {"n": 0}}])
def test_a_lone_judge_has_no_agreement_or_gains(gains):
    judge = {key: value for key, value in LUD["judges"][1].items() if key != "gains"} | gains
    view = run_sections.view_lud(
        replace(make_run(), lud=LUD | {"judges": [judge], "agreement": []})
    )

    shown = [view[name] is not None for name in LUD_TABLES]
    assert shown == [True, True, False, False] and not view["has_local_judge"]


def test_lud_needs_a_measurement_of_this_model():
    unmeasured = replace(make_run(), lud={}, lud_rows=())
    assert "lud-0" not in [
        section.anchor for section in run_sections.build_run_sections([unmeasured])
    ]
    stale = replace(make_run(), lud=LUD | {"artifact_hash": "other"})
    assert run_sections.view_lud(stale).keys() == {"is_stale", "finding"}
