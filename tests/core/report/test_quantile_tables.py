"""The table and the plot that say how sure methods were."""

import dataclasses
from typing import Any

from compevo_core.evaluation.quantile_scores import BELOW_COLUMNS
from compevo_core.report.markdown import format_results
from compevo_core.report.page import render_page
from compevo_core.report.quantile_tables import (
    NOTE,
    _plot_reliability,
    _select_lines,
    reliability_picture,
    sureness_table,
)
from tests.support.report_samples import make_frame, make_inputs, make_row

SCOPE = ("electricity", "n2f-test-100")
BANDS = {
    "coverage_80": 0.802,
    "width_80": 390.0,
    "coverage_95": 0.951,
    "width_95": 700.0,
    "wql": 0.0213,
} | {column: level for level, column in BELOW_COLUMNS.items()}


def make_sure_rows(**changes: Any):
    published = {"coverage_80": 0.61, "width_80": 300.0, "below_q10": 0.2, "below_q90": 0.8}
    return make_frame(
        make_row("compevo", 200.0, pinball_10_50_90=40.0, **(BANDS | changes)),
        make_row("compevo", 202.0, pinball_10_50_90=42.0, seed=1, config_hash="ccompevo" * 2),
        make_row("compevo-agent-0", 199.0, pinball_10_50_90=39.0, **BANDS),
        make_row("gbm", 180.0, pinball_10_50_90=50.0, **BANDS),
        make_row("gbm-recalibrated", 178.0, pinball_10_50_90=49.0, **BANDS),
        make_row("published", 150.0, pinball_10_50_90=44.0, **published),
        make_row("persistence", 290.0),
    )


def test_methods_with_quantiles_stand_in_the_order_of_their_pinball_loss() -> None:
    table = sureness_table(make_sure_rows(), *SCOPE)
    assert table is not None
    assert [row[0] for row in table.rows] == [
        "CompEvo",
        "Published forecast (AEMO POE50)",
        "Boosted trees, known errors added",
        "Boosted trees",
    ]
    # The mean over two seeds; a level that was not published is missing, not zero.
    assert table.rows[0][1] == "41.00"
    assert list(table.rows[0][3:5]) == ["80.2 %", "390.0"]
    assert list(table.rows[1][2:]) == ["n/a", "61.0 %", "300.0", "n/a", "n/a"]
    assert (table.header[1], table.header[4]) == ("Pinball MW", "Width MW")
    assert table.best_cells == {(0, 1), (0, 2), (2, 2), (3, 2)} and table.highlighted_rows == {0}
    assert table.notes == [NOTE]


def test_rows_without_quantiles_make_no_table_and_no_section() -> None:
    rows = make_frame(make_row("compevo", 200.0), make_row("gbm", 180.0))
    assert sureness_table(rows, *SCOPE) is None and reliability_picture(rows, *SCOPE) is None
    inputs = dataclasses.replace(make_inputs(), rows=rows)
    assert 'id="how-sure"' not in render_page(inputs)
    assert "how sure" not in format_results(inputs)


def test_the_plot_has_a_line_a_method_through_the_shares_of_its_rows() -> None:
    figure = _plot_reliability(_select_lines(make_sure_rows(), *SCOPE))
    diagonal, *lines = figure.axes[0].lines
    assert list(diagonal.get_xdata()) == [0, 1]
    by_label = {str(line.get_label()): line for line in lines}
    assert "Boosted trees" in by_label and "Boosted trees, known errors added" not in by_label
    assert list(by_label["Published forecast (AEMO POE50)"].get_xdata()) == [0.1, 0.9]
    assert list(by_label["Published forecast (AEMO POE50)"].get_ydata()) == [0.2, 0.8]
    assert list(by_label["CompEvo"].get_xdata()) == list(BELOW_COLUMNS)


def test_the_page_and_the_documents_show_how_sure_methods_were() -> None:
    inputs = dataclasses.replace(make_inputs(), rows=make_sure_rows())
    page = render_page(inputs)
    assert 'id="how-sure"' in page and "are the quantiles what they say?" in page
    assert "how sure**" in format_results(inputs) and "| 80.2 % |" in format_results(inputs)
