"""Which rows a table shows, in which order, with which notes."""

import polars as pl
import pytest

from compevo_core.report.result_plots import plot_methods
from compevo_core.report.result_tables import headline_table, region_table, short_table
from tests.support.report_samples import make_frame, make_row, make_rows

SCOPE = ("electricity", "n2f-test-100")


def names(table):
    return [row[0] for row in table.rows]


def test_the_headline_is_ordered_by_error_and_marks_the_best():
    table = headline_table(make_rows(), *SCOPE)
    assert names(table) == ["Boosted trees", "CompEvo", "Calendar ridge", "Persistence"]
    assert table.best_cells == {(0, column) for column in range(1, 6)}
    assert table.highlighted_rows == {1}
    assert table.header[1] == "MAE MW"


def test_mape_comes_with_what_it_leaves_out():
    table = headline_table(make_rows(), *SCOPE)
    assert "Not in MAPE" in table.header
    assert table.notes[0] == "MAPE leaves out actual values below 50 in size."


def test_leaky_and_unparsed_rows_are_named_under_the_table():
    rows = make_frame(
        make_row("compevo", 200.0, leaky=True, parse_failure_rate=0.25),
        make_row("gbm", 180.0, possibly_memorised=False),
    )
    notes = headline_table(rows, *SCOPE).notes
    assert "Made with a leaky prompt: CompEvo." in notes
    assert "The backbone may have memorised this period: CompEvo." in notes
    assert "Answers that could not be parsed; the fallback is scored: CompEvo 25.0 %." in notes


def test_one_method_in_two_configurations_is_told_apart():
    rows = make_frame(
        make_row("compevo", 200.0, config_hash="aaaaaaaaaaaa"),
        make_row("compevo", 210.0, config_hash="bbbbbbbbbbbb"),
    )
    expected = ["CompEvo (aaaaaaaaaa)", "CompEvo (bbbbbbbbbb)"]
    assert names(headline_table(rows, *SCOPE)) == expected


def test_a_single_row_is_not_marked_as_the_best():
    rows = make_frame(make_row("compevo", 200.0))
    assert headline_table(rows, *SCOPE).best_cells == frozenset()


def test_regions_stand_in_columns_and_a_missing_one_says_so():
    is_dropped = (pl.col("method") == "gbm") & (pl.col("entity") == "TAS1")
    table = region_table(make_rows().filter(~is_dropped), *SCOPE, "mae", "MAE")
    assert table is not None
    assert table.rows[0] == ["Boosted trees", "288.2", "234.1", "90.0", "n/a", "252.1"]
    assert (1, 4) in table.best_cells


@pytest.mark.parametrize("entities", [1, 862])
def test_one_entity_or_hundreds_make_no_region_table(entities):
    rows = make_frame(*(make_row("gbm", 1.0, entity=str(index)) for index in range(entities)))
    assert region_table(rows, *SCOPE, "mae", "MAE") is None


def test_the_short_table_has_five_rows_and_always_compevo_and_the_naive_forecast():
    others = ("gbm", "calendar-ridge", "weekly", "published", "blend", "persistence")
    rows = make_frame(
        make_row("compevo", 300.0),
        *(make_row(name, 100.0 + place) for place, name in enumerate(others)),
    )
    table = short_table(rows, *SCOPE)
    assert table.header == ["Method", "MAE MW", "RMSE MW", "MAPE %", "Windows", "Seeds"]
    assert names(table) == [
        "Boosted trees",
        "Calendar ridge",
        "Weekly persistence",
        "Persistence",
        "CompEvo",
    ]


def test_the_short_table_holds_the_numbers_of_the_headline_table():
    rows = pl.concat([make_rows(), make_frame(make_row("gbm", 184.1, seed=1))])
    short, full = short_table(rows, *SCOPE), headline_table(rows, *SCOPE)
    assert [row[:4] for row in short.rows] == [row[:4] for row in full.rows]
    assert [row[4:] for row in short.rows] == [("100", "2"), *[("100", "1")] * 3]


def test_a_method_with_rows_of_two_budgets_is_named_with_them():
    rows = make_frame(
        make_row("dlinear", 200.0, budget="standard"),
        make_row("dlinear", 210.0, budget="tuned"),
        make_row("film", 220.0, budget="tuned"),
    )
    assert names(headline_table(rows, *SCOPE)) == ["DLinear (standard)", "DLinear (tuned)", "FiLM"]


def test_a_method_with_less_than_a_full_budget_is_named_with_it_and_gives_way_to_a_full_one():
    rows = make_frame(
        make_row("compevo", 200.0),
        make_row("compevo", 150.0, budget="small"),
        make_row("mael", 210.0, budget="small"),
        make_row("mael", 220.0, subset="other", budget="quick"),
    )
    # The smaller budget had less error: what stands is never chosen by it.
    assert names(headline_table(rows, *SCOPE)) == ["CompEvo", "MAEL (small budget)"]
    assert names(headline_table(rows, SCOPE[0], "other")) == ["MAEL (quick budget)"]


def test_bars_are_named_as_the_lines_of_the_table():
    rows = make_frame(
        make_row("film", 250.0, budget="tuned"),
        make_row("film", 260.0, budget="standard", config_hash="other"),
        make_row("compevo", 200.0, refit=True),
    )
    (axis,) = plot_methods(rows, "electricity", "n2f-test-100").axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["CompEvo, refit", "FiLM (tuned)", "FiLM (standard)"]
