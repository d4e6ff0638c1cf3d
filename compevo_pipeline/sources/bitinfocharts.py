"""BitInfoCharts: daily Bitcoin series, as the benchmark's long CSV and as the site's chart pages.

What belongs here: the 18 variables with their units, the two formats, what each mode reads, which
pages to ask for and what to do when the site's protection answers. What does not: HTTP and its pace
(``common.http``, ``common.hosts``), from when on data is used (``compevo_core.data.cutting``).

Pages are at ``https://bitinfocharts.com/comparison/{metric}-btc.html``. Each has an inline array of
the full history, ``[[new Date("2009/01/03"),null],...]``; it is read by a regular expression, never
evaluated. The zone of a day is unstated; UTC is assumed. One page is asked for every ten seconds,
each at most once a day. The protection is never circumvented: when it answers, no further page is
asked for, and pages that a person saved, into ``bitcoin/`` of the archive folder, take their place.
"""

import functools
import re
from collections.abc import Iterator
from datetime import UTC
from typing import NamedTuple

import polars as pl

from compevo_core.errors import SchemaDrift, SourceBlocked
from compevo_pipeline.sources.common import tables
from compevo_pipeline.sources.common.base import RawFile, read_product
from compevo_pipeline.sources.common.decode import decode_text, read_text
from compevo_pipeline.sources.common.http import FileRequest
from compevo_pipeline.sources.common.live import LiveContext, read_new_saved_files

SOURCE = "bitinfocharts"
FOLDER = "bitcoin"


class Metric(NamedTuple):
    """A chart: its id in the benchmark, variable and unit."""

    id: str
    variable: str
    unit: str


METRICS = {
    slug: Metric(*([slug] * (3 - len(names))), *names)  # one name for all, or each its own
    for slug, *names in (
        ("transactions", "transactions per day"),
        ("size", "block_size", "block_size_bytes", "bytes"),
        ("confirmationtime", "confirmation_time", "confirmation_time_minutes", "minutes"),
        ("difficulty", "1"),
        ("hashrate", "hashrate", "hashrate_per_second", "H/s"),
        ("price", "price", "price_usd", "USD"),
        ("sentbyaddress", "sent_addresses", "sent_addresses", "addresses per day"),
        ("sentinusd", "send_usd", "sent_usd", "USD per day"),
        ("mining_profitability", "USD per day per TH/s"),
        ("median_transaction_fee", "median_transaction_size", "median_transaction_fee_usd", "USD"),
        (
            "mediantransactionvalue",
            "median_transaction_value",
            "median_transaction_value_usd",
            "USD",
        ),
        ("transactionvalue", "av_transaction_value", "mean_transaction_value_usd", "USD"),
        ("marketcap", "market_cap", "market_cap_usd", "USD"),
        ("tweets", "tweets per day"),
        ("activeaddresses", "active_addresses", "active_addresses", "addresses per day"),
        ("fee_to_reward", "fee_reward", "fee_to_reward_percent", "%"),
        ("top100cap", "top_100_percent", "top_100_percent", "%"),
        ("google_trends", "index"),
    )
}
"""By slug. By its values ``median_transaction_size`` is the median fee."""

_LONG_COLUMNS = ("", "TIME", "ID", "VALUE")
_COIN_WORDS = frozenset({"bitcoin", "btc"})
# A run of digits can match in only one way: otherwise thousands of them would take seconds.
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_POINT = re.compile(rf'\[new Date\("(\d{{4}}/\d{{2}}/\d{{2}})"\),\s*(null|{_NUMBER})\s*\]')
_POINT_START = re.compile(r"\[\s*new Date\(")
_SHOWN_CHARACTERS = 60

