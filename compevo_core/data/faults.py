"""Known bad readings of the public series, and how they are nulled.

What belongs here: the table of faults with reason codes, and its application. What does not:
filling (``data.series.fill_forward``) or finding unknown faults (the pipeline's checks).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Known wrong values: those of the matching series with start in [first_utc, end_utc).

    ``series_pattern`` is a regular expression for ``series_id``. ``min_decimals`` restricts the
    fault to values written with at least so many decimals.
    """

    reason: str
    series_pattern: str
    first_utc: datetime
    end_utc: datetime
    min_decimals: int | None = None


_FIRST_INSTANT = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_INSTANT = datetime(2200, 1, 1, tzinfo=UTC)


def _from_nem(year: int, month: int, day: int, hour: int, minute: int) -> datetime:
    # AEMO's market clock is UTC+10 all year.
    return datetime(year, month, day, hour, minute, tzinfo=UTC) - timedelta(hours=10)


KNOWN_FAULTS: tuple[Fault, ...] = (
    # All five regions stop at one value at the same time, up to 802 MW from AEMO's other measure.
    Fault(
        reason="stuck",
        series_pattern=r"^AEMO/HISTDEMAND/(NSW1|QLD1|SA1|VIC1)$",
        first_utc=_from_nem(2019, 4, 21, 19, 0),
        end_utc=_from_nem(2019, 4, 21, 23, 0),
    ),
    Fault(
        reason="stuck",
        series_pattern=r"^AEMO/HISTDEMAND/TAS1$",
        first_utc=_from_nem(2019, 4, 21, 18, 30),
        end_utc=_from_nem(2019, 4, 21, 23, 0),
    ),
    # Three half-hours repeat an old value; a step of 1,000 MW follows.
    Fault(
        reason="stale",
        series_pattern=r"^AEMO/HISTDEMAND/(NSW1|QLD1|SA1|VIC1)$",
        first_utc=_from_nem(2019, 6, 8, 15, 30),
        end_utc=_from_nem(2019, 6, 8, 17, 0),
    ),
    # Neighbouring half-hours read 4820, 312, 321 and 4355 MW.
    Fault(
        reason="bad-reading",
        series_pattern=r"^AEMO/OPERATIONAL_DEMAND/VIC1$",
        first_utc=_from_nem(2025, 11, 11, 7, 30),
        end_utc=_from_nem(2025, 11, 11, 9, 30),
    ),
    # Weekends and holidays come from a curve through later days, so such a value uses prices after
    # it. They are known by their seven and more decimals, which no quoted rate has.
    Fault(
        reason="interpolated",
        series_pattern=r"^N2F/AUD$",
        first_utc=_FIRST_INSTANT,
        end_utc=_LAST_INSTANT,
        min_decimals=7,
    ),
    # The publisher filled the values before mid-2010 from later years; nothing before 2014 is
    # known to be sound.
    Fault(
        reason="unreliable-before-2014",
        series_pattern=r"^BITINFOCHARTS/",
        first_utc=_FIRST_INSTANT,
        end_utc=datetime(2014, 1, 1, tzinfo=UTC),
    ),
)


def apply_known_faults(frame: pl.DataFrame, faults: Sequence[Fault] = KNOWN_FAULTS) -> pl.DataFrame:
    """Null the values that the table names and flag them ``nulled:<reason>``.

    Rows and their order stay as they are. A row that is missing or nulled already keeps its flag,
    so applying the table twice changes nothing.
    """
    for fault in faults:
        # One fault after the other: a row nulled by the first is null for the second, which then
        # leaves its flag alone.
        is_wrong = _match_fault(fault)
        frame = frame.with_columns(
            pl.when(is_wrong).then(None).otherwise(pl.col("value")).alias("value"),
            pl.when(is_wrong)
            .then(pl.lit(f"nulled:{fault.reason}"))
            .otherwise(pl.col("flag"))
            .alias("flag"),
        )
    return frame


def _match_fault(fault: Fault) -> pl.Expr:
    is_wrong = (
        pl.col("series_id").str.contains(fault.series_pattern)
        & (pl.col("start_utc") >= fault.first_utc)
        & (pl.col("start_utc") < fault.end_utc)
        & pl.col("value").is_not_null()
    )
    if fault.min_decimals is None:
        return is_wrong

    # A value with fewer decimals equals its rounding, up to the error of binary fractions, which is
    # far below the last decimal that counts.
    rounded = pl.col("value").round(fault.min_decimals - 1)
    tolerance = 10.0 ** -(fault.min_decimals + 6)
    return is_wrong & ((pl.col("value") - rounded).abs() > tolerance)
