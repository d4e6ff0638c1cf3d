"""A user's own tables and their declaration, for tests: half-hourly values in Paris."""

from datetime import datetime, timedelta

import numpy as np

from compevo_pipeline.sources.own.declaration import check_declaration
from compevo_pipeline.sources.own.frames import parse_series
from tests.support.sources import raw


def wrap(text, name="demand.csv"):
    """Return a table as the feed of a user's own data set reads it."""
    return raw(name, text, "own-demand")


def declare(sections=None, **series):
    """Return a declaration with other sections and keys of its series; ``step`` is the grid's."""
    keys = {
        "name": "demand",
        "grid": {"step": series.pop("step", "30min")},
        "splits": {"fractions": [0.7, 0.1, 0.2]},
        "series": {"file": "demand.csv", "time": "stamp", "values": ["load_mw"], "unit": "MW"}
        | series,
    }
    return check_declaration(keys | dict(sections or {}), "the test")


def parse_rows(lines, declaration):
    """Return the series of lines of a stamp and a value each."""
    return parse_series(wrap("\n".join(["stamp,load_mw", *lines, ""])), declaration)[0]


def write_demand(path, days=40):
    """Write half-hourly values with a daily shape from 2024-01-01 on."""
    rng = np.random.default_rng(7)
    first = datetime(2024, 1, 1)  # noqa: DTZ001 - stamps of the table have no zone
    values = 900 + 200 * np.sin(np.arange(48 * days) / 48 * 6.28) + rng.normal(size=48 * days)
    rows = [f"{first + i * timedelta(minutes=30)},{value:.1f}" for i, value in enumerate(values)]
    path.write_text("stamp,load_mw\n" + "\n".join(rows) + "\n", encoding="utf-8")


def declare_demand(folder, text, *, days, article_day):
    """Write a declaration of demand, its table of so many days, and one article."""
    folder.mkdir(exist_ok=True)
    write_demand(folder / "demand.csv", days=days)
    (folder / "articles.csv").write_text(
        f"published_at,title\n{article_day} 08:00,Plant in Lyon closes for a week of repairs\n",
        encoding="utf-8",
    )
    news = '[news]\narticles = "articles.csv"\n'
    (folder / "demand.toml").write_text(text + news, encoding="utf-8")
