"""The paper's tables with own rows next to the published figures."""

import polars as pl
import pytest

from compevo_core.errors import ConfigError
from compevo_core.paper.report.inputs import empty_rows
from compevo_core.paper.report.paper_tables import (
    DATASETS,
    ONE_FORECAST,
    OTHER_WINDOWS,
    PAPER_TABLES,
    build_paper_tables,
    describe_tests,
    format_all_paper_tables,
    format_paper_sets,
    format_paper_tables,
    pair_cells,
)
from compevo_core.paper.report.result_tables import headline_table
from tests.support import report_samples
from tests.support.report_samples import make_frame, make_inputs

(TESTED,) = make_inputs().paired
PAIR = TESTED | {"subset": "paper-original", "method_b": "dlinear", "mean_difference": -12.5}
PAIR |= {"block_days": 14, "p_two_sided": 0.02, "interval_low": -20.0, "interval_high": -5.0}

OWN_SET = "Electricity, the paper's test windows, fitted on its random train part"


def make_row(method, mae, **changes):
    return report_samples.make_row(method, mae, **{"subset": "paper-original", **changes})


def make_cases(*maes, **changes):
    return [make_row(name, mae, **changes) for name, mae in maes]


def rows_of_two_methods():
    return make_frame(*make_cases(("compevo", 200.0), ("dlinear", 250.0), ("persistence", 400.0)))


def cells_of(table, name):
    return dict(zip(table.header, next(row for row in table.rows if row[0] == name), strict=True))


def test_a_rival_has_errors_rate_and_skill():
    inputs = make_inputs(rows=rows_of_two_methods(), paired=[PAIR])
    errors, rivals = build_paper_tables("main", inputs)[:2]
    cells, compared = (cells_of(table, "DLinear") for table in (errors, rivals))

    own_and_published = [cells[name] for name in ("MAE MW", "MAE, paper", "MSE, paper")]
    assert own_and_published == ["250.0", "255.70", "135,050"]
    assert cells_of(errors, "Persistence")["MAE, paper"] == "-"
    columns = ("CompEvo less it", "95 % interval", "p", "Win rate", "Skill")
    expected = ["-12.50", "-20.00 to -5.00", "0.0200", "50.0 %", "+37.5 %"]
    assert [compared[name] for name in columns] == expected


def test_partial_methods_are_compared_on_equal_windows():
    part = {"subset": "paper-original-every-12", "n_windows": 9}
    rows = make_frame(
        make_row("compevo", 200.0),
        make_row("news2forecast", 250.0, budget="quick", **part),
        make_row("persistence", 280.0, **part),
        # It has a row of all windows, so its row of some windows adds nothing.
        make_row("compevo", 210.0, **part),
    )
    errors = build_paper_tables("main", make_inputs(rows=rows))[0]

    assert cells_of(errors, "News2Forecast")["MAE MW"] == "no row"
    (note,) = [note for note in errors.notes if "one window in 12" in note]
    assert note.startswith(OWN_SET) and "9 of them" in note and "quick budget" in note
    assert note.index("250.0 MW") < note.index("Persistence 280.0 MW") and "CompEvo" not in note


def test_windows_of_2021_omit_or_flag_published_figures():
    of_2021 = {"subset": "n2f-test-100"}
    rows = make_frame(
        make_row("compevo", 200.0, **of_2021),
        make_row("tau=0.5", 190.0, experiment="experiment-tau", **of_2021),
    )
    inputs = make_inputs(rows=rows)
    own, other = build_paper_tables("main", inputs)[:2]
    sweep = next(t for t in build_paper_tables("sensitivity", inputs) if "temperature" in t.caption)

    cells = cells_of(own, "CompEvo")
    assert (cells["MAE"], cells["MAE, paper"]) == ("no row", "220.15 ± 2.40")
    assert any("paper-original --methods compevo," in note for note in own.notes)
    assert "MAE, paper" not in other.header
    assert cells_of(other, "CompEvo")["MAE MW"] == "200.0"
    assert OTHER_WINDOWS in sweep.notes


def test_windows_of_2026_stand_beside_the_papers():
    scope = {"dataset": "electricity-operational", "subset": "paper-2026"}
    rows = make_frame(*make_cases(("published", 109.5), ("persistence", 185.7), **scope))
    (table,) = build_paper_tables("leakage", make_inputs(rows=rows))
    assert cells_of(table, "CompEvo")["MAE, paper"] == "225.02"
    assert cells_of(table, "Persistence")["MAE MW"] == "185.7"


