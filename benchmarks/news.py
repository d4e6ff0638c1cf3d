"""News of a user's table: whether an audit is right, and what agents add to a ridge on words.

    python -m benchmarks.news                 # 100 seeds with an effect, 100 without
    python -m benchmarks.news --agents        # forecasts by both, five seeds of each

What belongs here: tables of days with headlines, audits and forecasts of them, a row for each
effect and world. What does not: news of the built-in data sets (the wing's experiments).

A table has two years of a daily series that is its week plus noise, which half follows the day
before. On a fifth of the days a strike lowers it by the effect, in standard deviations of what the
method misses. It is announced the evening before by one of six headlines, among two to six others
out of hundreds. In the world ``opposite`` heat raises the value on as many other days; in
``shuffled`` the effect is there and headlines are another day's.
"""

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated

import numpy as np
import polars as pl
import typer

from benchmarks.rows import RESULTS, Row, describe_surroundings, write_each
from compevo_core import Forecaster
from compevo_core.data.build import build_windows
from compevo_core.data.news_pool import NewsPool
from compevo_core.evaluation.news_audit import NewsAudit, audit_news
from compevo_core.lm.encoder import load_encoder
from compevo_core.training.training_data import join_for_refit

ROWS, READING = RESULTS / "news.csv", RESULTS / "news-reading.csv"
DAYS, START = 730, datetime(2023, 1, 2)  # noqa: DTZ001 - as tables have them
SHARE = 0.2  # of days with an event, and of others with the opposite one
EVENTS = {
    "strike": ("at the port", "of bus drivers", "called", "goes on", "at mills", "announced"),
    "heat": ("warning issued", "builds in the west", "record near", "to peak", "alert", "goes on"),
}
WHO = ("Council", "Museum", "Ferry", "Farmers", "School", "Airport", "Brewery", "Hospital")
WHAT = ("wins award", "opens wing", "is late", "hope for rain", "names director", "plans vote")
NOISE_MEMORY = 0.5
READERS = ("calendar-ridge", "calendar-ridge+news", "compevo")
LAST_DAYS = 100  # that are forecast


def make_table(world: str, effect: float, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return days of a series, and the headlines of the evenings before."""
    rng = np.random.default_rng([seed, 47])
    kinds = rng.choice(3, DAYS, p=[1 - 2 * SHARE, SHARE, SHARE])
    if world != "opposite":
        kinds[kinds == 2] = 0
    noise = rng.normal(0, 1, DAYS)
    for day in range(1, DAYS):
        noise[day] = NOISE_MEMORY * noise[day - 1] + np.sqrt(1 - NOISE_MEMORY**2) * noise[day]
    week = np.tile([0.0, 3.0, 3.0, 3.0, 2.0, -4.0, -6.0], DAYS // 7 + 1)[:DAYS]
    # A method that knows the day before misses what is new in the noise.
    size = np.sqrt(1 - NOISE_MEMORY**2)
    values = 100 + week + noise - effect * size * (kinds == 1) + effect * size * (kinds == 2)

    announced = rng.permutation(kinds) if world == "shuffled" else kinds
    days = [START + timedelta(days=day) for day in range(DAYS)]
    headlines = []
    for day, kind in zip(days, announced, strict=True):
        titles = [f"{rng.choice(WHO)} {rng.choice(WHAT)}" for _ in range(rng.integers(2, 7))]
        if kind:
            event = list(EVENTS)[kind - 1]
            titles.append(f"{event} {rng.choice(EVENTS[event])}")
        headlines += [(day - timedelta(hours=6), title) for title in titles]
    return (
        pl.DataFrame({"ds": days, "y": values}),
        pl.DataFrame(headlines, schema=["ds", "title"], orient="row"),
    )


def audit(world: str, effect: float, seed: int) -> NewsAudit:
    """Return the audit of a table; words are hashed, as no headline has other words."""
    table, news = make_table(world, effect, seed)
    forecaster = Forecaster(horizon=1)
    known = forecaster._take(table, None, news)
    spec, articles = forecaster._plan(known), known.articles
    windows = build_windows(spec, **known.list_frames(spec))
    encoder = load_encoder("hashing")
    pool = NewsPool(articles, encoder.encode(articles["title"].to_list()), encoder.name)
    return audit_news(join_for_refit(windows.split("train"), windows.split("val")), pool)


def measure(seeds: int) -> Iterator[Row]:
    """Yield how many verdicts are right, by world and effect."""
    third = math.ceil(seeds / 3)
    cases = [("strikes", effect, third) for effect in (0.5, 1.0, 2.0)]
    cases += [("strikes", 0.0, seeds), ("shuffled", 1.0, third), ("opposite", 0.5, third)]
    for world, effect, count in cases:
        audits = [audit(world, effect, seed) for seed in range(count)]
        is_there = effect > 0 and world != "shuffled"
        right = sum(each.is_seen is is_there for each in audits)
        helps = sum(each.verdict.startswith("Yes") for each in audits)
        found = {"world": world, "effect": effect, "seeds": count, "right": right, "helps": helps}
        yield found | describe_surroundings(())


def compare_readers(seeds: int) -> Iterator[Row]:
    """Yield the errors of the last days without news, by a ridge on words and by agents."""
    for world, effect in (("strikes", 1.0), ("strikes", 2.0), ("opposite", 2.0), ("shuffled", 2.0)):
        for seed in range(seeds):
            table, news = make_table(world, effect, seed)
            forecaster = Forecaster(horizon=1, preset="own-news")
            done = forecaster.backtest(table, windows=LAST_DAYS, methods=READERS, news=news)
            errors = {name: (done["y"] - done[name]).abs().mean() for name in READERS}
            case = {"world": world, "effect": effect, "seed": seed}
            yield case | errors | describe_surroundings(())


def main(
    agents: Annotated[bool, typer.Option("--agents", help="Compare agents with a ridge.")] = False,
    seeds: Annotated[int, typer.Option(help="100 of audits, 5 of agents unless given.")] = 0,
) -> None:
    """Measure, and write each row as it comes."""
    if agents:
        write_each(compare_readers(seeds or 5), READING)
    else:
        write_each(measure(seeds or 100), ROWS)


if __name__ == "__main__":
    typer.run(main)
