"""Does news help? The news audit as a sentence, tables and a plot, for terminal, page and docs.

What belongs here: the verdict, effects of own news against each other kind of news by group, what
agents read. What does not: measuring them (``paper.news_audit``).
"""

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from compevo_core.paper.news_audit import ALL, ANY, DECLARED, EFFECTS, MOST, MOVED, POWER, REST
from compevo_core.paper.news_changes import IRRELEVANT, NONE, OWN, SWAPPED
from compevo_core.report.figures import (
    ACCENT,
    GOLD,
    INK,
    OTHER_BARS,
    THIRD,
    Plot,
    Style,
    add_legend,
    plot_lines,
)
from compevo_core.report.inputs import TrainingRun
from compevo_core.report.tables import (
    MISSING,
    Row,
    Table,
    find_side,
    format_interval,
    format_number,
    format_percent,
    format_with_unit,
    group_rows,
    join_items,
    scope_name,
    tabulate,
)

SOURCES = {"run": "the trained population", "probe": "a linear probe"}
KINDS = {ALL: "All windows", DECLARED: "Declared days: {group}", MOVED: "Moved by news: {group}"}
MOST_TOPICS = 3  # topics that an agent read about are named, no more
_BARS = {
    OWN: ("own news", ACCENT),
    NONE: ("no news", OTHER_BARS),
    SWAPPED: ("another day's news", GOLD),
}
OTHERS = {NONE: "no news", SWAPPED: "news of another day", IRRELEVANT: "irrelevant news"}
NO_ROWS = "*No audit of news yet: `compevo audit-news DATASET` makes it.*"


