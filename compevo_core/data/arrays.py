"""Array types and index arithmetic that every folder shares.

What belongs here: the types of arrays, and choices of positions. What does not:
anything that knows a window, a scale or a unit (``data.view``, ``data.scaling``).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def to_array(values: Any) -> npt.NDArray[Any]:  # noqa: ANN401 - nothing here imports torch
    """Return an array as it is, and a tensor of any device as an array, without its gradient."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)


def mean_known(values: FloatArray, axis: int) -> FloatArray:
    """Return the mean of the known values along an axis, NaN where there is none."""
    is_known = np.isfinite(values)
    count = is_known.sum(axis=axis)
    total = np.where(is_known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def split_evenly(count: int, parts: int) -> list[slice]:
    """Return consecutive slices of ``range(count)`` as equal as they can be, the longer first.

    There are fewer where ``count`` is smaller than ``parts``.
    """
    places = np.array_split(np.arange(count), min(parts, count) or 1)
    return [slice(int(part[0]), int(part[-1]) + 1) for part in places if part.size]


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return ``count`` positions of ``range(total)``, evenly spaced from the first to the last.

    A single position is the first. All positions are returned where ``count`` reaches ``total``.
    """
    if count >= total:
        return list(range(total))

    # Ties round as numpy does it: changing that changes which validation windows a run measures.
    return [int(position) for position in np.linspace(0, total - 1, count).round()]


def keep_last_run(values_T: FloatArray) -> FloatArray:
    """Return the values after the last one that is missing, without a copy."""
    return values_T[len(values_T) - int(np.isfinite(values_T[::-1]).cumprod().sum()) :]
