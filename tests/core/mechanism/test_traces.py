"""A run as rows by round."""

import pytest

from compevo_core.lm.encoder import HashingEncoder
from compevo_core.lud.degree import update_magnitude
from compevo_core.mechanism.traces import TRACE_SCHEMA, RunIdentity, trace_rounds
from tests.support.round_records import round_record

IDENTITY = RunIdentity(
    dataset="electricity", method="mae-gpt", budget="quick", seed=3, commit="c0", config_hash="h0"
)
TEXTS = ["Watch storms.", "Read policy."]
RECORDS = [
    round_record(0, logics=TEXTS, evolved=False, val_mae_scaled=0.75),
    round_record(1, logics=TEXTS, evolved=True, rewards=[-0.125, -0.5], unique_news=[7, 2]),
    round_record(2, logics=[TEXTS[0], "Watch the sun."], evolved=False, epoch=1, loss_pred=1 / 3),
]


def rows_of(records=RECORDS, **chosen):
    rows = trace_rounds(records, IDENTITY, HashingEncoder()).to_dicts()
    return [row for row in rows if all(row[name] == value for name, value in chosen.items())]


def test_a_round_has_a_row_of_the_population_and_one_of_each_agent():
    rows = rows_of()
    assert [(row["round"], row["agent"]) for row in rows] == [
        (number, agent) for number in range(3) for agent in (None, 0, 1)
    ]
    assert list(rows[0]) == list(TRACE_SCHEMA)
    assert {(row["method"], row["budget"], row["seed"]) for row in rows} == {
        ("mae-gpt", "quick", 3)
    }


def test_losses_are_of_the_population_and_rewards_and_news_of_agents():
    population = rows_of(agent=None)
    # L_pred, and not the weighted sum of all terms.
    assert [row["loss"] for row in population] == [0.5, 0.5, 0.333333]
    assert [row["val_error"] for row in population] == [0.75, None, None]
    assert [row["epoch"] for row in population] == [0, 0, 1]
    first, second = (row for row in rows_of(round=1) if row["agent"] is not None)
    assert (first["reward"], first["unique_news"]) == (-0.125, 7)
    assert (second["reward"], second["unique_news"]) == (-0.5, 2)
    assert first["loss"] is None and population[0]["reward"] is None


def test_a_shift_stands_in_the_round_that_plays_the_new_logics_and_is_zero_for_a_kept_one():
    assert [row["logic_shift"] for row in rows_of(agent=0)] == [None, None, 0.0]
    encode = HashingEncoder().encode
    (expected,) = update_magnitude(encode([TEXTS[1]]), encode(["Watch the sun."]))
    assert [row["logic_shift"] for row in rows_of(agent=1)] == [
        None,
        None,
        pytest.approx(expected, abs=1e-5),
    ]


def test_a_run_that_rewrites_nothing_has_no_shift():
    still = [record.model_copy(update={"evolved": False}) for record in RECORDS]
    assert all(row["logic_shift"] is None for row in rows_of(still))
