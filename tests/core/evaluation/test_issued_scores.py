"""Scores of issued days: what is known, what persistence says, and what a revision changes."""

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from compevo_core.data.chosen_series import grid_chosen
from compevo_core.data.cutting import GriddedSeries
from compevo_core.data.datasets import ELECTRICITY, ELECTRICITY_OPERATIONAL
from compevo_core.evaluation.issued_scores import ScoredRows, repeat_known, score_issued
from tests.support.scored_samples import NOW, write_forecast
from tests.support.window_samples import from_nem, make_series

SERIES_ID = "AEMO/OPERATIONAL_DEMAND/NSW1"
FIRST = from_nem(2026, 2, 10)
DAY = date(2026, 2, 24)  # the 15th day of the series
POINT = {("compevo", None): 110.0, ("published", None): 90.0}
BAND = {("compevo", 0.1): 95.0, ("compevo", 0.5): 100.0, ("compevo", 0.9): 105.0}


def make_truth(days: int = 15, last: float = 100.0, before: float = 80.0) -> list[float]:
    """Each day has a value of its own: its number, but for the last two."""
    values = np.repeat(np.arange(days, dtype=float), 48)
    values[-48:], values[-96:-48] = last, before
    return list(values)


def grid(values: list[float]) -> dict[str, GriddedSeries]:
    series = make_series(values, first=FIRST, series_id=SERIES_ID)
    return grid_chosen(ELECTRICITY_OPERATIONAL, series)


def score(
    root: Path, values: list[float], before: pl.DataFrame | None = None, hours: int = 0
) -> ScoredRows:
    return score_issued(root, grid(values), before, scored_at=NOW + timedelta(hours=hours))


def by_method(rows: pl.DataFrame, column: str) -> dict[str, float | None]:
    return dict(rows.select("method", column).iter_rows())


def test_every_method_of_a_day_is_scored_and_persistence_knows_no_more_than_it(
    tmp_path: Path,
) -> None:
    write_forecast(tmp_path, DAY, POINT | BAND)
    found = score(tmp_path, make_truth())
    assert (found.added, found.revised, found.waiting) == (4, 0, 0)
    assert set(found.rows["day"]) == {DAY} and set(found.rows["known_to"]) == {"issue-time"}

    errors = by_method(found.rows, "mae")
    assert (errors["compevo"], errors["published"]) == (10.0, 10.0)
    # Until 17:00 it repeats yesterday (80), for the evening the day before that (12).
    assert errors["persistence"] == pytest.approx((34 * 20 + 14 * 88) / 48)
    assert errors["weekly"] == 100 - 7

    # 0.1 x 5, 0.5 x 0 and 0.1 x 5, over three levels.
    assert by_method(found.rows, "pinball_10_50_90")["compevo"] == pytest.approx(1 / 3)
    coverage = by_method(found.rows, "coverage_80")
    assert coverage == {"compevo": 1.0, "published": None, "persistence": None, "weekly": None}


def test_known_to_midnight_persistence_repeats_the_whole_of_yesterday(tmp_path: Path) -> None:
    write_forecast(tmp_path, DAY, POINT, unknown_steps=0)
    rows = score(tmp_path, make_truth()).rows
    assert set(rows["known_to"]) == {"midnight"}
    assert by_method(rows, "mae")["persistence"] == 20.0


def test_a_published_band_that_crosses_has_no_score_and_ends_no_others(tmp_path: Path) -> None:
    crossing = {("published", 0.1): 91.0, ("published", 0.5): 90.0, ("published", 0.9): 99.0}
    write_forecast(tmp_path, DAY, POINT | BAND | crossing)
    rows = score(tmp_path, make_truth()).rows
    assert by_method(rows, "mae")["published"] == 10.0
    assert by_method(rows, "pinball_10_50_90")["published"] is None
    assert by_method(rows, "coverage_80")["compevo"] == 1.0


def test_a_day_that_is_not_over_waits(tmp_path: Path) -> None:
    write_forecast(tmp_path, DAY, POINT)
    write_forecast(tmp_path, DAY + timedelta(days=1), POINT)
    found = score(tmp_path, make_truth()[:-1])
    assert (found.rows.height, found.waiting) == (0, 2)
    assert score(tmp_path, make_truth()).waiting == 1


def test_the_truth_is_that_of_the_series_that_was_forecast(tmp_path: Path) -> None:
    write_forecast(tmp_path, DAY, POINT)
    # Another measure of the same region, which reaches a day further.
    other = make_series([5000.0] * 48 * 16, first=FIRST, series_id="AEMO/TOTALDEMAND/NSW1")
    own = make_series(make_truth(), first=FIRST, series_id=SERIES_ID)
    truth = grid_chosen(ELECTRICITY, pl.concat([own, other]))

    found = score_issued(tmp_path, truth, None, scored_at=NOW)
    assert by_method(found.rows, "mae")["compevo"] == 10.0


def test_scoring_twice_changes_nothing(tmp_path: Path) -> None:
    write_forecast(tmp_path, DAY, POINT | BAND)
    first = score(tmp_path, make_truth())
    again = score(tmp_path, make_truth(), first.rows, hours=24)
    assert (again.added, again.revised) == (0, 0)
    assert again.rows.equals(first.rows)


def test_a_revised_truth_is_scored_again_and_noted(tmp_path: Path) -> None:
    write_forecast(tmp_path, DAY, POINT)
    first = score(tmp_path, make_truth())
    revised = score(tmp_path, make_truth(last=104.0), first.rows, hours=24)
    assert revised.revised == 4
    row = revised.rows.row(by_predicate=pl.col("method") == "compevo", named=True)
    assert (row["mae"], row["first_mae"], row["revision"]) == (6.0, 10.0, 1)
    assert row["scored_at"] == NOW + timedelta(hours=24)


def test_a_revision_of_yesterday_alone_changes_what_persistence_says_and_nothing_else(
    tmp_path: Path,
) -> None:
    write_forecast(tmp_path, DAY, POINT)
    first = score(tmp_path, make_truth())
    revised = score(tmp_path, make_truth(before=90.0), first.rows, hours=24)
    assert by_method(revised.rows, "revision") == {
        "compevo": 0,
        "persistence": 1,
        "published": 0,
        "weekly": 0,
    }
    again = score(tmp_path, make_truth(before=90.0), revised.rows, hours=48)
    assert again.rows.equals(revised.rows)


def test_a_forecast_that_is_added_later_leaves_the_rows_before_it_alone(tmp_path: Path) -> None:
    write_forecast(tmp_path, DAY, POINT)
    first = score(tmp_path, make_truth())
    write_forecast(tmp_path, DAY - timedelta(days=1), POINT)
    found = score(tmp_path, make_truth(), first.rows, hours=24)
    assert found.added == 4
    assert found.rows.filter(pl.col("day") == DAY).equals(first.rows)
    # Scored in another order, but for the time of scoring it is the same history.
    at_once = score(tmp_path, make_truth())
    assert found.rows.drop("scored_at").equals(at_once.rows.drop("scored_at"))


def test_what_is_repeated_was_known(tmp_path: Path) -> None:
    (series,) = grid([float(i) for i in range(48 * 10)]).values()
    for unknown in (0, 14):
        position = 48 * 9
        repeated = repeat_known(series, position, position - unknown, 48)
        assert repeated.max() < position - unknown
        assert set((np.arange(position, position + 48) - repeated) % 48) == {0}
    assert np.isnan(repeat_known(series, 48, 48, 7 * 48)).all()
