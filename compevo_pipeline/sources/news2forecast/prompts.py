"""The published prompts of the News2Forecast electricity benchmark as records, numbers and news.

What belongs here: the two JSON files of 100 samples each, taken apart. What does not: the news
tables (``news2forecast.news``), windows (``compevo_core.data.published_windows``).

A sample is ``instruction`` (48 inputs), ``output`` (48 targets) and ``input``, one paragraph with
region, dates, weather and news. The paragraph holds the *observed* weather of the predicted day,
and the validation file also news of that day: reading it into a forecast is leakage. It is parsed
for comparison; windows take only the numbers, region and date.
"""

import re
from collections.abc import Iterator
from datetime import date

import polars as pl

from compevo_core.data.schemas import BENCHMARK_SCHEMA
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import read_json
from compevo_pipeline.sources.common.nem import PERIODS_PER_DAY
from compevo_pipeline.sources.news2forecast.news import (
    NewsItem,
    build_item_frame,
    end_of_day_utc,
    is_no_news,
    sydney_to_utc,
)

STATES = ("NSW", "QLD", "SA", "TAS", "VIC")
HISTORY = "The historical load data is: "
FIELDS = ("instruction", "input", "output")

PROMPT_SCHEMA: dict[str, pl.DataType] = {
    "record": pl.Int64(),
    "entity": pl.String(),
    "history_date": pl.Date(),
    "target_date": pl.Date(),
    "history_holiday": pl.String(),
    "target_holiday": pl.String(),
    "history_weather": pl.List(pl.Float64),
    "target_weather": pl.List(pl.Float64),
    "news": pl.String(),
    "source": pl.String(),
}
"""Weather lists hold minimum and maximum (kelvin), humidity (%) and pressure (hPa)."""

_WEATHER_VALUES = 4
_DAY = (
    r"on (?P<{0}>\d{{4}}-\d{{1,2}}-\d{{1,2}}) that is (?:Weekday|Weekend), "
    r"and it is (?:not a public holiday|a public holiday: (?P<{0}_holiday>.+?))\. "
)
_WEATHER = (
    r"Weather of the {0} date: the minimum temperature is (\S+); the maximum temperature is (\S+); "
    r"the humidity is (\S+); the pressure is (\S+)\.\s*"
)
_BOTH_WEATHERS = _WEATHER.format("start") + _WEATHER.format("prediction")
_PROMPT = re.compile(
    r"^Based on the historical load data, .*?The region for prediction is (?P<region>\w+)\. "
    r"The start date of historical data was "
    + _DAY.format("history")
    + r"The data frequency is 30 minutes per point\. Historical data covers 1 day\. "
    r"The date of prediction is "
    + _DAY.format("target")
    + r"(?P<weather>"
    + _BOTH_WEATHERS
    + r")(?P<news>.*)$",
    re.DOTALL,
)
_WEATHER_NUMBERS = re.compile(_BOTH_WEATHERS)

_NOTHING = "No relevant news available for "
_STAMPED_NEWS = re.compile(
    r"On (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d), "
    r"the news can change the time series fluctuation that (.*?)\s*"
    r"(?=On \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, the news can|$)",
    re.DOTALL,
)
_DATED_NEWS = re.compile(
    r"On (\d{4}-\d\d-\d\d), in the state of (.*?), the news was: '(.*?)'\. "
    r"Rationality behind it: (.*?)\s*"
    r"(?=On \d{4}-\d\d-\d\d, in the state of |No relevant news available for |$)",
    re.DOTALL,
)


def parse_benchmark(raw: RawFile) -> pl.DataFrame:
    """Parse a benchmark file into ``BENCHMARK_SCHEMA``: one row a sample, ``x`` and ``y`` in MW.

    Raises:
        SchemaDrift: the document or a sample is not as known; names the sample, counted from 0.
    """
    rows = []
    for record, sample in enumerate(_read_samples(raw)):
        match = _match_prompt(raw, record, sample)
        # The prompt was matched first, so a changed wording is named before a missing number.
        inputs = sample["instruction"].removeprefix(HISTORY)
        rows.append(
            {
                "record": record,
                "entity": f"{match['region']}1",
                "target_date": _read_date(raw, record, match["target"]),
                "x": _read_numbers(raw, record, "instruction", inputs),
                "y": _read_numbers(raw, record, "output", sample["output"]),
                "source": raw.label,
            }
        )

    return pl.DataFrame(rows, schema=BENCHMARK_SCHEMA)


