"""News2Forecast's electricity files: the test prompts as windows and news, and the table of news.

What belongs here: the merged table ``time,news,region,rationality,date``, whose items a language
model picked from Australian news of 2019-20, and the JSON file of 100 test prompts. What does not:
the validation prompts, whose targets are in the train split; windows (``compevo_core.data.build``).

A prompt's paragraph holds the *observed* weather of the predicted day: reading it into a forecast
is leakage. Windows use only the numbers, region and date; the weather is not read. News has local
Sydney time. An item without a timestamp on the day that it was collected for counts as available
only from the end of that day. ``rationality`` is the model's comment; the body names it as such.
"""

import functools
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo

import polars as pl
from pydantic import BaseModel, Field

from compevo_core.data.schemas import BENCHMARK_SCHEMA
from compevo_core.errors import SchemaDrift
from compevo_core.runtime.files import hash_text
from compevo_pipeline.sources.common.articles import NewsRecord, build_article_frame
from compevo_pipeline.sources.common.base import RawFile, read_product
from compevo_pipeline.sources.common.decode import check_document, read_json, read_text
from compevo_pipeline.sources.common.nem import PERIODS_PER_DAY
from compevo_pipeline.sources.common.tables import LINE, read_table

SOURCE = "n2f_benchmark"
FOLDER = "n2f_electricity"
NEWS = "n2f_news"
TEST_LABEL = f"archive:{SOURCE}/AULF_test_data"  # start of the label of the prompts

NEWS_HEADER = ("time", "news", "region", "rationality", "date")
ZONE = ZoneInfo("Australia/Sydney")
DOMAIN = "n2f"  # of unnamed publishers; an item's address is `n2f:` and a hash of time and text
STATES = ("NSW", "QLD", "SA", "TAS", "VIC")
HISTORY = "The historical load data is: "
_HASH_DIGITS = 24
_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_NO_NEWS = re.compile(
    r"(there (is|are) )?no "
    r"(suitable|relevant|applicable|appropriate|specific|direct|reported|real-time|news)\b.*"
    r"|no|n/?a|none|",
    re.IGNORECASE | re.DOTALL,
)
_HOLIDAY = (
    r" that is (?:Weekday|Weekend), and it is (?:not a public holiday|a public holiday: .+?)\. "
)
_WEATHER = (
    r"Weather of the {0} date: the minimum temperature is \S+; the maximum temperature is \S+; "
    r"the humidity is \S+; the pressure is \S+\.\s*"
)
_PROMPT = re.compile(
    r"^Based on the historical load data, .*?The region for prediction is (?P<region>\w+)\. "
    r"The start date of historical data was on \d{4}-\d{1,2}-\d{1,2}"
    + _HOLIDAY
    + r"The data frequency is 30 minutes per point\. Historical data covers 1 day\. "
    r"The date of prediction is on (?P<target>\d{4}-\d{1,2}-\d{1,2})"
    + _HOLIDAY
    + _WEATHER.format("start")
    + _WEATHER.format("prediction")
    + r"(?P<news>.*)$",
    re.DOTALL,
)

_STAMPED_NEWS = re.compile(
    r"On (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d), "
    r"the news can change the time series fluctuation that (.*?)\s*"
    r"(?=On \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, the news can|$)",
    re.DOTALL,
)


class _Sample(BaseModel):
    instruction: str
    input: str
    output: str


_Samples = Annotated[list[_Sample], Field(min_length=1)]


_read = functools.partial(read_product, folder=FOLDER)
read_prompts = functools.partial(_read, source=SOURCE, files=["AULF_test_data_*.json"])
read_news = functools.partial(_read, source=NEWS, files=["AU_load_merge_file_final_*.csv*"])


def parse_news(raw: RawFile) -> tuple[pl.DataFrame, dict[str, int]]:
    """Parse the merged table into ``ARTICLE_SCHEMA``; count its rows without news.

    They state in some wording that there is no suitable news, and are dropped.
    """
    text = read_text(raw.content, raw.name)
    table = read_table(text, raw.name, NEWS_HEADER, spans_lines=True)

    items = [item for row in table.iter_rows(named=True) if (item := _read_item(raw, row))]
    if not items:
        raise SchemaDrift(
            f"{raw.name}: no row holds a news item; an empty answer is not 'no news', "
            "fetch it again"
        )
    articles = build_article_frame(items, raw, raw.fetched_at)
    return articles, {"rows without news": table.height - len(items)}


def parse_benchmark(raw: RawFile) -> pl.DataFrame:
    """Parse a benchmark file into ``BENCHMARK_SCHEMA``: a row per sample, ``x`` and ``y`` in MW."""
    rows = []
    for record, sample, match in _match_prompts(raw):
        try:
            target_date = date(*(int(part) for part in match["target"].split("-")))
        except ValueError as error:
            raise SchemaDrift(
                f"{raw.name}, sample {record}: {match['target']!r} is not a date; fetch the file "
                "again"
            ) from error
        # The prompt was matched first, so a changed wording is named before a missing number.
        inputs = sample.instruction.removeprefix(HISTORY)
        rows.append(
            {
                "record": record,
                "entity": f"{match['region']}1",
                "target_date": target_date,
                "x": _read_numbers(raw, record, "instruction", inputs),
                "y": _read_numbers(raw, record, "output", sample.output),
                "source": raw.label,
            }
        )

    return pl.DataFrame(rows, schema=BENCHMARK_SCHEMA)


