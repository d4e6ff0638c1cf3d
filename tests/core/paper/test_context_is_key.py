"""Context-is-Key: the official score, the forecast from numbers, answers of language models."""

import logging
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from benchmarks.rows import REPO
from compevo_core.errors import DataError, SourceAbsent
from compevo_core.paper.context_is_key import (
    ALL,
    BOTH,
    NUMBERS,
    READER,
    ContextTask,
    keep_answers,
    measure_crps,
    read_answer,
    read_tasks,
    run_context,
    sample_from_numbers,
    score_paths,
    write_by_backbone,
    write_by_endpoint,
    write_context,
    write_prompt,
)
from tests.support.context_tasks import write_task
from tests.support.tiny_backbone import build_backbone

LOG = logging.getLogger("test")
FACTS = {"data_hash": "d", "commit": "c"}


def make_task(**changes):
    facts = {"name": "heat", "seed": 1, "sources": ("c_f",), "weight": 1.0, "season": 3}
    facts |= {"text": "A heat wave doubles the load.", "scale": 0.5, "region": (), "caps": {}}
    facts |= {"lowest": -np.inf, "highest": np.inf, "stamps": tuple(f"day {n}" for n in range(19))}
    facts |= {"past_T": np.tile([1.0, 2.0, 4.0], 5), "truth_H": np.array([1.0, 2.0, 4.0, 1.0])}
    return ContextTask(**facts | changes)


def test_the_crps_covers_all_sample_pairs():
    rng = np.random.default_rng(0)
    paths, truth = rng.normal(size=(7, 3)), rng.normal(size=3)
    distance = np.abs(paths[:, None] - paths).sum((0, 1)) / (7 * 6)
    expected = np.abs(paths - truth).mean(0) - distance / 2
    assert measure_crps(truth, paths) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.5 * 1 / 4),
        ({"region": (0,)}, 0.5 * 1 / 2),  # the region counts half
        ({"highest": 1.5}, 0.125 + 10 * 0.5 * (0.5 + 0.5 + 2.5) / 4),
        ({"lowest": 2.0}, 0.125 + 10 * 0.5 * 1 / 4),
        ({"caps": {1: 1.5, 2: 4.0}}, 0.125 + 10 * 0.5 * 0.5 / 2),  # only of the capped steps
        ({"scale": 100.0}, 5.0),  # no task counts more
    ],
)
def test_the_score_weighs_region_and_limits(changes, expected):
    paths = np.tile([2.0, 2.0, 4.0, 1.0], (2, 1))  # one unit off at the first step
    assert score_paths(make_task(**changes), paths) == pytest.approx(expected)


def test_the_past_continues_in_three_ways():
    rng = np.random.default_rng(0)
    line = make_task(past_T=np.arange(20.0), season=-1)
    few = make_task(past_T=np.array([5.0, 7.0]), season=-1)

    repeated, continued = (sample_from_numbers(task, 3, rng) for task in (make_task(), line))
    drawn = sample_from_numbers(few, 50, rng)

    assert repeated == pytest.approx(np.tile([1.0, 2.0, 4.0, 1.0], (3, 1)))
    assert continued == pytest.approx(np.tile([20, 21, 22, 23], (3, 1)))
    assert set(drawn.ravel()) == {5.0, 7.0}


def test_neither_numbers_nor_prompt_know_the_truth():
    task = make_task()
    poisoned = replace(task, truth_H=np.full(4, np.nan))
    drawn = [sample_from_numbers(t, 5, np.random.default_rng(0)) for t in (task, poisoned)]
    prompt = write_prompt(replace(task, past_T=np.arange(15.0)))

    assert write_prompt(task) == write_prompt(poisoned)
    assert np.array_equal(*drawn)
    assert "A heat wave" in prompt and "0, 1, 2" in prompt and prompt.count("day 15") == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1, -2.5, 3e1, 4", [1, -2.5, 30]),
        ("Forecast: 1\n2\n3.", [1, 2, 3]),
        ("1, 2", None),
        ("1, 2, 1e999", None),
        ("none", None),
    ],
)
def test_an_answer_is_its_first_numbers_or_none(text, expected):
    answer = read_answer(text, 3)
    assert (None if answer is None else answer.tolist()) == expected


