"""A finished run as rows: its rounds, its final logics, whether its reward still moves."""

import numpy as np
import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_core.evaluation.result_rows import read_typed
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper import run_traces
from compevo_core.paper.lud import update_magnitude
from tests.support.lud import finished_run
from tests.support.round_records import round_record

IDENTITY = {"dataset": "electricity", "method": "mae-gpt", "budget": "quick", "seed": 3}
IDENTITY |= {"commit": "c0", "config_hash": "h0"}
TEXTS = ["Watch storms.", "Read policy."]
RECORDS = [
    round_record(0, logics=TEXTS, evolved=False, val_mae_scaled=0.75),
    round_record(1, logics=TEXTS, evolved=True, rewards=[-0.125, -0.5], unique_news=[7, 2]),
    round_record(2, logics=[TEXTS[0], "Watch the sun."], evolved=False, epoch=1, loss_pred=1 / 3),
]


def rows_of(**chosen):
    rows = run_traces.trace_rounds(RECORDS, IDENTITY, HashingEncoder()).to_dicts()
    return [row for row in rows if all(row[name] == value for name, value in chosen.items())]


def test_a_round_has_population_and_agent_rows():
    rows, population = rows_of(), rows_of(agent=None)
    first, second = (row for row in rows_of(round=1) if row["agent"] is not None)

    places = [(number, agent) for number in range(3) for agent in (None, 0, 1)]
    assert [(row["round"], row["agent"]) for row in rows] == places
    assert list(rows[0]) == list(run_traces.TRACE_SCHEMA)
    said = {(row["method"], row["budget"], row["seed"]) for row in rows}
    assert said == {("mae-gpt", "quick", 3)}

    # L_pred, and not the weighted sum of all terms.
    assert [row["loss"] for row in population] == [0.5, 0.5, 0.333333]
    assert [row["val_error"] for row in population] == [0.75, None, None]
    assert [row["epoch"] for row in population] == [0, 0, 1]
    assert (first["reward"], first["unique_news"]) == (-0.125, 7)
    assert (second["reward"], second["unique_news"]) == (-0.5, 2)
    assert first["loss"] is None and population[0]["reward"] is None


def test_a_shift_belongs_to_the_playing_round():
    encode = HashingEncoder().encode
    (shift,) = update_magnitude(encode([TEXTS[1]]), encode(["Watch the sun."]))
    expected = [None, None, pytest.approx(shift, abs=1e-5)]
    assert [row["logic_shift"] for row in rows_of(agent=0)] == [None, None, 0.0]
    assert [row["logic_shift"] for row in rows_of(agent=1)] == expected


def final(texts, **changes):
    record = round_record(0, agents=len(texts), logics=texts)
    return run_traces.list_final_logics([record], IDENTITY | changes)


def test_a_row_holds_final_logic_and_reward():
    rewards = np.linspace(-1, 0, 40) ** 3
    records = [
        round_record(number, agents=1, logics=[f"logic {number}"], rewards=[reward])
        for number, reward in enumerate(rewards)
    ]
    (row,) = run_traces.list_final_logics(records, IDENTITY).to_dicts()
    expected = run_traces.measure_plateau(rewards, IDENTITY["seed"])

    assert row["logic"] == "logic 39" and list(row) == list(run_traces.LOGIC_SCHEMA)
    stored = [row[name] for name in ("reward_change", "reward_slope", "slope_low", "slope_high")]
    measured = [expected.change, expected.slope, expected.low, expected.high]
    assert stored == pytest.approx(measured, rel=1e-5)
    # A run that is too short for the test has none.
    assert final(["a", "b"])["reward_slope"].to_list() == [None, None]


def test_components_have_most_variance_and_fixed_signs():
    # By hand: along the first axis, then the third; the second is constant.
    vectors = np.array([[3.0, 1, 0], [-3, 1, 0], [0, 1, 1], [0, 1, -1]])
    place, shown = run_traces.find_components(vectors)
    assert np.allclose(place, [[3, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]])
    assert shown == pytest.approx(1.0)
    # Another order of the texts turns no axis over.
    turned, _ = run_traces.find_components(vectors[::-1])
    assert np.allclose(turned[::-1], place)


def test_distances_stay_within_a_run():
    run = final(["watch storms", "watch storms", "read policy"])
    placed = run_traces.place_logics(
        pl.concat([run, final(["watch storms"], method="sa")]), HashingEncoder()
    )

    # Texts without a word in common have the distance 1.
    assert placed["distance_to_others"].to_list() == [0.5, 0.5, 1.0, None]
    assert placed["encoder"].to_list() == ["hashing"] * 4
    assert placed["x"].n_unique() == 2 and placed["shown_variance"].to_list() == [1.0] * 4


def make_run(folder, rounds=3, words=("storms", "policy")):
    return finished_run(folder, [[f"watch {word}" for word in words]] * rounds)