def parse_prompt_articles(raw: RawFile) -> pl.DataFrame:
    """Parse the news quoted in the prompts into ``ARTICLE_SCHEMA``.

    A prompt carries a timestamp and only the model-written effect of an item.
    """
    items: list[NewsRecord] = []
    for record, _, match in _match_prompts(raw):
        news = match["news"].strip()
        stamped = _STAMPED_NEWS.findall(news)
        # Text that the pattern does not fit would silently be lost.
        if news and not stamped:
            raise SchemaDrift(
                f"{raw.name}, sample {record}: news of unknown form ({news[:60]!r}); extend the "
                "parser"
            )

        try:
            for stamp, effect in stamped:
                items.append(_make_record(effect, match["region"], "", _sydney_to_utc(stamp)))
        except (ValueError, OverflowError) as error:
            raise SchemaDrift(
                f"{raw.name}, sample {record}: news without a time ({error}); fetch the file again"
            ) from error

    return build_article_frame(items, raw, raw.fetched_at)


def _sydney_to_utc(text: str) -> datetime:
    """Return a Sydney wall-clock time in UTC; of a repeated hour the later one.

    ValueError or OverflowError if it is not a time, or its UTC is before the year 1.
    """
    local = datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=ZONE, fold=1)
    return local.astimezone(UTC)


def _read_item(raw: RawFile, row: dict[str, str]) -> NewsRecord | None:
    """Return a row's item; None where it says that there is none."""
    stamp, day_text = row["time"].strip(), row["date"].strip()
    has_stamp = _STAMP.fullmatch(stamp) is not None
    # Without a timestamp the row is not an item of a publisher, so any "no ..." is the model's
    # answer; with one, "NO ONE can dispute ..." is a headline.
    starts_with_no = re.match(r"no\b", row["news"].strip(), re.IGNORECASE)
    if _NO_NEWS.fullmatch(row["news"].strip()) or (not has_stamp and starts_with_no):
        return None

    try:
        published_at = _sydney_to_utc(stamp) if has_stamp else None
    except (ValueError, OverflowError) as error:
        raise SchemaDrift(
            f"{raw.name}, line {row[LINE]}: time {stamp!r} is not a timestamp; "
            "correct or empty the cell"
        ) from error
    try:
        day = date.fromisoformat(day_text)
        # By the calendar and not by 24 hours: daylight saving makes days longer or shorter.
        end_of_day = datetime.combine(day + timedelta(days=1), time(), ZONE).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise SchemaDrift(
            f"{raw.name}, line {row[LINE]}: date {day_text!r} is not YYYY-MM-DD; correct the cell"
        ) from error

    is_on_its_day = published_at is not None and published_at.astimezone(ZONE).date() == day
    text, region, comment = (row[name].strip() for name in ("news", "region", "rationality"))
    return _make_record(text, region, comment, published_at, None if is_on_its_day else end_of_day)


def _make_record(
    text: str,
    region: str,
    comment: str,
    published_at: datetime | None,
    seen_at: datetime | None = None,
) -> NewsRecord:
    """Return an item as an article.

    ``seen_at`` is when it counts as known, where the timestamp does not decide that.
    """
    # The comment is the model's, so it must not look like the publisher's words.
    body = (f"Region: {region}." if region else "", f"Comment: {comment}" if comment else "")
    return NewsRecord(
        url=f"n2f:{hash_text(f'{published_at or seen_at}|{text}')[:_HASH_DIGITS]}",
        title=text,
        body=" ".join(part for part in body if part),
        domain=DOMAIN,
        language="English",
        country="Australia",
        published_at=published_at,
        seen_at=seen_at,
    )


def _match_prompts(raw: RawFile) -> Iterator[tuple[int, _Sample, re.Match[str]]]:
    """Yield the number of each sample, the sample, and what its prompt says."""
    samples = check_document(read_json(raw.content, raw.name), raw.name, _Samples)
    for record, sample in enumerate(samples):
        match = _PROMPT.match(sample.input)
        is_known = match is not None and match["region"] in STATES
        if match is None or not is_known or not sample.instruction.startswith(HISTORY):
            raise SchemaDrift(
                f"{raw.name}, sample {record}: the prompt's wording changed; "
                "extend the pattern in news2forecast.parse"
            )
        yield record, sample, match


def _read_numbers(raw: RawFile, record: int, field: str, text: str) -> list[float]:
    values = []
    for cell in text.split(","):
        # Stricter than float(): "nan", "inf" and "1e3" are none of the benchmark's numbers.
        if not re.fullmatch(r"\s*-?\d+(\.\d+)?\s*", cell):
            raise SchemaDrift(
                f"{raw.name}, sample {record}: {field} holds {cell!r}, not a number; "
                "fetch the file again"
            )
        values.append(float(cell))
    if len(values) != PERIODS_PER_DAY:
        raise SchemaDrift(
            f"{raw.name}, sample {record}: {field} has {len(values)} numbers, "
            f"not {PERIODS_PER_DAY}; fetch the file again"
        )

    return values
