"""Known values: few changes are applied and recorded, many wait for a second fetch."""

from datetime import timedelta

import polars as pl
import pytest

from compevo_pipeline.storage.series_changes import CONFIRMED_AFTER
from compevo_pipeline.storage.series_store import SeriesStore
from tests.support.store_workers import FETCHED, series

HOUR = timedelta(hours=1)
WHOLE = tuple(float(value) for value in range(100, 120))
CUT = (100.0, 150.0)  # the first rows, one of them revised


@pytest.fixture
def store(tmp_path):
    store = SeriesStore(tmp_path)
    store.write("electricity", series(values=WHOLE))
    return store


def write(store, values, after):
    return store.write("electricity", series(values=values, fetched=FETCHED + after))


def values(store):
    return store.read("electricity")["value"].to_list()


def kinds(store):
    changes = store.read_changes("electricity")
    return dict(changes["kind"].value_counts().rows())


def test_a_month_cut_at_its_first_day_keeps_its_rows_until_a_later_fetch_confirms(store):
    report = write(store, CUT, HOUR)
    assert (report.changed, report.removed, report.absent) == (1, 0, 18)
    assert values(store) == [100.0, 150.0, *WHOLE[2:]]
    assert kinds(store) == {"changed": 1, "waiting": 18}

    # Half an evening later it is still cut: that confirms nothing.
    assert write(store, CUT, CONFIRMED_AFTER).removed == 0
    assert write(store, CUT, HOUR + CONFIRMED_AFTER).removed == 18
    assert values(store) == [100.0, 150.0]
    changes = store.read_changes("electricity")
    assert kinds(store) == {"changed": 1, "removed": 18}
    assert changes.filter(kind="removed")["before"].to_list() == list(WHOLE[2:])


def test_a_month_that_is_whole_again_waits_for_nothing(store):
    write(store, CUT, HOUR)
    write(store, (100.0, 150.0, *WHOLE[2:]), 2 * HOUR)
    assert store.read_waiting("electricity").is_empty()
    # What was wanted before it was whole does not count towards the next time.
    write(store, (100.0, 160.0), 3 * HOUR)
    assert write(store, (100.0, 160.0), CONFIRMED_AFTER + 2 * HOUR).removed == 0


@pytest.mark.parametrize("factor", [2.0, 0.0, -1.0])
def test_a_file_that_changes_most_of_what_it_repeats_brings_nothing_until_confirmed(store, factor):
    given = (*(factor * value for value in WHOLE), 7.0)
    report = write(store, given, HOUR)
    assert (report.waiting, report.added, report.changed) == (21, 0, 0)
    assert values(store) == list(WHOLE)
    assert write(store, given, HOUR + CONFIRMED_AFTER).changed == 20
    assert values(store) == list(given)
    assert store.read_changes("electricity")["before"].to_list() == list(WHOLE)


def test_differences_of_a_percent_and_changes_of_half_are_revisions(store):
    near = [1.01 * value for value in WHOLE]
    assert write(store, near, HOUR).changed == 20
    assert write(store, [*(2 * value for value in near[:10]), *near[10:]], 2 * HOUR).changed == 10


def test_few_changes_are_applied_at_once_with_what_was_before(store):
    revised = (*WHOLE[:17], 1.0, 2.0, 3.0)
    assert write(store, revised, HOUR).changed == 3
    changes = store.read_changes("electricity")
    assert changes["before"].to_list() == [117.0, 118.0, 119.0]
    assert changes["after"].to_list() == [1.0, 2.0, 3.0]
    assert changes["fetched_at"].unique().to_list() == [FETCHED + HOUR]
    assert write(store, revised[:3], 2 * HOUR).absent == 17
    assert kinds(store) == {"changed": 3}


def test_what_a_person_accepts_is_applied_by_the_next_fetch(store):
    write(store, CUT, HOUR)
    assert store.accept_waiting("electricity") == 18
    assert write(store, CUT, 2 * HOUR).removed == 18


def test_the_owner_of_a_whole_file_waits_for_nobody(store):
    store.write("electricity", series(values=(1.0, 2.0)), replace=True)
    assert values(store) == [1.0, 2.0]
    assert store.read_changes("electricity").is_empty()


def test_the_record_is_no_part_of_the_data(store):
    before = store.hash_files("electricity")
    store.write("electricity", series(values=CUT[:1], fetched=FETCHED + HOUR))
    write(store, tuple(2 * value for value in WHOLE), HOUR)
    assert store.hash_files("electricity") == before


def test_a_file_that_is_wrong_in_one_of_its_series_waits_in_all_of_them(store):
    other = "AEMO/TOTALDEMAND/VIC1"

    def deliver(first, second, after):
        at = FETCHED + after
        store.write(
            "electricity",
            pl.concat([series(values=first, fetched=at), series(other, 0, second, fetched=at)]),
        )

    deliver(WHOLE, WHOLE, HOUR)
    revised, doubled = (99.0, *WHOLE[1:], 7.0), tuple(2 * value for value in WHOLE)
    deliver(revised, doubled, 2 * HOUR)
    assert values(store) == [*WHOLE, *WHOLE]
    assert kinds(store) == {"waiting": 21}

    # Whoever reads it as before is asked nothing; half a day later the same is believed.
    deliver(revised, doubled, 3 * HOUR)
    assert values(store) == [*WHOLE, *WHOLE]
    deliver(revised, doubled, 2 * HOUR + CONFIRMED_AFTER)
    assert values(store) == [*revised, *doubled]
    assert kinds(store) == {"changed": 21}
