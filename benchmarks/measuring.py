"""Timing a call, counting tokens, and the result that a case reports.

What belongs here: what all cases share. What does not: the cases (``cases``, ``hardware_cases``).
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.world import World
from compevo_core.lm.backbone import Backbone

Result = dict[str, Any]


def time_call(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and what it returned."""
    began = time.perf_counter()
    out = call()
    return time.perf_counter() - began, out


class TokenCounter:
    """Count the tokens that pass through a backbone's first layer.

    A window that is read twice counts twice: what is counted is work, not text.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.tokens = 0
        backbone.decoder.layers[0].input_layernorm.register_forward_pre_hook(self._count)

    def take(self) -> int:
        """Return the tokens since the last call."""
        tokens, self.tokens = self.tokens, 0
        return tokens

    def _count(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.tokens += inputs[0].shape[:-1].numel()


def build_result(
    case: str,
    world: World,
    ours: Sequence[float],
    reference: Sequence[float] | None,
    peak_memory_gb: float,
    *,
    other_way: str = "",
    tokens: int | None = None,
) -> Result:
    """Build the result of a case from the seconds of its repeats.

    Args:
        case: its name in the table.
        world: what was measured.
        ours: seconds of each repeat.
        reference: the same for the reference, if there is one.
        peak_memory_gb: high-water mark of the process when our part was done.
        other_way: what the reference is, in words.
        tokens: tokens that a repeat of ours read and wrote.
    """
    # Medians: another process on the machine slows single repeats.
    our_median = statistics.median(ours)
    reference_median = None if reference is None else statistics.median(reference)

    return {
        "case": case,
        "agents": world.config.population.agents,
        "backbone": world.config.backbone.name_or_path,
        "dtype": world.config.backbone.dtype,
        "reference": other_way,
        "ours_seconds": our_median,
        "reference_seconds": reference_median,
        "ratio": None if reference_median is None else reference_median / our_median,
        "tokens": tokens,
        "peak_memory_gb": peak_memory_gb,
        "state_gb": None,
        "repeats": len(ours),
        "threads": torch.get_num_threads(),
        "ours_all": list(ours),
        "reference_all": None if reference is None else list(reference),
    }
