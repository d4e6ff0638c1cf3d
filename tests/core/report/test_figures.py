"""Nothing of a plot is cut off: the names in its legend and its title lie within the figure."""

import pytest
from matplotlib.text import Text

from compevo_core.report.figures import add_legend, make_axis, make_picture
from compevo_core.report.forecast_pictures import plot_panel
from compevo_core.report.training_plots import (
    plot_health,
    plot_losses,
    plot_policy,
    plot_selection,
    plot_theory,
    plot_updates,
)
from tests.support.report_samples import make_panel, make_run

PLOTS = (plot_losses, plot_selection, plot_health, plot_policy, plot_theory, plot_updates)


def test_every_method_of_a_forecast_panel_stands_in_the_legend_within_the_figure():
    values = next(iter(make_panel().forecasts.values()))
    methods = ("persistence", "calendar-ridge", "gbm", "published-error-gbm", "blend", "compevo")
    figure = plot_panel(make_panel(forecasts=dict.fromkeys(methods, values)))
    figure.draw_without_rendering()

    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()][-1] == "CompEvo"
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_a_short_legend_keeps_the_columns_that_were_asked_for():
    figure, axis = make_axis(width=6.4, height=2.9)
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


def test_an_image_knows_how_wide_it_was_drawn_so_that_the_page_does_not_blow_it_up():
    plot = plot_health(make_run())[0]
    picture = make_picture([plot], caption="")
    assert picture.images[0].width == plot.figure.get_figwidth()
