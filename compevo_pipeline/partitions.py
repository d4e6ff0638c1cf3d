"""Partition definitions.

What belongs here: the data-set partitions that models, scores and ablations share, and the days
that forecasts are issued for. What does not: months. Series and windows are stored by idempotent
upsert and read whole by every consumer, and a run has one partition key, so monthly partitions of a
source would only keep it out of the jobs that need it; which months are read is ordinary run
configuration instead.
"""

import dagster as dg

# The first is the default of every launch that names none.
DATASETS = ("electricity", "electricity-operational", "exchange", "bitcoin", "traffic")

datasets = dg.StaticPartitionsDefinition(list(DATASETS))

electricity_only = dg.SpecificPartitionsPartitionMapping(["electricity"])
"""For assets of the 2026 check, which concerns the electricity population alone."""

OPERATIONAL = "electricity-operational"
"""The data set whose next day is forecast."""

operational_only = dg.SpecificPartitionsPartitionMapping([OPERATIONAL])
"""For the forecast of the next day, which the population of operational demand makes."""

NEM_ZONE = "Australia/Brisbane"
"""The market's clock, UTC+10 all year."""

target_days = dg.DailyPartitionsDefinition("2026-02-19", timezone=NEM_ZONE, end_offset=2)
"""Days to forecast, from the first one after the validation span to tomorrow."""
