"""Peak memory of the running process.

What belongs here: the one reading of the operating system's high-water mark. What does not: what is
done with it (``training.trainer``, the demo command, the benchmarks).
"""

import resource
import sys

# getrusage reports bytes on macOS and kibibytes elsewhere.
_BYTES_PER_UNIT = 1 if sys.platform == "darwin" else 1024
_BYTES_PER_GIGABYTE = 1e9


def peak_memory_gigabytes(*, include_children: bool = False) -> float:
    """Return the largest resident memory of this process so far, in GB of 10^9 bytes.

    A process starts with the high-water mark of the process that forked it.

    Args:
        include_children: add that of the largest child process that has ended.
    """
    units = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if include_children:
        units += resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return units * _BYTES_PER_UNIT / _BYTES_PER_GIGABYTE
