"""Known bad readings of the public series, and how they are nulled (data/PROVENANCE, design 3).

What belongs here: the table of faults with reason codes, and its application.
What does not: filling (``series.causal_fill``) or finding unknown faults (the pipeline's checks).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Values of the matching series with start in [first_utc, end_utc) are known to be wrong.

    ``series_pattern`` is a regular expression for ``series_id``. ``min_decimals`` nulls only values that are
    written with at least so many decimals (how interpolated values are told from quoted ones).
    """

    reason: str
    series_pattern: str
    first_utc: datetime
    end_utc: datetime
    min_decimals: int | None = None


_EVER = (datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC))


def _nem(year: int, month: int, day: int, hour: int, minute: int) -> datetime:
    """A wall-clock NEM time (UTC+10) as UTC."""
    return datetime(year, month, day, hour, minute, tzinfo=UTC) - timedelta(hours=10)


KNOWN_FAULTS: tuple[Fault, ...] = (
    Fault(
        reason="stuck",
        series_pattern=r"^AEMO/HISTDEMAND/(NSW1|QLD1|SA1|VIC1)$",
        first_utc=_nem(2019, 4, 21, 19, 0),
        end_utc=_nem(2019, 4, 21, 23, 0),
    ),
    Fault(
        reason="stuck",
        series_pattern=r"^AEMO/HISTDEMAND/TAS1$",
        first_utc=_nem(2019, 4, 21, 18, 30),
        end_utc=_nem(2019, 4, 21, 23, 0),
    ),
    Fault(
        reason="stale",
        series_pattern=r"^AEMO/HISTDEMAND/(NSW1|QLD1|SA1|VIC1)$",
        first_utc=_nem(2019, 6, 8, 15, 30),
        end_utc=_nem(2019, 6, 8, 17, 0),
    ),
    Fault(
        reason="bad-reading",
        series_pattern=r"^AEMO/OPERATIONAL_DEMAND/VIC1$",
        first_utc=_nem(2025, 11, 11, 7, 30),
        end_utc=_nem(2025, 11, 11, 9, 30),
    ),
    Fault(
        reason="interpolated",
        series_pattern=r"^N2F/AUD$",
        first_utc=_EVER[0],
        end_utc=_EVER[1],
        min_decimals=7,
    ),
    Fault(
        reason="unreliable-before-2014",
        series_pattern=r"^BITINFOCHARTS/",
        first_utc=_EVER[0],
        end_utc=datetime(2014, 1, 1, tzinfo=UTC),
    ),
)


def apply_known_faults(frame: pl.DataFrame, faults: Sequence[Fault] = KNOWN_FAULTS) -> pl.DataFrame:
    """Null the values the table names and flag them ``nulled:<reason>``; rows and order stay as they are.

    A row that is already missing or nulled keeps its flag, so applying twice changes nothing.
    """
    for fault in faults:
        hit = (
            pl.col("series_id").str.contains(fault.series_pattern)
            & (pl.col("start_utc") >= fault.first_utc)
            & (pl.col("start_utc") < fault.end_utc)
            & pl.col("value").is_not_null()
        )
        if fault.min_decimals is not None:
            short = pl.col("value").round(fault.min_decimals - 1)
            hit &= (pl.col("value") - short).abs() > 10.0 ** -(fault.min_decimals + 6)
        frame = frame.with_columns(
            pl.when(hit).then(None).otherwise(pl.col("value")).alias("value"),
            pl.when(hit)
            .then(pl.lit(f"nulled:{fault.reason}"))
            .otherwise(pl.col("flag"))
            .alias("flag"),
        )
    return frame
