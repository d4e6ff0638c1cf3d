"""The operator's table: what it counts, by month, series and half-hour, from sealed forecasts."""

from datetime import timedelta

import polars as pl
import pytest

from compevo_core.errors import CheckpointMismatch
from compevo_core.evaluation.issued_scores import OPERATOR_SCHEMA, score_by_step
from compevo_core.report.tomorrow import month_table, pool, score_table, view_operator
from tests.core.evaluation.test_issued_scores import DAY, grid
from tests.support.scored_samples import write_forecast

VALUES = {
    ("compevo", None): 110.0,
    ("published", None): 90.0,
    ("compevo-base-0", None): 1.0,
    ("published", 0.1): 80.0,
    ("published", 0.9): 95.0,
}
# The last two days of the series: 100 MW, and 100 MW in the first half of the last one.
TRUTH = [100.0] * 15 * 48


def test_a_row_is_of_one_half_hour_of_a_month_with_the_error_the_bias_and_the_band(tmp_path):
    write_forecast(tmp_path, DAY, VALUES)
    write_forecast(tmp_path, DAY - timedelta(days=1), VALUES)
    rows = score_by_step(tmp_path, grid([*TRUTH[:-24], *[92.0] * 24]))
    assert dict(rows.schema) == OPERATOR_SCHEMA
    assert set(rows["method"]) == {"compevo", "published"} and rows.height == 2 * 48

    at = {row["at"]: row for row in rows.filter(method="published").iter_rows(named=True)}
    assert list(at)[:2] == ["00:00", "00:30"] and set(rows["month"]) == {"2026-02"}
    # In the evening of one of both days the truth lies in the band, and is 2 MW above.
    assert (at["00:00"]["mae"], at["00:00"]["bias"], at["00:00"]["coverage_80"]) == (10, -10, 0)
    assert (at["23:30"]["mae"], at["23:30"]["bias"], at["23:30"]["coverage_80"]) == (6, -6, 0.5)
    assert at["23:30"]["n_points"] == 2 and at["23:30"]["width_80"] == 15.0
    assert rows.filter(method="compevo")["coverage_80"].is_null().all()


def test_the_newest_issue_counts_and_a_step_without_truth_does_not(tmp_path):
    write_forecast(tmp_path, DAY, VALUES)
    write_forecast(tmp_path, DAY, VALUES | {("compevo", None): 103.0}, supersede=True)
    values = [*TRUTH[:-1], None]
    pooled = {row["method"]: row for row in pool(score_by_step(tmp_path, grid(values))).to_dicts()}
    assert (pooled["compevo"]["mae"], pooled["compevo"]["n_points"]) == (3.0, 47)

    # Of a day that is not over the steps that were measured count.
    write_forecast(tmp_path, DAY + timedelta(days=1), VALUES)
    assert pool(score_by_step(tmp_path, grid([*TRUTH, 100.0])))["n_points"].to_list() == [49, 49]

    record = next(tmp_path.glob("*/known-*/forecast.parquet"))
    record.write_bytes(record.read_bytes() + b"x")
    with pytest.raises(CheckpointMismatch, match="altered"):
        score_by_step(tmp_path, grid(TRUTH))


def test_the_page_shows_what_was_said_with_least_knowledge_by_month_and_method(tmp_path):
    write_forecast(tmp_path, DAY, VALUES)
    write_forecast(tmp_path, DAY, VALUES | {("compevo", None): 100.0}, unknown_steps=0)
    rows = score_by_step(tmp_path, grid(TRUTH))
    assert set(rows["known_to"]) == {"midnight", "issue-time"}
    view = view_operator(rows)
    assert view is not None and view["known_to"] == "issue-time"
    assert view["months"].rows[0] == [
        *("2026-02", "NSW1", "10.00", "-10.00", "0.0 %", "10.00", "+10.00", "n/a", "48")
    ]
    assert view["months"].rows[1][1] == "pooled"
    assert [row[0] for row in view["methods"].rows] == ["forecast", "published"]
    assert len(view["errors"]["chart"].steps) == 48

    nobody = rows.filter(pl.col("method") != "published")
    assert view_operator(nobody) is None


def test_months_and_series_are_pooled_by_their_points():
    row = dict.fromkeys(OPERATOR_SCHEMA) | {"known_to": "midnight", "unit": "MW", "bias": 0.0}
    cells = [
        row | {"month": month, "entity": entity, "method": method, "at": "00:00"} | numbers
        for month, entity, numbers in (
            ("2026-01", "A", {"n_points": 1, "mae": 10.0, "n_banded": 0}),
            ("2026-01", "B", {"n_points": 3, "mae": 2.0, "n_banded": 3, "coverage_80": 0.5}),
        )
        for method in ("published", "compevo")
    ]
    rows = pl.DataFrame(cells, schema=OPERATOR_SCHEMA)
    together = month_table(rows).rows[-1]
    assert together[1:5] == ["pooled", "4.00", "+0.00", "50.0 %"]
    assert score_table(rows).rows[0][1] == "4.000"
