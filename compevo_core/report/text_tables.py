"""Is real text read? Worded data as a sentence and a table.

What belongs here: the verdict, the error of each arm beside the calendar ridge. What does not: the
data and their runs (``paper.worded_data``, ``paper.text_evidence``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, stdev

from compevo_core.paper.planted_news import BEST_AGENT, EVOLVED, PRIOR
from compevo_core.report.tables import Row, Table, tabulate
from compevo_core.report.wording import MISSING, format_number

ARM_TITLES = {
    "persistence": "persistence",
    PRIOR: "calendar ridge alone",
    "ridge-words": "ridge by part of the day, without numbers",
    "ridge-numbers": "ridge on the numbers in the text alone",
    "ridge": "ridge by part of the day and number",
    "ridge-swapped": "the same, articles of another day",
    "no-news": "evolved logics, no news",
    "swapped-news": "evolved logics, news of another day",
    "seed-logics": "seed logics kept",
    "hand-sky": "logics about temperature and clouds, written by hand",
    "hand-temperature": "logics about temperature, written by hand",
    BEST_AGENT: "evolved logics, the agent of most weight",
    EVOLVED: "evolved logics",
    "all-articles": "all articles, no choice",
}
NO_ROWS = "*No rows yet: `compevo experiment text NAME` makes them.*"
_FORESIGHT = "perfect foresight: the words were made from the day that is forecast"


def list_texts(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each data set."""
    datasets: dict[str, list[Row]] = {}
    for row in rows:
        datasets.setdefault(row["dataset"], []).append(row)
    return list(datasets.values())


def format_text(rows: Sequence[Row]) -> str:
    """Return every data set as Markdown: verdict and table."""
    parts = []
    for of_dataset in list_texts(rows):
        table = text_table(of_dataset)
        parts += [f"**{table.caption}**", judge_text(of_dataset), table.to_markdown()]
    return "\n\n".join(parts) or NO_ROWS


def judge_text(rows: Sequence[Row]) -> str:
    """Say what own words take off the calendar ridge, what another day's add, and who chose."""
    by_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in ARM_TITLES}
    parts = []
    for own, other, what in (
        ("ridge", "ridge-swapped", "A ridge on all articles"),
        (EVOLVED, "swapped-news", "Evolved logics"),
    ):
        if by_arm[own] and by_arm[other]:
            parts.append(
                f"{what} change the error of the calendar ridge by {_format_share(by_arm[own])}, "
                f"with the articles of another day by {_format_share(by_arm[other])}."
            )
    hands = [arm for arm in by_arm if arm.startswith("hand-") and by_arm[arm]]
    if hands:
        best = min(hands, key=lambda arm: _mean(by_arm[arm], "mae"))
        parts.append(
            f"The best logics written by hand change it by {_format_share(by_arm[best])}, the seed "
            f"logics by {_format_share(by_arm['seed-logics'])}."
        )
    return " ".join(parts)


def text_table(rows: Sequence[Row]) -> Table:
    """Return one line for each arm, as means over the seeds."""
    lines = [[row for row in rows if row["arm"] == arm] for arm in ARM_TITLES]
    lines = [line for line in lines if line]
    first = rows[0]
    cells: dict[str, Callable[[list[Row]], str]] = {
        "Arm": lambda line: ARM_TITLES[line[0]["arm"]],
        "Foresight": lambda line: "yes" if line[0]["foresight"] else "no",
        "Seeds": lambda line: str(len(line)) if line[0]["seed"] is not None else MISSING,
        f"MAE {first['unit']}": _format_error,
        "Against the calendar ridge": _format_share,
        "Interval": partial(_format_interval, unit=first["unit"]),
    }
    foresight = f" ({_FORESIGHT})" if first["foresight"] else ""
    return tabulate(
        lines,
        cells,
        caption=f"{first['dataset'].capitalize()}{foresight}: what is read of its words",
        text_columns=(0, 1),
        highlighted=[i for i, line in enumerate(lines) if line[0]["arm"] == EVOLVED],
        notes=(
            f"{first['n_windows']} test windows with articles. MAE with the standard deviation "
            "between seeds. Interval: of the difference from the calendar ridge, 95 %, by blocks "
            "of days, its ends averaged over the seeds.",
        ),
    )


def _mean(rows: Sequence[Row], key: str) -> float:
    return fmean(row[key] for row in rows)


def _format_share(rows: Sequence[Row]) -> str:
    """Return the difference from the calendar ridge as a share of its error."""
    if rows[0]["arm"] == PRIOR:
        return MISSING
    difference = _mean(rows, "difference")
    return f"{100 * difference / (_mean(rows, 'mae') - difference):+.1f} %"


def _format_error(rows: Sequence[Row]) -> str:
    spread = f" ± {stdev(row['mae'] for row in rows):.2g}" if len(rows) > 1 else ""
    return f"{format_number(_mean(rows, 'mae'))}{spread}"


def _format_interval(rows: Sequence[Row], unit: str) -> str:
    if rows[0]["arm"] == PRIOR or any(row["interval_low"] is None for row in rows):
        return MISSING
    low, high = (_mean(rows, key) for key in ("interval_low", "interval_high"))
    return f"{low:+.3g} to {high:+.3g} {unit}"
