"""An issued forecast as a small table in a terminal.

What belongs here: lines of text of at most 80 columns. What does not: the numbers in them
(``compevo_core.day_summary``), the command (``cli.forecast``).

Names of series and titles come from data: what a terminal would not print is replaced.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from compevo_pipeline.sources.common.base import MODE_MEANINGS, Mode

if TYPE_CHECKING:
    from compevo_core.day_summary import DaySummary
    from compevo_core.issued import IssuedForecast

LONGEST_NAME = 16
COLUMNS = (
    ("mean", 9),
    ("80 % band", 17),
    ("peak", 9),
    ("at", 7),
    ("change", 9),
    ("published", 11),
)
"""Title and least width of each column but the first, which names the series."""


def render_forecast(issued: "IssuedForecast", data: str) -> str:
    """Return the forecast as a table, a line for each series.

    Args:
        issued: the record.
        data: what it was made of, as ``describe_data`` says it.
    """
    from compevo_core.day_summary import choose_decimals, summarise_day

    days = summarise_day(issued)
    decimals = choose_decimals([day.peak for day in days])
    # The time says when within a day; where steps are days, the date does.
    stamp = "%H:%M" if issued.starts[1] - issued.starts[0] < timedelta(days=1) else "%d %b"
    cells = [_render_cells(day, decimals, stamp) for day in days]
    names = [clean_text(day.entity, LONGEST_NAME) for day in days]
    width = max(len(name) for name in names)

    # A column is there only where any series has such a thing.
    shown = [i for i in range(len(COLUMNS)) if any(row[i] for row in cells)]
    # Two spaces between columns, also where small values need many decimals.
    widths = {i: max(COLUMNS[i][1], *(len(row[i]) + 2 for row in cells)) for i in shown}
    header = " " * width + "".join(f"{COLUMNS[i][0]:>{widths[i]}}" for i in shown)
    lines = [
        f"{name:{width}}" + "".join(f"{row[i]:>{widths[i]}}" for i in shown)
        for name, row in zip(names, cells, strict=True)
    ]
    return "\n".join(
        [*describe_record(issued, data), "", header, *lines, "", *_list_notes(issued, days)]
    )


def describe_record(issued: "IssuedForecast", data: str) -> list[str]:
    """Return what is forecast, of which data, and when it was known and issued (market's clock)."""
    facts, zone = issued.facts, issued.zone
    until = datetime.fromisoformat(facts["information_until"]).astimezone(zone)
    made = datetime.fromisoformat(facts["issued_at"]).astimezone(zone)
    return [
        f"{clean_text(facts['dataset'])}, {issued.origin:%A %d %B %Y}, "
        f"{clean_text(issued.unit)}, times in {zone.tzname(None)}",
        f"known until {until:%d %b %Y %H:%M}, issued {made:%d %b %Y %H:%M}",
        data,
    ]


def describe_data(mode: Mode, dataset: str) -> str:
    """Return the mode and what it says of a data set: ``[sample: synthetic data]``."""
    from compevo_core.data.datasets import DATASETS

    if dataset not in DATASETS:
        meaning = "your own files"  # the same in every mode
    elif mode is Mode.SAMPLE and dataset == "exchange":
        meaning = "published rates, synthetic news"
    else:
        meaning = MODE_MEANINGS[mode]
    return f"[{mode}: {meaning}]"


def clean_text(text: str, longest: int = 200) -> str:
    """Return text that comes from data as a terminal may show it: one line, no control codes."""
    plain = "".join(letter if letter.isprintable() else " " for letter in text)
    words = " ".join(plain.split())
    return words if len(words) <= longest else words[: longest - 1] + "…"


def _render_cells(day: "DaySummary", decimals: int, stamp: str) -> tuple[str, ...]:
    """Return the cells of ``COLUMNS``; empty where there is nothing to show."""
    has_band = day.low is not None and day.high is not None
    return (
        f"{day.mean:.{decimals}f}",
        f"{day.low:.{decimals}f} to {day.high:.{decimals}f}" if has_band else "",
        f"{day.peak:.{decimals}f}",
        f"{day.peak_at:{stamp}}",
        "" if day.change_pct is None else f"{day.change_pct:+.1f} %",
        "" if day.published is None else f"{day.published:.{decimals}f}",
    )


def _list_notes(issued: "IssuedForecast", days: Sequence["DaySummary"]) -> list[str]:
    """Return what the columns mean, for those that are shown."""
    starts = issued.starts
    is_day = len(starts) * (starts[1] - starts[0]) == timedelta(days=1)
    span, before = ("the day", "yesterday") if is_day else (f"the {len(starts)} steps", "")
    notes = [f"mean: over {span}; peak: the highest step and its start"]
    if any(day.low is not None for day in days):
        notes.append(f"80 % band: means over {span} of its lower and upper bound")
    if any(day.change_pct is not None for day in days):
        until = datetime.fromisoformat(issued.facts["information_until"]).astimezone(issued.zone)
        part = f", over its steps up to {until:%H:%M}" if until < issued.origin else ""
        notes.append(f"change: against {before or f'{span} before'}{part}")
    return notes
