"""Tasks of fev-bench: what is read, how it is scored, and that other data are refused."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import fev_tasks
from benchmarks.rows import REPO, read_rows
from benchmarks.tables import OURS, Task, melt

# The naive forecast errs by 1 and 2 of "a" before the two windows, of "b" by 4.
VALUES = {"a": [0, 1, 0, 1, 4, 0, 1, 2], "b": [0, 4, 0, 4, 0, 4, 4, 4]}
ROWS = melt(pd.DataFrame(VALUES, pd.date_range("2024-01-01", periods=8)))
TASK = Task("days", "D", 2, (1,), 2, lambda: ROWS)
NAIVE_MASE = (2 + 0.75 + 0.5 + 0) / 4


class Ours:
    """A forecaster that errs by 1, with quantiles on both sides of the truth."""

    method_ = "some"

    def predict(self, known, future):
        after = ROWS[ROWS["ds"] > known["ds"].max()].groupby("unique_id").head(2)
        levels = {f"q0.{tenth}": after["y"] + tenth - 5 for tenth in (1, 2, 3, 5, 7, 8, 9)}
        return after[["unique_id", "ds"]].assign(mean=after["y"] + 1, **levels)


def test_a_row_is_scored_as_by_hand_and_ranked(tmp_path, monkeypatch):
    monkeypatch.setattr(fev_tasks, "fit_ours", lambda task, rows: Ours())
    monkeypatch.setattr(fev_tasks, "list_tasks", lambda folder: {"days": TASK})
    published = {
        "task_name": ["days", "days", "days", "other"],
        "model_name": ["a", "b", fev_tasks.NAIVE, "c"],
        "MASE": [0.4, 0.8, NAIVE_MASE, 0],
        "SQL": [0.6, 0.7, 2.0, 0],
    }
    (tmp_path / "results").mkdir()
    pd.DataFrame(published).to_csv(tmp_path / "results" / "published.csv")
    rows = fev_tasks.measure("days", tmp_path)

    # Divided by the scales of two windows of two series.
    share = (1 + 1 / 2 + 1 / 4 + 1 / 4) / 4
    assert rows[0]["mase"] == pytest.approx(share)
    assert rows[0]["sql"] == pytest.approx(share * 2 * 2 * (0.4 + 0.6 + 0.6 + 0.4) / 9)
    found = [(row["model"], row["mase_rank"], row["sql_rank"]) for row in rows]
    assert found == [(OURS, 2, 1), ("a", 1, 2), ("b", 3, 3), (fev_tasks.NAIVE, 4, 4)]
    # Others' rows name no machine of ours.
    assert [row.get("machine") for row in rows] == [None, "", "", ""]
    assert fev_tasks.summarise(rows).startswith("2 of 3 published models have a larger MASE")


def test_other_data_and_missing_forecasts_are_refused():
    with pytest.raises(ValueError, match=r"has 0\.8125000 here and 0\.8126000 as published"):
        fev_tasks.measure_ours(TASK, 0.8126)
    naive = fev_tasks.repeat_season(TASK, ROWS).replace({"q0.9": {0.0: np.nan}})
    with pytest.raises(ValueError, match="3 of 8 values are not"):
        fev_tasks.score(TASK, ROWS, naive[:-1])


def test_the_readme_says_what_the_committed_rows_say():
    rows = read_rows(fev_tasks.BENCHMARK.path)
    assert len(rows) == 3 * 31 == len({(row["task"], row["model"]) for row in rows})
    text = " ".join((REPO / "README.md").read_text(encoding="utf-8").split())
    assert fev_tasks.summarise(rows) in text


def test_days_that_are_not_whole_are_left_out(tmp_path):
    hours = pd.date_range("2016-07-01", periods=60, freq="h")
    for name in ("ETTh1", "ETTh2"):
        table = pd.DataFrame({"date": hours, "OT": range(60)})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    by_hour, by_day = (task.load() for task in [*fev_tasks.list_tasks(tmp_path).values()][:2])
    assert len(by_hour) == 120
    assert by_day["unique_id"].to_list() == ["ETTh1 OT", "ETTh2 OT"]
    assert by_day["y"].to_list() == [35.5, 35.5]
