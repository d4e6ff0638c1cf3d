"""Synthetic news in GDELT's own formats, for the sample mode.

What belongs here: writing invented headlines as GDELT would (monthly DOC answers, a GAL and a GKG
file). What does not: the words (``headlines``), reading them (the real parsers do).

Every headline, outlet and address is invented (addresses end in ``.example``); the same bytes come
out on every call. The days cover the sample series of all four data sets and the inference window
of 2026.
"""

import gzip
import html
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import numpy as np

from compevo_pipeline.sources.common.nem import NEM_OFFSET
from tools.sample_world.daily_news import write_day
from tools.sample_world.headlines import OUTLETS, Headlines
from tools.sample_world.world import SampleWorld, days_between

_SEED = 2026
_QUARTER_HOURS_PER_DAY = 96
_STAMP = "%Y%m%d%H%M%S"
_GAL_STAMP = datetime(2026, 3, 1, 3, 16, 0, tzinfo=UTC)
_GKG_STAMP = datetime(2026, 3, 2, 4, 0, 0, tzinfo=UTC)
_ZIP_DATE = (2026, 3, 2, 4, 0, 0)  # fixed: a zip stores the time of its members
_BULK_ARTICLES = 10
_BULK_TOPICS = ("energy", "weather", "finance", "crypto", "traffic")
_GKG_COLUMNS = 27


BEATS = (
    ("traffic", date(2015, 12, 28), date(2016, 4, 2), 2),
    ("energy", date(2018, 11, 24), date(2021, 12, 31), 1),
    ("finance", date(2019, 1, 1), date(2022, 12, 31), 1),
    ("crypto", date(2020, 1, 1), date(2021, 2, 10), 1),
    ("energy", date(2026, 2, 12), date(2026, 3, 31), 2),
    ("weather", date(2026, 2, 12), date(2026, 3, 31), 2),
    ("finance", date(2026, 2, 12), date(2026, 3, 31), 1),
    ("traffic", date(2026, 2, 12), date(2026, 3, 31), 1),
)
"""What the invented outlets report on: topic, first and last day, articles a day."""

DAILY_SPAN = (date(2026, 2, 17), date(2026, 3, 31))
_DAILY_NUMBER = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    topic: str
    title: str
    seen_at: datetime
    number: int

    @property
    def domain(self) -> str:
        outlets = OUTLETS[self.topic]
        return outlets[self.number % len(outlets)]

    @property
    def url(self) -> str:
        return f"https://{self.domain}/{self.seen_at:%Y/%m/%d}/{self.topic}-{self.number}"

    @property
    def country(self) -> str:
        # The traffic of 2016 is the Bay Area's.
        is_american = self.topic == "traffic" and self.seen_at.year == 2016
        return "United States" if is_american else "Australia"


def make_files(world: SampleWorld) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every file: DOC answers by month, then the GAL and the GKG file."""
    headlines = Headlines(np.random.default_rng(_SEED))

    months: dict[str, list[_Story]] = {}
    for story in (*_write_stories(headlines), *_write_days(world)):
        months.setdefault(f"{story.seen_at:%Y%m}", []).append(story)
    for month in sorted(months):
        yield f"artlist_{month}.json", _make_doc_answer(months[month])

    # Numbers far above those of the daily stories keep the addresses distinct.
    gal_stories = _write_bulk_stories(headlines, _GAL_STAMP, 900_000)
    yield f"{_GAL_STAMP:{_STAMP}}.gal.json.gz", _make_gal_file(gal_stories)
    gkg_stories = _write_bulk_stories(headlines, _GKG_STAMP, 910_000)
    yield f"{_GKG_STAMP:{_STAMP}}.gkg.csv.zip", _make_gkg_file(gkg_stories)


def _make_doc_answer(stories: list[_Story]) -> bytes:
    """Write stories as the DOC API does with ``mode=artlist&format=json``, newest first."""
    newest_first = sorted(stories, key=lambda story: (story.seen_at, story.number), reverse=True)

    articles = [
        {
            "url": story.url,
            "url_mobile": "",
            "title": story.title,
            "seendate": f"{story.seen_at:%Y%m%dT%H%M%SZ}",
            "socialimage": "",
            "domain": story.domain,
            "language": "English",
            "sourcecountry": story.country,
        }
        for story in newest_first
    ]
    return json.dumps({"articles": articles}, indent=1).encode()


def _make_gal_file(stories: list[_Story]) -> bytes:
    """Write stories as a GAL file, dated some minutes before the file's timestamp."""
    lines = []
    for story in stories:
        published = story.seen_at - timedelta(minutes=3 + story.number % 40)
        article = {
            "date": f"{published:%Y-%m-%dT%H:%M:%S.000Z}",
            "url": story.url,
            "domain": story.domain,
            "outletName": story.domain.split(".")[0].title(),
            "title": story.title,
            "desc": f"{story.title}. An invented report for a synthetic sample.",
            "author": "",
            "image": "",
            "lang": "en",
        }
        lines.append(json.dumps(article) + "\n")

    return gzip.compress("".join(lines).encode(), mtime=0)


