"""The data sets, which are assets of their own, and the days that forecasts are issued for.

What belongs here: the names of the data sets, and the one partition definition. What does not:
partitions by data set or month. A run has one partition key, and Dagster knows no part of an
unpartitioned asset: a model partitioned by data set would depend on the windows of all (decision
58). Series and windows are stored by idempotent upsert and read whole; which months are read is
ordinary run configuration (decision 16).
"""

import dagster as dg

# The first is the default of every launch that names none.
DATASETS = ("electricity", "electricity-operational", "exchange", "bitcoin", "traffic")

OPERATIONAL = "electricity-operational"
"""The data set whose next day is forecast."""

NEM_ZONE = "Australia/Brisbane"
"""The market's clock, UTC+10 all year."""

target_days = dg.DailyPartitionsDefinition("2026-02-19", timezone=NEM_ZONE, end_offset=2)
"""Days to forecast, from the first one after the validation span to tomorrow."""
