"""Partition definitions.

What belongs here: the data-set partitions that models, scores and ablations share. What does not:
months. Series and windows are stored by idempotent upsert and read whole by every consumer, and a
run has one partition key, so monthly partitions of a source would only keep it out of the jobs
that need it; which months are read is ordinary run configuration instead.
"""

import dagster as dg

# The first is the default of every launch that names none.
DATASETS = ("electricity", "exchange", "bitcoin", "traffic")

datasets = dg.StaticPartitionsDefinition(list(DATASETS))

electricity_only = dg.SpecificPartitionsPartitionMapping(["electricity"])
"""For assets of the 2026 check, which concerns the electricity population alone."""
