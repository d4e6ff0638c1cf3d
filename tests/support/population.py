"""A small world for training tests: seeded windows of two entities, a few articles, no files."""

import hashlib
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper.changes import find_variant
from tests.support.window_samples import make_articles, make_set, make_window

START = datetime(2019, 1, 1, 14, tzinfo=UTC)
TITLES = (
    "Heatwave to push demand to a record across the state",
    "Central bank holds interest rates as inflation slows",
    "Smelter restarts after months of closure",
    "Storm damage leaves thousands without power",
    "Rooftop solar sets a midday record",
    "Travel surges before the long weekend",
)


def article_ids():
    return [hashlib.sha256(t.encode()).hexdigest()[:32] for t in TITLES]


def news_pool(encoder=None):
    """Return the articles, embedded by hashed words unless an encoder is given."""
    encoder = encoder or HashingEncoder()
    seen = [START - timedelta(days=2) + timedelta(hours=i) for i in range(len(TITLES))]
    articles = make_articles(seen, TITLES).with_columns(
        article_id=pl.Series(article_ids()), country=pl.lit(None, pl.String)
    )
    return NewsPool(articles, encoder.encode(TITLES), encoder.name)


def windows(split, days, *, first_day=0, entities=("NSW1", "SA1"), news=True):
    rng = np.random.default_rng([0, first_day])
    out = []
    for day in range(first_day, first_day + days):
        for number, entity in enumerate(entities):
            level = 8000.0 if number == 0 else 1500.0
            shape = 1.0 + 0.2 * np.sin(2 * np.pi * (np.arange(48) - 14) / 48)
            x, y = (level * shape * (1 + 0.03 * rng.normal(size=48)) for _ in range(2))
            window = make_window(
                window_id=f"{split}-{entity}-{day}",
                series_id=f"TEST/{entity}",
                entity=entity,
                origin=START + timedelta(days=day),
                x=x,
                y=y,
                covariates={"afternoon_temp_c": 25.0},
                split=split,
                candidate_ids=tuple(article_ids()) if news else (),
            )
            out.append(window)
    return make_set(out)


def join_windows(*spans, **options):
    """Return the windows of spans: split, days and first day."""
    parts = (windows(split, days, first_day=day, **options) for split, days, day in spans)
    return make_set([window for part in parts for window in part])


def tiny_variant(name, **overrides):
    """Return what a named variant makes of the preset with changes."""
    return find_variant(name).configure(tiny(**overrides))


def tiny(**overrides):
    """Return the preset with changes; a logic is little longer than the shortest that counts."""
    changes = {"evolution__max_new_tokens": 14} | overrides
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return RunConfig.preset("tiny").with_overrides(dotted)
