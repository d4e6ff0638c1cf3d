"""Made-up series, articles, covariates and windows for tests.

What belongs here: small, fixed samples that keep the core's frame contracts. What does not:
samples of a publisher's file format (``tests.support.sources``).
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from compevo_core.data import schemas
from compevo_core.data.calendar import Place, build_calendar
from compevo_core.data.datasets import ELECTRICITY, Span
from compevo_core.data.splits import assign_folds
from compevo_core.data.view import Window, WindowView
from compevo_core.data.window import WindowSet

NOW = datetime(2026, 5, 1, tzinfo=UTC)
HALF_HOUR = timedelta(minutes=30)
DAY = timedelta(days=1)
SYDNEY = Place(timezone="Australia/Sydney", country="AU", subdivision="NSW")


def from_nem(year, month, day, hour=0, minute=0):
    """Return a NEM wall-clock time (UTC+10) in UTC."""
    return datetime(year, month, day, hour, minute, tzinfo=UTC) - timedelta(hours=10)


NEW_YEAR = from_nem(2019, 1, 1)


def make_series(
    values,
    *,
    first=NEW_YEAR,
    step=HALF_HOUR,
    series_id="AEMO/HISTDEMAND/NSW1",
    variable="demand_mw",
    source="archive:made-up",
):
    """Return a series frame; None is a missing value."""
    return pl.DataFrame(
        {
            "series_id": series_id,
            "variable": variable,
            "start_utc": [first + i * step for i in range(len(values))],
            "value": list(values),
            "unit": "MW",
            "flag": ["missing" if v is None else "observed" for v in values],
            "source": source,
            "fetched_at": NOW,
        },
        schema=schemas.SERIES_SCHEMA,
    )


def make_daily_values(n_days, seed=0, level=1000.0):
    """Return half-hourly values with a daily wave, a weekday level (by count of days) and noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(48 * n_days)
    week = np.where((t // 48) % 7 >= 5, 0.8, 1.0)
    return list(level * week * (1 + 0.2 * np.sin(2 * np.pi * t / 48)) + rng.normal(0, 10, t.size))


def make_electricity_series():
    """Return short pieces of the electricity data set, at least one in each split."""
    pieces = (
        ("HISTDEMAND/NSW1", from_nem(2019, 11, 2), make_daily_values(60, 1)),
        ("HISTDEMAND/SA1", from_nem(2019, 11, 2), make_daily_values(60, 2, 300)),
        ("TOTALDEMAND/NSW1", from_nem(2020, 1, 1), make_daily_values(20, 3)),
        ("TOTALDEMAND/NSW1", from_nem(2020, 9, 10), make_daily_values(20, 6)),
        ("TOTALDEMAND/SA1", from_nem(2020, 12, 25), make_daily_values(20, 4)),
        ("OPERATIONAL_DEMAND/NSW1", from_nem(2026, 2, 18), make_daily_values(41, 5)),
    )
    return pl.concat(
        make_series(values, first=first, series_id=f"AEMO/{name}") for name, first, values in pieces
    )


def make_covariates(days, entity="NSW1"):
    """Return two temperatures a day, known at 18:00 and at 09:00 of the day after, NEM time."""
    rows = []
    for i, day in enumerate(days):
        evening = from_nem(day.year, day.month, day.day, 18)
        rows += [
            (entity, name, day, kelvin + i % 9, evening + timedelta(hours=later), "archive:made-up")
            for name, kelvin, later in (("afternoon_temp_k", 290.0, 0), ("max_temp_k", 295.0, 15))
        ]
    return pl.DataFrame(rows, schema=schemas.COVARIATE_SCHEMA, orient="row")


def make_published(first, n_days, entity="NSW1"):
    """Return half-hourly median and 10% forecasts of each day, issued at 17:00 the day before."""
    rows = [
        (entity, begin + i * HALF_HOUR, value, begin - timedelta(hours=7), quantile, "archive:x")
        for begin in (first + day * DAY for day in range(n_days))
        for i in range(48)
        for value, quantile in ((900.0 + i, 0.5), (1.0, 0.1))
    ]
    return pl.DataFrame(rows, schema=schemas.PUBLISHED_SCHEMA, orient="row")


def make_articles(available, titles=None):
    """Return articles a0, a1, ... that became available at the given times."""
    numbers = range(len(available))
    return pl.DataFrame(
        {
            "article_id": [f"a{i}" for i in numbers],
            "url": [f"https://example.org/{i}" for i in numbers],
            "title": list(titles) if titles else [f"Made up title number {i}" for i in numbers],
            "body": "",
            "domain": "example.org",
            "language": "English",
            "country": "Australia",
            "published_at": list(available),
            "seen_at": None,
            "available_at": list(available),
            "fetched_at": NOW,
            "source": "archive:made-up",
        },
        schema=schemas.ARTICLE_SCHEMA,
    )


def make_benchmark(day, length=48):
    x, y = [100.0 + i for i in range(length)], [200.0 + i for i in range(48)]
    row = (0, "NSW1", day, x, y, "archive:made-up")
    return pl.DataFrame([row], schema=schemas.BENCHMARK_SCHEMA, orient="row")


def make_window(index=0, *, origin=None, x=None, y=None, **changes):
    """Return one electricity window; ``index`` moves the origin by whole days."""
    origin_utc = origin or from_nem(2019, 3, 1) + index * DAY
    rng = np.random.default_rng(index)
    facts = {
        "window_id": f"w{index}",
        "dataset": "electricity",
        "series_id": "AEMO/HISTDEMAND/NSW1",
        "entity": "NSW1",
        "variable": "demand_mw",
        "unit": "MW",
        "step_minutes": 30,
        "origin_utc": origin_utc,
        "x": np.array(x) if x is not None else 1000 + rng.normal(0, 50, 48),
        "calendar": build_calendar(origin_utc, SYDNEY),
        "split": "train",
    }
    truth = np.array(y) if y is not None else 1000 + rng.normal(0, 50, 48)
    return Window(view=WindowView(**(facts | changes)), y=truth)


def make_set(windows, **options):
    return WindowSet(windows, dataset="electricity", **options)


def make_window_set(n=6, **changes):
    return make_set([make_window(i, **changes) for i in range(n)])


def place_in_folds(windows):
    """Return the windows with the train ones placed in folds, as the builder does."""
    folds = assign_folds([view.origin_utc for view in windows.split("train").views()])
    return change_views(
        windows, lambda view: {"fold": folds[view.origin_utc]} if view.split == "train" else {}
    )


def change_views(windows, change):
    """Return the windows with the fields of each view that ``change`` gives, {} for none."""
    changed = [window.change_view(**change(window.view)) for window in windows]
    return WindowSet(changed, dataset=changed[0].view.dataset)


def make_spec(**changes):
    return replace(ELECTRICITY, **changes)


def make_operational_spec(first_day, last_day, **changes):
    """Return a declaration of operational demand, all of it train, viewed at 24:00 and 17:00."""
    pattern = "^AEMO/OPERATIONAL_DEMAND/"
    span = Span(split="train", series_pattern=pattern, first_day=first_day, last_day=last_day)
    facts = {"spans": (span,), "unknown_steps": (0, 14), "published_evidence": True}
    return make_spec(**facts | {"past_evidence": True} | changes)


def flip_a_bit(path, generator):
    """Changes one bit of a file, as a disk does that loses what it holds."""
    content = bytearray(path.read_bytes())
    content[generator.integers(len(content))] ^= 1 << generator.integers(8)
    path.write_bytes(content)
