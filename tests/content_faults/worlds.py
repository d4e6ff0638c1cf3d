"""Publishers in miniature: what is stored of each, and the files that faults damage.

What belongs here: files without a fault, and delivering one as a refresh does. What does not:
faults and what must come of them (``test_content_faults``), HTTP (``tests/fuzz``).
"""

import contextlib
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from compevo_core.errors import DataError
from compevo_pipeline.sources.aemo import live as aemo_live
from compevo_pipeline.sources.aemo.source import OPERATIONAL, PRICE
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.sources.common.nem import REGIONS
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.sources.gdelt.source import BULK_SOURCE, DOC_SOURCE
from compevo_pipeline.sources.weather import forecast as weather
from compevo_pipeline.work.ingest import ingest_feed
from tests.pipeline.sources.gdelt.test_live import gal
from tests.pipeline.sources.gdelt.test_parse import answer, article
from tests.pipeline.sources.pems.test_pems import line
from tests.support import nemweb
from tests.support.live import LOG, LiveHome
from tests.support.sources import raw
from tests.support.weather import make_run

File = tuple[str, bytes]
"""Name and content."""
NOW = datetime(2026, 7, 20, 7, 30, tzinfo=UTC)
KINDS = (FrameKind.PUBLISHED, FrameKind.STEP_COVARIATES)


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """One publisher: the files that are stored first, and those that faults damage, by role.

    The latter are given without a fault: known ones that are fetched again, or new ones.
    """

    feed: str
    source: str
    known: Sequence[File]
    files: Mapping[str, File]
    now: datetime = NOW

    @property
    def dataset(self):
        sets = default_feeds().items()
        return next(name for name, feeds in sets if self.feed in [feed.name for feed in feeds])

    def open(self, home):
        return LiveHome(home, self.now)

    def read(self, home):
        if self.dataset == "news":
            return {"articles": home.articles()}
        store = home.workspace.series_store()
        frames = {kind.value: store.read_frame(self.dataset, kind) for kind in KINDS}
        with contextlib.suppress(DataError):  # the weather is not a series
            frames["series"] = home.series(self.dataset)
        return {kind: rows for kind, rows in frames.items() if rows is not None}

    def deliver(self, home, files):
        """Let files arrive as a refresh would fetch them; return the counts."""

        def fetch(live):
            for name, content in files:
                file = replace(raw(name, content, self.source, Mode.LIVE), fetched_at=live.now)
                live.client.raw.write(file)
                live.ledger.record_fetched(
                    file.source, file.name, url=file.url, sha256=file.sha256, now=live.now
                )
                is_report = self.source == OPERATIONAL
                yield from aemo_live._unpack(live, file) if is_report else [file]

        feeds = home.workspace.feeds()[self.dataset]
        feed = next(feed for feed in feeds if feed.name == self.feed)
        feed = replace(feed, fetch_live=fetch)
        return ingest_feed(home.workspace, feed, self.dataset, log=LOG)


DAY = datetime(2026, 7, 19)  # noqa: DTZ001 - NEM time


PRICES = World(
    feed="aemo",
    source=PRICE,
    known=[
        nemweb.price_file(region, month)
        for region in ("NSW1", "QLD1", "TAS1")
        for month in (date(2025, 7, 1), date(2026, 6, 1), nemweb.JULY)
    ],
    files={"NSW1": nemweb.price_file(days=4), "TAS1": nemweb.price_file("TAS1", days=4)},
)


def histdemand_file(day, level=nemweb.usual):
    records = [
        f'D,DEMAND,HISTORIC,1,{region},"{day:%Y/%m/%d} 00:00:00",{period},'
        f"{round(level(6 * period) * nemweb.SHARES.get(region, 1), 3)}"
        for region in REGIONS
        for period in range(1, 49)
    ]
    index = "I,DEMAND,HISTORIC,1,REGIONID,SETTLEMENTDATE,PERIODID,DEMAND"
    text = nemweb.report("HISTDEMAND", index, records, datetime(2026, 7, 20))  # noqa: DTZ001 - NEM
    return f"PUBLIC_HISTDEMAND_{day:%Y%m%d}_0000000302837680.csv", text.encode()


HISTDEMAND = World(
    feed="aemo",
    source="aemo_histdemand",
    known=[histdemand_file(date(2026, 7, day)) for day in (16, 17)],
    files={"new": histdemand_file(date(2026, 7, 18)), "again": histdemand_file(date(2026, 7, 17))},
)

REPORTS = World(
    feed="aemo-operational",
    source=OPERATIONAL,
    known=[
        *(nemweb.actual(DAY + nemweb.HALF_HOUR * (step + 1)) for step in range(40)),
        *(nemweb.forecast(DAY.replace(hour=hour)) for hour in (16, 17)),
        *(nemweb.rooftop(DAY.replace(hour=hour)) for hour in (16, 17)),
    ],
    files={
        "actual": nemweb.actual(DAY + 41 * nemweb.HALF_HOUR),
        "forecast": nemweb.forecast(DAY.replace(hour=18)),
        "rooftop": nemweb.rooftop(DAY.replace(hour=16) + timedelta(days=1)),
    },
)


QUARTER = datetime(2026, 7, 20, 6, tzinfo=UTC)
TITLE = "Power prices surge in New South Wales as storm {} hits Sydney grid"


