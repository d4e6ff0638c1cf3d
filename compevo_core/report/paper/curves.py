"""Curves of the experiments: the error by the value of a setting, with its spread over seeds.

What belongs here: drawing what the tables of ``report.paper.variants`` hold. What does not: tests.
"""

from collections.abc import Mapping

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from compevo_core.experiments.sweeps import ABLATION, SWEEPS, name_rows
from compevo_core.report.figures import Picture, Plot, add_legend, make_axis, make_picture
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.paper.published import find_published
from compevo_core.report.paper.scores import Score, collect_scores
from compevo_core.report.paper.variants import PRINTED, list_subsets
from compevo_core.report.theme import ACCENT, OTHER_BARS
from compevo_core.report.wording import scope_name

LEAST_SPAN = 0.02
"""Height of the axis as a share of the error: a thousandth of it shall look like nothing."""


def show_curves(inputs: ReportInputs) -> list[Picture]:
    """Return one picture an experiment and test set that has at least two changes."""
    pictures = []
    for name, experiment in SWEEPS.items():
        # The ablation has bars of its own.
        if name == ABLATION:
            continue
        rows = inputs.rows.filter(pl.col("experiment") == name_rows(name))
        for dataset in rows["dataset"].unique(maintain_order=True):
            for subset in list_subsets(rows, dataset):
                scores = collect_scores(rows, dataset, subset)
                shown = [change for change in experiment.list_names() if change in scores]
                if len(shown) < 2:
                    continue
                title = f"{scope_name(dataset, subset)}: {experiment.title.lower()}"
                figure = plot_sweep(name, dataset, {change: scores[change] for change in shown})
                alt = f"RMSE by change for {title}; the table holds the numbers."
                pictures.append(make_picture([Plot(figure, alt=alt)], caption=title))
    return pictures


def plot_sweep(name: str, dataset: str, scores: Mapping[str, Score]) -> Figure:
    """Draw the RMSE of every change in order, its spread over seeds, and the paper's beside it."""
    figure, axis = make_axis(width=6.4, height=2.8)
    places = list(range(len(scores)))
    # Equal steps: values such as 0.001 and 1 share no scale, and names have none.
    axis.errorbar(
        places,
        [score.mean["rmse"] for score in scores.values()],
        yerr=[score.spread.get("rmse", 0.0) for score in scores.values()],
        color=ACCENT,
        marker="o",
        markersize=4,
        capsize=3,
        label="here, with deviation over seeds"
        if any(score.seeds > 1 for score in scores.values())
        else "here, one seed",
    )

    printed = {
        place: figure_.value
        for place, change in zip(places, scores, strict=True)
        if (figure_ := find_published(PRINTED.get(name, ""), dataset, change, "rmse"))
    }
    if printed:
        axis.plot(
            list(printed), list(printed.values()), color=OTHER_BARS, marker="s", label="paper"
        )

    units = {score.unit for score in scores.values()}
    axis.set_ylabel(f"RMSE {units.pop()}" if len(units) == 1 else "RMSE")
    axis.set_xticks(places, [change.partition("=")[2] for change in scores])
    axis.set_xlabel(next(iter(scores)).partition("=")[0])
    _widen(axis)
    add_legend(axis)
    return figure


def _widen(axis: Axes) -> None:
    """Give the axis a span by which a difference that means nothing looks like nothing."""
    low, high = axis.get_ylim()
    middle = (low + high) / 2
    half = max(high - low, LEAST_SPAN * middle) / 2
    axis.set_ylim(middle - half, middle + half)
