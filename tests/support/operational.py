"""A deployment that forecasts operational demand: stores, windows and a trained tiny population.

What belongs here: made-up operational demand of a region, and a deployment at an instant. What does
not: assertions.
"""

import shutil
from datetime import UTC, date, datetime, timedelta
from functools import cache

import polars as pl

from compevo_core.config.run import RunConfig
from compevo_core.data.build import build_windows
from compevo_core.data.datasets import ELECTRICITY_OPERATIONAL
from compevo_core.training.trainer import train
from compevo_pipeline.config.settings import Layout, Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.runs import set_current_run
from compevo_pipeline.storage.series_store import SeriesStore
from compevo_pipeline.work.deployment import Deployment
from tests.support import population as small
from tests.support import window_samples as samples
from tests.support.population import tiny

DATASET = ELECTRICITY_OPERATIONAL.name
SERIES_ID = "AEMO/OPERATIONAL_DEMAND/NSW1"
# Days of train, of validation, and from the end of validation to 24 February 2026.
PIECES = ((date(2025, 7, 1), 30), (date(2026, 1, 5), 8), (date(2026, 2, 18), 7))
NOW = datetime(2026, 2, 25, tzinfo=UTC)


@cache
def make_frames():
    """Return the series and the published forecast of every piece."""
    series, published = [], []
    for seed, (first, days) in enumerate(PIECES):
        start = samples.from_nem(first.year, first.month, first.day)
        values = samples.make_daily_values(days, seed)
        series.append(samples.make_series(values, first=start, series_id=SERIES_ID))
        published.append(samples.make_published(start, days))
    return pl.concat(series), pl.concat(published)


def store_until(layout, until):
    """Store what had been measured by an instant; published forecasts are stored whole."""
    series, published = make_frames()
    known = series.filter(pl.col("start_utc") + samples.HALF_HOUR <= until)
    SeriesStore(layout.root).write(DATASET, known)
    SeriesStore(layout.root).write_frame(DATASET, FrameKind.PUBLISHED, published)


def train_population(run, *, is_numeric=False):
    """Train a tiny population on all pieces; a numeric one reads no news."""
    series, published = make_frames()
    windows = build_windows(ELECTRICITY_OPERATIONAL, series, published=published)
    forecast = {"prior": "published-error-ridge", "known_errors": "mean", "prior_folds": 2}
    if is_numeric:
        config = RunConfig.from_mapping(
            {"forecast": {**forecast, "decoder": "none"}, "population": {"agents": 1}}
        )
    else:
        changes = {f"forecast__{name}": value for name, value in forecast.items()}
        config = tiny(run__rounds=1, **changes)
    train(config, windows.split("train"), windows.split("val"), small.news_pool(), run)


def make_deployment(home, until, run):
    """Make a deployment whose newest value is of an instant, with a copy of a trained run."""
    layout = Layout(root=home / "sample")
    store_until(layout, until)
    NewsStore(layout.news_database).upsert_articles(small.news_pool().articles)
    shutil.copytree(run, layout.run("one"))
    set_current_run(layout, DATASET, "one")
    return layout


def open_workspace(layout):
    settings = Settings(home=layout.root.parent, mode=Mode.SAMPLE, preset="tiny")
    return Deployment(settings=settings, clock=lambda: NOW)


def issue_time(day):
    """Return 17:00 of the day before on the market's clock, in UTC."""
    return samples.from_nem(day.year, day.month, day.day) - timedelta(hours=7)
