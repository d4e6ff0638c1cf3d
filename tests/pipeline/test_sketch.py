"""Drawings of so little text that the UI shows them without a click."""

import base64
import math
import re

import pytest

from compevo_pipeline.sketch import render_sketch


def polylines(sketch):
    encoded = re.search(r"base64,([A-Za-z0-9+/=]+)\)", sketch.value).group(1)
    svg = base64.b64decode(encoded).decode()
    return [
        [tuple(map(int, corner.split(","))) for corner in points.split()]
        for points in re.findall(r'points="([^"]*)"', svg)
    ]


@pytest.mark.parametrize("lines", [1, 2, 3])
@pytest.mark.parametrize("length", [1, 2, 48, 5000])
def test_a_drawing_is_short_enough_to_be_shown_and_has_every_line(lines, length):
    values = [math.sin(i / 9) * 12345 for i in range(length)]
    sketch = render_sketch({f"line {i}": [v + i for v in values] for i in range(lines)})
    assert len(sketch.value) < 1000
    assert len(polylines(sketch)) == lines


def test_larger_values_are_higher_and_the_last_is_at_the_right_edge():
    ((first, second, last),) = polylines(render_sketch({"a": [1.0, 3.0, 2.0]}))
    assert first[0] == 0 < second[0] < last[0] == 240
    assert first[1] > last[1] > second[1]


def test_both_lines_are_on_one_scale_and_missing_values_are_left_out():
    low, high = polylines(render_sketch({"a": [1.0, None, 1.0], "b": [2.0, math.nan, 2.0]}))
    assert len(low) == len(high) == 2 and low[0][1] > high[0][1]


def test_nothing_to_draw_is_said():
    assert "no values yet" in render_sketch({"a": [None]}).value
