"""Timing a call, and the result that a case reports.

What belongs here: what all cases share. What does not: the cases (``cases``, ``hardware_cases``).
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.world import World

Result = dict[str, Any]


def time_call(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and what it returned."""
    began = time.perf_counter()
    out = call()
    return time.perf_counter() - began, out


def build_result(
    case: str,
    world: World,
    ours: Sequence[float],
    reference: Sequence[float] | None,
    peak_memory_gb: float,
) -> Result:
    """Build the result of a case from the seconds of its repeats.

    Args:
        case: its name in the table.
        world: what was measured.
        ours: seconds of each repeat.
        reference: the same for the reference, if there is one.
        peak_memory_gb: high-water mark of the process when our part was done.
    """
    # Medians: another process on the machine slows single repeats.
    our_median = statistics.median(ours)
    reference_median = None if reference is None else statistics.median(reference)

    return {
        "case": case,
        "agents": world.config.population.agents,
        "backbone": world.config.backbone.name_or_path,
        "dtype": world.config.backbone.dtype,
        "ours_seconds": our_median,
        "reference_seconds": reference_median,
        "ratio": None if reference_median is None else reference_median / our_median,
        "peak_memory_gb": peak_memory_gb,
        "repeats": len(ours),
        "threads": torch.get_num_threads(),
        "ours_all": list(ours),
        "reference_all": None if reference is None else list(reference),
    }
