"""Scored rows and issued forecasts for tests: values that one can check by head."""

from datetime import UTC, date, datetime, timedelta

import polars as pl

from compevo_core.evaluation.issued_scores import ISSUE_TIME, SCORED_SCHEMA
from compevo_core.forecast.issued import ISSUED_SCHEMA, IssuedForecast, write_issued

FIRST_DAY = date(2026, 2, 19)
NOW = datetime(2026, 4, 1, tzinfo=UTC)
_OFFSET = timedelta(hours=10)
_STEP = timedelta(minutes=30)


def make_rows(
    by_method,
    *,
    entity="NSW1",
    known_to=ISSUE_TIME,
    coverage=None,
    model="m",
    first_day=FIRST_DAY,
    is_on_time=True,
):
    """Return scored rows of one series: the MAE of each method, day by day."""
    rows = [
        {
            "day": first_day + timedelta(days=i),
            "entity": entity,
            "known_to": known_to,
            "issue": 1,
            "method": method,
            "is_on_time": is_on_time,
            "unit": "MW",
            "n_points": 48,
            "mae": mae,
            "rmse": mae,
            "pinball_10_50_90": None,
            "coverage_80": coverage[i] if coverage and method == "forecast" else None,
            "revision": 0,
            "first_mae": mae,
            "truth_hash": "t",
            "forecast_hash": "f",
            "artifact_hash": model,
            "information_until": NOW,
            "issued_at": NOW,
            "scored_at": NOW,
        }
        for method, errors in by_method.items()
        for i, mae in enumerate(errors)
    ]
    return pl.DataFrame(rows, schema=SCORED_SCHEMA)


def write_forecast(
    root, day, values, *, unknown_steps=14, entity="NSW1", issued_at=NOW, supersede=False
):
    """Issue a forecast of constants by method and quantile (None: the point)."""
    origin = datetime(day.year, day.month, day.day, tzinfo=UTC) - _OFFSET
    rows = [
        (entity, method, quantile, origin + step * _STEP, value, "MW")
        for (method, quantile), value in values.items()
        for step in range(48)
    ]
    columns = ["entity", "method", "quantile", "start_utc", "value", "unit"]
    frame = pl.DataFrame(rows, schema=columns, orient="row", infer_schema_length=None).select(
        pl.col(name).cast(kind) for name, kind in ISSUED_SCHEMA.items()
    )
    facts = {
        "dataset": "electricity-operational",
        "origin_utc": origin.isoformat(),
        "information_until": (origin - unknown_steps * _STEP).isoformat(),
        "clock_minutes": 600,
        "step_minutes": 30,
        "horizon": 48,
        "issued_at": issued_at.isoformat(),
        "artifact_hash": "m" * 64,
        "series": [
            {
                "entity": entity,
                "window_id": f"any|AEMO/OPERATIONAL_DEMAND/{entity}|{day}",
                "day_quantiles": {},
            }
        ],
    }
    forecast = IssuedForecast(rows=frame, facts=facts)
    write_issued(root, forecast, supersede=supersede)
    return forecast
