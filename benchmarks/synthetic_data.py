"""Synthetic windows and headlines of the size of real ones.

What belongs here: seeded data, made without files or network. What does not: models (``world``),
the sample data of the pipeline.

Shapes: H horizon.
"""

import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.data.calendar import Place, build_calendar
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.schemas import ARTICLE_SCHEMA
from compevo_core.data.view import HORIZON, Window, WindowView
from compevo_core.data.window import WindowSet
from compevo_core.lm.encoder import Encoder

START = datetime(2019, 1, 1, 14, tzinfo=UTC)
PLACE = Place(timezone="Australia/Sydney", country="AU", subdivision="NSW")
LEVELS_MW = {"NSW1": 8000.0, "QLD1": 6200.0, "SA1": 1400.0, "TAS1": 1100.0, "VIC1": 5200.0}
COVARIATES = {
    "afternoon_humidity_lag1": 41.0,
    "afternoon_temp_lag1": 28.4,
    "max_temp_lag2": 31.2,
    "min_temp_lag2": 17.9,
    "morning_temp_lag1": 21.3,
}
TITLES = (
    "Heatwave to push electricity demand to a record across the eastern states this week",
    "Central bank holds interest rates as inflation slows for a third straight quarter",
    "Smelter restarts its second potline after months of closure and repair work",
    "Storm damage leaves thousands without power as crews work through the night",
    "Rooftop solar sets a midday record and drives wholesale prices below zero",
    "Travel surges before the long weekend with airports expecting a million passengers",
    "Coal unit trips without warning, operator calls on reserves in the evening peak",
    "Schools return on Tuesday after the longest summer break in a decade",
    "Desalination plant ordered to full output as dams fall below half",
    "Steel maker cuts shifts as export orders weaken and freight costs rise",
    "Cool change arrives early, ending four days above thirty-five degrees",
    "Grand final crowds expected to lift evening use in the inner suburbs",
)
_DAILY_SWING = 0.2  # of the level
_NOISE = 0.03  # of the level, standard deviation
_LOWEST_STEP = 14  # of the daily wave, in half hours


def build_news_pool(encoder: Encoder) -> NewsPool:
    """Build a pool of the headlines above, one an hour, all before the first origin."""
    count = len(TITLES)
    times = [START - timedelta(days=2) + timedelta(hours=i) for i in range(count)]

    rows = {
        "article_id": _article_ids(),
        "url": [f"https://example.org/{i}" for i in range(count)],
        "title": list(TITLES),
        "body": [""] * count,
        "domain": ["example.org"] * count,
        "language": ["English"] * count,
        "country": [None] * count,
        "published_at": times,
        "seen_at": times,
        "available_at": times,
        "source": ["sample:benchmark"] * count,
        "fetched_at": times,
    }
    return NewsPool(pl.DataFrame(rows, schema=ARTICLE_SCHEMA), encoder.encode(TITLES), encoder.name)


def build_windows(days: int, entities: int) -> WindowSet:
    """Build train windows of the first ``entities`` regions on consecutive days."""
    rng = np.random.default_rng(0)
    wave_H = np.sin(2 * np.pi * (np.arange(HORIZON) - _LOWEST_STEP) / HORIZON)
    shape_H = 1.0 + _DAILY_SWING * wave_H

    windows: list[Window] = []
    for day in range(days):
        for entity, level_mw in list(LEVELS_MW.items())[:entities]:
            # x is drawn first, then y.
            x, y = (level_mw * shape_H * (1 + _NOISE * rng.normal(size=HORIZON)) for _ in range(2))
            origin = START + timedelta(days=day)
            view = WindowView(
                window_id=f"benchmark-{entity}-{day}",
                dataset="electricity",
                series_id=f"BENCHMARK/{entity}",
                entity=entity,
                variable="demand_mw",
                unit="MW",
                step_minutes=30,
                origin_utc=origin,
                x=x,
                calendar=build_calendar(origin, PLACE),
                covariates=COVARIATES,
                split="train",
                candidate_ids=tuple(_article_ids()),
            )
            windows.append(Window(y=y, view=view))
    return WindowSet(windows, dataset="electricity")


def _article_ids() -> list[str]:
    return [hashlib.sha256(title.encode()).hexdigest()[:32] for title in TITLES]
