"""GDELT files of the sample and archive modes as one frame."""

import json
import shutil
from datetime import UTC, date, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.news import ArticleIndex, validate_articles
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer
from compevo_pipeline.sources.common.base import Mode, read_sample_files
from compevo_pipeline.sources.gdelt import source as gdelt
from tests.support.sources import clock, raw


@pytest.fixture(scope="module")
def sample():
    return gdelt.parse_all(gdelt.read_files(Mode.SAMPLE, archive=None, clock=clock))


@pytest.fixture(scope="module")
def stored(archive_dir):
    raws = list(gdelt.read_files(Mode.ARCHIVE, archive=archive_dir, clock=clock))
    return raws, *gdelt.parse_all(raws)


def test_the_sample_is_valid_labelled_and_the_same_every_time(sample):
    frame, report = sample
    validate_articles(frame)
    assert frame["source"].str.starts_with("sample:gdelt_").all()
    assert frame["domain"].str.ends_with(".example").all()
    assert report.records == frame.height + report.untitled


def test_the_sample_has_all_three_formats(sample):
    kinds = sample[0]["source"].str.extract(r"\.([a-z.]+)$").unique()
    assert set(kinds) == {"json", "gal.json.gz", "gkg.csv.zip"}


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (date(2016, 1, 3), date(2016, 3, 31)),
        (date(2018, 12, 1), date(2021, 12, 31)),
        (date(2019, 1, 1), date(2022, 12, 30)),
        (date(2019, 5, 1), date(2021, 1, 30)),
        (date(2026, 2, 15), date(2026, 3, 30)),
    ],
)
def test_every_sample_window_finds_candidates_before_its_origin(sample, first, last):
    for offset in range(0, (last - first).days + 1, 5):
        day = first + timedelta(days=offset)
        origin = datetime(day.year, day.month, day.day, tzinfo=UTC)
        candidates = ArticleIndex(sample[0]).find_before(origin, timedelta(days=7), 64)
        assert len(candidates) >= 3, day


def test_an_article_in_several_files_is_parsed_once():
    poll = (
        '{"articles": [{"url": "https://example.org/a", "title": "Storm nears coast", '
        '"seendate": "20260301T%s0000Z"}]}'
    )
    raws = [raw(f"{hour}.json", poll % hour) for hour in ("05", "03", "04")]
    frame, report = gdelt.parse_all([*raws, raw("e.json", "{}")])
    assert frame["available_at"].to_list() == [datetime(2026, 3, 1, 3, tzinfo=UTC)]
    assert (report.files, report.empty_answers, report.records) == (4, 1, 3)


def test_nothing_but_empty_answers_is_a_failure():
    with pytest.raises(EmptyNewsAnswer, match="none of 2 news files"):
        gdelt.parse_all([raw("a.json", "{}"), raw("b.json", '{"articles": []}')])


def test_bulk_files_dropped_into_the_archive_are_read(tmp_path, archive_dir):
    (tmp_path / "gdelt_doc_artlist").mkdir()
    shutil.copy(
        archive_dir / "gdelt_doc_artlist" / "2026-03-14.tar.gz", tmp_path / "gdelt_doc_artlist"
    )
    (tmp_path / "gdelt_bulk").mkdir()
    (tmp_path / "gdelt_bulk" / "readme.gif").write_bytes(b"x")
    for bulk in read_sample_files(gdelt.BULK_SOURCE):
        (tmp_path / "gdelt_bulk" / bulk.name).write_bytes(bulk.content)
    raws = [
        file
        for file in gdelt.read_files(Mode.ARCHIVE, archive=tmp_path, clock=clock)
        if file.source == "gdelt_bulk"
    ]
    assert len(raws) == 2
    assert [gdelt.parse_counted(file)[0].height for file in raws] == [10, 9]


def test_the_stored_polls_hold_what_was_counted_in_them(stored):
    raws, frame, report = stored
    assert len(raws) == 194
    assert (report.files, report.empty_answers, report.records) == (194, 1, 17_934)
    assert (report.unreadable, report.repairs, report.replaced_bytes) == (0, 0, 0)
    assert report.untitled == 5
    assert frame["language"].n_unique() == 60
    validate_articles(frame)


def test_the_stored_polls_list_14736_addresses_and_all_but_the_untitled_and_respelled_are_kept(
    stored,
):
    raws, frame, _ = stored
    polls = [file for file in raws if not file.url.endswith("empty_response/gdelt.json")]
    listed = {event["url"] for file in polls for event in json.loads(file.content)["events"]}
    parsed = pl.concat(gdelt.parse_counted(file)[0] for file in polls)
    assert len(listed) == 14_736
    assert parsed["url"].n_unique() == 14_693
    assert parsed["article_id"].n_unique() == 14_673
    assert frame["article_id"].n_unique() == frame.height == 11_911


def test_the_stored_polls_saw_no_article_after_they_were_fetched(stored):
    _, frame, _ = stored
    delay = frame["fetched_at"] - frame["seen_at"]
    assert delay.min() >= timedelta(minutes=10)
    assert (frame["seen_at"].dt.minute() % 15 == 0).all()
    assert frame["seen_at"].min() == datetime(2026, 3, 10, 6, tzinfo=UTC)
    assert frame["seen_at"].max() == datetime(2026, 3, 17, 22, 45, tzinfo=UTC)
