"""Covariates and articles of a user's own: known when the file proves it, not before."""

from datetime import UTC, datetime

import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_pipeline.sources.own import articles, covariates
from compevo_pipeline.sources.own.declaration import CovariateKeys, Declaration, check_declaration
from tests.support.own_tables import declare, wrap


def read_covariates(text: str, known: str = "after") -> pl.DataFrame:
    keys = CovariateKeys(file="weather.csv", time="day", values=["temp"], known=known)  # type: ignore[arg-type]  # checked by pydantic
    declaration = declare(time_zone="Europe/Paris")
    return covariates.parse([wrap(text, "weather.csv")], declaration, keys, ["load_mw"])


def declare_news(**news: object) -> Declaration:
    raw = declare(time_zone="Europe/Paris").model_dump(exclude_none=True)
    return check_declaration({**raw, "news": {"articles": "a.csv", **news}}, "test")


def test_a_measured_day_is_known_when_it_is_over_and_a_plan_when_it_begins() -> None:
    text = "day,temp\n2024-01-05,4.5\n"
    measured = read_covariates(text)["available_at"].item()
    planned = read_covariates(text, known="before")["available_at"].item()
    # Midnights of Paris, an instant before: what is known at the origin itself is too late.
    assert measured == datetime(2024, 1, 5, 22, 59, 59, 999999, tzinfo=UTC)
    assert planned == datetime(2024, 1, 4, 22, 59, 59, 999999, tzinfo=UTC)


def test_finer_rows_become_mean_lowest_and_highest_of_the_local_day() -> None:
    text = "day,temp\n2024-01-05 00:00,1\n2024-01-05 12:00,8\n2024-01-06 00:00,5\n"
    rows = read_covariates(text).filter(pl.col("valid_date") == pl.date(2024, 1, 5))
    assert dict(zip(rows["name"], rows["value"], strict=True)) == {
        "temp_mean": 4.5,
        "temp_min": 1.0,
        "temp_max": 8.0,
    }


def test_a_day_twice_is_refused_with_its_row() -> None:
    with pytest.raises(DataError, match=r"weather\.csv, row 3, column 'day': '2024-01-05' comes"):
        read_covariates("day,temp\n2024-01-05,1\n2024-01-05,2\n")


def test_an_article_is_known_at_its_time_and_a_date_alone_at_the_end_of_its_day() -> None:
    timed = wrap("published_at,title\n2024-01-05 08:00,Plant closes for repairs\n", "a.csv")
    dated = wrap("published_at,title\n2024-01-05,Plant closes for repairs\n", "a.csv")
    known = [articles.parse([raw], declare_news())["available_at"].item() for raw in (timed, dated)]
    assert known == [
        datetime(2024, 1, 5, 7, tzinfo=UTC),
        datetime(2024, 1, 5, 23, tzinfo=UTC),
    ]


def test_words_keep_articles_and_a_page_of_another_data_set_is_another_article() -> None:
    text = "published_at,title,url\n2024-01-05 08:00,Plant closes,https://a.org/1\n"
    text += "2024-01-05 09:00,Football,https://a.org/2\n"
    raw = wrap(text, "a.csv")
    kept = articles.parse([raw], declare_news(keywords=["plant"], url="url"))
    assert kept["title"].to_list() == ["Plant closes"]

    other = declare_news(url="url").model_copy(update={"name": "other"})
    assert kept["article_id"].item() not in articles.parse([raw], other)["article_id"].to_list()


def test_an_article_without_a_headline_is_refused_with_its_row() -> None:
    raw = wrap("published_at,title\n2024-01-05 08:00,\n", "a.csv")
    with pytest.raises(DataError, match=r"a\.csv, row 2, column 'title': .* is no headline"):
        articles.parse([raw], declare_news())
