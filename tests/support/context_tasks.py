"""An archive with one task of Context-is-Key, as it is published."""

import gzip
import json

from compevo_core.paper.context_is_key import FILE


def write_task(archive):
    """Write a task with two series, of which the last is forecast, and two kinds of limits."""
    entry = {
        "name": "heat",
        "seed": 1,
        "weight": "1/3",
        "context_sources": ["c_f"],
        "background": "Load.",
        "scenario": None,
        "constraints": "Below 9.",
        "seasonal_period": -1,
        "past_time": json.dumps({"other": {"t0": 0}, "load": {"t0": 3, "t1": 3}}),
        "future_time": json.dumps({"other": {"t2": 0}, "load": {"t2": 4, "t3": 5}}),
        "metric_scaling": 0.5,
        "region_of_interest": None,
        "constraint_min": None,
        "constraint_max": 9,
        "constraint_variable_max_index": [0],
        "constraint_variable_max_values": [8.0],
    }
    path = archive / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps(entry).encode()))
