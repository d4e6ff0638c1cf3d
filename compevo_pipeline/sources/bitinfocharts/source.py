"""BitInfoCharts: daily Bitcoin series, as the benchmark's long CSV and as the site's chart pages.

What belongs here: the 18 variables with their units, the long ``TIME,ID,VALUE`` table, and the inline array of a chart
page. What does not: fetching pages, the rule that nothing before 2014 is used (``compevo_core.data.faults``).

A page holds ``[[new Date("2009/01/03"),null],...]`` with the full history; it is read by a regular expression, never
evaluated. Its last point is a day that is not over, and is dropped. The zone of a day is unstated; UTC is assumed.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_core.data.schemas import SERIES_SCHEMA
from compevo_core.errors import SchemaDrift, SourceAbsent, SourceBlocked
from compevo_pipeline.sources.bitinfocharts import sample as bitinfocharts_sample
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    archive_files,
    archive_raw,
    decode_text,
    refuse_html,
    sample_raw,
)
from compevo_pipeline.sources.common.delimited import (
    LINE,
    refuse_duplicates,
    split_table,
    to_number,
    to_stamp,
)

SOURCE = "bitinfocharts"
VARIABLES: dict[str, tuple[str, str]] = {
    "active_addresses": ("active_addresses", "addresses per day"),
    "av_transaction_value": ("mean_transaction_value_usd", "USD"),
    "block_size": ("block_size_bytes", "bytes"),
    "confirmation_time": ("confirmation_time_minutes", "minutes"),
    "difficulty": ("difficulty", "1"),
    "fee_reward": ("fee_to_reward_percent", "%"),
    "google_trends": ("google_trends", "index"),
    "hashrate": ("hashrate_per_second", "H/s"),
    "market_cap": ("market_cap_usd", "USD"),
    "median_transaction_size": ("median_transaction_fee_usd", "USD"),
    "median_transaction_value": ("median_transaction_value_usd", "USD"),
    "mining_profitability": ("mining_profitability", "USD per day per TH/s"),
    "price": ("price_usd", "USD"),
    "send_usd": ("sent_usd", "USD per day"),
    "sent_addresses": ("sent_addresses", "addresses per day"),
    "top_100_percent": ("top_100_percent", "%"),
    "transactions": ("transactions", "transactions per day"),
    "tweets": ("tweets", "tweets per day"),
}
"""Benchmark id -> (variable, unit). By its values ``median_transaction_size`` is the median fee in dollars."""

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

_COLUMNS = ("", "TIME", "ID", "VALUE")
_COIN_WORDS = frozenset({"bitcoin", "btc"})
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_POINT = re.compile(rf'\[new Date\("(\d{{4}}/\d{{2}}/\d{{2}})"\)((?:,\s*(?:null|{_NUMBER}))+)\s*\]')
_ANY_POINT = re.compile(r"\[\s*new Date\(")


def raw_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the Bitcoin files of a mode.

    ``archive`` gives ``bitcoin/bitcoin_daily.csv.gz`` and any chart pages saved by hand as ``bitcoin/*.html``;
    ``sample`` one synthetic long CSV. ``live`` is :func:`compevo_pipeline.sources.live.bitinfocharts`.

    Raises:
        SourceAbsent: the archive has no such file.
    """
    if mode is Mode.LIVE:
        message = (
            "bitinfocharts.raw_files reads files only; use sources.live.bitinfocharts for the site"
        )
        raise SourceAbsent(message)
    if mode is Mode.SAMPLE:
        yield sample_raw(SOURCE, "bitcoin_daily.csv", bitinfocharts_sample.long_csv())
        return
    paths = archive_files(archive, "bitcoin", "*")
    chosen = [
        path
        for path in paths
        if path.name.startswith("bitcoin_daily.csv") or path.suffix == ".html"
    ]
    if not chosen:
        message = f"no bitcoin_daily.csv.gz and no saved chart page under {paths[0].parent}; add one of them"
        raise SourceAbsent(message)
    for path in chosen:
        yield archive_raw(path, path.parents[1], source=SOURCE, member=None, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse a long CSV or a chart page into ``SERIES_SCHEMA``, one series ``BITINFOCHARTS/<id>`` a variable.

    Raises:
        SchemaDrift: the file breaks its format.
        SourceBlocked: a page without a chart in it: a bot wall or a log-in.
    """
    if raw.name.endswith((".html", ".htm")):
        return parse_page(raw)
    return parse_long(raw)


def parse_long(raw: RawFile) -> pl.DataFrame:
    """Parse the long CSV; every day of it is kept.

    Raises:
        SchemaDrift: a changed header, an unknown ID, a date or number that is none, a day given twice for an ID.
    """
    refuse_html(raw.content, raw.name)
    table = split_table(decode_text(raw.content, raw.name), raw.name, _COLUMNS, header=True)
    strange = table.filter(~pl.col("ID").is_in(list(VARIABLES)))
    if strange.height:
        message = f"{raw.name}, line {strange[0, LINE]}: unknown ID {strange[0, 'ID']!r}; add it with its unit to VARIABLES"
        raise SchemaDrift(message)
    table = to_stamp(table, "TIME", ("%Y-%m-%d",), raw.name)
    refuse_duplicates(table, ("ID", "TIME"), raw.name)
    return _series(to_number(table, "VALUE", raw.name), raw)


def parse_page(raw: RawFile) -> pl.DataFrame:
    """Parse a chart page saved under the site's own file name, dropping the unfinished last day.

    The name tells the metric: ``bitcoin-transactions.html``, ``tweets-btc.html``, or several joined in the order of
    their values (``transactions-price-btc.html``).

    Raises:
        SchemaDrift: an unknown name, a point that is not understood, a day given twice, or one day only.
        SourceBlocked: no chart in the page.
    """
    metrics = _page_metrics(raw.name)
    text = decode_text(raw.content, raw.name)
    points = list(_POINT.finditer(text))
    _check_points(text, points, raw.name)
    rows: list[tuple[int, str, str, str]] = []
    for point in points:
        values = [cell.strip() for cell in point[2].split(",")[1:]]
        line = text.count("\n", 0, point.start()) + 1
        if len(values) != len(metrics):
            message = f"{raw.name}, line {line}: {len(values)} values on {point[1]} for the metrics {metrics}; check the name"
            raise SchemaDrift(message)
        rows.extend(
            (line, point[1], metric, value) for metric, value in zip(metrics, values, strict=True)
        )
    table = pl.DataFrame(rows, schema=[LINE, "TIME", "ID", "VALUE"], orient="row")
    table = to_stamp(table, "TIME", ("%Y/%m/%d",), raw.name)
    refuse_duplicates(table, ("ID", "TIME"), raw.name)
    finished = table.filter(pl.col("TIME") < pl.col("TIME").max())
    if not finished.height:
        message = f"{raw.name}: one day only, and that one is not over; save the page with its full history"
        raise SchemaDrift(message)
    return _series(to_number(finished, "VALUE", raw.name, missing=("null",)), raw)


def _page_metrics(name: str) -> list[str]:
    words = name.rsplit(".", 1)[0].split("-")
    metrics = [PAGE_IDS[word] for word in words if word in PAGE_IDS]
    others = [word for word in words if word not in PAGE_IDS]
    if not metrics or not others or not set(others) <= _COIN_WORDS:
        message = (
            f"{name}: not the name of a Bitcoin chart page; save it as the site names it, "
            "e.g. bitcoin-transactions.html or tweets-btc.html"
        )
        raise SchemaDrift(message)
    return metrics


def _check_points(text: str, points: list[re.Match[str]], name: str) -> None:
    starts = [match.start() for match in _ANY_POINT.finditer(text)]
    if not starts:
        message = (
            f"{name}: no chart data in the page (a bot wall, a log-in, or an error page); we do not go around it: "
            "keep the last good data, or open the page in a browser and save it here"
        )
        raise SourceBlocked(message)
    understood = {match.start() for match in points}
    lost = [start for start in starts if start not in understood]
    if lost:
        line = text.count("\n", 0, lost[0]) + 1
        message = f"{name}, line {line}: {text[lost[0] : lost[0] + 60]!r} is not a chart point ({len(lost)} such)"
        raise SchemaDrift(message + "; the page's format changed or the file is cut, save it again")


def _series(table: pl.DataFrame, raw: RawFile) -> pl.DataFrame:
    frame = table.select(
        series_id=pl.lit("BITINFOCHARTS/") + pl.col("ID"),
        variable=pl.col("ID").replace_strict(
            {key: variable for key, (variable, _) in VARIABLES.items()}
        ),
        start_utc=pl.col("TIME").dt.replace_time_zone("UTC"),
        value=pl.col("VALUE"),
        unit=pl.col("ID").replace_strict({key: unit for key, (_, unit) in VARIABLES.items()}),
        flag=pl.when(pl.col("VALUE").is_null())
        .then(pl.lit("missing"))
        .otherwise(pl.lit("observed")),
        source=pl.lit(raw.label),
        fetched_at=pl.lit(raw.fetched_at),
    )
    return frame.cast(pl.Schema(SERIES_SCHEMA))
