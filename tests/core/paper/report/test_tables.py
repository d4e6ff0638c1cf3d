"""The paper's tables with own rows beside the published figures."""

import polars as pl
import pytest

from compevo_core.errors import ConfigError
from compevo_core.paper.report.comparison import describe_tests, pair_cells
from compevo_core.paper.report.paper_tables import (
    ONE_FORECAST,
    OTHER_WINDOWS,
    PAPER_TABLES,
    build_paper_tables,
    format_all_paper_tables,
    format_paper_sets,
    format_paper_tables,
)
from compevo_core.paper.report.published import DATASETS
from compevo_core.paper.report.rows import Score, empty_rows
from tests.support import report_samples
from tests.support.report_samples import make_frame, make_inputs

(TESTED,) = make_inputs().paired
PAIR = TESTED | {"subset": "paper-original", "method_b": "dlinear", "mean_difference": -12.5}
PAIR |= {"block_days": 14, "p_two_sided": 0.02, "interval_low": -20.0, "interval_high": -5.0}

OWN_SET = "Electricity, the paper's test windows, fitted on its random train part"


def make_row(method, mae, **changes):
    return report_samples.make_row(method, mae, **{"subset": "paper-original", **changes})


def rows_of_two_methods():
    return make_frame(
        make_row("compevo", 200.0), make_row("dlinear", 250.0), make_row("persistence", 400.0)
    )


def cells_of(table, name):
    return dict(zip(table.header, next(row for row in table.rows if row[0] == name), strict=True))


def test_own_and_published_errors_stand_side_by_side():
    errors = build_paper_tables("main", make_inputs(rows=rows_of_two_methods()))[0]
    cells = cells_of(errors, "DLinear")
    assert cells["MAE MW"] == "250.0"
    assert cells["MAE, paper"] == "255.70"
    assert cells["MSE, paper"] == "135,050"
    assert cells_of(errors, "Persistence")["MAE, paper"] == "-"


def test_partial_methods_are_compared_on_equal_windows():
    part = {"subset": "paper-original-every-12", "n_windows": 9}
    rows = make_frame(
        make_row("compevo", 200.0),
        make_row("news2forecast", 250.0, budget="quick", **part),
        make_row("persistence", 280.0, **part),
        # It has a row of all windows, so that of some tells nothing more.
        make_row("compevo", 210.0, **part),
    )
    errors = build_paper_tables("main", make_inputs(rows=rows))[0]
    assert cells_of(errors, "News2Forecast")["MAE MW"] == "no row"
    (note,) = [note for note in errors.notes if "one window in 12" in note]
    assert note == (
        f"{OWN_SET}, one window in 12, 9 of them: MAE of "
        "News2Forecast (quick budget) 250.0 MW and Persistence 280.0 MW."
    )


def test_a_rival_has_test_rate_and_skill():
    inputs = make_inputs(rows=rows_of_two_methods(), paired=[PAIR])
    cells = cells_of(build_paper_tables("main", inputs)[1], "DLinear")
    assert cells["CompEvo less it"] == "-12.50"
    assert cells["95 % interval"] == "-20.00 to -5.00"
    assert cells["p"] == "0.0200"
    assert cells["Win rate"] == "50.0 %"
    assert cells["Skill"] == "+37.5 %"


def test_windows_of_2021_omit_or_flag_published_figures():
    of_2021 = {"subset": "n2f-test-100"}
    rows = make_frame(
        make_row("compevo", 200.0, **of_2021),
        make_row("tau=0.5", 190.0, experiment="experiment-tau", **of_2021),
    )
    inputs = make_inputs(rows=rows)
    own, other = build_paper_tables("main", inputs)[:2]
    assert cells_of(own, "CompEvo") | {"MAE": "no row", "MAE, paper": "220.15 ± 2.40"} == (
        cells_of(own, "CompEvo")
    )
    assert "MAE, paper" not in other.header
    assert any("compevo paper benchmark paper-original --methods compevo," in n for n in own.notes)
    assert cells_of(other, "CompEvo")["MAE MW"] == "200.0"
    sweep = next(t for t in build_paper_tables("sensitivity", inputs) if "temperature" in t.caption)
    assert OTHER_WINDOWS in sweep.notes


def test_windows_of_2026_stand_beside_the_papers():
    scope = {"dataset": "electricity-operational", "subset": "paper-2026"}
    rows = make_frame(
        make_row("published", 109.5, **scope), make_row("persistence", 185.7, **scope)
    )
    (table,) = build_paper_tables("leakage", make_inputs(rows=rows))
    assert cells_of(table, "CompEvo")["MAE, paper"] == "225.02"
    assert cells_of(table, "Persistence")["MAE MW"] == "185.7"


