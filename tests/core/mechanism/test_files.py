"""The files of traces: what is replaced, what stays, who writes."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from compevo_core.errors import DataError
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.mechanism.files import read_typed, write_traces
from compevo_core.mechanism.logics import LOGIC_SCHEMA
from compevo_core.mechanism.traces import TRACE_SCHEMA
from compevo_core.report.inputs import read_inputs
from compevo_core.training.run_folder import RunFolder
from tests.core.mechanism.test_traces import IDENTITY
from tests.support.report_samples import NOW
from tests.support.round_records import round_record


def make_run(folder, rounds=3, words=("storms", "policy")):
    run = RunFolder(folder)
    run.path.mkdir()
    for number in range(rounds):
        run.append_round(
            round_record(number, agents=len(words), logics=[f"watch {word}" for word in words])
        )
    return run.path


def test_a_run_written_again_replaces_its_rows_and_leaves_those_of_others(tmp_path):
    long, short = make_run(tmp_path / "long", 5), make_run(tmp_path / "short", 2)
    results, encoder = tmp_path / "results", HashingEncoder()
    others = [
        replace(IDENTITY, seed=4),
        replace(IDENTITY, budget=""),
        replace(IDENTITY, method="compevo"),
    ]
    for identity in (IDENTITY, *others):
        write_traces(results, long, identity, encoder)
    write_traces(results, short, IDENTITY, encoder)

    traces = read_typed(results / "traces-electricity.csv", TRACE_SCHEMA)
    counts = traces.group_by("method", "budget", "seed").len().sort("method", "budget", "seed")
    assert counts.rows() == [
        ("compevo", "quick", 3, 15),
        ("mae-gpt", "", 3, 15),
        ("mae-gpt", "quick", 3, 6),
        ("mae-gpt", "quick", 4, 15),
    ]
    assert read_typed(results / "logics-electricity.csv", LOGIC_SCHEMA).height == 8


def test_every_logic_gets_its_place_anew_when_a_run_comes_in(tmp_path):
    results, encoder = tmp_path / "results", HashingEncoder()
    write_traces(results, make_run(tmp_path / "a"), IDENTITY, encoder)
    path = results / "logics-electricity.csv"
    before = read_typed(path, LOGIC_SCHEMA)
    other = make_run(tmp_path / "b", words=("rain", "rates"))
    write_traces(results, other, replace(IDENTITY, method="sa"), encoder)
    after = read_typed(path, LOGIC_SCHEMA)
    assert after["logic"][:2].to_list() == before["logic"].to_list()
    assert after["x"][:2].to_list() != before["x"].to_list()
    assert abs(sum(after["x"].to_list())) < 1e-3


def test_writers_side_by_side_lose_no_row_and_leave_one_order(tmp_path):
    run, encoder = make_run(tmp_path / "run"), HashingEncoder()
    identities = [replace(IDENTITY, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        write = lambda one: write_traces(tmp_path / "at-once", run, one, encoder)  # noqa: E731
        list(pool.map(write, reversed(identities)))
    for identity in identities:
        write_traces(tmp_path / "in-turn", run, identity, encoder)
    for name in ("traces-electricity.csv", "logics-electricity.csv"):
        texts = {(tmp_path / way / name).read_text() for way in ("at-once", "in-turn")}
        assert len(texts) == 1
    assert len(list((tmp_path / "at-once").iterdir())) == 2


def test_a_folder_without_rounds_writes_nothing(tmp_path):
    with pytest.raises(DataError, match=r"no rounds\.jsonl"):
        write_traces(tmp_path / "results", tmp_path, IDENTITY, HashingEncoder())
    assert not (tmp_path / "results").exists()


def test_a_file_of_another_version_is_refused_by_name_and_left_as_it_is(tmp_path):
    path = tmp_path / "traces-electricity.csv"
    path.write_text(",".join(name for name in TRACE_SCHEMA if name != "epoch") + "\n")
    before = path.read_text()
    with pytest.raises(DataError, match=r"traces-electricity\.csv: has the columns"):
        write_traces(tmp_path, make_run(tmp_path / "run"), IDENTITY, HashingEncoder())
    assert path.read_text() == before


def test_the_report_knows_both_files_by_their_columns(tmp_path):
    results = tmp_path / "results"
    paths = write_traces(results, make_run(tmp_path / "run"), IDENTITY, HashingEncoder())
    for path in paths:
        path.rename(path.with_name(f"any-{path.name}"))
    inputs = read_inputs(results, [], mode="archive", generated_at=NOW)
    assert inputs.unread == []
    assert (inputs.traces.height, inputs.logics.height) == (9, 2)
    assert inputs.logics.schema == LOGIC_SCHEMA
