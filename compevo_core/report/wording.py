"""How names and numbers are written for a reader.

What belongs here: display names of methods, subsets and variants, number formats, shortened hashes.
What does not: HTML, tables, judgement (``verdict``).
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import floor, isfinite, log10

METHODS = {
    "compevo": "CompEvo",
    "persistence": "Persistence",
    "weekly": "Weekly persistence",
    "calendar-ridge": "Calendar ridge",
    "gbm": "Boosted trees",
    "published": "Published forecast (AEMO POE50)",
    "prior": "Own prior",
    "simplified-logic": "Simplified logic",
    "uniform-weights": "Uniform weights",
    "no-diversity": "No diversity term",
    "no-pruning": "No pruning term",
    "no-grpo": "No GRPO",
}
SUBSETS = {
    "n2f-test-100": "published 100-window test set, 2021",
    "inference-2026-100": "leakage check, Feb-Mar 2026",
    "aemo-2021": "AEMO TOTALDEMAND, 2021",
    "test": "test split",
    "val": "validation split",
}
MISSING = "n/a"


def method_name(method: str) -> str:
    """Display name of a method or ablation variant."""
    return METHODS.get(method, method)


def scope_name(dataset: str, subset: str, *, synthetic: bool = False) -> str:
    """Display name of a data set and one of its subsets; thinned and synthetic ones say so."""
    base, thinned, every = subset.partition("-every-")
    name = SUBSETS.get(base, base) + (f", one window in {every}" if thinned else "")
    tail = " (synthetic stand-in)" if synthetic else ""
    return (f"{dataset.capitalize()}, {name}" if subset else dataset.capitalize()) + tail


def number(value: float | int | None) -> str:
    """A metric with as many digits as it deserves; "n/a" for a missing one."""
    if value is None or value != value:
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 100 or size == 0:
        return f"{value:,.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 0.001 else f"{value:.2e}"


def column(name: str, values: Sequence[float | None]) -> list[str]:
    """The values of one metric with equal decimals: two for percentages, three for MASE, by size for errors."""
    sizes = [abs(value) for value in values if value is not None and isfinite(value)]
    largest = max(sizes, default=0.0)
    if name.endswith("_pct"):
        decimals = 2
    elif name == "mase":
        decimals = 3
    else:
        decimals = 1 if largest >= 100 or largest == 0 else max(2, 3 - floor(log10(largest)))
    return [
        MISSING if value is None or not isfinite(value) else f"{value:,.{decimals}f}"
        for value in values
    ]


def percent(share: float | None) -> str:
    """A share of one as percent."""
    return MISSING if share is None or share != share else f"{100 * share:.1f} %"


def with_unit(value: float | None, unit: str) -> str:
    """A number and its unit."""
    return f"{number(value)} {unit}".strip()


def short(digest: str | None) -> str:
    """The first characters of a hash."""
    return digest[:10] if digest else MISSING


def stamp(moment: datetime) -> str:
    """A moment in UTC, to the minute."""
    return moment.astimezone(UTC).strftime("%d %b %Y, %H:%M UTC")


def listed(items: list[str]) -> str:
    """Items as an English list."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
