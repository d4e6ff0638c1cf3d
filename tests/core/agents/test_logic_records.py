"""Records of logics: gains add up, age, and decide by their lower bound."""

import numpy as np

from compevo_core.agents.logic_records import REMEMBERED, LogicRecord, LogicRecords

STEADY, LUCKY, BAD = np.full(16, 0.2), np.array([4.0, *[0.0] * 15]), np.full(16, -0.1)


def test_a_record_holds_mean_and_standard_error_of_its_gains():
    gains = np.array([0.5, -0.1, 0.3, 0.1, 0.7])
    record = LogicRecord().add(gains[:2]).add(gains[2:])
    assert np.isclose(record.gain, gains.mean())
    assert np.isclose(record.standard_error, gains.std() / np.sqrt(5))
    assert np.isclose(record.lower_bound, record.gain - record.standard_error)


def test_a_steady_gain_is_played_before_a_higher_one_of_a_single_window():
    assert LUCKY.mean() > STEADY.mean()
    records = LogicRecords()
    assert records.add_round([["bad", "lucky", "steady"]], [np.stack([BAD, LUCKY, STEADY])]) == [
        "steady"
    ]


def test_a_logic_that_was_not_scored_again_may_still_be_the_best():
    records = LogicRecords()
    records.add_round([["bad", "steady"]], [np.stack([BAD, STEADY])])
    assert records.add_round([["bad", "lucky"]], [np.stack([BAD, LUCKY])]) == ["steady"]


def test_the_played_logic_stays_on_ties_and_a_twin_counts_once():
    records = LogicRecords()
    group = [["played", "other", "other"]]
    assert records.add_round(group, [np.stack([STEADY] * 3)]) == ["played"]
    (values,) = records.to_json().values()
    assert values["other"][0] == 16


def test_old_gains_count_less_and_are_forgotten():
    records = LogicRecords()
    records.add_round([["old"]], [STEADY[None]])
    for _ in range(3):
        records.add_round([["new"]], [BAD[None]])
    (values,) = records.to_json().values()
    assert 2.0 < values["old"][0] < 8.0 < values["new"][0]
    for _ in range(4):
        records.add_round([["new"]], [BAD[None]])
    assert "old" not in records.to_json()["0"]


def test_the_best_besides_the_played_one_are_remembered_by_agent():
    records = LogicRecords()
    names = ["a", "b", "c", "d", "e"]
    gains = np.stack([np.full(4, rank / 10) for rank in range(5)])
    records.add_round([names, names[::-1]], [gains, gains])
    assert records.list_best(0, but="e") == ["d", "c", "b"]
    assert records.list_best(1, but="e") == ["a", "b", "c"]
    assert len(records.list_best(0, but="e")) == REMEMBERED
    assert records.list_best(7, but="e") == []


def test_records_survive_a_checkpoint():
    records = LogicRecords()
    records.add_round([["a", "b"]], [np.stack([STEADY, LUCKY])])
    again = LogicRecords.from_json(records.to_json())
    assert again.to_json() == records.to_json()
    assert again.list_best(0, but="a") == ["b"]