def test_a_repeated_run_replaces_its_rows(tmp_path):
    long, short = make_run(tmp_path / "long", 5), make_run(tmp_path / "short", 2)
    results, encoder = tmp_path / "results", HashingEncoder()
    for change in ({}, {"seed": 4}, {"budget": ""}, {"method": "compevo"}):
        run_traces.write_traces(results, long, IDENTITY | change, encoder)
    run_traces.write_traces(results, short, IDENTITY, encoder)

    traces = read_typed(results / "traces-electricity.csv", run_traces.TRACE_SCHEMA)
    counts = traces.group_by("method", "budget", "seed").len().sort("method", "budget", "seed")
    quick = [("mae-gpt", "quick", 3, 6), ("mae-gpt", "quick", 4, 15)]
    assert counts.rows() == [("compevo", "quick", 3, 15), ("mae-gpt", "", 3, 15), *quick]
    assert read_typed(results / "logics-electricity.csv", run_traces.LOGIC_SCHEMA).height == 8


def test_a_new_run_places_all_logics_again(tmp_path):
    results, encoder = tmp_path / "results", HashingEncoder()
    other = make_run(tmp_path / "b", words=("rain", "rates"))
    run_traces.write_traces(results, make_run(tmp_path / "a"), IDENTITY, encoder)
    path = results / "logics-electricity.csv"
    before = read_typed(path, run_traces.LOGIC_SCHEMA)
    run_traces.write_traces(results, other, IDENTITY | {"method": "sa"}, encoder)
    after = read_typed(path, run_traces.LOGIC_SCHEMA)

    assert after["logic"][:2].to_list() == before["logic"].to_list()
    assert after["x"][:2].to_list() != before["x"].to_list()
    assert abs(sum(after["x"].to_list())) < 1e-3


def test_another_versions_file_is_refused_unchanged(tmp_path):
    path = tmp_path / "traces-electricity.csv"
    path.write_text(",".join(name for name in run_traces.TRACE_SCHEMA if name != "epoch") + "\n")
    before = path.read_text()
    with pytest.raises(DataError, match=r"traces-electricity\.csv: .*epoch"):
        run_traces.write_traces(tmp_path, make_run(tmp_path / "run"), IDENTITY, HashingEncoder())
    assert path.read_text() == before


def noise(rounds):
    return np.random.default_rng(0).normal(0, 0.05, rounds)


def test_a_slope_is_the_median_over_pairs():
    # Pairs: 1, 1, 3, 1, 4, 7 over the rounds between them.
    assert run_traces.theil_sen_slope(np.array([0.0, 1.0, 2.0, 9.0])) == pytest.approx(2.0)
    # One outlier of nine moves the mean slope and not this one.
    assert run_traces.theil_sen_slope(np.array([0, 1, 2, 3, 90, 5, 6, 7, 8.0])) == pytest.approx(
        1.0
    )


def test_change_compares_the_last_and_first_quarter():
    reward = np.concatenate([np.full(10, -1.0), np.full(10, -0.7), np.arange(20) * 0.01])
    plateau = run_traces.measure_plateau(reward, 0)
    assert plateau.change == pytest.approx(np.arange(10, 20).mean() * 0.01 + 1.0)
    assert plateau.slope == pytest.approx(0.01) and plateau.n_rounds == 20
    assert plateau.low == pytest.approx(0.01) == plateau.high

    # A short run has no test, and a repeated one the same.
    assert run_traces.measure_plateau(noise(run_traces.MIN_ROUNDS - 1), 0) is None
    assert run_traces.measure_plateau(
        noise(run_traces.MIN_ROUNDS), 4
    ) == run_traces.measure_plateau(noise(run_traces.MIN_ROUNDS), 4)
    with pytest.raises(DataError):
        run_traces.measure_plateau([float("nan")] * 40, 0)


def test_a_reward_that_levels_off_is_flat():
    rounds = np.arange(120)
    settled = run_traces.measure_plateau(-np.exp(-rounds / 10) + noise(120), 1)
    rising = run_traces.measure_plateau(0.005 * rounds + noise(120), 1)
    falling = run_traces.measure_plateau(-0.005 * rounds + noise(120), 1)
    assert settled.is_flat and settled.low < settled.slope < settled.high
    assert settled.change > 0.2
    assert not rising.is_flat and rising.low > 0
    assert not falling.is_flat and falling.high < 0


def test_blocks_make_the_interval_wider_where_neighbours_agree():
    # Ten rounds at a time in common: as if there were a tenth of them.
    steady = np.repeat(noise(16), 10)
    shuffled = np.random.default_rng(3).permutation(steady)
    apart, together = run_traces.measure_plateau(shuffled, 0), run_traces.measure_plateau(steady, 0)
    assert together.high - together.low > 1.5 * (apart.high - apart.low)