def _make_gkg_file(stories: list[_Story]) -> bytes:
    """Write stories as a zipped GKG 2.1 file; one row in ten has no title, as in real files."""
    rows = []
    for index, story in enumerate(stories):
        stamp = f"{story.seen_at:{_STAMP}}"
        published = story.seen_at - timedelta(minutes=20)
        has_title = index % 10 != 9
        title = f"<PAGE_TITLE>{html.escape(story.title)}</PAGE_TITLE>" if has_title else ""

        cells = [""] * _GKG_COLUMNS
        cells[:5] = [f"{stamp}-{index}", stamp, "1", story.domain, story.url]
        cells[15] = "-0.5,2.0,2.5,4.5,20.0,0.0,300"  # tone
        cells[26] = (
            f"<PAGE_PRECISEPUBTIMESTAMP>{published:{_STAMP}}</PAGE_PRECISEPUBTIMESTAMP>{title}"
        )
        rows.append("\t".join(cells) + "\n")

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(zipfile.ZipInfo(f"{_GKG_STAMP:{_STAMP}}.gkg.csv", _ZIP_DATE), "".join(rows))
    return packed.getvalue()


def _write_stories(headlines: Headlines) -> Iterator[_Story]:
    """Yield the stories of every beat, each seen at a random quarter hour of its day."""
    number = 0
    for topic, first, last, per_day in BEATS:
        for day in days_between(first, last):
            for _ in range(per_day):
                number += 1

                # GDELT sees pages on a 15-minute grid.
                quarter = int(headlines.generator.integers(_QUARTER_HOURS_PER_DAY))
                seen_at = datetime.combine(day, time(tzinfo=UTC)) + timedelta(minutes=15 * quarter)
                title = headlines.write(topic, day)
                yield _Story(topic=topic, title=title, seen_at=seen_at, number=number)


def _write_days(world: SampleWorld) -> Iterator[_Story]:
    """Yield the daily news of 2026, for which there is no other publisher."""
    number = _DAILY_NUMBER
    for day in days_between(*DAILY_SPAN):
        for item in write_day(world, day):
            number += 1
            midnight = datetime.combine(day, time(tzinfo=UTC)) - NEM_OFFSET
            seen_at = midnight + timedelta(minutes=item.minute - item.minute % 15)
            yield _Story(topic="energy", title=item.title, seen_at=seen_at, number=number)


def _write_bulk_stories(headlines: Headlines, stamp: datetime, first_number: int) -> list[_Story]:
    stories = []
    for index in range(_BULK_ARTICLES):
        topic = _BULK_TOPICS[index % len(_BULK_TOPICS)]
        title = headlines.write(topic, stamp.date())
        stories.append(_Story(topic=topic, title=title, seen_at=stamp, number=first_number + index))
    return stories
