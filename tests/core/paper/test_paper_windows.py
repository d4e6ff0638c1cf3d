"""The paper's own test sets: labels, the leak guard, shares of overlap, and the look-up."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.data.build import build_windows
from compevo_core.errors import DataError, LeakageError
from compevo_core.evaluation.leakage import find_overlapping_targets
from compevo_core.paper.paper_windows import (
    PAPER_SETS,
    LastWeek,
    TrainLookUp,
    describe_set,
    label_windows,
    measure_overlap,
    parse_table,
)
from tests.support.window_samples import from_nem, make_daily_values, make_series

DAYS = [date(2020, 1, 1) + timedelta(days=number) for number in range(6)]
# Of the planted series one test day is the history of a train window, and one has no values.
PUBLISHED = {
    ("NSW1", DAYS[0]): "test",
    ("NSW1", DAYS[1]): "train",
    ("NSW1", DAYS[2]): "val",
    ("NSW1", DAYS[3]): "test",
    ("SA1", DAYS[3]): "train",
    ("TAS1", DAYS[4]): "test",
}


def plant(name):
    first = from_nem(2019, 12, 10)
    series = pl.concat(
        make_series(make_daily_values(30, seed), first=first, series_id=f"AEMO/{series_id}")
        for seed, series_id in enumerate(("TOTALDEMAND/NSW1", "TOTALDEMAND/SA1"))
    )
    return build_windows(PAPER_SETS[name].spec, series)


def label(name, published=None):
    return label_windows(PAPER_SETS[name], plant(name), published or PUBLISHED)


def test_a_table_gives_splits_with_test_elsewhere():
    header = b"position,region,history_day,target_day"
    lines = b"1,TAS1,2026-02-28,2026-03-01"
    assert parse_table(header + b"\n" + lines, "t.csv") == {("TAS1", date(2026, 3, 1)): "test"}
    with_split = header + b",split\n" + lines + b",train"
    assert parse_table(with_split, "t.csv") == {("TAS1", date(2026, 3, 1)): "train"}
    with pytest.raises(DataError, match=r"t\.csv .* twice"):
        parse_table(b"\n".join([header, lines, lines]), "t.csv")
    with pytest.raises(DataError, match=r"t\.csv .* target_day"):
        parse_table(b"region,day\nTAS1,2026-03-01", "t.csv")


def test_the_published_split_is_labelled_as_leaky():
    windows = label("paper-original")
    first = windows.subset("paper-original")[0].view

    found = {(view.entity, view.split, view.subsets) for view in windows.views()}
    names = ("paper-original", "paper-original-2020")
    unnamed = {("NSW1", "train", ()), ("NSW1", "val", ()), ("SA1", "train", ())}
    assert found == {("NSW1", "test", names), *unnamed}
    # The interval that ends at 00:00 is the first of the day.
    assert first.origin_utc == from_nem(2019, 12, 31, 23, 30)
    assert first.leaky and not windows.split("train")[0].view.leaky
    assert {found.kind for found in find_overlapping_targets(windows)} == {"no embargo"}

    # The same split where one in time is asked for.
    asked = replace(PAPER_SETS["paper-original"], follows_table=False)
    with pytest.raises(LeakageError, match="a horizon between"):
        label_windows(asked, windows.with_windows(windows), PUBLISHED)


def test_the_honest_split_keeps_a_horizon():
    windows = label("paper-original-2019")
    scored = windows.subset("paper-original-2020-from-2019").views()
    days = [(view.entity, view.calendar.target_date) for view in scored]
    assert days == [("NSW1", DAYS[0]), ("NSW1", DAYS[3])]
    assert not any(view.leaky for view in windows.views())
    assert find_overlapping_targets(windows) == []
    last_val = max(view.end_utc for view in windows.split("val").views())
    assert last_val + timedelta(days=1) <= scored[0].origin_utc


def test_shares_of_overlap_and_missing_windows_are_counted():
    row = describe_set("paper-original", label("paper-original"), PUBLISHED)
    honest = describe_set("paper-original-2019", label("paper-original-2019"), PUBLISHED)

    assert (row["train"], row["val"], row["test"], row["published_test"]) == (2, 1, 2, 3)
    assert row["missing"] == "TAS1:2020-01-05" and row["leaks_found"] > 0
    # Of three test days one is the history of NSW1's train day, and one has another region's truth.
    assert row["targets_in_train_inputs"] == pytest.approx(1 / 3) == row["days_in_train"]
    assert (honest["targets_in_train_inputs"], honest["leaks_found"]) == (0, 0)
    assert measure_overlap({("SA1", DAYS[1])}, {("SA1", DAYS[1])})["days_in_train"] == 1


def test_the_look_up_repeats_train_inputs():
    earlier = [DAYS[0] - timedelta(days=n) for n in range(20, 2, -1)]
    windows = label("paper-original", PUBLISHED | {("NSW1", day): "train" for day in earlier})
    test = windows.subset("paper-original")
    fitted = TrainLookUp.fit(windows.split("train"))

    error_N = np.abs(fitted.predict(test.views()) - test.truth()).max(axis=1)
    assert error_N[0] == 0 < error_N[1]
    assert TrainLookUp.is_applicable(test)
    assert not TrainLookUp.is_applicable(windows.split("train"))


def test_last_week_is_repeated_where_views_hold_it():
    windows = plant("paper-original")
    of_one = [window for window in windows if window.view.entity == "NSW1"]
    later, week_before = (windows.with_windows(of_one[i : i + 2]) for i in (10, 3))

    assert LastWeek.is_applicable(later) and not LastWeek.is_applicable(windows)
    assert np.array_equal(LastWeek().predict(later.views()), week_before.truth())


@pytest.fixture(scope="module")
def deployment(archive_dir, tmp_path_factory):
    """A deployment that reads the archive once for all sets."""
    from tests.support.deployment import open_home

    if not (archive_dir / "compevo_paper").is_dir():
        pytest.skip(f"{archive_dir} holds no compevo_paper")
    home, now = tmp_path_factory.mktemp("home"), datetime(2026, 5, 1, tzinfo=UTC)
    return open_home(home, "archive", now=now, archive=archive_dir)


@pytest.mark.parametrize(
    ("name", "test", "missing", "mae"),
    [
        ("paper-original", 317, {"TAS1": 36, "VIC1": 13}, 303.0),
        ("paper-original-2019", 151, {"TAS1": 36, "VIC1": 13}, 315.9),
        ("paper-2026", 100, {}, 185.7),
    ],
)
def test_the_real_windows_are_the_papers(deployment, tmp_path, name, test, missing, mae):
    from compevo_pipeline.paper.runs import cut_paper_windows

    windows = cut_paper_windows(deployment, name, tmp_path)
    row = pl.read_csv(tmp_path / "paper-windows.csv").row(0, named=True)
    regions = [item.partition(":")[0] for item in (row["missing"] or "").split()]
    assert {region: regions.count(region) for region in regions} == missing
    scored = [w for w in windows if w.view.subsets and not w.view.unknown_steps]
    assert len(scored) == row["test"] == test
    error = np.nanmean([np.nanmean(np.abs(w.view.x - w.y)) for w in scored])
    assert error == pytest.approx(mae, abs=0.05)
