"""Synthetic news in GDELT's own formats, for the sample mode: monthly DOC answers, one GAL file, one GKG file.

What belongs here: writing invented headlines as GDELT would. What does not: the words (``headlines_sample``), reading
them (the real parsers do).
Every headline, outlet and address is invented (addresses end in ``.example``); the same bytes come out on every call.
The days cover the sample series of all four data sets and the inference window of 2026.
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

from compevo_pipeline.sources.gdelt.sample_headlines import OUTLETS, Headlines

_SEED = 2026
_QUARTERS = 96
_STAMP = "%Y%m%d%H%M%S"
_GAL_STAMP = datetime(2026, 3, 1, 3, 16, 0, tzinfo=UTC)
_GKG_STAMP = datetime(2026, 3, 2, 4, 0, 0, tzinfo=UTC)
_BULK_ARTICLES = 10
_ZIP_DATE = (2026, 3, 2, 4, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One topic followed every day from ``first`` to ``last``, ``per_day`` articles a day."""

    topic: str
    first: date
    last: date
    per_day: int


BEATS = (
    Beat(topic="traffic", first=date(2015, 12, 28), last=date(2016, 4, 2), per_day=2),
    Beat(topic="energy", first=date(2018, 11, 24), last=date(2021, 12, 31), per_day=1),
    Beat(topic="finance", first=date(2019, 1, 1), last=date(2022, 12, 31), per_day=1),
    Beat(topic="crypto", first=date(2020, 1, 1), last=date(2021, 2, 10), per_day=1),
    Beat(topic="energy", first=date(2026, 2, 12), last=date(2026, 3, 31), per_day=2),
    Beat(topic="weather", first=date(2026, 2, 12), last=date(2026, 3, 31), per_day=2),
    Beat(topic="finance", first=date(2026, 2, 12), last=date(2026, 3, 31), per_day=1),
    Beat(topic="traffic", first=date(2026, 2, 12), last=date(2026, 3, 31), per_day=1),
)
"""What the invented outlets report on, and when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    topic: str
    title: str
    seen: datetime
    number: int

    @property
    def domain(self) -> str:
        outlets = OUTLETS[self.topic]
        return outlets[self.number % len(outlets)]

    @property
    def url(self) -> str:
        return f"https://{self.domain}/{self.seen:%Y/%m/%d}/{self.topic}-{self.number}"


def files() -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every sample file: DOC answers by month, then the GAL and the GKG file."""
    headlines = Headlines(np.random.default_rng(_SEED))
    months: dict[str, list[_Story]] = {}
    for story in _stories(headlines):
        months.setdefault(f"{story.seen:%Y%m}", []).append(story)
    for month in sorted(months):
        yield f"artlist_{month}.json", doc_answer(months[month])
    yield f"{_GAL_STAMP:{_STAMP}}.gal.json.gz", gal_file(_bulk(headlines, _GAL_STAMP, 900_000))
    yield f"{_GKG_STAMP:{_STAMP}}.gkg.csv.zip", gkg_file(_bulk(headlines, _GKG_STAMP, 910_000))


def doc_answer(stories: list[_Story]) -> bytes:
    """Write stories as the DOC API does with ``mode=artlist&format=json``, newest first."""
    articles = [
        {
            "url": story.url,
            "url_mobile": "",
            "title": story.title,
            "seendate": f"{story.seen:%Y%m%dT%H%M%SZ}",
            "socialimage": "",
            "domain": story.domain,
            "language": "English",
            "sourcecountry": "United States"
            if story.topic == "traffic" and story.seen.year == 2016
            else "Australia",
        }
        for story in sorted(stories, key=lambda story: (story.seen, story.number), reverse=True)
    ]
    return json.dumps({"articles": articles}, indent=1).encode()


def gal_file(stories: list[_Story]) -> bytes:
    """Write stories as a GAL file: one JSON object a line, gzipped, dated some minutes before the file's stamp."""
    lines = [
        json.dumps(
            {
                "date": f"{story.seen - timedelta(minutes=3 + story.number % 40):%Y-%m-%dT%H:%M:%S.000Z}",
                "url": story.url,
                "domain": story.domain,
                "outletName": story.domain.split(".")[0].title(),
                "title": story.title,
                "desc": f"{story.title}. An invented report for a synthetic sample.",
                "author": "",
                "image": "",
                "lang": "en",
            }
        )
        for story in stories
    ]
    return gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0)


def gkg_file(stories: list[_Story]) -> bytes:
    """Write stories as a GKG 2.1 file: 27 tab-separated columns, zipped; one row in ten has no title, as in life."""
    rows = []
    for index, story in enumerate(stories):
        cells = [""] * 27
        cells[:5] = [
            f"{story.seen:{_STAMP}}-{index}",
            f"{story.seen:{_STAMP}}",
            "1",
            story.domain,
            story.url,
        ]
        cells[15] = "-0.5,2.0,2.5,4.5,20.0,0.0,300"
        published = story.seen - timedelta(minutes=20)
        title = "" if index % 10 == 9 else f"<PAGE_TITLE>{html.escape(story.title)}</PAGE_TITLE>"
        cells[26] = (
            f"<PAGE_PRECISEPUBTIMESTAMP>{published:{_STAMP}}</PAGE_PRECISEPUBTIMESTAMP>{title}"
        )
        rows.append("\t".join(cells) + "\n")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr(zipfile.ZipInfo(f"{_GKG_STAMP:{_STAMP}}.gkg.csv", _ZIP_DATE), "".join(rows))
    return packed.getvalue()


def _stories(headlines: Headlines) -> Iterator[_Story]:
    number = 0
    for beat in BEATS:
        for offset in range((beat.last - beat.first).days + 1):
            day = beat.first + timedelta(days=offset)
            for _ in range(beat.per_day):
                quarter = int(headlines.generator.integers(_QUARTERS))
                seen = datetime.combine(day, time(tzinfo=UTC)) + timedelta(minutes=15 * quarter)
                number += 1
                title = headlines.write(beat.topic, day)
                yield _Story(topic=beat.topic, title=title, seen=seen, number=number)


def _bulk(headlines: Headlines, stamp: datetime, first_number: int) -> list[_Story]:
    topics = ("energy", "weather", "finance", "crypto", "traffic")
    return [
        _Story(
            topic=topics[index % len(topics)],
            title=headlines.write(topics[index % len(topics)], stamp.date()),
            seen=stamp,
            number=first_number + index,
        )
        for index in range(_BULK_ARTICLES)
    ]
