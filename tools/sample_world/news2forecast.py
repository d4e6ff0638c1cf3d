"""Synthetic News2Forecast files in its own formats, for the sample mode.

What belongs here: tables of invented news and weather and a few benchmark prompts, all from the
synthetic world. What does not: parsing. Every invented item states in its own text that it is
synthetic.

There is news on the days that windows of electricity can name.
"""

import csv
import io
import json
from datetime import date, timedelta

import numpy as np

from compevo_pipeline.sources.common.nem import REGIONS
from compevo_pipeline.sources.weather.observed import FILE, HEADER
from tools.sample_world.daily_news import write_day
from tools.sample_world.world import SEED, WEATHER_SPANS, SampleWorld, days_between

NEWS_SPANS = ((date(2019, 10, 31), date(2020, 1, 31)), (date(2020, 11, 30), date(2021, 1, 31)))
TARGET_DAYS = tuple(date(2021, 1, day) for day in range(5, 30, 2))
NEWS_FILE = "AU_load_merge_file_final_sample.csv"
BENCHMARK_FILE = "AULF_test_data_sample.json"
HISTORY = "The historical load data is: "

_HOLIDAYS = {date(2021, 1, 26): "Australia Day"}
_NO_NEWS = "there is no suitable news."
_NO_NEWS_SHARE = 0.1

# The comment that the benchmark's language model would add, by the topic of the announced event.
_COMMENTS = {
    "power outages": "Outages are likely to lower demand while lines are down.",
    "industrial production": "Large users that work more are likely to raise demand all day.",
    "": "No effect on demand is likely.",
}


def make_news_table(world: SampleWorld) -> tuple[str, bytes]:
    """Write the merged table: the headlines of each day, and rows without news."""
    generator = np.random.default_rng(SEED)
    rows: list[list[object]] = [["time", "news", "region", "rationality", "date"]]

    for day in (day for span in NEWS_SPANS for day in days_between(*span)):
        for item in write_day(world, day):
            # In summer Sydney is an hour ahead of the market.
            stamp = f"{day} {item.minute // 60 + 1:02d}:{item.minute % 60:02d}:00"
            state = item.region.removesuffix("1")
            rows.append([stamp, item.title, state, _COMMENTS[item.topic], day])

        if generator.uniform() < _NO_NEWS_SHARE:
            rows.append(["", _NO_NEWS, "", _NO_NEWS, day])

    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return NEWS_FILE, out.getvalue().encode()


def make_weather_table(world: SampleWorld) -> tuple[str, bytes]:
    """Write the collected table of weather, CRLF line ends included."""
    rows = [",".join(HEADER)]
    for day in (day for span in WEATHER_SPANS for day in days_between(*span)):
        for state, values in world.weather(day):
            rows.append(f"{day:%Y-%m-%d},{state}," + ",".join(f"{value:.2f}" for value in values))

    return FILE, "".join(row + "\r\n" for row in rows).encode()


def make_benchmark(world: SampleWorld) -> tuple[str, bytes]:
    """Write prompts for days of January 2021, with the benchmark's half-hour shift."""
    samples = []
    for number, day in enumerate(TARGET_DAYS):
        region = REGIONS[number % len(REGIONS)]
        before = day - timedelta(days=1)
        samples.append(
            {
                "instruction": HISTORY + _stamped_day(world, region, before),
                "input": _write_prompt(world, region, before, day),
                "output": _stamped_day(world, region, day),
            }
        )

    return BENCHMARK_FILE, json.dumps(samples, indent=1).encode()


def _write_prompt(world: SampleWorld, region: str, before: date, day: date) -> str:
    state = region.removesuffix("1")
    events = [event for event in world.events(day) if event.region == region]
    news = " ".join(
        f"On {before} 18:00:00, the news can change the time series fluctuation that "
        f"{_COMMENTS[event.topic]}"
        for event in events
    )

    # The wording is the published benchmark's, word by word: its parser reads this too.
    return (
        "Based on the historical load data, please predict the load consumption in the next day. "
        f"The region for prediction is {state}. "
        f"The start date of historical data was on {_describe_day(before)} "
        "The data frequency is 30 minutes per point. Historical data covers 1 day. "
        f"The date of prediction is on {_describe_day(day)} "
        f"Weather of the start date: {_describe_weather(world, region, before)}  "
        f"Weather of the prediction date: {_describe_weather(world, region, day)} {news}"
    )


def _describe_day(day: date) -> str:
    kind = "Weekend" if day.weekday() >= 5 else "Weekday"
    holiday = f"a public holiday: {_HOLIDAYS[day]}" if day in _HOLIDAYS else "not a public holiday"
    return f"{day.year}-{day.month}-{day.day} that is {kind}, and it is {holiday}."


def _describe_weather(world: SampleWorld, region: str, day: date) -> str:
    values = dict(world.weather(day))[region.removesuffix("1")]
    low, high, _, humidity, pressure = values[:5]
    return (
        f"the minimum temperature is {low:.2f}; the maximum temperature is {high:.2f}; "
        f"the humidity is {humidity:.1f}; the pressure is {pressure:.1f}."
    )


def _stamped_day(world: SampleWorld, region: str, day: date) -> str:
    """Write the 48 values of ``day`` as the benchmark cuts it."""
    # Rows are stamped 00:00 to 23:30 by interval ends: the first starts at 23:30 the day before.
    previous = world.demand(region, day - timedelta(days=1))
    values = np.concatenate([previous[-1:], world.demand(region, day)[:-1]])
    return ",".join(f"{value:.1f}" for value in values)
