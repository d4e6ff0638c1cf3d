"""Text of strangers on Dagster's pages: no image loads, no link forms, no markup takes effect."""

import ast
from pathlib import Path

import dagster as dg
import markdown
import pytest

from compevo_pipeline.assets import metadata
from compevo_pipeline.markdown import escape_markdown
from compevo_pipeline.sketch import render_sketch

PIPELINE = Path(__file__).resolve().parents[2] / "compevo_pipeline"
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
    "assets/metadata.py": "a plot, whose title is escaped",
    "assets/report.py": "the pooled result rows, whose names are the project's own",
    "assets/training.py": "the logics, escaped one by one",
    "sketch.py": "a drawing, whose names are escaped",
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


@pytest.mark.parametrize("text", HOSTILE)
def test_a_cell_of_a_table_is_text_to_the_pages(text):
    import polars as pl

    table = metadata.render_table(pl.DataFrame({"title": [text], text: ["x"]}))
    assert isinstance(table, dg.TableMetadataValue)


def test_markdown_is_made_in_these_places_alone():
    """A new place needs its own escape: read it, then add it here with the reason."""
    found = set()
    for path in PIPELINE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            names = {"MetadataValue.md", "MarkdownMetadataValue", "dg.MarkdownMetadataValue"}
            if is_call and any(ast.unparse(node.func).endswith(name) for name in names):
                found.add(path.relative_to(PIPELINE).as_posix())
    assert found == set(RENDERS_MARKDOWN)
