"""Peak memory of the running process: the operating system's high-water mark."""

import resource
import sys
from pathlib import Path

# getrusage reports bytes on macOS and kibibytes elsewhere.
_BYTES_PER_UNIT = 1 if sys.platform == "darwin" else 1024
_BYTES_PER_GIGABYTE = 1e9

_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # proc(5): set the peak to what is resident now


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
