"""The command that all benchmarks share: which cases it measures, and what becomes of the rows."""

import sys
from importlib import import_module

import pytest

from benchmarks import rows
from benchmarks.rows import RESULTS, Benchmark, measure_in_process, read_rows, write_rows


@pytest.fixture
def measured(monkeypatch):
    """The cases that processes were started for; one of them fails."""
    cases = []

    def measure(module, case, *options, threads):
        assert module == "benchmarks.some" and threads == 1
        if case == "b/3":
            raise RuntimeError("no such file")
        cases.append(case)
        name, size = case.split("/")
        return [{"name": name, "size": size, "seconds": 0.123456}]

    monkeypatch.setattr(rows, "measure_in_process", measure)
    return cases


SOME = Benchmark(
    name="some",
    cases=("a/1", "a/3", "b/1", "b/3"),
    measure=lambda case, folder: (),
    key=("name", "size"),
    threads=1,
    finish=lambda rows: sorted(rows, key=lambda row: row["size"]),
)


def test_new_rows_replace_those_of_their_key(measured, tmp_path, capsys):
    out = tmp_path / "some.csv"
    write_rows([{"size": 3, "name": "a", "seconds": 9.0}, {"size": 2, "name": "a"}], out)
    SOME.main(["a/*", "b/3", "--out", str(out)])
    assert measured == ["a/1", "a/3"]
    assert "b/3 is left out: no such file" in capsys.readouterr().err

    found = read_rows(out)
    assert list(found[0])[:3] == ["size", "name", "seconds"]
    assert [row["size"] for row in found] == ["1", "2", "3"]
    assert [row["seconds"] for row in found] == ["0.1235", "", "0.1235"]
    assert found[2]["machine"] and found[2]["commit"]


def test_an_unknown_case_leaves_the_table_alone(measured, tmp_path, capsys):
    out = tmp_path / "some.csv"
    with pytest.raises(SystemExit):
        SOME.main(["a/1", "c", "--out", str(out)])
    assert "no case c; known: a/1" in capsys.readouterr().err
    assert not measured and not out.exists()


@pytest.mark.slow
def test_a_case_in_a_process_returns_committed_rows():
    measured = measure_in_process("benchmarks.intervals", "40", "--here", threads=1)
    committed = read_rows(RESULTS / "intervals.csv")[:5]
    assert [f"{row['coverage']:.4g}" for row in measured] == [row["coverage"] for row in committed]


def test_a_failing_case_names_its_command(monkeypatch):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(RuntimeError, match=r"benchmarks\.engine round/1"):
        measure_in_process("benchmarks.engine", "round/1")


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.iterdir()))
def test_a_committed_table_has_its_benchmark(name):
    benchmark = import_module(f"benchmarks.{name}").BENCHMARK
    assert benchmark.name == name
    committed = read_rows(benchmark.path)
    keys = [tuple(row[column] for column in benchmark.key) for row in committed]
    assert len(set(keys)) == len(keys) > 0