def test_the_papers_sets_show_shares_and_gains():
    counts = {"train": 2568, "val": 317, "test": 317, "published_test": 366, "leaks_found": 9}
    shares = {"targets_in_train_inputs": 0.762, "days_in_train": 1.0}
    pair = PAIR | {"method_a": "persistence", "mean_difference": 150.0}
    inputs = make_inputs(
        rows=rows_of_two_methods(),
        paired=[pair],
        paper_sets=[{"set": "paper-original", **counts, **shares}],
    )
    text = format_paper_sets(inputs)
    assert "| paper-original | 2,568 | 317 | 317 of 366 | 76.2 % | 100.0 % | 9 |" in text
    assert "| CompEvo, as the paper prints it | 220.15 ± 2.40 |" in text
    assert "| DLinear | 250.0 | 387.3 | 6.25 | 150.0 (-20.00 to -5.00) |" in text


def test_a_sweep_stands_apart_from_the_methods():
    sweep = {"experiment": "experiment-tau"}
    rows = make_frame(
        make_row("compevo", 200.0),
        make_row("tau=0.5", 190.0, **sweep),
        make_row("tau=5", 209.0, **sweep),
    )
    test = PAIR | {"method_a": "tau=5", "method_b": "tau=0.5", "mean_difference": 19.0}
    inputs = make_inputs(rows=rows, paired=[test])
    tables = {table.caption: table for table in build_paper_tables("sensitivity", inputs)}
    name = f"{OWN_SET}: temperature of the weights"
    assert cells_of(tables[name], "tau=0.5")["RMSE, paper"] == "354.18"
    assert cells_of(tables[name], "tau=0.1")["MAE MW"] == "no row"

    against = cells_of(tables[f"{name}, against tau=0.5"], "tau=5")
    assert (against["Difference"], against["RMSE"], against["RMSE, paper"]) == (
        "19.00",
        "+10.0 %",
        "+17.2 %",
    )
    assert all(row[0] != "tau=5" for row in build_paper_tables("main", inputs)[0].rows)


def test_a_window_costs_its_mean_over_all():
    rows = make_frame(
        *(
            make_row(name, 200.0, seconds_per_window=seconds, n_windows=windows, subset=subset)
            for subset, windows, of_subset in (
                ("n2f-test-100", 100, (1.0, 4.0)),
                ("aemo-2021", 300, (1.0, 2.0)),
            )
            for name, seconds in zip(("mael", "compevo"), of_subset, strict=True)
        )
    )
    table = build_paper_tables("efficiency", make_inputs(rows=rows))[0]
    assert cells_of(table, "CompEvo")["s a window"] == "2.50 (2.50 x)"


def test_costs_are_ratios_to_plain_averaging():
    rows = make_frame(
        make_row("mael", 1.0, train_seconds=10.0, seconds=100.0),
        make_row("mad-rl", 1.0, train_seconds=30.0, seconds=350.0),
    )
    table = build_paper_tables("efficiency", make_inputs(rows=rows))[0]
    cells = cells_of(table, "MAD-RL")
    assert cells["Training s"] == "30.00 (3.00 x)"
    assert cells["s a window"] == "3.50 (3.50 x)"
    assert cells["s a step, paper"] == "19.70 (3.51 x)"


def test_agents_are_paired_at_one_budget():
    rows = make_frame(
        make_row("compevo", 200.0),
        make_row("compevo", 260.0, budget="small", train_seconds=20.0),
        make_row("mael", 300.0, budget="small", train_seconds=10.0),
    )
    pair = {**PAIR, "method_b": "mael"}
    inputs = make_inputs(
        rows=rows,
        paired=[pair],
        paired_at_budget=[{**pair, "mean_difference": -40.0, "budget": "small"}],
    )
    errors, rivals = build_paper_tables("agents", inputs)[:2]
    assert cells_of(errors, "CompEvo")["MAE MW"] == "260.0"
    assert any("budget `small`" in note for note in errors.notes)
    assert cells_of(rivals, "MAEL")["CompEvo less it"] == "-40.00"

    errors, rivals = build_paper_tables("main", inputs)[:2]
    assert cells_of(errors, "CompEvo")["MAE MW"] == "200.0"
    assert not any("budget `small`" in note for note in errors.notes)
    assert cells_of(rivals, "MAEL")["CompEvo less it"] == "-12.50"

    # Where CompEvo had that budget alone, the methods are paired at it too.
    alone = make_inputs(
        rows=rows.filter(pl.col("mae") != 200.0), paired_at_budget=inputs.paired_at_budget
    )
    errors, rivals = build_paper_tables("main", alone)[:2]
    assert cells_of(errors, "CompEvo")["MAE MW"] == "260.0"
    assert cells_of(rivals, "MAEL")["CompEvo less it"] == "-40.00"

    (table,) = build_paper_tables("efficiency", inputs)
    assert cells_of(table, "CompEvo")["Training s"] == "20.00 (2.00 x)"


