"""Plots and charts: nothing is cut off, and lines and bands hold the numbers of their rows."""

from datetime import datetime, timedelta

import polars as pl
import pytest

from compevo_core.report import figures
from compevo_core.report.charts import MOST_STEPS, TimeLine, draw_chart
from compevo_core.report.figures import get_figure
from compevo_core.report.page import render_chart
from compevo_core.report.paper.experiments import show_curves
from compevo_core.report.plots import show_panel
from compevo_core.report.rows import collect_scores
from tests.support.report_samples import (
    make_frame,
    make_inputs,
    make_panel,
    make_row,
    render_undrawn,
)

SCOPE = ("electricity", "n2f-test-100")


def test_every_method_of_a_forecast_panel_stands_in_the_legend_within_the_figure():
    values = next(iter(make_panel().forecasts.values()))
    methods = ("persistence", "calendar-ridge", "gbm", "published-error-gbm", "blend", "compevo")
    panel = make_panel(forecasts=dict.fromkeys(methods, values))
    figure = get_figure(show_panel(panel).plots[0].draw())
    figure.draw_without_rendering()

    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()][-1] == "CompEvo"
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_a_page_makes_no_figure_of_a_plot_that_nobody_draws(monkeypatch):
    monkeypatch.delattr(figures, "Figure")
    assert "<img" in render_undrawn(make_inputs())
    with pytest.raises(NameError, match="Figure"):
        show_panel(make_panel()).plots[0].draw()


def sweep_rows(name="tau", values=("0.1", "0.5", "1")):
    return make_frame(
        *(
            make_row(
                f"{name}={value}",
                200.0 + seed + place,
                seed=seed,
                experiment=f"experiment-{name}",
                config_hash=f"{value}",
            )
            for place, value in enumerate(values)
            for seed in (0, 1)
        ),
        make_row("compevo", 200.0),
    )


def test_a_curve_holds_own_errors_with_their_spread_and_the_papers():
    scores = collect_scores(sweep_rows().filter(pl.col("method") != "compevo"), *SCOPE)
    (picture,) = show_curves(make_inputs(rows=sweep_rows()))
    axis = picture.plots[0].draw()
    means = [score.mean["rmse"] for _, score in sorted(scores.items())]
    assert list(axis.containers[0].lines[0].get_ydata()) == means
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.1", "0.5", "1"]
    paper = axis.get_lines()[-1]
    assert list(paper.get_ydata()) == [378.5, 354.18, 372.0]


def test_an_experiment_with_one_change_has_no_curve_and_others_stand_on_the_page():
    assert show_curves(make_inputs(rows=sweep_rows(values=("0.1",)))) == []
    (picture,) = show_curves(make_inputs(rows=sweep_rows("agents", ("1", "2"))))
    assert "number of agents" in picture.caption


FIRST = datetime(2026, 3, 30)  # noqa: DTZ001 - the reader's clock
NAN = float("nan")


def line(values, step, **style):
    times = [FIRST + i * step for i in range(len(values))]
    return TimeLine(name="x", times=times, values=values, colour="#0b5cad", **style)


def test_a_gap_breaks_a_line_and_has_no_text():
    hour = timedelta(hours=1)
    chart = draw_chart([line([1.0, NAN, 3.0, 4.0], hour)], "x", step=hour, decimals=0)
    assert chart.lines[0]["d"].count("M") == 2
    assert [step["texts"][0] for step in chart.steps] == [
        *("Mon 00:00 x 1", "Mon 02:00 x 3", "Mon 03:00 x 4")
    ]


def test_a_band_goes_along_its_upper_bound_and_back_along_the_lower_one():
    hour = timedelta(hours=1)
    band = line([20.0, 20.0], hour, low=[10.0, 10.0])
    chart = draw_chart([band], "x", step=hour, decimals=1)
    upper, lower = chart.y_ticks[-1][0], chart.y_ticks[0][0]
    points = chart.lines[0]["d"].removeprefix("M").removesuffix("Z").split("L")
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == [upper, upper, lower, lower]
    assert chart.steps[0]["texts"] == ["Mon 00:00 x 10.0 to 20.0"]


@pytest.mark.parametrize(
    ("count", "step"),
    [
        (1, timedelta(days=31)),
        (12, timedelta(days=30)),
        (2000, timedelta(minutes=5)),
        (48, timedelta(minutes=30)),
    ],
)
def test_any_grid_is_drawn_with_a_few_ticks_inside_the_plot(count, step):
    values = [float(i % 7) for i in range(count)]
    chart = draw_chart([line(values, step)], "x", step=step, decimals=0)
    left, top, right, bottom = chart.box
    assert 1 <= len(chart.x_ticks) <= 10 and len(chart.steps) <= MOST_STEPS
    assert all(left <= x <= right for x, _ in chart.x_ticks)
    assert all(top <= y <= bottom for y, _ in chart.y_ticks)
    assert left <= chart.steps[0]["x"] <= chart.steps[-1]["x"] < right


def test_text_from_data_is_escaped_in_a_drawing():
    hour = timedelta(hours=1)
    svg = render_chart(draw_chart([line([1.0], hour)], "<b>&", step=hour, decimals=0))
    assert "<b>" not in svg and "&lt;b&gt;&amp;" in svg