read_files = functools.partial(
    read_product, source=SOURCE, folder=FOLDER, files=["bitcoin_daily.csv*", "*.html"]
)
"""Yields the files of a mode: ``archive`` the long CSV and chart pages saved by hand."""


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse a long CSV or a chart page into ``SERIES_SCHEMA``, ``BITINFOCHARTS/<id>``.

    A page is known by the site's own file name, which states its metric
    (``bitcoin-transactions.html``, ``price-btc.html``). Its last point is a day that is not over,
    and is dropped; every day of the long CSV counts.

    SourceTransient for an empty file; SchemaDrift if it breaks its format: a changed header, an
    unknown metric, a bad date or number, a day given twice, or one day only; SourceBlocked for a
    page without a chart in it: bot protection or a log-in.
    """
    if raw.name.endswith((".html", ".htm")):
        table = _read_page(raw)
    else:
        table = tables.read_table(read_text(raw.content, raw.name), raw.name, _LONG_COLUMNS)
        is_unknown = ~pl.col("ID").is_in([metric.id for metric in METRICS.values()])
        remedy = "add it with its unit to METRICS"
        tables.raise_if_rows(table, raw.name, is_unknown, "unknown ID {ID!r}", remedy)

        table = tables.to_stamp(table, raw.name, "TIME", ("%Y-%m-%d",))
        tables.raise_if_duplicates(table, raw.name, ["ID", "TIME"])
        table = tables.to_number(table, raw.name, ["VALUE"], missing=tables.BLANK)

    variables = {metric.id: metric.variable for metric in METRICS.values()}
    units = {metric.id: metric.unit for metric in METRICS.values()}
    return tables.build_series_frame(
        table,
        raw,
        series_id=pl.lit("BITINFOCHARTS/") + pl.col("ID"),
        variable=pl.col("ID").replace_strict(variables),
        start_utc=pl.col("TIME").dt.replace_time_zone("UTC"),
        value=pl.col("VALUE"),
        unit=pl.col("ID").replace_strict(units),
    )


def _read_page(raw: RawFile) -> pl.DataFrame:
    """Return ``LINE``, ``TIME``, ``ID`` and ``VALUE`` (null where the page has none)."""
    words = raw.name.rsplit(".", 1)[0].split("-")
    metrics = [METRICS[word].id for word in words if word in METRICS]
    # The coin must be named, and nothing else: ethereum-price.html is another series.
    if len(words) != 2 or len(metrics) != 1 or not _COIN_WORDS & set(words):
        raise SchemaDrift(
            f"{raw.name}: not the name of a Bitcoin chart page; save it as the site names it, "
            "e.g. bitcoin-transactions.html or tweets-btc.html"
        )

    text = decode_text(raw.content, raw.name)
    starts = [match.start() for match in _POINT_START.finditer(text)]
    if not starts:
        raise SourceBlocked(
            f"{raw.name}: no chart data in the page (bot protection, a log-in, or an error page), "
            "which is not circumvented: keep the last good data, or open the page in a browser and "
            "save it here"
        )
    # A point that the strict pattern misses would silently be lost.
    points = list(_POINT.finditer(text))
    malformed = sorted(set(starts) - {point.start() for point in points})
    if malformed:
        first = malformed[0]
        raise SchemaDrift(
            f"{raw.name}, line {_line_of(text, first)}: "
            f"{text[first : first + _SHOWN_CHARACTERS]!r} is not a chart point ({len(malformed)} "
            "such); the page's format changed or the file is cut, save it again"
        )

    rows = [(_line_of(text, point.start()), *point.groups(), *metrics) for point in points]
    table = pl.DataFrame(rows, schema=[tables.LINE, "TIME", "VALUE", "ID"], orient="row")
    table = tables.to_stamp(table, raw.name, "TIME", ("%Y/%m/%d",))
    tables.raise_if_duplicates(table, raw.name, ["ID", "TIME"])

    # The last day of a page is the day it was saved on, and its value still grows.
    finished = table.filter(pl.col("TIME") < pl.col("TIME").max())
    if not finished.height:
        raise SchemaDrift(
            f"{raw.name}: one day only, and that one is not over; "
            "save the page with its full history"
        )
    return tables.to_number(finished, raw.name, ["VALUE"], missing=("null",))


def _line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


PAGES = "https://bitinfocharts.com/comparison"


def fetch_live(live: LiveContext) -> Iterator[RawFile]:
    """Fetch the pages of the 18 metrics that were not fetched today, then the pages saved by hand.

    SourceBlocked if the protection answered, and no saved page is newer than what is stored.
    """
    blocked: SourceBlocked | None = None
    try:
        for slug in METRICS:
            name = f"{slug}-btc.html"
            url, entry = f"{PAGES}/{name}", live.ledger.get(SOURCE, name)
            stored_at = entry.stored_at if entry else None
            # A page is a megabyte and its newest whole day changes once a day.
            if stored_at and stored_at.astimezone(UTC).date() == live.now.date():
                continue

            request = FileRequest(url=url, source=SOURCE, name=name, html_expected=True)
            for raw in live.fetch(request):
                if not _POINT_START.search(raw.content.decode("utf-8", errors="replace")):
                    message = f"{url}: a page without chart data (bot protection or a log-in)"
                    live.ledger.reject(SOURCE, name, message)
                    raise SourceBlocked(message)
                yield raw
    except SourceBlocked as error:
        blocked = error

    saved = list(read_new_saved_files(live, FOLDER, "*.html", source=SOURCE))
    yield from saved
    if blocked is not None and not saved:
        raise SourceBlocked(
            f"{blocked}; this is not circumvented, and stored data stays; to continue, open the "
            f"pages in a browser and save them into the folder {FOLDER} of COMPEVO_ARCHIVE"
        ) from blocked
