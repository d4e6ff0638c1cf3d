"""The measured memory of a split backbone: what the committed table says and how it is made."""

import csv

import pytest

from benchmarks.sharded_backbone import PROCESSES, RESULTS, compare


def rows():
    with RESULTS.open(encoding="utf-8", newline="") as stream:
        return [{k: row[k] for k in row} for row in csv.DictReader(stream)]


def test_the_committed_table_has_a_gigabyte_and_every_number_of_processes():
    table = rows()
    assert tuple(int(row["processes"]) for row in table) == PROCESSES
    assert float(table[0]["held_gb"]) >= 1.0
    assert not any(row["commit"].endswith("-dirty") for row in table)


def test_weights_and_memory_shrink_with_the_processes_and_numbers_stay():
    for row in rows():
        share = 1 / int(row["processes"])
        # Embeddings and norms are whole on each process.
        assert float(row["held_ratio"]) == pytest.approx(share, abs=0.02)
        assert float(row["resident_ratio"]) < share + 0.25
        assert float(row["state_difference"]) < 1e-4
        assert float(row["gradient_difference"]) < 1e-4


def test_memory_is_compared_without_what_python_had_before():
    one = {"held_gb": 2.0, "baseline_gb": 1.0, "resident_gb": 5.0, "state_norm": 4.0}
    two = {"held_gb": 1.0, "baseline_gb": 1.0, "resident_gb": 3.0, "state_norm": 5.0}
    _, compared = compare([row | {"gradient_norm": 2.0} for row in (one, two)])
    assert compared["held_ratio"] == compared["resident_ratio"] == 0.5
    assert compared["state_difference"] == 0.25 and compared["gradient_difference"] == 0.0
