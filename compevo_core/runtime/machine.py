"""What the machine can do and hold, and the most memory that this process has held so far."""

import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CPU_FACTS = Path("/proc/cpuinfo")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")

# getrusage reports bytes on macOS and kibibytes elsewhere.
_BYTES_PER_UNIT = 1 if sys.platform == "darwin" else 1024
_BYTES_PER_GIGABYTE = 1e9

_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): set the peak to what is resident now


def read_cpu_facts() -> str:
    """Return how the processor describes itself; empty where, as on macOS, no file says so."""
    if not _CPU_FACTS.is_file():
        return ""
    return _CPU_FACTS.read_text(encoding="utf-8", errors="replace")


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
    """Start the high-water mark of this process anew; False where, as on macOS, it cannot be."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
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
    return units * _BYTES_PER_UNIT / _BYTES_PER_GIGABYTE
