"""Time and memory: durations, time left, what the machine can do and hold.

What belongs here: what any piece of work may ask of the clock and the machine. What does not:
rounds of a training, whose kinds cost differently (``training.schedule``).
"""

import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from threadpoolctl import ThreadpoolController

if TYPE_CHECKING:
    import torch

OnStep = Callable[[str], None]  # gets a line before each step that takes time

_CPU_FACTS = Path("/proc/cpuinfo")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def count_cores() -> int:
    """Return on how many cores this process may run; macOS, which binds none to it, means all."""
    can_ask = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if can_ask else os.cpu_count() or 1


@cache
def find_blas() -> ThreadpoolController:
    """Find linear algebra, to limit its threads; once, as a search takes as long as a small fit."""
    # Threads that wait for each other make small products up to 50 times slower.
    return ThreadpoolController().select(user_api="blas")


def format_duration(seconds: float) -> str:
    """Format seconds as ``1h02m``, ``3m05s`` or ``12s``, for progress lines."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"

    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


class Steps:
    """Steps one after the other: says before each how many there are and how long they take."""

    def __init__(
        self, costs: Sequence[float], on_step: OnStep, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the relative cost of each step, and the callback for progress."""
        self._costs = tuple(costs)
        self._on_step = on_step
        self._clock = clock
        self._begun = 0
        self._started = clock()

    def begin(self, text: str) -> None:
        """Say that the next step begins, with the time that it and the later ones take."""
        done, left = sum(self._costs[: self._begun]), sum(self._costs[self._begun :])
        self._begun += 1
        seconds = (self._clock() - self._started) * left / done if done else math.nan
        remaining = "" if math.isnan(seconds) else f", about {format_duration(seconds)} left"
        self._on_step(f"{self._begun}/{len(self._costs)} {text}{remaining}")


def read_cpu_facts() -> str:
    """Return how the processor describes itself; empty where, as on macOS, no file says so."""
    return _CPU_FACTS.read_text(encoding="utf-8", errors="replace") if _CPU_FACTS.is_file() else ""


def lacks_bfloat16(cpu_facts: str) -> bool:
    """Whether a processor that describes itself like this has no instruction for bfloat16."""
    # AVX512-BF16, AMX and ARM's own all have it in the name of a feature.
    return bool(cpu_facts) and "bf16" not in cpu_facts


def multiplies_bfloat16() -> bool:
    """Whether this machine is known to multiply in bfloat16: by a GPU, or by its processor."""
    import torch

    return torch.cuda.is_available() or "bf16" in read_cpu_facts()


def memory_bytes(device: "torch.device") -> int:
    """Return how much memory a device has: a GPU's own, or what this machine's processes share."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.get_device_properties(device).total_memory)

    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _CONTAINER_LIMIT.read_text().strip() if _CONTAINER_LIMIT.is_file() else ""
    return min(installed, int(limit)) if limit.isdigit() else installed


def reset_peak_memory() -> bool:
    """Reset the high-water mark of this process; False where, as on macOS, it cannot be reset."""
    try:
        # proc(5): set the peak to what is resident now.
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory_gigabytes(*, include_children: bool = False) -> float:
    """Return the largest resident memory of this process so far, in GB of 10^9 bytes.

    A process starts with the high-water mark of the process that forked it. With
    ``include_children`` the largest child process that has ended is added.
    """
    units = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if include_children:
        units += resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # In bytes on macOS and kibibytes elsewhere.
    return units * (1 if sys.platform == "darwin" else 1024) / 1e9