def test_pairs_stay_with_errors_of_their_budget():
    rows = make_frame(
        make_row("compevo", 200.0, budget="small"), make_row("dlinear", 250.0, budget="tuned")
    )
    inputs = make_inputs(rows=rows, paired=[], paired_at_budget=[{**PAIR, "budget": "small"}])
    rivals = build_paper_tables("main", inputs)[1]
    assert cells_of(rivals, "DLinear")["CompEvo less it"] == "no pair"


def test_an_incapable_judge_is_named():
    row = {"table": "gains", "subject": "low", "dataset": "electricity", "judge": "local:x", "n": 8}
    row |= dict.fromkeys(("kappa", "pearson_r", "mean_lud", "error_gain"), 0.5)
    row |= {"artifact_hash": "a" * 64}
    gains = build_paper_tables("lud", make_inputs(lud=[row]))[1]
    assert gains.rows[0][:3] == ["low, by local:x", "0.5000", "0.5000"]
    assert any("cannot follow the rubric" in note for note in gains.notes)
    assert not any("No row of ours" in note for note in gains.notes)


def test_every_table_can_be_made_without_any_row():
    text = format_all_paper_tables(make_inputs(rows=empty_rows(), paired=[]))
    assert text.count("## ") == len(PAPER_TABLES)
    assert "`compevo paper experiment agents electricity`" in text


def test_an_unknown_name_is_refused_with_alternatives():
    with pytest.raises(ConfigError, match="known: main, agents"):
        format_paper_tables("maim", make_inputs())


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


def test_the_mean_has_its_range_and_budgets():
    cells = build_macro(electricity="tuned")["GPT4TS"]
    assert cells["RMSE"] == "-34.7 %"
    assert cells["RMSE by data set"] == "-50.0 % to +11.1 %"
    assert (cells["Data sets"], cells["Its budgets"]) == ("4", "tuned and small")


def test_barely_trained_methods_enter_no_mean():
    cells = build_macro(traffic="quick")["GPT4TS"]
    assert (cells["RMSE"], cells["Data sets"]) == ("n/a", "3")


WINDOWED = PAIR | {"method_b": "gbm", "n_blocks": 92, "block_days": 4, "seeds_a": 3, "seeds_b": 5}
WINDOWED |= {"mean_difference": -2.0, "interval_low": -3.5, "interval_high": -0.5}
WINDOWED |= {"p_two_sided": 0.03, "sd_between_seeds": 0.36}


@pytest.mark.parametrize(
    ("changes", "n_notes", "cells"),
    [
        ({}, 1, ["-2.00 (SD 0.3600)", "-3.50 to -0.5000", "0.0300"]),
        # Too few days, single windows taken for independent, one training, fewer than of the error.
        ({"n_blocks": 3, "p_two_sided": None}, 2, ["-2.00 (SD 0.3600)", "-3.50 to -0.5000", "n/a"]),
        ({"n_blocks": None}, 1, ["-2.00 (SD 0.3600)", "-3.50 to -0.5000", "n/a"]),
        ({"seeds_a": 1, "sd_between_seeds": None}, 2, ["-2.00", "-3.50 to -0.5000", "0.0300"]),
        ({"block_days": 1}, 2, ["-2.00 (SD 0.3600)", "-3.50 to -0.5000", "0.0300"]),
        ({"seeds_b": 1}, 2, ["-2.00 (SD 0.3600)", "-3.50 to -0.5000", "0.0300"]),
    ],
)
def test_a_comparison_notes_each_weakness(changes, n_notes, cells):
    scores = {"gbm": Score({}, {}, 5, 449, "MW", {})}
    assert len(describe_tests([WINDOWED | changes], scores)) == n_notes
    assert pair_cells(WINDOWED | changes) == cells


def test_changes_that_reach_no_forecast_are_said_to():
    for error, is_said in ((200.0, True), (200.001, False)):
        rows = make_frame(make_row("tau=0.5", 200.0), make_row("tau=5", error))
        rows = rows.with_columns(pl.lit("experiment-tau").alias("experiment"))
        tables = build_paper_tables("sensitivity", make_inputs(rows=rows))
        assert any(ONE_FORECAST in table.notes for table in tables) is is_said
