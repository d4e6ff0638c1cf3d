"""What every table of rates becomes: US dollars for one unit of a currency, published days only.

What belongs here: the currencies, series names and units, which days of a currency exist. What does
not: any publisher's format (``exchange.ecb``, ``exchange.rba``), filling weekends
(``compevo_core.data.series``).
"""

import polars as pl

from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.series_frame import build_series_frame, flag_missing

CURRENCIES = ("AUD", "GBP", "CAD", "CHF", "CNY", "JPY", "NZD", "SGD")
"""The benchmark panel's currencies, in its column order."""


def build_published_rates(rates: pl.DataFrame, raw: RawFile, prefix: str) -> pl.DataFrame:
    """Build ``<prefix>/<currency>``, one row a published day.

    A currency starts on its first published day and ends on its last; a day without a rate between
    them is a ``missing`` row.

    Args:
        rates: ``Date`` and one column a currency, in US dollars for one unit.
        raw: the file they are from.
        prefix: first part of the series' names.
    """
    rows = rates.unpivot(index="Date", variable_name="code", value_name="value")

    published = pl.col("Date").filter(pl.col("value").is_not_null())
    # Before its first and after its last quotation a currency is not missing, it does not exist.
    is_alive = pl.col("Date").is_between(published.min().over("code"), published.max().over("code"))
    return build_rates(rows.filter(is_alive), raw, prefix, flag_missing(pl.col("value")))


def build_rates(rows: pl.DataFrame, raw: RawFile, prefix: str, flag: pl.Expr) -> pl.DataFrame:
    """Build ``SERIES_SCHEMA`` rows from ``Date``, ``code`` and ``value``."""
    return build_series_frame(
        rows,
        raw,
        series_id=pl.lit(f"{prefix}/") + pl.col("code"),
        variable=pl.lit("rate_usd_per_") + pl.col("code").str.to_lowercase(),
        start_utc=pl.col("Date").dt.replace_time_zone("UTC"),
        value=pl.col("value"),
        unit=pl.lit("USD per ") + pl.col("code"),
        flag=flag,
    )
