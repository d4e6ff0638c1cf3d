"""Averages over data sets: of what was trained, and with the range that a mean hides."""

from compevo_core.report.paper.published import DATASETS
from compevo_core.report.paper.tables import build_paper_tables
from tests.support.report_samples import make_frame, make_inputs, make_row


def build_macro(**budgets):
    """Return the table of averages: GPT4TS errs twice as much, on one data set a tenth less."""
    rows = []
    for dataset in DATASETS:
        subset = {"electricity": "n2f-test-100"}.get(dataset, "test")
        shared = {"dataset": dataset, "subset": subset}
        other = 0.9 if dataset == "bitcoin" else 2.0
        rows += [
            make_row("compevo", 1.0, rmse=1.0, **shared),
            make_row("persistence", 2.0, rmse=2.0, **shared),
            make_row("gpt4ts", other, rmse=other, budget=budgets.get(dataset, "small"), **shared),
        ]
    tables = build_paper_tables("main", make_inputs(rows=make_frame(*rows)))
    (table,) = [one for one in tables if one.caption.startswith("Macro")]
    return {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}


def test_the_mean_stands_beside_its_range_and_the_budgets():
    cells = build_macro(electricity="tuned")["GPT4TS"]
    assert cells["RMSE"] == "-34.7 %"
    assert cells["RMSE by data set"] == "-50.0 % to +11.1 %"
    assert (cells["Data sets"], cells["Its budgets"]) == ("4", "tuned and small")


def test_a_method_of_a_few_updates_is_in_no_mean():
    cells = build_macro(traffic="quick")["GPT4TS"]
    assert (cells["RMSE"], cells["Data sets"]) == ("n/a", "3")


def test_simple_forecasts_say_how_much_of_a_gain_is_anyones():
    table = build_macro()
    assert table["Persistence"]["RMSE"] == "-50.0 %"
    assert table["Calendar ridge"]["Data sets"] == "0"