def gal_file(at=QUARTER, *, published=None):
    """Return a GAL file of articles that concern electricity, each about another storm."""
    titles = (TITLE.format(f"{at:%d%H%M}{number}") for number in range(12))
    return f"{at:%Y%m%d%H%M%S}.gal.json.gz", gal(at, *titles, published=published or at).body


NEWS = World(
    feed="gdelt",
    source=BULK_SOURCE,
    known=[gal_file(), gal_file(QUARTER + timedelta(minutes=15))],
    files={"GAL": gal_file(QUARTER + timedelta(minutes=30))},
)


def wave(hour):
    return 0.05 + 0.04 * math.sin(hour / 4)


def station_file(month, *, district=4, shift=0, occupancy=wave):
    """Return a station-hour file with the first two days of a month."""
    first = datetime(2026, month, 1)  # noqa: DTZ001 - the local clock
    lines = [
        line(
            f"{first + timedelta(hours=hour + shift):%m/%d/%Y %H:%M:%S}",
            station,
            occupancy=f"{occupancy(hour):.4f}",
        ).replace(f",{station},4,", f",{station},{district},")
        for station in ("400001", "400002")
        for hour in range(48)
    ]
    text = "".join(f"{one}\n" for one in lines)
    name = f"d04_text_station_hour_2026_{month:02d}.txt.gz"
    return name, gzip.compress(text.encode(), mtime=0)


TRAFFIC = World(
    feed="pems",
    source="pems",
    now=datetime(2026, 11, 20, 8, tzinfo=UTC),
    known=[station_file(9), station_file(8)],
    files={"new": station_file(10), "again": station_file(9)},
)


RATES = {"USD": 1.1, "AUD": 1.6, "GBP": 0.85, "JPY": 170.0, "CAD": 1.5}


def rates_file(last=date(2026, 7, 15), *, shift=timedelta(0), rates=RATES):
    """Return the ECB's rates of some days of July 2025, and of the next July up to ``last``."""
    codes = ("USD", "JPY", "GBP", "AUD", "CAD", "CHF", "CNY", "NZD", "SGD")
    days = [date(2025, 7, number) for number in range(7, 17)]
    days += [date(2026, 7, number) for number in range(6, last.day + 1)]
    lines = [f"Date,{','.join(codes)},"]
    for day in days:
        factor = 1 + day.day / 1000 + (day.year - 2025) / 10
        cells = [f"{rates[code] * factor:.6f}" if code in rates else "N/A" for code in codes]
        lines.append(f"{day + shift},{','.join(cells)},")
    return "eurofxref-hist.csv", "\n".join([*lines, ""]).encode()


EXCHANGE = World(
    feed="exchange",
    source="ecb_bulk",
    known=[rates_file()],
    files={"again": rates_file(), "new": rates_file(date(2026, 7, 16))},
)


def page_file(slug, value, days=20, last=date(2026, 7, 19)):
    """Return a chart page of as many days, the last of which is not over."""
    points = ",".join(
        f'[new Date("{last - timedelta(days=days - number):%Y/%m/%d}"),{value(number)}]'
        for number in range(days + 1)
    )
    return f"{slug}-btc.html", f"<!doctype html><script>d([{points}])</script>".encode()


def price_of(number):
    return 60000 + 9000 * math.sin(number)


def count_of(number):
    return 300000 + 90000 * math.cos(number)


BITCOIN = World(
    feed="bitinfocharts",
    source="bitinfocharts",
    known=[page_file("price", price_of), page_file("transactions", count_of)],
    files={
        "price": page_file("price", lambda n: price_of(n), 21, date(2026, 7, 20)),
        "transactions": page_file("transactions", count_of),
    },
)


def run_file(run, *, first=None, **changes):
    """Return a run with an hourly wave; ``changes`` are ``factor`` and ``plus`` by variable."""
    places = make_run(first or run)
    waves = {
        "temperature_2m": lambda hour: 15 + 5 * math.sin(hour / 4),
        "wind_speed_10m": lambda hour: 5 + 2 * math.sin(hour / 5),
        "shortwave_radiation": lambda hour: max(0.0, 600 * math.sin(math.pi * (hour - 2) / 12)),
    }
    for place in places:
        for name, wave in waves.items():
            factor, plus = changes.get(name, (1.0, 0.0))
            values = [round(factor * wave(hour) + plus, 3) for hour in range(72)]
            place["hourly"][name] = values
    return weather.name_run(run), json.dumps(places).encode()


RUN = datetime(2026, 7, 18, 18, tzinfo=UTC)
WEATHER = World(
    feed="weather-forecast",
    source=weather.SOURCE,
    known=[run_file(RUN - timedelta(days=days)) for days in (3, 2, 1)],
    files={"run": run_file(RUN)},
)


def answer_file(first=QUARTER - timedelta(days=1), *, seen=None):
    at = seen or first + timedelta(hours=3)
    doc = "https://example.org/{}"
    articles = [article(at, url=doc.format(n), title=TITLE.format(f"doc{n}")) for n in range(5)]
    name = f"artlist_0123abcd_{first:%Y%m%d%H%M%S}_{first + timedelta(days=1):%Y%m%d%H%M%S}.json"
    return name, answer(*articles).encode()


ANSWERS = World(
    feed="gdelt",
    source=DOC_SOURCE,
    known=[answer_file(QUARTER - timedelta(days=3))],
    files={"answer": answer_file()},
)
