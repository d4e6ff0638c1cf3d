"""What Dagster's pages show: strangers' text as text, tables, plots and sketches."""

import ast
import base64
import json
import math
import re
from pathlib import Path

import dagster as dg
import markdown
import pytest

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs import metadata
from compevo_pipeline.defs.assets.sources import build_articles_asset
from compevo_pipeline.defs.metadata import escape_markdown, render_sketch
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.feeds import Feed, default_feeds
from compevo_pipeline.work.deployment import Deployment
from tests.support.deployment import FixedClock, read_materialization
from tests.support.sources import raw

PIPELINE = Path(__file__).parents[3] / "compevo_pipeline"
HOSTILE = [
    "![x](http://host.example/p.png)",
    "[click](javascript:alert(1))",
    "<img src=http://host.example/p.png onerror=alert(1)>",
    "<script>alert(1)</script>",
    "see http://host.example/p.png and www.host.example",
    "![x][y]\n\n[y]: http://host.example/p.png",
    "# heading | cell | `code` **bold**",
    "\\![x](http://host.example/p.png)",
    "<http://host.example/>",
]
RENDERS_MARKDOWN = {
    "defs/assets/report.py": "the pooled result rows, whose names are the project's own",
    "defs/assets/training.py": "the logics, escaped one by one",
    "defs/metadata.py": "plots and drawings, whose titles and names are escaped",
}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_as_it_is(text):
    page = markdown.markdown(escape_markdown(text), extensions=["tables"])
    shown = page.removeprefix("<p>").removesuffix("</p>")
    assert "<" not in shown
    assert "http:" not in shown
    assert "www." not in shown


@pytest.mark.parametrize("text", HOSTILE)
def test_names_in_drawings_and_titles_load_nothing(text):
    plot = metadata.render_plot(lambda axes: axes.plot([1, 2]), text)
    sketch = render_sketch({text: [1.0, 2.0]})
    for drawn in (plot, sketch):
        page = markdown.markdown(drawn.value)
        assert page.count("<img") == 1
        assert page.count('src="data:image/') == 1
        assert "<script" not in page
        assert "<a " not in page


def test_markdown_is_made_in_these_places_alone():
    """A new place needs its own escape: read it, then add it here with the reason."""
    found = set()
    for path in PIPELINE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text if "MetadataValue" in text else "")):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            names = {"MetadataValue.md", "MarkdownMetadataValue", "dg.MarkdownMetadataValue"}
            if is_call and any(ast.unparse(node.func).endswith(name) for name in names):
                found.add(path.relative_to(PIPELINE).as_posix())
    assert found == set(RENDERS_MARKDOWN)


def test_hostile_headlines_load_nothing_on_the_page_of_the_news(tmp_path):
    listed = [
        {
            "url": f"https://example.org/{number}",
            "title": title,
            "seendate": "20260318T031500Z",
            "domain": title,
            "language": title,
        }
        for number, title in enumerate(HOSTILE)
    ]
    answer = raw("answer.json", json.dumps({"articles": listed}), "gdelt_doc")
    (gdelt,) = [feed for feed in default_feeds()["news"] if feed.name == "gdelt"]
    feed = Feed(name="gdelt", read_files=lambda *_: iter([answer]), parsers=gdelt.parsers)
    result = dg.materialize(
        [build_articles_asset([feed])],
        resources={
            "workspace": Deployment(settings=Settings(home=tmp_path, mode=Mode.ARCHIVE)),
            "feeds": {"news": [feed]},
            "clock": FixedClock(),
        },
    )

    shown = read_materialization(result).metadata
    assert shown["dagster/row_count"].value == len(HOSTILE)
    pages = [
        markdown.markdown(value.value)
        for value in shown.values()
        if isinstance(value, dg.MarkdownMetadataValue)
    ]
    assert pages  # the drawing is one
    assert not any("host.example" in page or "<script" in page for page in pages)
    # Headlines are there all the same: as cells, which are text to the pages.
    cells = [str(record.data) for record in shown["newest"].records]
    assert any("host.example" in cell for cell in cells)


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