def test_rows_replace_answers_without_forecasts(tmp_path):
    flat = make_task(past_T=np.tile([3.0, 3.0, 3.0], 5), season=3)
    tasks = [flat, make_task(name="outage", sources=("c_h", "c_f"), weight=3.0)]

    def write(prompts, count, horizon):
        return [["1, 2, 4, 1", "no"][:count] for _ in prompts]

    rows = run_context(tasks, write, model="m", samples=2, facts=FACTS, log=LOG)
    by_key = {(row["arm"], row["source"]): row for row in rows.to_dicts()}

    assert by_key[NUMBERS, ALL]["n_tasks"] == 2 and by_key[NUMBERS, ALL]["unread"] is None
    assert by_key[READER, ALL]["unread"] == 0.5
    # The second task is certain by its numbers; the first is worth a quarter.
    repeated = score_paths(flat, np.full((25, 4), 3.0))
    assert by_key[NUMBERS, ALL]["score"] == pytest.approx(repeated / 4)
    assert by_key[NUMBERS, "c_h"]["score"] == 0
    answered = score_paths(flat, np.array([[1.0, 2, 4, 1], [3, 3, 3, 3]]))
    assert by_key[READER, "c_f"]["score"] == pytest.approx(answered / 4)
    assert by_key[BOTH, ALL]["score"] < by_key[NUMBERS, ALL]["score"]

    path = write_context(tmp_path, rows)
    other = run_context(tasks, None, seed=1, facts=FACTS, log=LOG)
    assert set(other["arm"]) == {NUMBERS}
    write_context(tmp_path, other)
    write_context(tmp_path, rows)
    assert pl.read_csv(path).height == rows.height + other.height


def test_a_stopped_run_does_not_ask_again(tmp_path):
    asked = []

    def write(prompts, count, horizon):
        asked.append(prompts)
        return [["1"] * count for _ in prompts]

    for _ in range(2):
        ask = keep_answers(write, tmp_path / "answers.json")
        assert ask(["a", "b"], 2, 5) == [["1", "1"], ["1", "1"]]
    ask(["a", "b"], 3, 5)
    assert asked == [["a", "b"], ["a", "b"]]


def test_the_backbone_writes_only_numbers_by_seed():
    prompts = ["Load 1, 2, 3, 4, 5, 6:", "Heat:"]
    writers = [write_by_backbone(build_backbone(), seed) for seed in (0, 0, 1)]
    first, again, other = (write(prompts, 2, 3) for write in writers)
    texts = [text for answers in first for text in answers]

    assert first == again != other
    assert len(texts) == 4 and len({*texts}) == 4
    assert all(read_answer(text, 3) is not None and text.count(",") == 3 for text in texts)


def test_an_endpoint_is_asked_once_an_answer():
    bodies = []

    def transport(body):
        bodies.append(body)
        return {"choices": [{"message": {"content": "1, 2"}}]}

    assert write_by_endpoint(transport, "m")(["Heat:"], 2, 8) == [["1, 2", "1, 2"]]
    assert len(bodies) == 2 and bodies[0]["model"] == "m" and bodies[0]["max_tokens"] == 88
    assert bodies[0]["messages"] == [{"role": "user", "content": "Heat:"}]
    with pytest.raises(DataError, match="endpoint:m"):
        write_by_endpoint(lambda body: {}, "m")(["Heat:"], 1, 8)


def test_tasks_are_read_as_published(tmp_path):
    with pytest.raises(SourceAbsent, match="context_is_key"):
        read_tasks(tmp_path)
    write_task(tmp_path)
    (task,) = read_tasks(tmp_path)
    assert (task.weight, task.text, task.region) == (1 / 3, "Load.\nBelow 9.", ())
    assert (task.past_T.tolist(), task.truth_H.tolist()) == ([3, 3], [4, 5])
    assert (task.stamps, task.lowest, task.highest) == (("t0", "t1", "t2", "t3"), -np.inf, 9)
    assert task.caps == {0: 8.0}


def test_the_committed_row_is_made_again(archive_dir):
    tasks = read_tasks(archive_dir)
    assert len(tasks) == 355 and len({task.name for task in tasks}) == 71
    rows = run_context(tasks, None, facts=FACTS, log=LOG)
    committed = pl.read_csv(REPO / "results" / "context-is-key.csv")
    committed = committed.filter(arm=NUMBERS, seed=0)

    assert rows["score"].to_list() == pytest.approx(committed["score"].to_list())
