"""The benchmark of tables: its cutoffs, its scores, and that each kind of table has a role."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.rows import REPO, read_rows
from benchmarks.tables import (
    BENCHMARK,
    MEDIAN,
    OURS,
    TASKS,
    Task,
    list_cutoffs,
    list_origins,
    score,
    summarise,
)

TASK = Task("days", "D", 2, (7,), 2, pd.DataFrame)
DAYS = pd.date_range("2024-01-01", periods=20)
ROWS = pd.DataFrame({"unique_id": "s", "ds": DAYS, "y": np.arange(20.0)})


def test_the_last_forecast_ends_with_the_table():
    days = [str(cutoff.date()) for cutoff in list_cutoffs(TASK, ROWS)]
    assert days == ["2024-01-17", "2024-01-19"]
    stamps = pd.date_range("2024-01-01", periods=480, freq="h")
    hours = pd.DataFrame({"unique_id": "s", "ds": stamps})
    task = Task("hours", "h", 24, (24,), 3, pd.DataFrame)
    cutoffs = list_cutoffs(task, hours)
    assert [cutoff.day for cutoff in cutoffs] == [10, 15, 20] and {c.hour for c in cutoffs} == {0}


def test_bands_are_seen_from_every_day_of_the_span():
    days = [str(origin.date()) for origin in list_origins(TASK, ROWS)]
    assert days == ["2024-01-17", "2024-01-18", "2024-01-19"]


def test_scores_are_scaled_and_missing_forecasts_refused():
    after = ROWS[ROWS["ds"] >= "2024-01-17"]
    forecast = after.assign(forecast=after["y"] + 1, low=after["y"] - [0, 0, 0, -1], high=99.0)
    mase, coverage = score(TASK, ROWS, forecast.drop(columns="y"))
    # A week before, each value is seven lower.
    assert mase == pytest.approx(1 / 7) and coverage == pytest.approx(0.75)
    with pytest.raises(ValueError, match="3 of 4"):
        score(TASK, ROWS, forecast.drop(columns="y")[:3])


def test_the_summary_compares_tables_that_both_sides_forecast():
    def row(table, method, mase):
        coverage = {"coverage_80": 0.8, "coverage_80_daily": 0.78}
        facts = {"role": "held", **coverage, "cpu_seconds": 2.0}
        return {"table": table, "method": method, "mase": mase, **facts}

    rows = [row("a", OURS, 0.9), row("a", MEDIAN, 1.0), row("a", "MSTL", 0.8), row("b", OURS, 1)]
    text = summarise(rows)
    assert text.startswith("1 tables: MASE 0.900 of the median of peers, 1.125 of the best")
    assert "better on 1;" in text
    assert "hold 80 % (80 to 80), of forecasts from every day 78 % (78 to 78)" in text


def test_half_of_the_tables_are_held_back():
    assert len(TASKS) == 26 == len({task.name for task in TASKS})
    assert sum(task.role == "held" for task in TASKS) == 13
    for is_short in (True, False):
        assert {t.role for t in TASKS if (t.freq[-1] in "hn") is is_short} == {"held", "choosing"}


def test_the_readme_says_what_the_committed_rows_say():
    rows = read_rows(BENCHMARK.path)
    assert {row["table"] for row in rows} == {task.name for task in TASKS}
    text = " ".join((REPO / "README.md").read_text(encoding="utf-8").split())
    assert summarise(rows) in text
    assert summarise(rows, "held") in text
