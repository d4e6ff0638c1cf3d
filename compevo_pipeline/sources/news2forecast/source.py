"""News2Forecast electricity benchmark: its published prompts as records, numbers and news (NeurIPS 2024, MIT).

What belongs here: the two JSON files of 100 samples each, taken apart. What does not: the news tables (``n2f_news``),
windows (``compevo_core.data.published_windows``).
A sample is ``instruction`` (48 inputs), ``output`` (48 targets) and ``input``, one paragraph with region, dates,
weather and news. The paragraph holds the *observed* weather of the predicted day, and the validation file also news of
that day: reading it into a forecast is leakage. It is parsed for comparison; windows take only the numbers, region and
date.
"""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import BENCHMARK_SCHEMA
from compevo_core.errors import SchemaDrift, SourceAbsent
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    archive_files,
    archive_raw,
    read_json,
)
from compevo_pipeline.sources.common.nem import PERIODS_PER_DAY
from compevo_pipeline.sources.common.sample_world import SampleWorld
from compevo_pipeline.sources.news2forecast import news as n2f_news
from compevo_pipeline.sources.news2forecast import sample as n2f_sample
from compevo_pipeline.sources.news2forecast.news import NewsItem

SOURCE = "n2f_benchmark"
FOLDER = "n2f_electricity"
TEST_PATTERN = "AULF_test_data_*.json"
VALIDATION_PATTERN = "AULF_validation_data_*.json"
STATES = ("NSW", "QLD", "SA", "TAS", "VIC")
HISTORY = "The historical load data is: "

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

_DAY = (
    r"on (?P<{0}>\d{{4}}-\d{{1,2}}-\d{{1,2}}) that is (?:Weekday|Weekend), "
    r"and it is (?:not a public holiday|a public holiday: (?P<{0}_holiday>.+?))\. "
)
_WEATHER = (
    r"Weather of the {0} date: the minimum temperature is (\S+); the maximum temperature is (\S+); "
    r"the humidity is (\S+); the pressure is (\S+)\.\s*"
)
_PROMPT = re.compile(
    r"^Based on the historical load data, .*?The region for prediction is (?P<region>\w+)\. "
    + r"The start date of historical data was " + _DAY.format("history")
    + r"The data frequency is 30 minutes per point\. Historical data covers 1 day\. "
    + r"The date of prediction is " + _DAY.format("target")
    + r"(?P<weather>" + _WEATHER.format("start") + _WEATHER.format("prediction") + r")(?P<news>.*)$",
    re.DOTALL,
)  # fmt: skip
_WEATHER_VALUES = re.compile(_WEATHER.format("start") + _WEATHER.format("prediction"))
_STAMPED = re.compile(
    r"On (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d), the news can change the time series fluctuation that (.*?)\s*"
    r"(?=On \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, the news can|$)",
    re.DOTALL,
)
_DATED = re.compile(
    r"On (\d{4}-\d\d-\d\d), in the state of (.*?), the news was: '(.*?)'\. Rationality behind it: (.*?)\s*"
    r"(?=On \d{4}-\d\d-\d\d, in the state of |No relevant news available for |$)",
    re.DOTALL,
)


def raw_files(mode: Mode, *, archive: Path | None = None, clock: Clock) -> Iterator[RawFile]:
    """Yield the benchmark's test file, its validation file (archive only) and the news tables.

    Raises:
        SourceAbsent: live mode, or no such files in the archive.
    """
    match mode:
        case Mode.SAMPLE:
            world = SampleWorld()
            yield n2f_sample.benchmark(world, SOURCE)
            yield n2f_sample.news_table(world, n2f_news.SOURCE)
        case Mode.ARCHIVE:
            for pattern in (TEST_PATTERN, VALIDATION_PATTERN):
                for path in archive_files(archive, FOLDER, pattern):
                    yield archive_raw(
                        path, path.parents[1], source=SOURCE, member=None, clock=clock
                    )
            for path in archive_files(archive, FOLDER, n2f_news.PATTERN):
                yield archive_raw(
                    path, path.parents[1], source=n2f_news.SOURCE, member=None, clock=clock
                )
        case Mode.LIVE:
            raise SourceAbsent(
                "News2Forecast is a published benchmark without a live endpoint; use the archive mode"
            )


def is_test_file(raw: RawFile) -> bool:
    """Whether ``raw`` is the 100-window test set (and not the validation sample, whose targets lie in training)."""
    return raw.source == SOURCE and raw.name.startswith("AULF_test_data")


def parse_benchmark(raw: RawFile) -> pl.DataFrame:
    """Parse a benchmark file into ``BENCHMARK_SCHEMA``: one row a sample, ``x`` and ``y`` as published, MW.

    Raises:
        SchemaDrift: the document or a sample is not as known; names the sample, counted from 0.
    """
    rows = []
    for record, sample in enumerate(_samples(raw)):
        match = _prompt(raw, record, sample)
        rows.append(
            {
                "record": record,
                "entity": f"{match['region']}1",
                "target_date": _date(raw, record, match["target"]),
                "x": _numbers(
                    raw, record, "instruction", sample["instruction"].removeprefix(HISTORY)
                ),
                "y": _numbers(raw, record, "output", sample["output"]),
                "source": raw.label,
            }
        )
    return pl.DataFrame(rows, schema=BENCHMARK_SCHEMA)


