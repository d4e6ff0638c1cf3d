"""Publishers in miniature: what is stored of each, and the files that faults damage.

What belongs here: files without a fault, and delivering one as a refresh does. What does not:
faults (``cases``), what must come of them (``test_content_faults``), HTTP (``tests/fuzz``).
"""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from compevo_pipeline.sources.aemo import live as aemo_live
from compevo_pipeline.sources.aemo.source import OPERATIONAL, PRICE
from compevo_pipeline.sources.common.base import Mode, RawFile
from compevo_pipeline.sources.common.live import LiveContext
from compevo_pipeline.sources.gdelt.source import BULK_SOURCE
from compevo_pipeline.work.preparation import ingest_feed
from tests.support import nemweb
from tests.support.live import LOG, LiveHome
from tests.support.nemweb import HALF_HOUR

File = tuple[str, bytes]
"""Name and content."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One publisher.

    Attributes:
        name: for the names of tests.
        dataset: the data set that reads it.
        feed: its feed.
        source: the product.
        now: time of the first fetch; the damaged file comes an hour later.
        known: files that are stored first.
        files: files that faults damage, without the fault, by role: known ones that are fetched
            again, or new ones.
        settings: of the deployment.
    """

    name: str
    dataset: str
    feed: str
    source: str
    now: datetime
    known: Sequence[File]
    files: Mapping[str, File]
    settings: Mapping[str, object] = field(default_factory=dict)

    def open(self, home: Path) -> LiveHome:
        """Open a home that is fed by this publisher."""
        return LiveHome(home, self.now, dict(self.settings))

    def deliver(self, home: LiveHome, files: Sequence[File]) -> dict[str, int]:
        """Let files arrive as a refresh would fetch them; return the counts."""

        def fetch(live: LiveContext) -> Iterator[RawFile]:
            for name, content in files:
                raw = RawFile(
                    source=self.source,
                    name=name,
                    content=content,
                    url=f"https://example.org/{name}",
                    fetched_at=live.now,
                    mode=Mode.LIVE,
                )
                live.client.raw.write(raw)
                live.ledger.record_fetched(
                    raw.source, raw.name, url=raw.url, sha256=raw.sha256, now=live.now
                )
                is_report = self.source == OPERATIONAL
                yield from aemo_live._unpack(live, raw) if is_report else [raw]

        feeds = home.workspace.feeds()[self.dataset]
        feed = next(feed for feed in feeds if feed.name == self.feed)
        feed = replace(feed, fetch_live=fetch)
        return ingest_feed(home.workspace, feed, self.dataset, clock=home.clock, log=LOG)


NOW = datetime(2026, 7, 20, 7, 30, tzinfo=UTC)
DAY = datetime(2026, 7, 19)  # noqa: DTZ001 - NEM time
JULY = date(2026, 7, 1)


def price_file(region: str, month: date = JULY, **kwargs: int) -> File:
    path, body = nemweb.price_month(month, region, **kwargs)
    return path.rsplit("/", 1)[1], body


PRICES = World(
    name="prices",
    dataset="electricity",
    feed="aemo",
    source=PRICE,
    now=NOW,
    known=[
        price_file(region, month)
        for region in ("NSW1", "QLD1", "TAS1")
        for month in (date(2025, 7, 1), date(2026, 6, 1), JULY)
    ],
    files={"NSW1": price_file("NSW1", days=4), "TAS1": price_file("TAS1", days=4)},
)

REPORTS = World(
    name="reports",
    dataset="electricity-operational",
    feed="aemo-operational",
    source=OPERATIONAL,
    now=NOW,
    known=[
        *(nemweb.actual(DAY + HALF_HOUR * (step + 1)) for step in range(40)),
        *(nemweb.forecast(DAY.replace(hour=hour)) for hour in (16, 17)),
        *(nemweb.rooftop(DAY.replace(hour=hour)) for hour in (16, 17)),
    ],
    files={
        "actual": nemweb.actual(DAY + 41 * HALF_HOUR),
        "forecast": nemweb.forecast(DAY.replace(hour=18)),
        "rooftop": nemweb.rooftop(DAY.replace(hour=18)),
    },
)

QUARTER = datetime(2026, 7, 20, 6, tzinfo=UTC)
TITLE = "Power prices surge in New South Wales as storm {} hits Sydney grid"


def gal_file(at: datetime = QUARTER, *, published: datetime | None = None, count: int = 12) -> File:
    """Return a GAL file of articles that concern electricity, each about another storm."""
    lines = [
        {
            "date": f"{published or at:%Y-%m-%dT%H:%M:%SZ}",
            "url": f"https://example.com.au/{at:%d%H%M}/{number}",
            "domain": "example.com.au",
            "title": TITLE.format(f"{at:%d%H%M}{number}"),
            "desc": "",
            "lang": "en",
        }
        for number in range(count)
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    return f"{at:%Y%m%d%H%M%S}.gal.json.gz", gzip.compress(text.encode(), mtime=0)


NEWS = World(
    name="news",
    dataset="news",
    feed="gdelt",
    source=BULK_SOURCE,
    now=NOW,
    known=[gal_file(), gal_file(QUARTER + timedelta(minutes=15))],
    files={"GAL": gal_file(QUARTER + timedelta(minutes=30))},
)
