"""News2Forecast prompts and news tables."""

import json
from datetime import UTC, datetime

import pytest

from compevo_core.data.news import validate_articles
from compevo_pipeline.sources import news2forecast
from tests.fuzz.seeds import FILES
from tests.support.sources import raw

SAMPLE = "AULF_test_data_sample.json"
(BENCHMARK, *_) = json.loads((FILES / SAMPLE).read_bytes())
STAMPED = "On 2021-04-03 {}:00, the news can change the time series fluctuation that {}"


def test_stamped_news_is_read_in_sydney_time():
    items = (("11:42", "Flooding may follow."), ("23:40", "A leak. On the run."))
    news = " ".join(STAMPED.format(*item) for item in items)
    prompt = BENCHMARK["input"].replace("not a public holiday", "a public holiday: Easter Sunday")
    content = json.dumps([BENCHMARK | {"input": f"{prompt}{news}"}])

    frame = news2forecast.parse_prompt_articles(raw(SAMPLE, content, news2forecast.SOURCE))

    assert frame["title"].to_list() == [text for _, text in items]
    stamps = [datetime(2021, 4, 3, 0, 42, tzinfo=UTC), datetime(2021, 4, 3, 12, 40, tzinfo=UTC)]
    assert frame["available_at"].to_list() == stamps


def table(*rows):
    name = "AU_load_merge_file_final_iteration_0.csv"
    return raw(name, "\n".join(["time,news,region,rationality,date", *rows, ""]), "n2f_news")


def test_a_stamp_is_when_news_was_available():
    file = table('2019-01-03 17:57:00,"SA sweltered, again",SA,Heat,2019-01-03')
    frame, counts = news2forecast.parse_news(file)
    row = frame.row(0, named=True)

    assert row["available_at"] == row["published_at"] == datetime(2019, 1, 3, 6, 57, tzinfo=UTC)
    texts = ["SA sweltered, again", "Region: SA. Comment: Heat", "Australia"]
    assert [row[name] for name in ("title", "body", "country")] == texts
    assert counts == {"rows without news": 0}


@pytest.mark.parametrize(
    ("local", "utc"),
    [
        ("2019-07-01 12:00:00", datetime(2019, 7, 1, 2, tzinfo=UTC)),
        ("2019-01-01 12:00:00", datetime(2019, 1, 1, 1, tzinfo=UTC)),
        # An hour that comes twice is the later one.
        ("2019-04-07 02:30:00", datetime(2019, 4, 6, 16, 30, tzinfo=UTC)),
    ],
)
def test_stamps_follow_daylight_saving(local, utc):
    frame, _ = news2forecast.parse_news(table(f"{local},Heat,SA,r,{local[:10]}"))
    assert frame["published_at"].to_list() == [utc]


def test_a_misdated_item_counts_from_days_end():
    early = "2019-01-03 16:40:00,Work starts,WA,r,2019-01-12"
    late = "2019-03-15 11:30:00,Project starts,WA,r,2019-01-12"
    untimed = "N/A,A cold snap,VIC,r,2019-01-12"
    frame, _ = news2forecast.parse_news(table(early, late, untimed))
    at = dict(frame.select("title", "available_at").rows())
    assert at["Work starts"] == at["A cold snap"] == datetime(2019, 1, 12, 13, 0, tzinfo=UTC)
    assert at["Project starts"] == datetime(2019, 3, 15, 0, 30, tzinfo=UTC)
    validate_articles(frame)


@pytest.mark.parametrize(
    "words", ["No relevant news found", "N/A", "", "No reported incidents affecting power"]
)
def test_rows_without_news_are_counted(words):
    kept = "2019-01-03 17:57:00,NO ONE can dispute the science,SA,r,2019-01-03"
    frame, counts = news2forecast.parse_news(table(f',"{words}",,,2019-01-03', kept, kept))
    assert frame["title"].to_list() == ["NO ONE can dispute the science"]
    assert counts == {"rows without news": 1}
