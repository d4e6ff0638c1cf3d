"""Durations as text: compact for progress lines, spelled out for reports."""

import math


def format_duration(seconds: float) -> str:
    """Format seconds as ``1h02m``, ``3m05s`` or ``12s``, for progress lines."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"

    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def describe_duration(seconds: float | None, *, missing: str = "") -> str:
    """Format seconds as ``0.4 s``, ``12 s``, ``5 min`` or ``2.1 h``, for reports."""
    if seconds is None or math.isnan(seconds):
        return missing
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"

    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
