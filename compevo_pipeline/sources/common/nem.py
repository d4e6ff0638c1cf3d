"""Facts of Australia's National Electricity Market (NEM) that the AEMO sources share.

What belongs here: regions, NEM time, names and units of the measures, half-hours from five minutes.
What does not: any file format (``sources.aemo``).

NEM time is UTC+10 all year. AEMO stamps the end of an interval, this project its start.
"""

from datetime import timedelta

import polars as pl

from compevo_pipeline.sources.common.tables import OBSERVED

REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
NEM_OFFSET = timedelta(hours=10)
NEM_ZONE = "Australia/Brisbane"  # has that offset all year
FIVE_MINUTES = timedelta(minutes=5)
HALF_HOUR = timedelta(minutes=30)
PARTS_OF_HALF_HOUR = 6
PERIODS_PER_DAY = 48  # half-hours of a market day

DEMAND_VARIABLE = "demand_mw"
DEMAND_UNIT = "MW"
PRICE_VARIABLE = "price_aud_per_mwh"
PRICE_UNIT = "AUD/MWh"
INCOMPLETE = "nulled:incomplete-half-hour"
OUTSIDE = "nulled:out-of-bounds"  # few values of a file that cannot be true
FAULTY = ("nulled:stuck", "nulled:collapse")  # values of a meter that did not measure

LOCAL_ZONES = {
    "NSW1": "Australia/Sydney",
    "QLD1": "Australia/Brisbane",
    "SA1": "Australia/Adelaide",
    "TAS1": "Australia/Hobart",
    "VIC1": "Australia/Melbourne",
}
"""Local clocks of news, holidays and weather; all but Queensland observe daylight saving."""


def interval_start_utc(end_nem: pl.Expr, step: timedelta) -> pl.Expr:
    """Return the start in UTC of the interval of length ``step`` that ends at naive NEM time."""
    return (end_nem - NEM_OFFSET - step).dt.replace_time_zone("UTC").dt.cast_time_unit("us")


def average_half_hours(table: pl.DataFrame, stamp: str, by: str, values: list[str]) -> pl.DataFrame:
    """Average 5-minute rows stamped in (hh:00, hh:30] to the half-hour stamped hh:30.

    All six parts are required: a half-hour with fewer, or with a part that has no value, stays with
    null values and the flag :data:`INCOMPLETE`. AEMO's own trading interval was this mean until
    2021-10-01, so the two eras join. ``stamp`` is the column of naive interval ends in NEM time;
    ``by`` identifies the series. The columns are ``by``, ``stamp``, ``values`` and ``flag``.
    """
    # A stamp of hh:30 exactly belongs to the half-hour that it ends, not to the next.
    end = (pl.col(stamp).dt.offset_by("-1us").dt.truncate("30m") + HALF_HOUR).alias(stamp)
    is_whole = (pl.len() == PARTS_OF_HALF_HOUR) & pl.all_horizontal(
        pl.col(name).null_count() == 0 for name in values
    )

    means = [
        pl.when(is_whole).then(pl.col(name).mean()).otherwise(None).alias(name) for name in values
    ]
    flag = pl.when(is_whole).then(pl.lit(OBSERVED)).otherwise(pl.lit(INCOMPLETE)).alias("flag")
    return table.group_by(by, end, maintain_order=True).agg(*means, flag)
