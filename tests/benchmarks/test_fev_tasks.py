"""Tasks of fev-bench: what is read, how it is scored, and that other data are refused."""

import numpy as np
import pandas as pd
import pytest

from benchmarks import fev_tasks
from benchmarks.fev_tasks import OURS, Task, list_tasks, measure, rank, repeat_season, score

# The naive forecast errs by 1 and 2 of "a" before the two windows, of "b" by 4.
VALUES = {"a": (0, 1, 0, 1, 4, 0, 1, 2), "b": (0, 4, 0, 4, 0, 4, 4, 4)}
ROWS = pd.DataFrame(
    [
        {"unique_id": name, "ds": day, "y": float(y)}
        for name, values in VALUES.items()
        for day, y in zip(pd.date_range("2024-01-01", periods=8), values, strict=True)
    ]
)
TASK = Task("days", "D", 2, (1,), 2, lambda: ROWS)
NAIVE_MASE = (2 + 0.75 + 0.5 + 0) / 4


class Ours:
    """A forecaster that errs by 1, with quantiles on both sides of the truth."""

    method_ = "some"

    def predict(self, known, future):
        after = ROWS[ROWS["ds"] > known["ds"].max()].groupby("unique_id").head(2)
        levels = {f"q0.{tenth}": after["y"] + tenth - 5 for tenth in (1, 2, 3, 5, 7, 8, 9)}
        return after[["unique_id", "ds"]].assign(mean=after["y"] + 1, **levels)


def test_a_row_is_scored_as_by_hand_and_ranked(monkeypatch):
    monkeypatch.setattr(fev_tasks, "fit_ours", lambda task, rows: Ours())
    row = measure(TASK, NAIVE_MASE)
    # Divided by the scales of two windows of two series.
    share = (1 + 1 / 2 + 1 / 4 + 1 / 4) / 4
    assert row["mase"] == pytest.approx(share)
    assert row["sql"] == pytest.approx(share * 2 * 2 * (0.4 + 0.6 + 0.6 + 0.4) / 9)

    others = {"task": ["days", "days", "other"], "mase": [0.4, 0.8, 0], "sql": [0.6, 0.7, 0]}
    rows = rank([row], pd.DataFrame({"model": ["a", "b", "c"], **others}))
    assert [(row["model"], row["mase_rank"], row["sql_rank"]) for row in rows] == [
        (OURS, 2, 1),
        ("a", 1, 2),
        ("b", 3, 3),
    ]


def test_other_data_and_missing_forecasts_are_refused():
    with pytest.raises(ValueError, match=r"has 0\.8125000 here and 0\.8126000 as published"):
        measure(TASK, 0.8126)
    with pytest.raises(ValueError, match="3 of 8 values are not"):
        score(TASK, ROWS, repeat_season(TASK, ROWS).replace({"q0.9": {0.0: np.nan}})[:-1])


def test_days_that_are_not_whole_are_left_out(tmp_path):
    hours = pd.date_range("2016-07-01", periods=60, freq="h")
    for name in ("ETTh1", "ETTh2"):
        table = pd.DataFrame({"date": hours, "OT": range(60)})
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    by_hour, by_day, *_ = (task.load() for task in list_tasks(tmp_path)[:2])
    assert len(by_hour) == 120
    assert by_day["unique_id"].to_list() == ["ETTh1 OT", "ETTh2 OT"]
    assert by_day["y"].to_list() == [35.5, 35.5]
