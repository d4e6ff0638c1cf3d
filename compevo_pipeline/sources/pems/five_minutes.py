"""PeMS five-minute files: a day of a district, averaged to hours.

What belongs here: the 52 columns, twelve intervals to an hour. What does not: the local clock and
flags (``pems.hours``), station-hour files (``pems.source``).

A month's station-hour file appears when the month is over, a day's five-minute file a day or two
later: it gives the same series sooner. An hour counts only if all of its twelve intervals have a
value that is a fraction, as PeMS' own hours are means over the hour.
"""

from collections.abc import Sequence
from datetime import timedelta

import polars as pl

from compevo_pipeline.sources.common.base import RawFile
from compevo_pipeline.sources.common.tables import LINE, refuse_duplicates, refuse_rows
from compevo_pipeline.sources.pems.hours import build_hours, is_repeated_hour
from compevo_pipeline.sources.pems.rows import read_station_rows

FILE = "_text_station_5min_"
COLUMNS = (
    *("stamp", "station", "district", "freeway", "direction", "lane_type", "length"),
    *("samples", "pct_observed", "flow", "occupancy", "speed_mph"),
    *(
        f"lane{lane}_{name}"
        for lane in range(1, 9)
        for name in ("samples", "flow", "occupancy", "speed_mph", "observed")
    ),
)
"""The 52 columns, in order."""

_INTERVAL = timedelta(minutes=5)
_INTERVALS = 12


def parse(text: str, raw: RawFile, only: Sequence[str] | None = None) -> pl.DataFrame:
    """Parse five-minute rows into ``PEMS/<station>`` and ``PEMS_OBSERVED/<station>``, by hour.

    Raises:
        SchemaDrift: a line without 52 cells, a bad number, a timestamp that is off the grid of five
            minutes or given twice for a station, or in the hour that daylight saving skips.
    """
    table = read_station_rows(text, raw.name, COLUMNS, only)
    off_grid = pl.col("stamp") != pl.col("stamp").dt.truncate(_INTERVAL)
    refuse_rows(table, raw.name, off_grid, "{stamp} is no five-minute interval", "fetch it again")
    # The repeated hour has every interval twice, and is nulled as a whole.
    once = table.filter(~is_repeated_hour().fill_null(value=False))
    refuse_duplicates(once, raw.name, ["station", "stamp"])

    hour = pl.col("stamp").dt.truncate("1h")
    # A mean with an impossible part looks possible.
    is_complete = pl.col("occupancy").is_between(0.0, 1.0).sum() == _INTERVALS
    hours = table.group_by("station", hour, maintain_order=True).agg(
        pl.col(LINE).first(),
        pl.col("pct_observed").mean(),
        pl.when(is_complete).then(pl.col("occupancy").mean()).alias("occupancy"),
    )
    return build_hours(hours, raw)