def list_audits(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each audited scope: one data set, source and subset."""
    return group_rows(rows, "dataset", "source", "subset")


def format_audit(rows: Sequence[Row]) -> str:
    """Return every audited scope as Markdown: its verdict, then its table."""
    tables = map(audit_table, list_audits(rows))
    return "\n\n".join(table.to_titled_markdown() for table in tables) or NO_ROWS


def judge_news(rows: Sequence[Row]) -> str:
    """Say whether own news helped in one scope, against no news and against another day's news.

    The days that were declared beforehand decide, where there are any. A gain over no news alone is
    not called help: it must be these articles, not any.
    """
    groups = _group_rows(rows)
    overall = groups[ALL, ALL]
    declared = groups.get((DECLARED, ANY), overall)
    own_news = overall[OWN]
    return (
        f"{_judge(declared[NONE], declared[SWAPPED])} {_describe_power(groups)}"
        f"{own_news['n_windows']:,} windows, "
        f"{format_percent(own_news['n_with_news'] / own_news['n_windows'])} of them with at least "
        f"one article. MAE {format_with_unit(own_news['mae'], own_news['unit'])} with own news, "
        f"{format_number(overall[NONE]['mae'])} without, "
        f"{format_number(overall[SWAPPED]['mae'])} with news of another day."
    )


def _describe_power(groups: Mapping[tuple[str, str], Mapping[str, Row]]) -> str:
    """Say which effect on the declared days the probe would have seen."""
    if groups[ALL, ALL][OWN]["source"] != "probe":
        return ""
    if (DECLARED, ANY) not in groups:
        return "Too few days have unusual news of their own region for any effect to be seen. "
    row = groups[DECLARED, ANY][OWN]
    days = f"On the {row['n_windows']:,} windows with unusual news of their own region"
    if row["seen_from"] is None:
        return f"{days}, an effect of {max(EFFECTS):g} standard deviations would be missed. "
    return (
        f"{days}, an effect of {format_with_unit(row['seen_from'], row['unit'])} or more "
        f"({row['seen_from_sd']:g} standard deviations) would be seen in {format_percent(POWER)} "
        "of draws. "
    )


def _judge(none: Row, swapped: Row) -> str:
    if none["interval_low"] is None or swapped["interval_low"] is None:
        return "Unknown: there are too few days for an interval."
    # Intervals, not means: with a few hundred windows a difference of a megawatt is chance.
    if find_side(none) < 0 and not swapped["n_with_news"]:
        return "Better than without news; there is no news of another day to compare with."
    if find_side(none) < 0 and find_side(swapped) < 0:
        return "Yes, the news helps."
    if find_side(none) < 0:
        return "The gain is not from this day's news: news of another day helps as much."
    if find_side(none) > 0:
        share = format_percent(none["difference"] / none["mae"])
        return f"No gain: the error is {share} higher with news than without, by this one model."
    return "No measurable gain: the confidence interval includes zero."


def _group_rows(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, Row]]:
    """Return rows by kind and group, then by news, in the order that they were measured in."""
    groups: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["group_kind"], row["group"]), {})[row["news"]] = row
    return groups


def audit_table(rows: Sequence[Row]) -> Table:
    """Return effects by group: own news less each other kind, with intervals."""
    first = rows[0]
    # What each agent read is told with its logic.
    groups = _group_rows([row for row in rows if not row["group_kind"].startswith("agent ")])

    return tabulate(
        groups.values(),
        {
            "Group": lambda by_news: KINDS.get(by_news[OWN]["group_kind"], "{group}").format(
                **by_news[OWN]
            ),
            "Windows": lambda by_news: format_number(by_news[OWN]["n_windows"]),
            "With news": lambda by_news: format_number(by_news[OWN]["n_with_news"]),
            f"MAE {first['unit']}": lambda by_news: format_number(by_news[OWN]["mae"]),
            **{f"less {name}": partial(_format_effect, news) for news, name in OTHERS.items()},
            "seen from": lambda by_news: format_number(by_news[OWN].get("seen_from")),
        },
        caption=f"{scope_name(first['dataset'], first['subset'])}: does news help "
        f"{SOURCES.get(first['source'], first['source'])}?",
        verdict=judge_news(rows),
        wrap_columns=(4, 5, 6),
        highlighted=(0,),
        notes=(
            "MAE with own news minus MAE with the other news, and its 95 % interval (whole days "
            "resampled): below zero own news is better. A window counts for every signal that it "
            f"has. Seen from: the smallest shift of such days that the probe sees in "
            f"{format_percent(POWER)} of draws. {MISSING}: no article of the other kind, too few "
            "days, or none.",
        ),
    )


def _format_effect(news: str, by_news: Mapping[str, Row]) -> str:
    row = by_news.get(news)
    if row is None or row["interval_low"] is None:
        return MISSING
    # A control that found no article to read is not a control.
    if row["news"] != NONE and not row["n_with_news"]:
        return MISSING
    return f"{format_number(row['difference'])} ({format_interval(row)})"


def find_audit(run: TrainingRun, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of a run's sealed model on its largest audited test set; none without any."""
    model = ("test", run.summary.get("artifact_hash", "not sealed"))
    of_model = [row for row in rows if (row["split"], row["artifact_hash"]) == model]
    return max(list_audits(of_model), key=lambda scope: scope[0]["n_windows"], default=[])


def plot_news_errors(rows: Sequence[Row]) -> Plot | None:
    """Plot errors by what is read, where news moves forecasts most; None where it moves none."""
    groups = _group_rows(rows)
    if (MOVED, MOST) not in groups:
        return None

    own_errors = groups[MOVED, MOST][OWN], groups[MOVED, REST][OWN]
    errors = {
        label: [groups[MOVED, group][news]["mae"] for group in (MOST, REST)]
        for news, (label, _) in _BARS.items()
    }
    texts = [f"{name} {' and '.join(map(format_number, both))}" for name, both in errors.items()]
    alt = f"Bars of the MAE where news moves the forecast most, and elsewhere: {join_items(texts)}."
    look: Style = {"title": f"MAE on test windows, {own_errors[0]['unit']}", "is_counted": False}

    def add_bars(axis: Axes) -> None:
        for place, (label, colour) in enumerate(_BARS.values()):
            bars = axis.bar([place, place + 4], errors[label], 0.9, color=colour, label=label)
            axis.bar_label(bars, list(map(format_number, errors[label])), color=INK, fontsize=8)
        names = "moved most by news", "others"
        ticks = [f"{name}: {row['n_windows']}" for name, row in zip(names, own_errors, strict=True)]
        axis.set_xticks([1, 5], ticks)
        axis.grid(visible=False, axis="x")
        axis.margins(y=0.1)
        add_legend(axis)

    return plot_lines([], alt, size=THIRD, finish=add_bars, **look)


def list_read_topics(rows: Sequence[Row], agent: int) -> str:
    """Return the topics an agent read about, with windows and the error that news saved there."""
    read = [r for r in rows if (r["group_kind"], r["news"]) == (f"agent {agent}", NONE)]
    ranked = sorted(read, key=lambda row: row["difference"])[:MOST_TOPICS]
    texts = [f"{r['group']} ({r['n_windows']}, {format_number(-r['difference'])})" for r in ranked]
    return ", ".join(texts) or MISSING
