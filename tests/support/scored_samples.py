"""Scored rows and issued forecasts for tests: values that one can check by head."""

from datetime import UTC, date, datetime, timedelta

import polars as pl

from compevo_core.evaluation.issued_scores import ISSUE_TIME, SCORED_SCHEMA
from compevo_core.forecast.issued import ISSUED_SCHEMA, IssuedForecast, write_issued
from tests.support.issued_samples import make_facts
from tests.support.window_samples import HALF_HOUR, from_nem

FIRST_DAY = date(2026, 2, 19)
NOW = datetime(2026, 4, 1, tzinfo=UTC)


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


def write_forecast(root, day, values, *, unknown_steps=14, issued_at=NOW, supersede=False):
    """Issue a forecast of constants by method and quantile (None: the point)."""
    origin = from_nem(day.year, day.month, day.day)
    starts = [origin + step * HALF_HOUR for step in range(48)]
    rows = [("NSW1", *key, at, value, "MW") for key, value in values.items() for at in starts]
    frame = pl.DataFrame(rows, schema=ISSUED_SCHEMA, orient="row")
    facts = make_facts(("NSW1",), origin, 48 - unknown_steps)
    facts["issued_at"] = issued_at.isoformat()
    forecast = IssuedForecast(rows=frame, facts=facts)
    write_issued(root, forecast, supersede=supersede)
    return forecast
