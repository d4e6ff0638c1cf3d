"""Names and numbers as readers see them.

What belongs here: display names of methods, variants and subsets, number formats, shortened hashes.
What does not: HTML, tables (``report.tables``), judgement (``report.summaries``).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import floor, isfinite, isnan, log10
from typing import Any

METHOD_NAMES = {
    "compevo": "CompEvo",
    "persistence": "Persistence",
    "weekly": "Weekly persistence",
    "calendar-ridge": "Calendar ridge",
    "gbm": "Boosted trees",
    "blend": "Ridge and trees blended",
    "dlinear": "DLinear",
    "itransformer": "iTransformer",
    "film": "FiLM",
    "pyraformer": "Pyraformer",
    "fedformer": "FEDformer",
    "gpt4ts": "GPT4TS",
    "gpt4ts-no-lm": "GPT4TS without its language model",
    "theta": "Theta",
    "ets": "Exponential smoothing",
    "news2forecast": "News2Forecast",
    "gpt4mts": "GPT4MTS",
    "gpt4mts-no-news": "GPT4MTS without news",
    "ltp-llm": "LTP-LLM",
    "sa": "SA, one agent",
    "mael": "MAEL",
    "mae-gpt": "MAE-GPT",
    "mad-rl": "MAD-RL",
    "published": "Published forecast (AEMO POE50)",
    "published-error-ridge": "Ridge on the published forecast's error",
    "published-error-gbm": "Trees on the published forecast's error",
    "members": "Error models and own models, no language model",
    "own-weather-ridge": "Ridge on own past and forecast weather",
    "own-weather-gbm": "Trees on own past and forecast weather",
    "prior": "Own prior",
    "compevo-equal": "CompEvo, equal weights",
    "compevo-prior": "CompEvo's best prior alone",
    "simplified-logic": "Simplified logic",
    "uniform-weights": "Uniform weights",
    "no-diversity": "No diversity term",
    "no-pruning": "No pruning term",
    "no-grpo": "No GRPO",
    "random-layers": "Random layers",
    "no-news": "No news",
    "swapped-news": "News of another day",
    "fixed-logics": "Fixed logics",
    "one-agent": "One agent",
    "equal-weights": "Equal weights",
    "no-known-errors": "No known errors",
    "alike-agents": "Agents alike",
}
SUBSET_NAMES = {
    "n2f-test-100": "published 100-window test set, 2021",
    "inference-2026-100": "leakage check, Feb-Mar 2026",
    "aemo-2021": "AEMO TOTALDEMAND, 2021",
    "operational-2026-200": "operational demand, Feb-Mar 2026, known to midnight",
    "operational-2026-200-known-1700": "operational demand, Feb-Mar 2026, known to 17:00",
    "test": "test split",
    "val": "validation split",
    "inference": "inference split",
}
#: The seasonal naive: the same step of the last season, and on daily grids a random walk.
NAIVE = "persistence"
#: How names of rows of one agent begin, and names of recalibrated baselines end.
AGENT = "compevo-agent-"
ZERO_SHOT = "zero-shot-"
RECALIBRATED = "-recalibrated"
MISSING = "n/a"
# Enough to be unique among the runs of one project, and short enough for a column.
HASH_CHARACTERS = 10


def method_name(method: str) -> str:
    """Return the display name of a method, a part of a population, a variant or a control."""
    if method.startswith(AGENT):
        return f"Agent {method.removeprefix(AGENT)} alone"
    if method.startswith(ZERO_SHOT):
        return f"{method.removeprefix(ZERO_SHOT)}, zero-shot"
    plain = method.removesuffix(RECALIBRATED)
    name = METHOD_NAMES.get(plain, plain)
    return name if plain == method else f"{name}, known errors added"


def scope_name(dataset: str, subset: str, *, synthetic: bool = False) -> str:
    """Return the display name of a data set and one of its subsets, an empty one for the whole.

    With ``synthetic`` the name says that the data is made up.
    """
    # Only part of a subset's windows is scored in ablations and quick runs: one in five, say.
    base, is_thinned, every = subset.partition("-every-")
    name = SUBSET_NAMES.get(base) or _name_month(base) or base
    name += f", one window in {every}" if is_thinned else ""
    marker = " (synthetic stand-in)" if synthetic else ""
    return (f"{dataset.capitalize()}, {name}" if subset else dataset.capitalize()) + marker


def _name_month(subset: str) -> str:
    """Return the display name of ``inference-YYYY-MM``; empty for another subset."""
    split, _, month = subset.partition("-")
    try:
        first = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        return ""
    return f"{SUBSET_NAMES[split]}, {first:%B %Y}" if split in SUBSET_NAMES else ""


def format_number(value: float | int | None) -> str:
    """Format a metric with decimals that fit its size; "n/a" for a missing one."""
    if value is None or isnan(value):
        return MISSING
    # Counts are exact and get separators only.
    if isinstance(value, int):
        return f"{value:,}"

    size = abs(value)
    if size >= 100 or size == 0:
        return f"{value:z,.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 0.001 else f"{value:.2e}"


def format_interval(test: Mapping[str, Any]) -> str:
    """Format the ends of a comparison's interval; "n/a" where it has none."""
    low, high = test["interval_low"], test["interval_high"]
    return MISSING if low is None else f"{format_number(low)} to {format_number(high)}"


def find_side(test: Mapping[str, Any]) -> int:
    """Return -1 where a comparison's interval lies below zero, 1 above; 0 where it says neither."""
    low, high = test["interval_low"], test["interval_high"]
    if low is None or low <= 0 <= high:
        return 0
    return -1 if high < 0 else 1


def format_difference(test: Mapping[str, Any]) -> str:
    """Format a comparison's mean difference, and the deviation between trainings where known."""
    difference, spread = test["mean_difference"], test["sd_between_seeds"]
    return format_number(difference) + (f" (SD {format_number(spread)})" if spread else "")


def format_p(test: Mapping[str, Any], name: str = "p_two_sided") -> str:
    """Format a p value; "n/a" without a number of blocks, where it counted single windows."""
    return MISSING if test["n_blocks"] is None else format_number(test[name])


def format_column(metric: str, values: Sequence[float | None]) -> list[str]:
    """Format the values of one metric with equal decimals, so that a column can be compared.

    Percentages get two decimals, MASE three, errors so many that the largest has about four digits.
    """
    # Decimals are chosen once for the column, by its largest value.
    sizes = [abs(value) for value in values if value is not None and isfinite(value)]
    largest = max(sizes, default=0.0)

    if metric.endswith("_pct"):
        decimals = 2
    elif metric == "mase":
        decimals = 3
    else:
        decimals = 1 if largest >= 100 or largest == 0 else max(2, 3 - floor(log10(largest)))

    return [
        MISSING if value is None or not isfinite(value) else f"{value:z,.{decimals}f}"
        for value in values
    ]


def format_percent(share: float | None) -> str:
    """Format a share between 0 and 1 as a percentage."""
    return MISSING if share is None or isnan(share) else f"{100 * share:z.1f} %"


def format_with_unit(value: float | None, unit: str) -> str:
    """Format a number and its unit."""
    return f"{format_number(value)} {unit}".strip()


def shorten_hash(digest: str | None) -> str:
    """Return the first characters of a hash."""
    return digest[:HASH_CHARACTERS] if digest else MISSING


def format_moment(moment: datetime) -> str:
    """Format a moment in UTC, to the minute."""
    return moment.astimezone(UTC).strftime("%d %b %Y, %H:%M UTC")


def join_items(items: Sequence[str]) -> str:
    """Join items as an English list: ``a, b and c``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
