"""The campaign's committed table is whole and good, and its quick cases run as tests."""

import subprocess
import sys

import pytest

from benchmarks.rows import read_rows
from tests.faults.campaign import FLIP, RESULTS, STORES
from tests.faults.flips import KINDS
from tests.faults.works import WORKS

MOMENTS = 20
CASES = (
    "kill",
    "cut_power",
    "jump_clock",
    "limit_files",
    "at_once",
    "tear_wal",
    "fill_disk",
    "read_only",
    "flip_bits",
)
"""Cases of one store; only the committed table has the cases of all stores at once."""


def assert_ended_well(rows):
    """Every trial ended as the undisturbed work, or in one clear error."""
    for row in rows:
        assert (row["lost"], row["doubled"], row["crashed"]) == ("0", "0", "0"), row
        assert int(row["identical"]) + int(row["clear_error"]) == int(row["trials"]), row


@pytest.mark.parametrize(
    ("fault", "works", "trials"), [("kill -9", WORKS, MOMENTS), (FLIP, KINDS, 2 * MOMENTS)]
)
def test_every_disturbed_work_ended_well(fault, works, trials):
    rows = read_rows(RESULTS)
    assert_ended_well(rows)
    disturbed = {row["work"]: row for row in rows if row["fault"] == fault}
    assert disturbed.keys() == works.keys()
    for row in disturbed.values():
        assert (row["trials"], row["identical"]) == (str(trials), str(trials))


@pytest.mark.slow
def test_a_few_faults_of_each_kind_end_well(tmp_path):
    out = tmp_path / "results.csv"
    # A process of its own: the campaign forks, and the threads of earlier tests would be lost.
    command = [sys.executable, "-m", "tests.faults.campaign", "--moments", "1", "--out", str(out)]
    command += [*(f"--work={name}" for name in STORES), *(f"--case={name}" for name in CASES)]
    subprocess.run(command, check=True, timeout=1200)

    rows = read_rows(out)
    every_store = {"kill -9", "2 at once, the same"}
    tried = {(row["fault"], row["work"]) for row in rows}
    assert {(fault, name) for fault in every_store for name in STORES} <= tried
    assert {(FLIP, kind) for kind in KINDS} <= tried
    assert_ended_well(rows)
