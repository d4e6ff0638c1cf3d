"""Charts as SVG: gaps, bands, places, and grids from minutes to months."""

from datetime import datetime, timedelta

import pytest

from compevo_core.report.charts import MOST_STEPS, TimeLine, draw_chart
from compevo_core.report.page import render_chart

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