def test_the_papers_sets_show_shares_and_gains():
    counts = {"train": 2568, "val": 317, "test": 317, "published_test": 366, "leaks_found": 9}
    shares = {"targets_in_train_inputs": 0.762, "days_in_train": 1.0}
    pair = PAIR | {"method_a": "persistence", "mean_difference": 150.0}
    sets = [{"set": "paper-original", **counts, **shares}]
    inputs = make_inputs(rows=rows_of_two_methods(), paired=[pair], paper_sets=sets)

    text = format_paper_sets(inputs)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    of_set = ["paper-original", "2,568", "317", "317 of 366", "76.2 %", "100.0 %", "9"]
    assert of_set in cells
    assert ["CompEvo, as the paper prints it", "220.15 ± 2.40"] in [row[:2] for row in cells]
    assert ["DLinear (1)", "250.0", "387.3", "6.25", "150.0 (-20.00 to -5.00)"] in cells


def test_round_zero_is_called_untrained():
    rows = [make_row("compevo", 200.0 + s, seed=s, chosen_round=r) for s, r in enumerate((0, 0, 4))]
    rows += [make_row("dlinear", 250.0, backbone=""), make_row("sa", 240.0, chosen_round=None)]
    inputs = make_inputs(rows=make_frame(*rows), paired=[])
    assert cells_of(build_paper_tables("main", inputs)[0], "CompEvo")["Seeds"] == "3, 2 untrained"
    shown = format_paper_sets(inputs)
    for name in ("CompEvo (3, 2 untrained)", "SA, one agent (1, round unknown)", "DLinear (1)"):
        assert f"| {name} |" in shown
    notes = headline_table(inputs.rows, "electricity", "paper-original").notes
    assert "Untrained, as validation chose round 0: CompEvo (2 of 3)." in notes
    assert "Older rows, which do not name the chosen round: SA, one agent." in notes


def test_a_sweep_stands_apart_from_the_methods():
    swept = make_cases(("tau=0.5", 190.0), ("tau=5", 209.0), experiment="experiment-tau")
    rows = make_frame(make_row("compevo", 200.0), *swept)
    test = PAIR | {"method_a": "tau=5", "method_b": "tau=0.5", "mean_difference": 19.0}
    inputs = make_inputs(rows=rows, paired=[test])
    tables = {table.caption: table for table in build_paper_tables("sensitivity", inputs)}

    name = f"{OWN_SET}: temperature of the weights"
    assert cells_of(tables[name], "tau=0.5")["RMSE, paper"] == "354.18"
    assert cells_of(tables[name], "tau=0.1")["MAE MW"] == "no row"
    against = cells_of(tables[f"{name}, against tau=0.5"], "tau=5")
    compared = [against[column] for column in ("Difference", "RMSE", "RMSE, paper")]
    assert compared == ["19.00", "+10.0 %", "+17.2 %"]
    assert all(row[0] != "tau=5" for row in build_paper_tables("main", inputs)[0].rows)


def test_a_window_costs_its_mean_over_all():
    of_subsets = {"n2f-test-100": (100, 1.0, 4.0), "aemo-2021": (300, 1.0, 2.0)}
    rows = make_frame(
        *(
            make_row(name, 200.0, seconds_per_window=seconds, n_windows=windows, subset=subset)
            for subset, (windows, *of_methods) in of_subsets.items()
            for name, seconds in zip(("mael", "compevo"), of_methods, strict=True)
        )
    )
    table = build_paper_tables("efficiency", make_inputs(rows=rows))[0]

    assert cells_of(table, "CompEvo")["s per window"] == "2.50 (2.50 x)"


def test_costs_are_ratios_to_plain_averaging():
    rows = make_frame(
        make_row("mael", 1.0, train_seconds=10.0, seconds=100.0),
        make_row("mad-rl", 1.0, train_seconds=30.0, seconds=350.0),
    )
    table = build_paper_tables("efficiency", make_inputs(rows=rows))[0]
    cells = cells_of(table, "MAD-RL")
    assert cells["Training s"] == "30.00 (3.00 x)"
    assert cells["s per window"] == "3.50 (3.50 x)"
    assert cells["s per step, paper"] == "19.70 (3.51 x)"


