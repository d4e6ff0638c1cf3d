"""The campaign's committed table is whole and good, and its quick cases run as tests."""

import csv
import os
from pathlib import Path

import pytest

from tests.faults.campaign import RESULTS, STORES, Campaign
from tests.faults.works import WORKS

MOMENTS = 20


def read_rows() -> list[dict[str, str]]:
    with RESULTS.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_work_was_killed_at_twenty_moments_and_ended_as_if_left_alone() -> None:
    killed = {row["work"]: row for row in read_rows() if row["fault"] == "kill -9"}
    assert killed.keys() == WORKS.keys()
    assert {row["trials"] for row in killed.values()} == {str(MOMENTS)}
    assert {row["identical"] for row in killed.values()} == {str(MOMENTS)}


def test_no_fault_lost_doubled_or_crashed_anything() -> None:
    for row in read_rows():
        assert (row["lost"], row["doubled"], row["crashed"]) == ("0", "0", "0"), row
        assert int(row["identical"]) + int(row["clear_error"]) == int(row["trials"]), row


@pytest.mark.slow
@pytest.mark.parametrize("name", STORES)
def test_a_few_faults_of_each_kind_end_well(name: str, tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, moments=3, seed=1)
    faults = [campaign.kill, campaign.cut_power, campaign.leave_locks, campaign.limit_files]
    rows = [fault(name) for fault in faults] + [campaign.at_once(name, 2)]
    if os.geteuid() == 0:
        rows.append(campaign.fill_disk(name))
    for row in rows:
        assert (row.lost, row.doubled, row.crashed) == (0, 0, 0), row
        assert row.identical + row.clear_error == row.trials, row
