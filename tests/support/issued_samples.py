"""Issued forecasts with round numbers, for tables, pages and explanations."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.forecast.issued import ISSUED_SCHEMA, IssuedForecast
from compevo_core.report.tomorrow import ForecastDay
from tests.support.window_samples import DAY, HALF_HOUR

ORIGIN = datetime(2026, 3, 30, 14, tzinfo=UTC)
TITLE = "<script>alert('storm')</script> Storm cuts power"
ARTICLE = {"title": TITLE, "domain": "example.org", "available_at": "2026-03-29T22:10:00+00:00"}


def make_issued(entities=("NSW1", "SA1"), *, origin=ORIGIN, level=8000.0, known_steps=34):
    """Return a forecast of 31 March with its band, two agents and what was published.

    The day is 7,500 MW up to 17:00 and peaks with 9,500 MW at 18:30; its mean is ``level``.
    """
    shape = np.full(48, 7500.0)
    shape[34:] = (48 * 8000.0 - 34 * 7500.0 - 9500.0) / 13
    shape[37] = 9500.0
    values = shape + (level - 8000.0)

    bands = ((0.025, -900.0), (0.1, -500.0), (0.5, 0.0), (0.9, 500.0), (0.975, 900.0))
    lines = [
        ("forecast", None, values),
        ("equal", None, values),
        ("member-0", None, values - 30),
        ("member-1", None, values + 10),
        ("base-0", None, values - 80),
        ("base-1", None, values + 30),
        ("published", None, values - 100),
        *(("forecast", quantile, values + offset) for quantile, offset in bands),
    ]
    rows = []
    for entity in entities:
        for method, quantile, line in lines:
            rows += [
                (entity, method, quantile, origin + step * HALF_HOUR, float(value), "MW")
                for step, value in enumerate(line)
            ]
    return IssuedForecast(
        rows=pl.DataFrame(rows, schema=ISSUED_SCHEMA, orient="row"),
        facts=make_facts(entities, origin, known_steps),
    )


def make_mixture(*methods, level=None):
    """Return a forecast of one or two methods without agents; all are corrected by ``level``."""
    issued, is_single = make_issued(), len(methods) == 1
    changes = {"chosen_news": []}
    changes |= {"weights": [1.0], "step_weights": [[1.0] * 48]} if is_single else {}
    changes |= {} if level is None else {"levels": [[level] * 48] * len(methods)}
    facts = issued.facts | {
        "method": methods[0] if is_single else "mixture",
        "members": list(methods),
        "logics": [],
        "series": [entry | changes for entry in issued.facts["series"]],
    }
    parts = [] if is_single else ["equal", "member-0", "member-1"]
    rows = issued.rows.filter(pl.col("method").is_in(["forecast", "published", *parts]))
    return IssuedForecast(rows=rows, facts=facts)


def add_article_change(issued, change):
    """Let the article move every series by so much, and both agents read it."""
    added = {"article_changes": {"id1": change}, "chosen_news": [["id1"], ["id1"]]}
    series = [entry | added for entry in issued.facts["series"]]
    return IssuedForecast(rows=issued.rows, facts=issued.facts | {"series": series})


def make_day(**changes):
    """Return tomorrow, yesterday's forecast, and what was measured yesterday: 100 MW less."""
    before = make_issued(origin=ORIGIN - DAY)
    values = {entity: before.select_points(entity)["forecast"] for entity in before.entities}
    truth = {(entity, ORIGIN - DAY): line - 100 for entity, line in values.items()}
    day = {"issued": make_issued(), "before": before, "truth": truth}
    return ForecastDay(**(day | changes))


def make_facts(entities, origin, known_steps):
    """Return the facts of a forecast that knows so many steps of the day before its own."""
    inputs = [6000.0] * known_steps + [None] * (48 - known_steps)
    return {
        "dataset": "electricity-operational",
        "origin_utc": origin.isoformat(),
        "information_until": (origin - (48 - known_steps) * HALF_HOUR).isoformat(),
        "clock_minutes": 600,
        "step_minutes": 30,
        "horizon": 48,
        # A quarter of an hour after what it knows, and in the evening at the earliest.
        "issued_at": (
            origin - (48 - min(known_steps, 47)) * HALF_HOUR + timedelta(minutes=45)
        ).isoformat(),
        "commit": "abc",
        "config_hash": "c" * 64,
        "artifact_hash": "a" * 64,
        "views_hash": "b" * 64,
        "method": "compevo",
        "data": {},
        "members": ["agent 0", "agent 1"],
        "logics": ["read the <b>weather</b>", "read policy"],
        "fit": "own",
        "articles": {"id1": ARTICLE},
        "newest_candidate": "2026-03-30T06:40:00+00:00",
        "series": [
            {
                "window_id": f"any|AEMO/OPERATIONAL_DEMAND/{entity}|w",
                "entity": entity,
                "weights": [0.25, 0.75],
                "step_weights": [[0.25] * 48, [0.75] * 48],
                "chosen_news": [["id1"], []],
                "levels": [[20.0] * 48, [-40.0] * 48],
                "news_change": None,
                "article_changes": {"id1": 12.0},
                "last_week": [],
                "day_quantiles": {},
                "temperature": None,
                "inputs": inputs,
                "filled_inputs": 0,
                "unknown_inputs": 48 - known_steps,
            }
            for entity in entities
        ],
    }
