"""Seconds and memory of a part of a benchmark, on the processor or on a GPU."""

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from compevo_core.runtime.usage import peak_memory_gigabytes, reset_peak_memory


def read_clock() -> float:
    """Return processor seconds over all threads; with a GPU, wall-clock ones when it is idle."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def time_call(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, see :func:`read_clock`, and what it returned."""
    began = read_clock()
    out = call()
    return read_clock() - began, out


def time_repeats(call: Callable[[], Any], repeats: int) -> list[float]:
    """Return the seconds of each call, after one that warms up."""
    return [time_call(call)[0] for _ in range(repeats + 1)][1:]


def read_peak() -> float:
    """Return the most memory in GB that this process, or its tensors on a GPU, had at a time."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    return peak_memory_gigabytes()


def forget_peak() -> None:
    """Begin a new peak, without objects that are no longer referenced."""
    gc.collect()
    reset_peak_memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def name_gpu() -> dict[str, str]:
    """Return the machine of a row if it is a GPU."""
    return {"machine": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
