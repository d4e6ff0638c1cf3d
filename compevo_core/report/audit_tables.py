"""Does news help? The news audit as a sentence and tables, for terminal, page and docs.

What belongs here: the verdict, effects of own news against each other reading by group. What does
not: measuring them (``experiments.news_audit``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from compevo_core.experiments.news_audit import ALL, SERIES, TOPIC, WITH_NEWS
from compevo_core.experiments.perturbations import IRRELEVANT, NONE, OWN, SWAPPED
from compevo_core.report.tables import Table
from compevo_core.report.wording import (
    MISSING,
    format_number,
    format_percent,
    format_with_unit,
    scope_name,
)

Row = Mapping[str, Any]

SOURCES = {"run": "the trained population", "probe": "a linear probe"}
KINDS = {ALL: "All windows", WITH_NEWS: "Windows with news", SERIES: "", TOPIC: "News about "}
OTHERS = {NONE: "no news", SWAPPED: "news of another day", IRRELEVANT: "irrelevant news"}
NO_ROWS = "*No audit of news yet: `compevo audit-news DATASET` makes it.*"


def list_audits(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each audited scope: one data set, source and subset."""
    scopes: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        scopes.setdefault((row["dataset"], row["source"], row["subset"]), []).append(row)
    return list(scopes.values())


def format_audit(rows: Sequence[Row]) -> str:
    """Return every audited scope as Markdown: its verdict, then its table."""
    parts = []
    for scope in list_audits(rows):
        table = audit_table(scope)
        parts += [f"**{table.caption}**", judge_news(scope), table.to_markdown()]
    return "\n\n".join(parts) or NO_ROWS


def judge_news(rows: Sequence[Row]) -> str:
    """Say whether own news helped in one scope, against none and against that of another day.

    A gain over no news alone is not called help: it must be these articles, not any.
    """
    overall = {row["news"]: row for row in rows if row["group_kind"] == ALL}
    own, none, swapped = overall[OWN], overall[NONE], overall[SWAPPED]
    had = format_percent(own["n_with_news"] / own["n_windows"])
    first = (
        f"{own['n_windows']:,} windows, {had} of them with at least one article. MAE "
        f"{format_with_unit(own['mae'], own['unit'])} with own news, "
        f"{format_number(none['mae'])} without, {format_number(swapped['mae'])} with that of "
        "another day."
    )
    return f"{_judge(none, swapped)} {first}"


def _judge(none: Row, swapped: Row) -> str:
    if none["interval_low"] is None or swapped["interval_low"] is None:
        return "It cannot be told: these are too few days for an interval."
    # Intervals, not means: with a few hundred windows a difference of a megawatt is chance.
    is_better = [row["interval_high"] < 0 for row in (none, swapped)]
    is_worse = [row["interval_low"] > 0 for row in (none, swapped)]
    if all(is_better):
        return "Yes, the news helps."
    if is_better[0]:
        return "Not the news of the day: that of another day does as well."
    if is_worse[0]:
        return "No: with news the forecast is worse than without."
    return "No gain can be told: the interval of the difference from no news holds zero."


def audit_table(rows: Sequence[Row]) -> Table:
    """Return effects by group: own news less each other reading, with intervals."""
    # In the order that they were measured in: all, with news, series, topics.
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["group_kind"], row["group"]), {})[row["news"]] = row

    first = rows[0]
    source = SOURCES.get(first["source"], first["source"])
    return Table(
        header=[
            "Group",
            "Windows",
            "With news",
            f"MAE {first['unit']}",
            *(f"less {name}" for name in OTHERS.values()),
        ],
        rows=[_cells(kind, group, by_news) for (kind, group), by_news in groups.items()],
        caption=f"{scope_name(first['dataset'], first['subset'])}: does news help {source}?",
        wrap_columns=frozenset({4, 5, 6}),
        highlighted_rows=frozenset({0}),
        notes=(
            "MAE with own news less that with the other reading, with its 95 % interval (whole "
            "days drawn again): below zero own news is better. A window counts for every topic "
            f"that one of its articles is nearest to. {MISSING}: the other reading had no article "
            "either, or the days are too few.",
        ),
    )


def _cells(kind: str, group: str, by_news: Mapping[str, Row]) -> list[str]:
    own = by_news[OWN]
    name = KINDS.get(kind, "")
    return [
        name + group if kind in (SERIES, TOPIC) else name,
        format_number(own["n_windows"]),
        format_number(own["n_with_news"]),
        format_number(own["mae"]),
        *(_effect(by_news.get(news)) for news in OTHERS),
    ]


def _effect(row: Row | None) -> str:
    if row is None or row["interval_low"] is None:
        return MISSING
    # A control that found no article to read is no control.
    if row["news"] != NONE and not row["n_with_news"]:
        return MISSING
    low, high = format_number(row["interval_low"]), format_number(row["interval_high"])
    return f"{format_number(row['difference'])} ({low} to {high})"
