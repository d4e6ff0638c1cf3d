"""BitInfoCharts: daily Bitcoin series, as the benchmark's long CSV and as the site's chart pages.

What belongs here: the 18 variables with their units, the long ``TIME,ID,VALUE`` table, and what
each mode reads. What does not: chart pages (``bitinfocharts.chart_page``), fetching
(``bitinfocharts.live``), the rule that nothing before 2014 is used (``compevo_core.data.faults``).

Published at ``https://bitinfocharts.com/comparison/{metric}-btc.html``. The zone of a day is
unstated; UTC is assumed.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from compevo_core.errors import SourceAbsent
from compevo_pipeline.sources.bitinfocharts import chart_page, sample
from compevo_pipeline.sources.common.base import (
    Clock,
    Mode,
    RawFile,
    find_archive_files,
    read_archive_file,
    wrap_sample,
)
from compevo_pipeline.sources.common.decode import read_text
from compevo_pipeline.sources.common.series_frame import build_series_frame, flag_missing
from compevo_pipeline.sources.common.tables import (
    BLANK,
    read_table,
    refuse_duplicates,
    refuse_rows,
    to_number,
    to_stamp,
)

SOURCE = "bitinfocharts"
FOLDER = "bitcoin"
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
"""Benchmark id -> (variable, unit). By its values ``median_transaction_size`` is the median fee."""

_COLUMNS = ("", "TIME", "ID", "VALUE")


def read_files(mode: Mode, *, archive: Path | None, clock: Clock) -> Iterator[RawFile]:
    """Yield the Bitcoin files of a mode.

    ``archive`` gives ``bitcoin/bitcoin_daily.csv.gz`` and any chart pages saved by hand as
    ``bitcoin/*.html``; ``sample`` one synthetic long CSV.

    Raises:
        SourceAbsent: the archive has no such file.
    """
    if mode is Mode.SAMPLE:
        yield wrap_sample(SOURCE, "bitcoin_daily.csv", sample.make_long_csv())
        return

    paths = find_archive_files(archive, FOLDER, "*")
    chosen = [
        path
        for path in paths
        if path.name.startswith("bitcoin_daily.csv") or path.suffix == ".html"
    ]
    if not chosen:
        raise SourceAbsent(
            f"no bitcoin_daily.csv.gz and no saved chart page under {paths[0].parent}; "
            "add one of them"
        )
    for path in chosen:
        yield read_archive_file(path, path.parents[1], source=SOURCE, clock=clock)


def parse(raw: RawFile) -> pl.DataFrame:
    """Parse a long CSV or a chart page into ``SERIES_SCHEMA``, ``BITINFOCHARTS/<id>``.

    Raises:
        SchemaDrift: the file breaks its format.
        SourceBlocked: a page without a chart in it: bot protection or a log-in.
    """
    if raw.name.endswith((".html", ".htm")):
        return _build_series(chart_page.read_page(raw), raw)

    return parse_long(raw)


def parse_long(raw: RawFile) -> pl.DataFrame:
    """Parse the long CSV; every day of it counts.

    Raises:
        SourceTransient: an empty file.
        SchemaDrift: a changed header, an unknown ID, a bad date or number, a day given twice for an
            ID.
    """
    table = read_table(read_text(raw.content, raw.name), raw.name, _COLUMNS)
    is_unknown = ~pl.col("ID").is_in(list(VARIABLES))
    refuse_rows(
        table, raw.name, is_unknown, "unknown ID {ID!r}", "add it with its unit to VARIABLES"
    )

    table = to_stamp(table, raw.name, "TIME", ("%Y-%m-%d",))
    refuse_duplicates(table, raw.name, ["ID", "TIME"])
    return _build_series(to_number(table, raw.name, ["VALUE"], missing=BLANK), raw)


def _build_series(table: pl.DataFrame, raw: RawFile) -> pl.DataFrame:
    variables = {key: variable for key, (variable, _) in VARIABLES.items()}
    units = {key: unit for key, (_, unit) in VARIABLES.items()}
    return build_series_frame(
        table,
        raw,
        series_id=pl.lit("BITINFOCHARTS/") + pl.col("ID"),
        variable=pl.col("ID").replace_strict(variables),
        start_utc=pl.col("TIME").dt.replace_time_zone("UTC"),
        value=pl.col("VALUE"),
        unit=pl.col("ID").replace_strict(units),
        flag=flag_missing(pl.col("VALUE")),
    )