def parse_prompts(raw: RawFile) -> pl.DataFrame:
    """Parse the paragraphs into ``PROMPT_SCHEMA``; the target's weather and holiday are what the prompt discloses.

    Raises:
        SchemaDrift: as :func:`parse_benchmark`.
    """
    rows = []
    for record, sample in enumerate(_samples(raw)):
        match = _prompt(raw, record, sample)
        found = _WEATHER_VALUES.fullmatch(match["weather"])
        weather = (
            [_number(raw, record, "weather", text) for text in found.groups()] if found else []
        )
        rows.append(
            {
                "record": record,
                "entity": f"{match['region']}1",
                "history_date": _date(raw, record, match["history"]),
                "target_date": _date(raw, record, match["target"]),
                "history_holiday": match["history_holiday"] or "",
                "target_holiday": match["target_holiday"] or "",
                "history_weather": weather[:4],
                "target_weather": weather[4:],
                "news": match["news"].strip(),
                "source": raw.label,
            }
        )
    return pl.DataFrame(rows, schema=PROMPT_SCHEMA)


def parse_prompt_articles(raw: RawFile) -> pl.DataFrame:
    """Parse the news quoted in the prompts into ``ARTICLE_SCHEMA``.

    Test prompts carry a stamp and only the model-written effect of an item; validation prompts carry a date, the
    item and its effect. An item with a date alone counts as available from the end of that day in Sydney.

    Raises:
        SchemaDrift: as :func:`parse_benchmark`, or news text of another form.
    """
    items: list[NewsItem] = []
    for row in parse_prompts(raw).iter_rows(named=True):
        items += _items(raw, row["record"], row["entity"], row["news"])
    return n2f_news.item_frame(items, raw)


def _items(raw: RawFile, record: int, entity: str, news: str) -> Iterator[NewsItem]:
    stamped, dated = _STAMPED.findall(news), _DATED.findall(news)
    if (
        news
        and not stamped
        and not dated
        and not news.startswith("No relevant news available for ")
    ):
        raise SchemaDrift(
            f"{raw.name}, sample {record}: news of unknown form ({news[:60]!r}); extend the parser"
        )
    for stamp, effect in stamped:
        yield NewsItem(
            text=effect,
            region=entity.removesuffix("1"),
            reason="",
            published=n2f_news.local_stamp(stamp),
        )
    for day, region, text, reason in dated:
        if not n2f_news.says_no_news(text):
            seen = n2f_news.end_of_day(day)
            yield NewsItem(text=text, region=region, reason=reason, published=None, seen=seen)


def _samples(raw: RawFile) -> list[dict[str, str]]:
    document = read_json(raw.content, raw.name)
    if not isinstance(document, list) or not document:
        raise SchemaDrift(
            f"{raw.name}: not a non-empty list of samples; is this a News2Forecast data file?"
        )
    for record, sample in enumerate(document):
        fields = ("instruction", "input", "output")
        if not isinstance(sample, dict) or any(
            not isinstance(sample.get(field), str) for field in fields
        ):
            raise SchemaDrift(
                f"{raw.name}, sample {record}: not texts {', '.join(fields)}; fetch the file again"
            )
    return document


def _prompt(raw: RawFile, record: int, sample: dict[str, str]) -> re.Match[str]:
    match = _PROMPT.match(sample["input"])
    if (
        match is None
        or match["region"] not in STATES
        or not sample["instruction"].startswith(HISTORY)
    ):
        raise SchemaDrift(
            f"{raw.name}, sample {record}: the prompt's wording changed; extend the pattern in n2f.py"
        )
    return match


def _date(raw: RawFile, record: int, text: str) -> date:
    try:
        return date(*(int(part) for part in text.split("-")))
    except ValueError as error:
        raise SchemaDrift(
            f"{raw.name}, sample {record}: {text!r} is no date; fetch the file again"
        ) from error


def _numbers(raw: RawFile, record: int, field: str, text: str) -> list[float]:
    values = [_number(raw, record, field, part) for part in text.split(",")]
    if len(values) != PERIODS_PER_DAY:
        found = f"{field} has {len(values)} numbers, not {PERIODS_PER_DAY}"
        raise SchemaDrift(f"{raw.name}, sample {record}: {found}; fetch the file again")
    return values


def _number(raw: RawFile, record: int, field: str, text: str) -> float:
    if not re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", text):
        raise SchemaDrift(
            f"{raw.name}, sample {record}: {field} holds {text!r}, not a number; fetch the file again"
        )
    return float(text)
