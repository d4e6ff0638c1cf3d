"""The inline array of a BitInfoCharts page as a table ``TIME,ID,VALUE``.

What belongs here: finding the chart in a page, its points and the metrics that the page's name
states. What does not: units and series (``bitinfocharts.source``), fetching
(``bitinfocharts.live``).

A page has ``[[new Date("2009/01/03"),null],...]`` with the full history; it is read by a regular
expression, never evaluated. Its last point is a day that is not over, and is dropped.

Example: https://bitinfocharts.com/comparison/bitcoin-transactions.html.
"""

import re
from collections.abc import Sequence

import polars as pl

from compevo_core.errors import SchemaDrift, SourceBlocked
from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.decode import decode_text
from compevo_pipeline.sources.common.tables import LINE, refuse_duplicates, to_number, to_stamp

PAGE_IDS: dict[str, str] = {
    "transactions": "transactions",
    "size": "block_size",
    "confirmationtime": "confirmation_time",
    "difficulty": "difficulty",
    "hashrate": "hashrate",
    "price": "price",
    "sentbyaddress": "sent_addresses",
    "sentinusd": "send_usd",
    "mining_profitability": "mining_profitability",
    "median_transaction_fee": "median_transaction_size",
    "mediantransactionvalue": "median_transaction_value",
    "transactionvalue": "av_transaction_value",
    "marketcap": "market_cap",
    "tweets": "tweets",
    "activeaddresses": "active_addresses",
    "fee_to_reward": "fee_reward",
    "top100cap": "top_100_percent",
    "google_trends": "google_trends",
}
"""Slug in a page's address -> benchmark id."""

_COIN_WORDS = frozenset({"bitcoin", "btc"})
# A run of digits is read in one way alone: thousands of them would take seconds otherwise.
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_POINT = re.compile(rf'\[new Date\("(\d{{4}}/\d{{2}}/\d{{2}})"\)((?:,\s*(?:null|{_NUMBER}))+)\s*\]')
_POINT_START = re.compile(r"\[\s*new Date\(")
_SHOWN_CHARACTERS = 60


def read_page(raw: RawFile) -> pl.DataFrame:
    """Read a chart page saved under the site's own file name, without the unfinished last day.

    The name states the metric: ``bitcoin-transactions.html``, ``tweets-btc.html``, or several
        joined in
    the order of their values (``transactions-price-btc.html``).

    Returns:
        Columns ``TIME`` (naive), ``ID`` and ``VALUE`` (null where the page has none).

    Raises:
        SchemaDrift: an unknown name, a malformed point, a day given twice, or one day only.
        SourceBlocked: no chart in the page.
    """
    metrics = _read_metrics(raw.name)
    text = decode_text(raw.content, raw.name)
    points = _find_points(text, raw.name)

    rows: list[tuple[int, str, str, str]] = []
    for point in points:
        day = point[1]
        values = [cell.strip() for cell in point[2].split(",")[1:]]
        line = _line_of(text, point.start())
        if len(values) != len(metrics):
            raise SchemaDrift(
                f"{raw.name}, line {line}: {len(values)} values on {day} for the metrics "
                f"{metrics}; check the name"
            )
        rows += [(line, day, metric, value) for metric, value in zip(metrics, values, strict=True)]

    table = pl.DataFrame(rows, schema=[LINE, "TIME", "ID", "VALUE"], orient="row")
    table = to_stamp(table, raw.name, "TIME", ("%Y/%m/%d",))
    refuse_duplicates(table, raw.name, ["ID", "TIME"])

    # The last day of a page is the day it was saved on, and its value still grows.
    finished = table.filter(pl.col("TIME") < pl.col("TIME").max())
    if not finished.height:
        raise SchemaDrift(
            f"{raw.name}: one day only, and that one is not over; "
            "save the page with its full history"
        )
    return to_number(finished, raw.name, ["VALUE"], missing=("null",))


def has_chart(content: bytes) -> bool:
    """Return whether a page holds chart data at all."""
    return _POINT_START.search(content.decode("utf-8", errors="replace")) is not None


def _read_metrics(name: str) -> list[str]:
    words = name.rsplit(".", 1)[0].split("-")
    metrics = [PAGE_IDS[word] for word in words if word in PAGE_IDS]
    others = {word for word in words if word not in PAGE_IDS}

    # The coin must be named, and nothing else: ethereum-price.html is another series.
    if not metrics or not others or not others <= _COIN_WORDS:
        raise SchemaDrift(
            f"{name}: not the name of a Bitcoin chart page; save it as the site names it, "
            "e.g. bitcoin-transactions.html or tweets-btc.html"
        )
    return metrics


def _find_points(text: str, name: str) -> Sequence[re.Match[str]]:
    starts = [match.start() for match in _POINT_START.finditer(text)]
    if not starts:
        raise SourceBlocked(
            f"{name}: no chart data in the page (bot protection, a log-in, or an error page), "
            "which is not circumvented: keep the last good data, or open the page in a browser and "
            "save it here"
        )

    # A point that the strict pattern misses would silently be lost.
    points = list(_POINT.finditer(text))
    parsed = {point.start() for point in points}
    malformed = [start for start in starts if start not in parsed]
    if malformed:
        first = malformed[0]
        raise SchemaDrift(
            f"{name}, line {_line_of(text, first)}: {text[first : first + _SHOWN_CHARACTERS]!r} is "
            f"not a chart point ({len(malformed)} such); the page's format changed or the file is "
            "cut, save it again"
        )
    return points


def _line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
