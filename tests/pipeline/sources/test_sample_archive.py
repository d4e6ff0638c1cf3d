"""The packaged archive of the sample mode."""

import csv
import io
import zipfile
from datetime import date

import polars as pl
import pytest

from compevo_core.data.news import drop_near_identical, title_key_expr
from compevo_pipeline.sources.common import base
from compevo_pipeline.sources.common.nem import REGIONS
from tools.sample_world.__main__ import make_members
from tools.sample_world.daily_news import HEADLINES_PER_REGION


def test_files_are_labelled_as_invented():
    months = list(base.read_sample_files("pems"))
    assert [raw.label for raw in months] == [
        f"sample:pems/d04_text_station_hour_2016_{month:02d}.txt.gz" for month in (1, 2, 3)
    ]
    assert {raw.mode for raw in months} == {base.Mode.SAMPLE}
    assert {raw.fetched_at for raw in months} == {base.SAMPLE_FETCHED_AT}
    assert list(base.read_sample_files("no-such-product")) == []


def test_invented_news_says_so():
    (raw,) = base.read_sample_files("n2f_news")
    items = [item for item in csv.DictReader(io.StringIO(raw.content.decode())) if item["time"]]
    assert len(items) == 156 * len(REGIONS) * HEADLINES_PER_REGION
    titles = [item["news"] for item in items]
    assert all("synthetic" in title for title in titles)
    assert not [title for title in titles if any(map(str.isdigit, title))]

    articles = {"title": titles, "language": "English", "source": "gdelt"}
    frame = pl.DataFrame(articles).with_row_index("article_id")
    assert frame.select(title_key_expr().n_unique()).item() == len(titles)
    days = [date.fromisoformat(item["date"]) for item in items]
    dated = frame.with_columns(available_at=pl.Series(days).cast(pl.Datetime))
    assert drop_near_identical(dated).height == len(titles)


@pytest.mark.slow
def test_the_archive_is_what_the_script_writes():
    with zipfile.ZipFile(base.SAMPLE_ARCHIVE) as bundle:
        packed = {name: bundle.read(name) for name in bundle.namelist()}
    assert packed == dict(make_members())
