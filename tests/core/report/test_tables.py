"""Tables as Markdown and as HTML: nothing in a cell can break out of it."""

import pytest

from compevo_core.report.page import template_environment
from compevo_core.report.tables import Table, markdown_table
from tests.support.report_samples import HOSTILE


def show_table(table):
    return str(template_environment().get_template("macros.html").module.show_table(table))


def test_a_table_refuses_a_row_of_another_width():
    with pytest.raises(ValueError, match="3 cells but the header has 2"):
        Table(header=["a", "b"], rows=[["1", "2", "3"]])


def test_cells_are_escaped_in_both_forms():
    table = Table(header=["Agent", "Logic"], rows=[["agent 0", HOSTILE + "\nnext"]])
    assert "<script>" not in show_table(table)
    line = table.to_markdown().splitlines()[2]
    assert line.count("|") - line.count("\\|") == 3


def test_captions_and_notes_are_escaped():
    page = show_table(Table(header=["a"], rows=[["1"]], caption=HOSTILE, notes=(HOSTILE,)))
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 3, "label, caption and note"


def test_best_cells_are_bold_in_both_forms():
    table = Table(header=["a", "b"], rows=[["x", "1"], ["y", "2"]], best_cells=frozenset({(1, 1)}))
    assert table.to_markdown().splitlines()[3] == "| y | **2** |"
    assert "<td><strong>2</strong></td>" in show_table(table)
    assert "<td>1</td>" in show_table(table)


def test_a_markdown_table_is_aligned_as_asked():
    lines = markdown_table(["a", "b"], [["x", 1.5]], align="lr").splitlines()
    assert lines == ["| a | b |", "| --- | ---: |", "| x | 1.5 |"]
    assert markdown_table(["a", "b"], []).splitlines()[1] == "| --- | --- |"


@pytest.mark.parametrize(("rows", "align"), [([["1", "2"]], ""), ([["1"]], "lr")])
def test_a_markdown_table_refuses_rows_and_alignments_of_another_width(rows, align):
    with pytest.raises(ValueError, match="for 1 columns"):
        markdown_table(["a"], rows, align=align)
