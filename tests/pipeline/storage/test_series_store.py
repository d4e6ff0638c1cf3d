"""Series and frames on disk: idempotent, atomic, by month, safe for parallel writers."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.schemas import COVARIATE_SCHEMA, PUBLISHED_SCHEMA
from compevo_core.errors import DataError
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.storage import series_store
from compevo_pipeline.storage.series_changes import CONFIRMED_AFTER
from tests.support.store_workers import FETCHED, series
from tests.support.trees import read_tree

EARLIER, LATER = (FETCHED + timedelta(days=days) for days in (-1, 1))
HOUR = timedelta(hours=1)
WHOLE = tuple(float(value) for value in range(100, 120))
CUT = (100.0, 150.0)  # the first rows, one of them revised
DATASET, KIND = "electricity-operational", FrameKind.PUBLISHED


@pytest.fixture
def store(tmp_path):
    return series_store.SeriesStore(tmp_path)


def values(store):
    return store.read("electricity")["value"].to_list()


@pytest.mark.parametrize(
    ("given", "fetched", "counts", "stored"),
    [
        ((1.0, 20.0, 3.0), LATER, {"changed": 1, "unchanged": 2}, [1.0, 20.0, 3.0]),
        ((1.0, 20.0, 3.0), FETCHED, {"changed": 1, "superseded": 0}, [1.0, 20.0, 3.0]),
        ((1.0, -5.0, 3.0), EARLIER, {"changed": 0, "superseded": 1}, [1.0, 2.0, 3.0]),
        ((None, None, 4.0), FETCHED, {"changed": 1, "nulls_kept_out": 2}, [1.0, 2.0, 4.0]),
    ],
    ids=["later", "in the same instant", "earlier", "without its values"],
)
def test_the_last_fetch_wins_and_loses_no_value(store, given, fetched, counts, stored):
    store.write("electricity", series(values=(1.0, 2.0, 3.0)))
    report = store.write("electricity", series(values=given, fetched=fetched))
    assert {name: getattr(report, name) for name in counts} == counts
    assert values(store) == stored
    assert set(store.read("electricity")["flag"]) == {"observed"}


@pytest.mark.parametrize(("later", "kept"), [(9.0, 9.0), (None, 1.0)])
def test_the_later_of_two_rows_wins(store, later, kept):
    frame = pl.concat([series(values=(later,), fetched=LATER), series(values=(1.0,))])
    assert store.write("electricity", frame).superseded == 1
    assert values(store) == [kept]


def test_rows_are_sorted_and_of_series_alone(store, tmp_path):
    # Their files sort in the other order.
    store.write("electricity", pl.concat([series("A_/x"), series("A/x")]))
    other = tmp_path / "series" / "electricity" / "benchmark.parquet"
    pl.DataFrame({"record": [1]}).write_parquet(other)

    rows = store.read("electricity")
    chosen = store.read("electricity", lambda stored: stored.filter(series_id="A_/x"))

    assert rows.equals(rows.sort("series_id", "variable", "start_utc")) and rows.height == 6
    assert chosen.equals(rows.filter(series_id="A_/x")) and chosen.height == 3


def test_files_without_a_manifest_are_set_aside(store, tmp_path):
    store.write("electricity", series())
    folder = tmp_path / "series" / "electricity"
    (folder / "manifest.json").unlink()

    assert store.set_aside_damaged("electricity", dry=True) == [folder]
    assert store.set_aside_damaged("electricity") == [folder]
    assert not folder.exists() and store.set_aside_damaged("electricity") == []


def test_a_bad_frame_touches_nothing(store, tmp_path):
    store.write("electricity", series())
    before = read_tree(tmp_path)
    guessed = series("AEMO/X/Y").with_columns(flag=pl.lit("guess"))
    bad = pl.concat([series(fetched=LATER, values=(7.0,)), guessed])
    with pytest.raises(DataError, match="flag"):
        store.write("electricity", bad)
    for name in ("../outside", "noslash", "AEMO/a b"):
        with pytest.raises(DataError, match="SOURCE/NAME"):
            store.write("electricity", series(name))
    with pytest.raises(DataError, match="elsewhere"):
        store.write("../elsewhere", series())

    assert read_tree(tmp_path) == before


def test_parallel_writers_keep_all_rows(store):
    with ThreadPoolExecutor(6) as pool:
        for part in range(12):
            pool.submit(store.write, "electricity", series(first=3 * part, source=f"a:b/{part}"))
    assert store.read("electricity").height == 12 * 3


def test_another_reason_for_null_is_a_change(store):
    store.write("electricity", series(values=(1.0, None, 3.0)))
    flag = pl.when(pl.col("value").is_null()).then(pl.lit("nulled:stuck")).otherwise("flag")
    nulled = series(values=(1.0, None, 3.0)).with_columns(flag=flag)
    assert store.write("electricity", nulled).changed == 1
    assert store.read("electricity")["flag"].to_list() == ["observed", "nulled:stuck", "observed"]


def test_a_whole_file_may_remove_a_value(store):
    store.write("electricity", series(values=(1.0, 2.0)))
    store.write("electricity", series(values=(1.0, None)), replace=True)
    assert values(store) == [1.0, None]
    assert store.read_changes("electricity").is_empty()


def test_rows_of_a_mistyped_year_go(store):
    right = series(values=(1.0, 2.0, 3.0), source="archive:aemo/a.csv")
    wrong = right.with_columns(pl.col("start_utc").dt.offset_by("40y"))
    other = series(values=(9.0,), source="archive:aemo/b.csv")
    store.write("electricity", pl.concat([wrong, other]))
    report = store.write("electricity", right)
    assert (report.removed, report.added, report.changed) == (3, 2, 1)
    assert values(store) == [1.0, 2.0, 3.0]


@pytest.fixture
def stored(store):
    store.write("electricity", series(values=WHOLE))
    return store


def write(stored, values, after):
    return stored.write("electricity", series(values=values, fetched=FETCHED + after))


def kinds(stored):
    return dict(stored.read_changes("electricity")["kind"].value_counts().rows())


def test_a_cut_month_waits_for_confirmation(stored):
    report = write(stored, CUT, HOUR)
    assert (report.changed, report.removed, report.absent) == (1, 0, 18)
    assert values(stored) == [100.0, 150.0, *WHOLE[2:]]
    assert kinds(stored) == {"changed": 1, "waiting": 18}

    # Half an evening later it is still cut: that confirms nothing.
    assert write(stored, CUT, CONFIRMED_AFTER).removed == 0
    assert write(stored, CUT, HOUR + CONFIRMED_AFTER).removed == 18
    assert values(stored) == [100.0, 150.0]
    changes = stored.read_changes("electricity")
    assert kinds(stored) == {"changed": 1, "removed": 18}
    assert changes.filter(kind="removed")["before"].to_list() == list(WHOLE[2:])


def test_a_month_whole_again_waits_for_nothing(stored):
    write(stored, CUT, HOUR)
    write(stored, (100.0, 150.0, *WHOLE[2:]), 2 * HOUR)
    assert stored.read_waiting("electricity").is_empty()
    # What was wanted before it was whole does not count towards the next time.
    write(stored, (100.0, 160.0), 3 * HOUR)
    assert write(stored, (100.0, 160.0), CONFIRMED_AFTER + 2 * HOUR).removed == 0


@pytest.mark.parametrize(("factor", "lag"), [(1.02, 0), (1.0, 1), (1.0, -3)])
def test_a_file_in_another_unit_or_shifted_waits(tmp_path, factor, lag):
    smooth = [1000 + 0.1 * value**2 for value in range(60)]
    smooth[5:50:9] = [0.0] * 5
    store = series_store.SeriesStore(tmp_path)
    store.write("electricity", series(values=smooth))
    moved = [factor * value for value in (*smooth[-lag:], *smooth[:-lag])]
    assert write(store, moved, HOUR).waiting >= 55


def test_small_or_few_changes_are_applied_at_once(stored):
    revised = (*WHOLE[:17], 1.0, 2.0, 3.0)
    assert write(stored, revised, HOUR).changed == 3
    changes = stored.read_changes("electricity")
    assert changes["before"].to_list() == [117.0, 118.0, 119.0]
    assert changes["after"].to_list() == [1.0, 2.0, 3.0]
    assert changes["fetched_at"].unique().to_list() == [FETCHED + HOUR]
    shorter = write(stored, revised[:3], 2 * HOUR)
    assert (shorter.removed, shorter.absent, shorter.files_written) == (0, 17, 0)
    assert kinds(stored) == {"changed": 3}

    # Any number of small ones, or one half of the values.
    near = [1.01 * value for value in WHOLE]
    assert write(stored, near, 3 * HOUR).changed == 20
    assert write(stored, [*(2 * value for value in near[:10]), *near[10:]], 4 * HOUR).changed == 10


@pytest.mark.parametrize("kind", ["unit", "cut"])
def test_a_changed_whole_file_waits_for_acceptance(stored, kind):
    before = stored.read("electricity")
    other = before.with_columns(pl.col("value") * 1000) if kind == "unit" else before.tail(5)
    for _ in range(2):
        report = stored.write("electricity", other, replace=True)
        assert report.waiting == other.height and stored.read("electricity").equals(before)
    assert stored.read_waiting("electricity").height >= before.height - 5

    stored.accept_waiting("electricity")
    assert stored.write("electricity", other, replace=True).waiting == 0
    assert stored.read("electricity")["value"].to_list() == other["value"].to_list()
    assert stored.read_waiting("electricity").is_empty()
    assert stored.write("electricity", before, replace=True, accept=True).waiting == 0


def test_one_wrong_series_holds_its_file_back(stored):
    other = "AEMO/TOTALDEMAND/VIC1"

    def deliver(first, second, after):
        at = FETCHED + after
        both = [series(values=first, fetched=at), series(other, 0, second, fetched=at)]
        stored.write("electricity", pl.concat(both))

    deliver(WHOLE, WHOLE, HOUR)
    known = stored.hash_files("electricity")
    revised, doubled = (99.0, *WHOLE[1:], 7.0), tuple(2 * value for value in WHOLE)
    deliver(revised, doubled, 2 * HOUR)
    assert values(stored) == [*WHOLE, *WHOLE]
    assert kinds(stored) == {"waiting": 21}
    # What waits is recorded, and no part of the data.
    assert stored.hash_files("electricity") == known

    # Whoever reads it as before is asked nothing; half a day later the same is believed.
    deliver(revised, doubled, 3 * HOUR)
    assert values(stored) == [*WHOLE, *WHOLE]
    deliver(revised, doubled, 2 * HOUR + CONFIRMED_AFTER)
    assert values(stored) == [*revised, *doubled]
    assert kinds(stored) == {"changed": 21}


def issue(month, *, days=2, value=1.0):
    """Half-hours of the first days of a month, known a day before."""
    first = datetime(2026, month, 1, tzinfo=UTC)
    rows = [
        ("NSW1", first + n * timedelta(minutes=30), value, first - timedelta(days=1), 0.5, "x")
        for n in range(48 * days)
    ]
    return pl.DataFrame(rows, schema=PUBLISHED_SCHEMA, orient="row")


def both(value):
    """An issue that crosses the end of a month."""
    return pl.concat([issue(6, value=value), issue(7, value=value)])


def visible(store):
    folder = store.list_folders(DATASET)[KIND].path
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("20*")}


def test_a_write_replaces_only_its_months(store):
    store.write_frame(DATASET, KIND, pl.concat([issue(5), both(1.0)]))
    before = visible(store)
    assert [name[:7] for name in sorted(before)] == ["2026-05", "2026-06", "2026-07"]

    store.write_frame(DATASET, KIND, both(1.0))
    assert visible(store) == before, "equal rows touch no file"
    store.write_frame(DATASET, KIND, issue(7, days=3, value=2.0))
    assert store.read_frame(DATASET, KIND).height == 3 * 96 + 48
    after = visible(store)
    assert len(after) == 3
    assert {name[:7] for name, _ in after.items() - before.items()} == {"2026-07"}
    values = store.read_frame(DATASET, KIND).group_by(pl.col("start_utc").dt.month()).agg("value")
    assert {month: set(found) for month, found in values.iter_rows()} == {5: {1}, 6: {1}, 7: {2}}


def test_rows_are_read_by_month_and_key(store):
    for month in (7, 5, 6):
        store.write_frame(DATASET, KIND, issue(month).sample(fraction=1.0, shuffle=True, seed=0))
    found = store.read_frame(DATASET, KIND)
    assert found.equals(pl.concat([issue(5), issue(6), issue(7)]))
    assert dict(found.schema) == PUBLISHED_SCHEMA


def test_a_query_opens_only_its_months(store):
    store.write_frame(DATASET, KIND, pl.concat([issue(5), both(1.0)]))

    def from_july(rows):
        return rows.filter(pl.col("start_utc") >= datetime(2026, 7, 1, tzinfo=UTC))

    assert store.read_frame(DATASET, KIND, from_july).equals(issue(7))
    # The rows of another month are spoilt, and its footer, which has the bounds, is whole.
    (may,) = store.list_folders(DATASET)[KIND].path.glob("2026-05-*")
    content = bytearray(may.read_bytes())
    content[4:200] = bytes(196)
    may.write_bytes(content)
    assert store.read_frame(DATASET, KIND, from_july).equals(issue(7))
    with pytest.raises(pl.exceptions.ComputeError):
        store.read_frame(DATASET, KIND)


def test_replacing_rows_leave_no_month_behind(store):
    store.write_frame(DATASET, KIND, pl.concat([issue(5), both(1.0)]))
    store.write_frame(DATASET, KIND, issue(6), replace=True)
    assert store.read_frame(DATASET, KIND).equals(issue(6))
    assert len(visible(store)) == 1


def test_changed_values_are_recorded(store):
    store.write_frame(DATASET, KIND, both(1.0))
    store.write_frame(DATASET, KIND, both(1.0))
    assert store.read_changes(DATASET).is_empty()

    # A later issue is another forecast; the same one with other values is a change.
    later = issue(7, value=3.0).with_columns(pl.col("available_at") + timedelta(hours=1))
    store.write_frame(DATASET, KIND, later)
    assert store.read_changes(DATASET).is_empty()
    store.write_frame(DATASET, KIND, issue(7, value=2.0, days=1))
    changes = store.read_changes(DATASET)
    assert changes.height == 48 and changes["source"].unique().to_list() == ["x"]
    assert changes.select("before", "after").unique().rows() == [(1.0, 2.0)]
    assert changes["variable"].unique().to_list() == ["forecast q0.5"]
    store.write_frame(DATASET, KIND, issue(7, value=1.0, days=1))
    assert store.read_changes(DATASET).height == 96


def test_a_reader_follows_a_replaced_month(store, monkeypatch):
    store.write_frame(DATASET, KIND, both(1.0))
    scan, done = series_store._scan, iter([True])

    def replace_first(path):
        if next(done, False):
            store.write_frame(DATASET, KIND, both(2.0))
        return scan(path)

    monkeypatch.setattr(series_store, "_scan", replace_first)
    assert set(store.read_frame(DATASET, KIND)["value"]) == {2.0}


def test_the_row_written_last_stays(store):
    kind = FrameKind.COVARIATES
    for day, value in ((15, 300.0), (15, 301.0), (16, 299.0)):
        known = datetime(2020, 1, day + 1, tzinfo=UTC)
        row = ("max_temp_k", date(2020, 1, day), value, known, "archive:test")
        rows = pl.DataFrame([("NSW1", *row), ("SA1", *row)], schema=COVARIATE_SCHEMA, orient="row")
        store.write_frame("electricity", kind, rows)

    stored = store.read_frame("electricity", kind)
    assert stored.height == 4
    assert stored.filter(entity="NSW1")["value"].to_list() == [301.0, 299.0]
