"""Nothing of a plot is cut off, and curves hold the numbers of their rows."""

from functools import partial

import pytest
from matplotlib.text import Text

from compevo_core.report.figures import add_legend, get_figure, make_axis
from compevo_core.report.paper.tables import collect_scores, plot_sweep, show_curves
from compevo_core.report.plots import (
    HEALTH,
    POLICY,
    SELECTION,
    THEORY,
    plot_losses,
    plot_updates,
    plot_values,
    show_panel,
)
from tests.support.report_samples import make_frame, make_inputs, make_panel, make_row, make_run

VALUES = SELECTION | HEALTH | POLICY | THEORY
PLOTS = (plot_losses, plot_updates, partial(plot_values, titles=VALUES))


def test_every_method_of_a_forecast_panel_stands_in_the_legend_within_the_figure():
    values = next(iter(make_panel().forecasts.values()))
    methods = ("persistence", "calendar-ridge", "gbm", "published-error-gbm", "blend", "compevo")
    panel = make_panel(forecasts=dict.fromkeys(methods, values))
    figure = show_panel(panel).plots[0].figure
    figure.draw_without_rendering()

    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()][-1] == "CompEvo"
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_a_short_legend_keeps_the_columns_that_were_asked_for():
    axis = make_axis(6.4, 2.9)
    figure = get_figure(axis)
    for name in "abcde":
        axis.plot([0, 1], label=name)
    add_legend(axis, columns=5)
    heights = {text.get_window_extent().y0 for text in figure.legends[0].get_texts()}
    assert len(figure.legends) == 1 and len(heights) == 1


@pytest.mark.parametrize("plot", PLOTS)
def test_the_title_of_a_training_plot_is_not_cut_off(plot):
    for drawn in plot(make_run()):
        drawn.figure.draw_without_rendering()
        axis = drawn.figure.axes[0]
        name = axis.get_title(loc="left")
        (title,) = (text for text in axis.findobj(Text) if text.get_text() == name)
        assert title.get_window_extent().x1 <= drawn.figure.bbox.x1, name


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
    scores = collect_scores(
        sweep_rows().filter(sweep_rows()["method"] != "compevo"), "electricity", "n2f-test-100"
    )
    axis = plot_sweep("tau", "electricity", dict(sorted(scores.items()))).axes[0]
    own = axis.containers[0]
    assert list(own.lines[0].get_ydata()) == [
        score.mean["rmse"] for _, score in sorted(scores.items())
    ]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.1", "0.5", "1"]
    paper = axis.get_lines()[-1]
    assert list(paper.get_ydata()) == [378.5, 354.18, 372.0]


def test_a_thousandth_of_the_error_looks_like_nothing():
    rows = make_frame(make_row("beta=0", 200.0), make_row("beta=0.9", 200.001))
    scores = collect_scores(rows, "electricity", "n2f-test-100")
    figure = plot_sweep("beta", "electricity", scores)
    low, high = figure.axes[0].get_ylim()
    rmse = scores["beta=0"].mean["rmse"]
    assert (high - low) / rmse == pytest.approx(0.02, rel=1e-3)
    assert low < rmse < high
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["here, one seed"]


def test_an_experiment_with_one_change_has_no_curve_and_others_stand_on_the_page():
    assert show_curves(make_inputs(rows=sweep_rows(values=("0.1",)))) == []
    inputs = make_inputs(rows=sweep_rows("agents", ("1", "2")))
    (picture,) = show_curves(inputs)
    assert "number of agents" in picture.caption
