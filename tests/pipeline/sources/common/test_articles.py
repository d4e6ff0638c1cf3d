"""From records to articles: of two versions of one page, what was known first counts."""

from datetime import UTC, datetime, timedelta

from compevo_pipeline.sources.common.articles import NewsRecord, build_article_frame
from compevo_pipeline.sources.common.base import Mode, RawFile

SEEN = datetime(2020, 1, 1, tzinfo=UTC)
RAW = RawFile(
    source="gdelt", name="x.json", content=b"", url="file:x", fetched_at=SEEN, mode=Mode.ARCHIVE
)


def make_record(title: str, hours: int) -> NewsRecord:
    return NewsRecord(
        url="https://example.org/a",
        title=title,
        published_at=None,
        seen_at=SEEN + timedelta(hours=hours),
    )


def test_the_version_seen_first_stays_whatever_the_order_in_the_file():
    records = [make_record("Edited after the event", 5), make_record("First\n  report", 1)]
    for listed in (records, records[::-1]):
        frame = build_article_frame(listed, RAW, SEEN)
        assert frame["title"].to_list() == ["First report"]
        assert frame["available_at"].to_list() == [SEEN + timedelta(hours=1)]