def parse_prompts(raw: RawFile) -> pl.DataFrame:
    """Parse the paragraphs into :data:`PROMPT_SCHEMA`.

    The target's weather and holiday are what the prompt discloses.

    Raises:
        SchemaDrift: as :func:`parse_benchmark`.
    """
    rows = []
    for record, sample in enumerate(_read_samples(raw)):
        match = _match_prompt(raw, record, sample)
        numbers = _WEATHER_NUMBERS.fullmatch(match["weather"])
        cells = numbers.groups() if numbers else ()
        weather = [_read_number(raw, record, "weather", cell) for cell in cells]

        rows.append(
            {
                "record": record,
                "entity": f"{match['region']}1",
                "history_date": _read_date(raw, record, match["history"]),
                "target_date": _read_date(raw, record, match["target"]),
                "history_holiday": match["history_holiday"] or "",
                "target_holiday": match["target_holiday"] or "",
                "history_weather": weather[:_WEATHER_VALUES],
                "target_weather": weather[_WEATHER_VALUES:],
                "news": match["news"].strip(),
                "source": raw.label,
            }
        )

    return pl.DataFrame(rows, schema=PROMPT_SCHEMA)


def parse_prompt_articles(raw: RawFile) -> pl.DataFrame:
    """Parse the news quoted in the prompts into ``ARTICLE_SCHEMA``.

    Test prompts carry a timestamp and only the model-written effect of an item; validation prompts
    carry a date, the item and its effect. An item with a date alone counts as available from the
    end of that day in Sydney.

    Raises:
        SchemaDrift: as :func:`parse_benchmark`, or news text of another form.
    """
    items: list[NewsItem] = []
    for row in parse_prompts(raw).iter_rows(named=True):
        items += _read_items(raw, row["record"], row["entity"], row["news"])

    return build_item_frame(items, raw)


def _read_items(raw: RawFile, record: int, entity: str, news: str) -> Iterator[NewsItem]:
    stamped = _STAMPED_NEWS.findall(news)
    dated = _DATED_NEWS.findall(news)

    # Text that no pattern fits would silently be lost.
    if news and not stamped and not dated and not news.startswith(_NOTHING):
        raise SchemaDrift(
            f"{raw.name}, sample {record}: news of unknown form ({news[:60]!r}); extend the parser"
        )

    try:
        for stamp, effect in stamped:
            yield NewsItem(
                text=effect,
                region=entity.removesuffix("1"),
                comment="",
                published_at=sydney_to_utc(stamp),
            )
        for day, region, text, comment in dated:
            if not is_no_news(text):
                yield NewsItem(
                    text=text,
                    region=region,
                    comment=comment,
                    published_at=None,
                    seen_at=end_of_day_utc(day),
                )
    except ValueError as error:
        raise SchemaDrift(
            f"{raw.name}, sample {record}: news of no day or time ({error}); fetch the file again"
        ) from error


def _read_samples(raw: RawFile) -> list[dict[str, str]]:
    document = read_json(raw.content, raw.name)
    if not isinstance(document, list) or not document:
        raise SchemaDrift(
            f"{raw.name}: not a non-empty list of samples; "
            "check whether this is a News2Forecast data file"
        )

    for record, sample in enumerate(document):
        is_text = isinstance(sample, dict) and all(
            isinstance(sample.get(field), str) for field in FIELDS
        )
        if not is_text:
            raise SchemaDrift(
                f"{raw.name}, sample {record}: not texts {', '.join(FIELDS)}; fetch the file again"
            )
    return document


def _match_prompt(raw: RawFile, record: int, sample: dict[str, str]) -> re.Match[str]:
    match = _PROMPT.match(sample["input"])
    is_known = match is not None and match["region"] in STATES
    if match is None or not is_known or not sample["instruction"].startswith(HISTORY):
        raise SchemaDrift(
            f"{raw.name}, sample {record}: the prompt's wording changed; "
            "extend the pattern in news2forecast.prompts"
        )

    return match


def _read_date(raw: RawFile, record: int, text: str) -> date:
    try:
        return date(*(int(part) for part in text.split("-")))
    except ValueError as error:
        raise SchemaDrift(
            f"{raw.name}, sample {record}: {text!r} is no date; fetch the file again"
        ) from error


def _read_numbers(raw: RawFile, record: int, field: str, text: str) -> list[float]:
    values = [_read_number(raw, record, field, cell) for cell in text.split(",")]
    if len(values) != PERIODS_PER_DAY:
        raise SchemaDrift(
            f"{raw.name}, sample {record}: {field} has {len(values)} numbers, "
            f"not {PERIODS_PER_DAY}; fetch the file again"
        )

    return values


def _read_number(raw: RawFile, record: int, field: str, text: str) -> float:
    # Stricter than float(): "nan", "inf" and "1e3" are none of the benchmark's numbers.
    if not re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", text):
        raise SchemaDrift(
            f"{raw.name}, sample {record}: {field} holds {text!r}, not a number; "
            "fetch the file again"
        )

    return float(text)
