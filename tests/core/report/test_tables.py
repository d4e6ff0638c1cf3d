"""Names, numbers and tables as readers see them: nothing in a cell can break out of it."""

import math

import pytest

from compevo_core.report import tables
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


@pytest.mark.parametrize(
    ("metric", "values", "shown"),
    [
        ("mae", [1234.5, 20.04], ["1,234.5", "20.0"]),
        ("mae", [0.0312, 0.004], ["0.03120", "0.00400"]),
        ("mae", [5.125, None], ["5.125", "n/a"]),
        ("mape_pct", [12.3456, math.inf], ["12.35", "n/a"]),
        ("mase", [1.0], ["1.000"]),
        ("mase", [-0.0001], ["0.000"]),
    ],
)
def test_numbers_of_a_column_have_equal_decimals(metric, values, shown):
    assert tables.format_column(metric, values) == shown


def test_a_month_of_inference_is_named_by_its_month():
    names = [
        tables.scope_name("electricity", subset)
        for subset in ("inference-2026-02", "inference-2026-100", "operational-2026-200")
    ]
    assert names == [
        "Electricity, inference split, February 2026",
        "Electricity, leakage check, Feb-Mar 2026",
        "Electricity, operational demand, Feb-Mar 2026, known to midnight",
    ]
    assert tables.scope_name("own", "summer-2026-13") == "Own, summer-2026-13"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (12345, "12,345"),
        (0.0, "0.0"),
        (-0.0, "0.0"),
        (-123.45, "-123.5"),
        (1.005, "1.00"),
        (0.03, "0.0300"),
        (0.0003, "3.00e-04"),
    ],
)
def test_a_number_has_decimals_that_fit_its_size(value, shown):
    assert tables.format_number(value) == shown


@pytest.mark.parametrize(
    ("share", "shown"), [(-0.0002, "0.0 %"), (-0.002, "-0.2 %"), (None, "n/a")]
)
def test_a_share_that_rounds_to_zero_has_no_sign(share, shown):
    assert tables.format_percent(share) == shown
