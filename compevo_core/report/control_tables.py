"""Does competition find evidence? The control as a sentence, a table and a picture.

What belongs here: the verdict, the share of the planted effect that each arm recovers, which topics
the logics name. What does not: the worlds and their runs (``paper.control``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean, stdev

from compevo_core.paper.planted_news import AFTER_TRAINING, EVOLVED, PRIOR
from compevo_core.report.figures import (
    ACCENT,
    GOLD,
    GREEN,
    HALF,
    MUTED,
    PURPLE,
    RED,
    Line,
    Picture,
    Style,
    plot_lines,
)
from compevo_core.report.tables import Row, Table, tabulate
from compevo_core.report.wording import MISSING, format_number, format_percent

ARM_TITLES = {
    PRIOR: "calendar ridge alone",
    "no-news": "evolved logics, no news",
    "swapped-news": "evolved logics, news of another day",
    "seed-logics": "seed logics kept",
    EVOLVED: "evolved logics",
    "oracle-logics": "logics that name the acting topics",
    "all-articles": "all articles, no choice",
}
_STYLES: dict[str, Style] = {
    "seed-logics": {"color": GOLD},
    EVOLVED: {"color": ACCENT, "linewidth": 2.4},
    "oracle-logics": {"color": GREEN, "linestyle": (0, (4, 2))},
    "all-articles": {"color": PURPLE, "linestyle": (0, (1.2, 1.2))},
    "swapped-news": {"color": RED},
}
NO_ROWS = "*No control yet: `compevo experiment control DATASET` makes it.*"


def list_controls(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each data set."""
    datasets: dict[str, list[Row]] = {}
    for row in rows:
        datasets.setdefault(row["dataset"], []).append(row)
    return list(datasets.values())


def format_control(rows: Sequence[Row], rounds: Sequence[Row]) -> str:
    """Return the control of every data set as Markdown: verdict, table, picture."""
    parts = []
    for control in list_controls(rows):
        table = control_table(control)
        plots = show_control(control, rounds).plots
        images = "\n".join(f"![{plot.alt}]({plot.source})" for plot in plots)
        parts += [f"**{table.caption}**", judge_control(control), images, table.to_markdown()]
    return "\n\n".join(parts) or NO_ROWS


def judge_control(rows: Sequence[Row]) -> str:
    """Say how near the evolved logics come to logics that name the acting topics."""
    sentences = []
    for effect in sorted({row["effect"] for row in rows if row["effect"]}):
        evolved, oracle, seeds = (
            _mean(_select(rows, effect, arm), "slope")
            for arm in (EVOLVED, "oracle-logics", "seed-logics")
        )
        precision = _mean(_select(rows, effect, EVOLVED), "precision")
        if evolved is None or oracle is None or seeds is None:
            continue
        sentences.append(
            f"At effect {effect:g} the evolved logics hold {evolved:.2f} of it, where logics that "
            f"name the acting topics hold {oracle:.2f} and seed logics {seeds:.2f}; "
            f"{format_percent(precision)} of the topics that they name act."
        )
    return " ".join(sentences) or "There is no world with an effect and all arms."


def control_table(rows: Sequence[Row]) -> Table:
    """Return one line for each effect and arm, as means over the seeds."""
    lines = [
        _select(rows, effect, arm)
        for effect in sorted({row["effect"] for row in rows})
        for arm in ARM_TITLES
    ]
    first = rows[0]
    cells: dict[str, Callable[[list[Row]], str]] = {
        "Effect": lambda line: f"{line[0]['effect']:g}",
        "Arm": lambda line: ARM_TITLES[line[0]["arm"]],
        "Seeds": lambda line: str(len(line)),
        f"MAE {first['unit']}": lambda line: format_number(_mean(line, "mae")),
        "Recovered": _format_recovered,
        "Slope": partial(_format_with_spread, "slope"),
        "Precision": partial(_format_named, "precision"),
        "Recall": partial(_format_named, "recall"),
    }
    lines = [line for line in lines if line]
    return tabulate(
        lines,
        cells,
        caption=f"{first['dataset'].capitalize()}: what is found of news whose worth is known",
        text_columns=(1,),
        highlighted=[i for i, line in enumerate(lines) if line[0]["arm"] == EVOLVED],
        notes=(
            "Effect: by how much one acting topic moves a day, in standard deviations of what a "
            "calendar ridge misses. Recovered: share of what the effect costs the calendar ridge, "
            "with the 95 % interval by days, its ends averaged over the seeds; it may hold what is "
            "learnt of numbers too. Slope: of what is added to the calendar ridge on the effect, 1 "
            "where all of it is read, with the standard deviation between seeds. Precision: share "
            "of the named topics that act. Recall: share of the acting topics that an agent names.",
        ),
    )


def show_control(rows: Sequence[Row], rounds: Sequence[Row]) -> Picture:
    """Return the slope by effect for each arm, and the topics named by rewriting."""
    dataset = rows[0]["dataset"]
    effects = sorted({row["effect"] for row in rows if row["effect"]})
    dose = [
        Line(
            effects,
            [_mean(_select(rows, effect, arm), "slope") for effect in effects],
            {"label": ARM_TITLES[arm], "marker": "o", "markersize": 3.5} | style,
        )
        for arm, style in _STYLES.items()
    ]
    of_dataset = [row for row in rounds if row["dataset"] == dataset]
    numbers = sorted({row["rewriting"] for row in of_dataset})
    colours = (MUTED, GOLD, GREEN, ACCENT, PURPLE)
    named = [
        Line(
            numbers,
            [
                _mean([r for r in of_dataset if r["effect"] == effect and r["rewriting"] == n], key)
                for n in numbers
            ],
            {"label": f"{key}, effect {effect:g}", "color": colour} | style,
        )
        for effect, colour in zip(sorted({r["effect"] for r in of_dataset}), colours, strict=False)
        for key, style in (("precision", {}), ("recall", {"linestyle": (0, (4, 2))}))
    ]
    plots = [
        plot_lines(
            dose,
            "Slope of the forecast on the planted effect by size of the effect, a line an arm.",
            size=HALF,
            title="How much of the effect is read",
            x_label="effect, standard deviations",
            y_label="slope",
            is_counted=False,
            legend_columns=2,
        ),
        plot_lines(
            named,
            "Precision and recall of the acting topics in the logics, by rewriting.",
            size=HALF,
            title="Which topics the logics name",
            x_label="rewriting",
            y_label="mean over agents and seeds",
            legend_columns=2,
        ),
    ]
    return Picture(plots, caption=f"{dataset.capitalize()}: worlds with planted news")


def _select(rows: Sequence[Row], effect: float, arm: str) -> list[Row]:
    return [row for row in rows if row["effect"] == effect and row["arm"] == arm]


def _mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return fmean(values) if values else None


def _format_recovered(rows: Sequence[Row]) -> str:
    ends = _mean(rows, "recovered_low"), _mean(rows, "recovered_high")
    if rows[0]["arm"] == PRIOR or None in ends:
        return MISSING
    low, high = map(format_percent, ends)
    return f"{format_percent(_mean(rows, 'recovered'))} ({low} to {high})"


def _format_with_spread(key: str, rows: Sequence[Row]) -> str:
    values = [row[key] for row in rows if row[key] is not None]
    if not values or rows[0]["arm"] == PRIOR:
        return MISSING
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"


def _format_named(key: str, rows: Sequence[Row]) -> str:
    if rows[0]["arm"] in (PRIOR, "all-articles", *AFTER_TRAINING):
        return MISSING
    return format_percent(_mean(rows, key))
