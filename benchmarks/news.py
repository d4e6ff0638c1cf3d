"""What a ridge on words and agents gain from headlines, on made-up tables of a user.

What belongs here: tables of days with headlines, and the errors of forecasts with and without them.
What does not: news of the built-in data sets (the wing's experiments).

A table has two years of a daily series that is its week plus noise, which half follows the day
before. On a fifth of the days a strike lowers it by the effect, in standard deviations of what the
method misses. It is announced the evening before by one of six headlines, among two to six others
out of hundreds. In the world ``opposite`` heat raises the value on as many other days; in
``shuffled`` the effect is there and headlines are another day's.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.rows import Benchmark, Row
from compevo_core import Forecaster

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
CASES = [
    f"{world}/{seed}"
    for world in ("strikes/1", "strikes/2", "opposite/2", "shuffled/2")
    for seed in range(3)
]


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


def measure(case: str, folder: Path) -> Iterator[Row]:
    """Yield the errors of the last days without news, by a ridge on words and by agents."""
    world, effect, seed = case.split("/")
    table, news = make_table(world, float(effect), int(seed))
    forecaster = Forecaster(horizon=1, preset="own-news")
    done = forecaster.backtest(table, windows=LAST_DAYS, methods=READERS, news=news)
    errors = {name: (done["y"] - done[name]).abs().mean() for name in READERS}
    yield {"world": world, "effect": effect, "seed": seed} | errors


BENCHMARK = Benchmark(
    name="news",
    cases=CASES,
    measure=measure,
    key=("world", "effect", "seed"),
)

if __name__ == "__main__":
    BENCHMARK.main()
