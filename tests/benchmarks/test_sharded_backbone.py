"""The measured memory of a split backbone: what the committed table says and how it is made."""

import pytest

from benchmarks.rows import RESULTS, read_rows
from benchmarks.sharded_backbone import PROCESSES, compare

TABLE = RESULTS / "sharded_backbone.csv"


def test_the_committed_table_has_a_gigabyte_and_every_number_of_processes():
    table = read_rows(TABLE)
    assert tuple(int(row["processes"]) for row in table) == PROCESSES
    assert float(table[0]["held_gb"]) >= 1.0
    assert not any(row["commit"].endswith("-dirty") for row in table)


def test_weights_shrink_with_the_processes_and_numbers_stay():
    for row in read_rows(TABLE):
        share = 1 / int(row["processes"])
        # Embeddings and norms are whole on each process.
        assert float(row["held_ratio"]) == pytest.approx(share, abs=0.02)
        assert float(row["state_difference"]) < 1e-4
        assert float(row["gradient_difference"]) < 1e-4


def test_memory_falls_by_most_of_the_weights_that_are_no_longer_held():
    # Activations and adapters are whole on each process.
    alone, *split = read_rows(TABLE)
    for row in split:
        gone = float(alone["held_gb"]) - float(row["held_gb"])
        saved = float(alone["resident_gb"]) - float(row["resident_gb"])
        assert 0.7 * gone < saved <= gone


def test_memory_is_compared_without_what_python_had_before():
    one = {"held_gb": 2.0, "baseline_gb": 1.0, "resident_gb": 5.0, "state_norm": 4.0}
    two = {"held_gb": 1.0, "baseline_gb": 1.0, "resident_gb": 3.0, "state_norm": 5.0}
    _, compared = compare([row | {"gradient_norm": 2.0} for row in (one, two)])
    assert compared["held_ratio"] == compared["resident_ratio"] == 0.5
    assert compared["state_difference"] == 0.25 and compared["gradient_difference"] == 0.0
