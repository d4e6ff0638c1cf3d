"""Facts of the National Electricity Market that every AEMO source shares.

What belongs here: regions, NEM time, half-hours from five minutes. What does not: any file format.
NEM time is UTC+10 all year, without daylight saving; AEMO stamps the end of an interval, this project its start.
"""

from datetime import timedelta

import polars as pl

REGIONS = ("NSW1", "QLD1", "SA1", "TAS1", "VIC1")
NEM_OFFSET = timedelta(hours=10)
FIVE_MINUTES = timedelta(minutes=5)
HALF_HOUR = timedelta(minutes=30)
PARTS_OF_HALF_HOUR = 6
PERIODS_PER_DAY = 48  # half-hours of a market day

DEMAND_VARIABLE = "demand_mw"
DEMAND_UNIT = "MW"
PRICE_VARIABLE = "price_aud_per_mwh"
PRICE_UNIT = "AUD/MWh"
OBSERVED = "observed"
INCOMPLETE = "nulled:incomplete-half-hour"

LOCAL_ZONES = {
    "NSW1": "Australia/Sydney",
    "QLD1": "Australia/Brisbane",
    "SA1": "Australia/Adelaide",
    "TAS1": "Australia/Hobart",
    "VIC1": "Australia/Melbourne",
}
"""Local clocks of news, holidays and weather; all but Queensland observe daylight saving."""


def utc_start(end_nem: pl.Expr, step: timedelta) -> pl.Expr:
    """Start in UTC of the interval of length ``step`` that ends at the naive NEM time ``end_nem``."""
    return (end_nem - NEM_OFFSET - step).dt.replace_time_zone("UTC").dt.cast_time_unit("us")


def half_hours(frame: pl.DataFrame, stamp: str, by: str, values: list[str]) -> pl.DataFrame:
    """Average 5-minute rows stamped in (hh:00, hh:30] to the half-hour stamped hh:30; all six parts are required.

    A half-hour with fewer parts, or with a part that has no value, is kept with null values and a flag. AEMO's own
    trading interval was this mean until 2021-10-01, so the two eras join.
    """
    end = (pl.col(stamp).dt.offset_by("-1us").dt.truncate("30m") + HALF_HOUR).alias(stamp)
    whole = (pl.len() == PARTS_OF_HALF_HOUR) & pl.all_horizontal(
        pl.col(name).null_count() == 0 for name in values
    )
    means = [
        pl.when(whole).then(pl.col(name).mean()).otherwise(None).alias(name) for name in values
    ]
    flag = pl.when(whole).then(pl.lit(OBSERVED)).otherwise(pl.lit(INCOMPLETE)).alias("flag")
    return frame.group_by(by, end, maintain_order=True).agg(*means, flag)