def test_agents_are_paired_at_one_budget():
    rows = make_frame(
        make_row("compevo", 200.0),
        make_row("compevo", 260.0, budget="small", train_seconds=20.0),
        make_row("mael", 300.0, budget="small", train_seconds=10.0),
    )
    pair = {**PAIR, "method_b": "mael"}
    at_budget = [{**pair, "mean_difference": -40.0, "budget": "small"}]
    inputs = make_inputs(rows=rows, paired=[pair], paired_at_budget=at_budget)
    # Where CompEvo had that budget only, the methods are paired at it too.
    smaller = make_inputs(rows=rows.filter(pl.col("mae") != 200.0), paired_at_budget=at_budget)

    for table, given, error, difference in (
        ("agents", inputs, "260.0", "-40.00"),
        ("main", inputs, "200.0", "-12.50"),
        ("main", smaller, "260.0", "-40.00"),
    ):
        errors, rivals = build_paper_tables(table, given)[:2]
        assert cells_of(errors, "CompEvo")["MAE MW"] == error
        assert cells_of(rivals, "MAEL")["CompEvo less it"] == difference
        if given is inputs:
            is_noted = any("budget `small`" in note for note in errors.notes)
            assert is_noted is (table == "agents")

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
    row |= {"artifact_hash": "a" * 64, "windows": "validation"}
    gains = build_paper_tables("lud", make_inputs(lud=[row]))[1]

    assert gains.rows[0][:3] == ["low, by local:x", "0.5000", "0.5000"]
    assert gains.rows[0][-1] == "electricity, run aaaaaaaaaa, validation windows"
    # The paper's figures with all their digits.
    assert ["0.76", "14.20"] in [row[1:3] for row in gains.rows]
    assert any("cannot follow" in note for note in gains.notes)
    assert not any("No row" in note for note in gains.notes)


def test_every_known_table_needs_no_row():
    text = format_all_paper_tables(make_inputs(rows=empty_rows(), paired=[]))
    assert text.count("## ") == len(PAPER_TABLES)
    assert "experiment agents electricity" in text
    with pytest.raises(ConfigError, match="main, agents"):
        format_paper_tables("maim", make_inputs())


def build_macro(**budgets):
    """Return the table of averages: GPT4TS errs twice as much, on one data set a tenth less."""
    rows = []
    for dataset in DATASETS:
        shared = {"dataset": dataset, "subset": "test"}
        shared |= {"subset": "n2f-test-100"} if dataset == "electricity" else {}
        other = {"budget": budgets.get(dataset, "small"), **shared}
        for name, rmse, facts in (
            ("compevo", 1.0, shared),
            ("persistence", 2.0, shared),
            ("gpt4ts", 0.9 if dataset == "bitcoin" else 2.0, other),
        ):
            rows.append(make_row(name, rmse, rmse=rmse, **facts))
    tables = build_paper_tables("main", make_inputs(rows=make_frame(*rows)))
    (table,) = [one for one in tables if one.caption.startswith("Macro")]
    return cells_of(table, "GPT4TS")


def test_the_mean_has_its_range_and_budgets():
    cells, barely_trained = build_macro(electricity="tuned"), build_macro(traffic="quick")
    assert cells["RMSE"] == "-34.7 %"
    assert cells["RMSE by data set"] == "-50.0 % to +11.1 %"
    assert (cells["Data sets"], cells["Its budgets"]) == ("4", "tuned and small")
    assert (barely_trained["RMSE"], barely_trained["Data sets"]) == ("n/a", "3")


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
    scores = {"gbm": {"seeds": 5}}
    assert len(describe_tests([WINDOWED | changes], scores)) == n_notes
    assert pair_cells(WINDOWED | changes) == cells


@pytest.mark.parametrize(("error", "is_said"), [(200.0, True), (200.001, False)])
def test_changes_that_reach_no_forecast_are_said_to(error, is_said):
    swept = make_cases(("tau=0.5", 200.0), ("tau=5", error), experiment="experiment-tau")
    tables = build_paper_tables("sensitivity", make_inputs(rows=make_frame(*swept)))
    assert any(ONE_FORECAST in table.notes for table in tables) is is_said
