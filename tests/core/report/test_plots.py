"""Nothing of a plot is cut off, and curves hold the numbers of their rows."""

import polars as pl
import pytest

from compevo_core.report import figures
from compevo_core.report.figures import get_figure
from compevo_core.report.paper.tables import show_curves
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
