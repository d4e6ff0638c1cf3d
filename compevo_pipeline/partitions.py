"""The data sets, which are assets of their own, and the days that forecasts are issued for.

What belongs here: the names of the data sets, and the days that each is forecast for. What does
not: partitions by data set or month. A run has one partition key, and Dagster knows no part of an
unpartitioned asset: a model partitioned by data set would depend on the windows of all (decision
58). Series and windows are stored by idempotent upsert and read whole; which months are read is
ordinary run configuration (decision 16).
"""

from datetime import date

import dagster as dg

from compevo_core.data.datasets import DatasetSpec

# The first is the default of every launch that names none.
DATASETS = ("electricity", "electricity-operational", "exchange", "bitcoin", "traffic")

OPERATIONAL = "electricity-operational"
"""The data set that the job ``refresh`` is for."""

NEM_ZONE = "Australia/Brisbane"
"""The market's clock, UTC+10 all year."""

target_days = dg.DailyPartitionsDefinition("2026-02-19", timezone=NEM_ZONE, end_offset=2)
"""Days to forecast, from the first one after the validation span to tomorrow."""

_EARLIEST = date(2000, 1, 1)
# The newest day on any clock is two days after the last one that is over in UTC.
_TO_TOMORROW = 3


def make_target_days(spec: DatasetSpec) -> dg.DailyPartitionsDefinition:
    """Return the days that a data set can be forecast for, to tomorrow on any clock.

    They begin with the test span, where that is a date: earlier days were learned from.
    """
    if spec.name == OPERATIONAL:
        return target_days
    later = [span.first_day for span in spec.spans if span.split not in ("train", "val")]
    first_day = min(later, default=_EARLIEST)
    return dg.DailyPartitionsDefinition(
        first_day.isoformat(), timezone="UTC", end_offset=_TO_TOMORROW
    )
