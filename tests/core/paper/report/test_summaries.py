"""Which rows a table shows, with which notes; who won, also when it is not CompEvo."""

import math
import re
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from compevo_core.config.run import RunConfig
from compevo_core.errors import DataError
from compevo_core.evaluation.metrics import BELOW_COLUMNS
from compevo_core.evaluation.result_rows import write_config
from compevo_core.paper.report import markdown, result_tables
from compevo_core.paper.report.inputs import empty_rows, format_column, format_number, read_inputs
from compevo_core.paper.report.page import build_sections
from compevo_core.paper.report.result_tables import OF_PRIOR, summarize_results
from compevo_core.report import tables
from compevo_core.report.forecast_page import template_environment
from compevo_core.report.tables import Table
from tests.support.report_samples import (
    HOSTILE,
    NOW,
    make_frame,
    make_inputs,
    make_row,
    make_rows,
    make_wins,
)

SCOPE = ("electricity", "n2f-test-100")
OWN = {"config_hash": "c1", "news_choice_share": 0.07, "refit": False}
ROWS = make_frame(
    make_row("compevo", 126.0, **OWN),
    make_row("compevo-equal", 127.0, **OWN),
    make_row("compevo-prior", 133.0, **OWN),
    *(make_row(f"compevo-agent-{i}", 128.0 + i, **OWN) for i in (10, 2, 0)),
    make_row("compevo-agent-0", 90.0, entity="NSW1", **OWN),
    make_row("compevo", 126.0, entity="NSW1", **OWN),
    make_row("compevo", 126.0, entity="SA1", **OWN),
    make_row("gbm", 141.0),
    make_row("gbm-recalibrated", 133.4),
    make_row("blend", 138.0),
)
WON = [120.0, 150, 150.0, -30.0, 95, -36.0, -25.0]
"""MAE, windows, MAE of the best other method, difference and its 95 % interval of ``make_wins``."""


def make_scores(**errors):
    rows = [make_row(name.replace("_", "-"), mae) for name, mae in errors.items()]
    return make_inputs(rows=make_frame(*rows))


def read_numbers(text):
    """Return the numbers of a sentence, in its order, without the names of test sets."""
    return [float(number) for number in re.findall(r"(?<![\w-])-?\d[\d.]*\b", text)]


def outcomes(summary):
    return [rival.outcome for rival in summary.rivals]


def test_a_chance_win_is_not_called_better():
    scores = make_scores(compevo=195.0, calendar_ridge=205.0, gbm=210.0, film=190.0)
    told, chance = _paired_with_prior(-12.0, -1.0)[0], _paired_with_prior(-12.0, 0.5)[0]
    lost = told | {"method_b": "film", "interval_low": 1.0, "interval_high": 9.0}
    tests = [told | {"method_b": "gbm"}, chance, lost]
    (result,) = summarize_results(replace(scores, paired=tests))
    assert "2 of 3" in result.summary and "significant for 1" in result.summary
    assert outcomes(result) == ["unclear", "better", "worse"]
    assert np.allclose(result.rivals[0].bounds, (-12.0 / 205.0, 0.5 / 205.0))
    assert "one training" in result.summary

    # The interval decides, even if the mean over points is on the other side of zero.
    (result,) = summarize_results(replace(scores, paired=[lost | {"method_b": "gbm"}]))
    assert outcomes(result) == ["lower", "unclear", "higher"]

    few = [chance | {"interval_low": None, "interval_high": None, "n_blocks": 3}]
    (result,) = summarize_results(replace(scores, paired=few))
    assert outcomes(result)[0] == "unclear"


def test_a_win_over_the_best_leads_the_report():
    inputs = make_wins()
    summary = next(section for section in build_sections(inputs) if section.anchor == "summary")
    assert summary.finding.startswith("CompEvo is better") and "2 of 2" in summary.finding
    won = summary.finding.partition("MAE ")[2].partition(")")[0]
    assert read_numbers(won) == WON

    # A win that chance may have made, and a loss, are none.
    for low, high in ((-36.0, 1.0), (25.0, 36.0)):
        tests = [test | {"interval_low": low, "interval_high": high} for test in inputs.paired]
        results = summarize_results(replace(inputs, paired=tests))
        assert result_tables.count_verdicts(results).startswith("Of ")


def test_equal_forecasts_count_once():
    scores = make_scores(compevo=195.0, calendar_ridge=205.0, gbm=210.0, blend=210.0, film=300.0)
    told = _paired_with_prior(-12.0, -1.0)[0]
    tests = [told | {"method_b": "gbm"}, told | {"method_b": "blend"}]

    text = result_tables.count_verdicts(summarize_results(replace(scores, paired=tests)))

    assert "Of 1 different comparisons by window CompEvo is better in 1 and worse in 0" in text
    assert "2 methods were not compared by window" in text


def test_errors_stand_beside_the_best_method():
    inputs = make_wins()
    told = result_tables.describe_errors(inputs, "electricity", "aemo-2021-events")
    beaten = [139.0, -9.0, 95, -14.0, -4.0]
    assert read_numbers(told) == [130.0, 47, 160.0, *WON[3:], *beaten]
    assert result_tables.describe_errors(inputs, *SCOPE) == ""
    alone = make_scores(compevo=120.0, blend=150.0)
    assert read_numbers(result_tables.describe_errors(alone, *SCOPE)) == [120.0, 100, 150.0]


def test_a_leading_part_is_not_compevo():
    def lead(*leaders):
        tables = [Table(header=["Method"], rows=[[name]], caption="") for name in leaders]
        return result_tables.name_leaders(tables)

    assert "2 of 2" in lead("CompEvo", "CompEvo (a)")
    assert "0 of 1" in lead("CompEvo's best base model")


def _paired_with_prior(low, high):
    return [dict(make_inputs().paired[0], interval_low=low, interval_high=high)]


def test_a_refit_takes_no_test_of_others():
    rows = make_frame(
        make_row("compevo", 195.0),
        make_row("compevo", 190.0, config_hash="again", refit=True),
        make_row("calendar-ridge", 205.0),
    )
    inputs = make_inputs(rows=rows, paired=_paired_with_prior(-12.0, 0.5))
    first, again = summarize_results(inputs)
    assert [rival.test is not None for rival in (*first.rivals, *again.rivals)] == [True, False]


def test_synthetic_data_is_called_so_in_every_summary():
    rows = make_rows().with_columns(pl.lit(value=True).alias("synthetic"))
    inputs = make_inputs(rows=rows)

    assert all("synthetic stand-in" in result.scope for result in summarize_results(inputs))
    assert markdown.format_results(inputs).count("synthetic stand-in") >= 3


def test_the_prior_comes_from_the_stored_configuration(tmp_path):
    config = RunConfig.preset("default")
    ours = make_row("compevo", 210.0, config_hash=config.hash)
    make_frame(ours, make_row(config.forecast.prior, 205.0)).write_csv(tmp_path / "main.csv")
    write_config(tmp_path, config)

    inputs = read_inputs(tmp_path, [], mode="archive", generated_at=NOW)
    assert OF_PRIOR["no_better"] in markdown.format_results(inputs)


def test_every_other_method_counts_once():
    rows = make_frame(
        make_row("compevo", 200.0, config_hash="one"),
        make_row("compevo-equal", 190.0, config_hash="one"),
        make_row("compevo-agent-0", 190.0, config_hash="one"),
        make_row("gbm", 210.0),
        make_row("film", 190.0, budget="small"),
        # The larger budget represents the method, although it errs more.
        make_row("film", 220.0, budget="tuned"),
        make_row("theta", 150.0),
    )
    (result,) = summarize_results(make_inputs(rows=rows))

    assert "2 of 3" in result.summary
    assert [round(rival.difference, 3) for rival in result.rivals[1:3]] == [-0.048, -0.091]


def test_the_summary_compares_whole_and_parts():
    (result,) = summarize_results(make_inputs(rows=ROWS))
    rivals = ["compevo-equal", "compevo-prior", "gbm", "gbm-recalibrated", "blend"]
    assert [rival.row["method"] for rival in result.rivals] == rivals
    assert [round(rival.difference, 3) for rival in result.rivals[:2]] == [-0.008, -0.053]
    assert OF_PRIOR["lower"] in result.summary
    assert [rival.is_prior for rival in result.rivals].count(True) == 1

    # Parts of another configuration are no rivals.
    other = make_frame(make_row("compevo", 150.0, config_hash="c9"))
    results = summarize_results(make_inputs(rows=pl.concat([ROWS, other])))
    compared = {result.scope[-2:]: len(result.rivals) for result in results}
    assert compared == {"c1": 5, "c9": 3}


@pytest.mark.parametrize(
    ("mae", "interval", "outcome", "verdict"),
    [
        (210.0, None, "higher", OF_PRIOR["no_better"]),
        (204.99, None, "equal", OF_PRIOR["no_better"]),
        (195.0, None, "lower", OF_PRIOR["lower"]),
        (195.0, (-12.0, -1.0), "better", OF_PRIOR["improves"]),
        (195.0, (-12.0, 0.5), "unclear", "between -12.00 MW and 0.5000 MW (95 %"),
        (195.0, (None, None), "unclear", "20 block(s) of days"),
    ],
)
def test_only_a_significant_gain_improves_the_prior(mae, interval, outcome, verdict):
    paired = [] if interval is None else _paired_with_prior(*interval)
    # A comparison on other windows says nothing here.
    other = dict(_paired_with_prior(-12.0, -1.0)[0], subset="aemo-2021")
    scores = replace(make_scores(compevo=mae, calendar_ridge=205.0), paired=[*paired, other])

    (result,) = summarize_results(scores)

    assert outcomes(result) == [outcome] and result.rivals[0].is_prior
    assert verdict in result.summary


def test_a_perfect_rival_is_not_divided_by():
    (result,) = summarize_results(make_scores(compevo=1.0, gbm=0.0))
    assert result.rivals[0].difference == 1.0


def test_without_a_known_prior_none_is_claimed():
    configs = {"ccompevo" * 2: {"forecast": {"prior": "none"}}}
    scores = make_scores(compevo=1_700.0, calendar_ridge=205.0)
    (result,) = summarize_results(replace(scores, configs=configs, paired=()))
    assert result.summary.endswith(OF_PRIOR["without"])

    unknown, _ = summarize_results(make_inputs(configs={}, paired=()))
    assert "prior" not in unknown.summary
    assert not any(rival.is_prior for rival in unknown.rivals)


def names(table):
    return [row[0] for row in table.rows]


def test_a_table_notes_facts_of_its_rows():
    rows = make_frame(
        make_row("compevo", 200.0, leaky=True, parse_failure_rate=0.25, **OWN),
        make_row("gbm", 180.0, possibly_memorised=False),
        make_row("no-news", 130.0, news_choice_share=0.5, refit=True),
    )
    table = result_tables.headline_table(rows, *SCOPE)
    facts = ["50", "CompEvo", "CompEvo", "CompEvo 25.0 %", "7.0 %", "50.0 %"]

    assert len(table.notes) == len(facts)
    assert all(fact in note for fact, note in zip(facts, table.notes, strict=True))
    assert table.rows[0][0] == "No news, refit"
    assert "Not in MAPE" in table.header


def test_regions_are_columns_with_gaps_marked():
    is_dropped = (pl.col("method") == "gbm") & (pl.col("entity") == "TAS1")
    table = result_tables.region_table(make_rows().filter(~is_dropped), *SCOPE, "mae", "MAE")
    assert table.rows[0] == ["Boosted trees", "288.2", "234.1", "90.0", "n/a", "252.1"]
    assert (1, 4) in table.best_cells

    # One entity, or hundreds of them, make no table.
    for entities in (1, 862):
        rows = make_frame(*(make_row("gbm", 1.0, entity=str(index)) for index in range(entities)))
        assert result_tables.region_table(rows, *SCOPE, "mae", "MAE") is None


def test_budgets_and_configurations_tell_rows_apart():
    rows = make_frame(
        make_row("compevo", 200.0),
        make_row("compevo", 150.0, budget="small"),
        make_row("mael", 210.0, budget="small"),
        make_row("mael", 220.0, subset="other", budget="quick"),
    )
    # The smaller budget had less error: what stands is never chosen by it.
    assert names(result_tables.headline_table(rows, *SCOPE)) == ["CompEvo", "MAEL (small budget)"]
    assert names(result_tables.headline_table(rows, SCOPE[0], "other")) == ["MAEL (quick budget)"]

    hashes = ("aaaaaaaaaaaa", "bbbbbbbbbbbb")
    two = make_frame(*(make_row("compevo", 200.0, config_hash=value) for value in hashes))
    expected = ["CompEvo (aaaaaaaaaa)", "CompEvo (bbbbbbbbbb)"]
    assert names(result_tables.headline_table(two, *SCOPE)) == expected


def test_agents_have_their_own_ordered_table():
    parts = ["CompEvo, equal weights", "CompEvo's best base model"]
    others = ["Boosted trees, known errors added", "Ridge and trees blended", "Boosted trees"]
    assert names(result_tables.headline_table(ROWS, *SCOPE)) == ["CompEvo", *parts, *others]
    table = result_tables.agent_table(ROWS, *SCOPE)
    assert names(table) == ["Agent 0", "Agent 2", "Agent 10"]
    assert result_tables.agent_table(make_rows(), *SCOPE) is None
    assert "Agent 0" not in str(result_tables.region_table(ROWS, *SCOPE, "mae", "MAE").rows)


def test_controls_and_ablations_have_separate_tables():
    def list_names(*errors, subsets=("n2f-test-100",)):
        rows = make_frame(
            *(
                make_row(name, mae, experiment="ablation", config_hash=name, subset=subset)
                for subset in subsets
                for name, mae in errors
            )
        )
        tables = result_tables.list_variant_tables(make_inputs(rows=rows, paired=()), "electricity")
        return [names(table) for table in tables]

    full, variant, control = ("compevo", 200.0), ("no-grpo", 201.0), ("no-news", 205.0)
    ablation, controls = ["CompEvo", "No GRPO"], ["CompEvo", "No news"]
    assert list_names(full, variant, control) == [ablation, controls]
    assert list_names(full, control) == [controls]
    assert list_names(full, variant, subsets=("n2f-test-100", "aemo-2021")) == [ablation] * 2


def test_paired_tests_show_side_and_interval():
    (test,) = make_inputs().paired
    worse = test | {"interval_low": 0.5, "interval_high": 1.0, "sd_between_seeds": 0.36}
    better = test | {"interval_high": -1.0, "n_blocks": None}
    table = result_tables.paired_table([test, worse, better])

    # The ranks of all three say "better": only the interval decides.
    assert [row[4:] for row in table.rows] == [
        ["20", "-6.90", "-12.50 to 0.2500", "0.0620", "0.0310"],
        ["20", "-6.90 (SD 0.3600)", "0.5000 to 1.00 (worse)", "0.0620", "0.0310"],
        ["n/a", "-6.90", "-12.50 to -1.00 (better)", "n/a", "n/a"],
    ]


def test_the_ablation_shows_seed_mean_and_range():
    rows = make_frame(
        *(
            make_row(name, mae, experiment="ablation", seed=seed, config_hash=f"{name}{seed}")
            | {"seedless_hash": name}
            for name, errors in (("compevo", (200.0, 204.0)), ("no-grpo", (201.0, 207.0)))
            for seed, mae in enumerate(errors)
        )
    )
    (table,) = result_tables.list_variant_tables(make_inputs(rows=rows, paired=()), "electricity")

    assert names(table) == ["CompEvo", "No GRPO"]
    assert [row[1] for row in table.rows] == ["202.0", "204.0"]
    assert [row[-1] for row in table.rows] == ["2 (MAE 200.0 to 204.0)", "2 (MAE 201.0 to 207.0)"]


def test_variants_are_paired_by_data_set():
    ours = make_inputs().paired[0]
    variant = ours | {"method_a": "no-grpo", "method_b": "compevo", "seeds": "0 1"}
    tests = [ours, variant, variant | {"dataset": "exchange"}]
    table = result_tables.variant_test_table(tests, "electricity")
    assert [[*row[:2], row[-1]] for row in table.rows] == [["No GRPO", "CompEvo", "0 1"]]
    # What no row has is not a column.
    bare = variant | {"n_blocks": None, "seeds": None}
    table = result_tables.variant_test_table([bare], "electricity")

    assert table.header[4:] == ["Mean difference", "95 % interval"]
    assert "Unknown here: Blocks" in table.notes[-1] and "two-sided" in table.notes[-1]
    assert result_tables.variant_test_table([ours], "electricity") is None


BANDS = {"coverage_80": 0.802, "width_80": 390.0, "coverage_95": 0.951, "width_95": 700.0}
BANDS |= {"wql": 0.0213} | {column: level for level, column in BELOW_COLUMNS.items()}


def make_sure_rows(**changes):
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


def test_quantile_methods_are_ordered_by_pinball_loss():
    table = result_tables.quantile_table(make_sure_rows(), *SCOPE)
    published, trees = "Published forecast (AEMO POE50)", "Boosted trees"
    assert names(table) == ["CompEvo", published, f"{trees}, known errors added", trees]
    # The mean over two seeds; a level that was not published is missing, not zero.
    assert table.rows[0][1] == "41.00"
    assert table.rows[0][3:5] == ["80.2 %", "390.0"]
    assert table.rows[1][2:] == ["n/a", "61.0 %", "300.0", "n/a", "n/a"]
    assert (table.header[1], table.header[4]) == ("Pinball MW", "Width MW")
    assert table.best_cells == {(0, 1), (0, 2), (2, 2), (3, 2)} and table.highlighted == {0}

    # Rows without quantiles make nothing.
    rows = make_frame(make_row("compevo", 200.0), make_row("gbm", 180.0))
    assert result_tables.quantile_table(rows, *SCOPE) is None
    assert result_tables.show_reliability(rows, *SCOPE) is None


def test_the_plot_draws_each_methods_shares():
    rows = make_sure_rows().filter(pl.col("method") != "gbm-recalibrated")
    axis = result_tables.show_reliability(rows, *SCOPE).plots[0].draw()
    diagonal, *lines = axis.lines
    by_label = {str(line.get_label()): line for line in lines}
    published = by_label["Published forecast (AEMO POE50)"]

    assert list(diagonal.get_xdata()) == [0, 1]
    assert "Boosted trees" in by_label
    assert list(published.get_xdata()) == [0.1, 0.9]
    assert list(published.get_ydata()) == [0.2, 0.8]
    assert list(by_label["CompEvo"].get_xdata()) == list(BELOW_COLUMNS)


def show_table(table):
    return str(template_environment().get_template("macros.html").module.show_table(table))


def test_hostile_text_is_escaped_in_both_forms():
    table = Table(header=["Agent", "Logic"], rows=[["agent 0", HOSTILE + "\nnext"]])
    line = table.to_markdown().splitlines()[2]
    assert line.count("|") - line.count("\\|") == 3

    page = show_table(Table(header=["a"], rows=[["1"]], caption=HOSTILE, notes=(HOSTILE,)))
    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 3, "label, caption and note"


def test_cells_are_aligned_and_the_best_are_bold():
    table = Table(header=["a", "b"], rows=[["x", "1"], ["y", "2"]], best_cells=frozenset({(1, 1)}))
    lines = ["| a | b |", "| --- | ---: |", "| x | 1 |", "| y | **2** |"]
    assert table.to_markdown().splitlines() == lines
    assert "<td><strong>2</strong></td>" in show_table(table)
    assert "<td>1</td>" in show_table(table)
    with pytest.raises(ValueError, match=r"3 cells.* 2"):
        Table(header=["a", "b"], rows=[["1", "2", "3"]])


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
    assert format_column(metric, values) == shown


def test_inference_months_are_named():
    names = {
        "inference-2026-02": "Electricity, inference split, February 2026",
        "inference-2026-100": "Electricity, leakage check, Feb-Mar 2026",
        "operational-2026-200": "Electricity, operational demand, Feb-Mar 2026, known to midnight",
    }
    assert {subset: tables.scope_name("electricity", subset) for subset in names} == names
    assert tables.scope_name("own", "summer-2026-13") == "Own, summer-2026-13"


@pytest.mark.parametrize(
    ("show", "value", "shown"),
    [
        (format_number, None, "n/a"),
        (format_number, math.nan, "n/a"),
        (format_number, 12345, "12,345"),
        (format_number, 0.0, "0.0"),
        (format_number, -0.0, "0.0"),
        (format_number, -123.45, "-123.5"),
        (format_number, 1.005, "1.00"),
        (format_number, 0.03, "0.0300"),
        (format_number, 0.0003, "3.00e-04"),
        (tables.format_percent, None, "n/a"),
        (tables.format_percent, -0.002, "-0.2 %"),
        (tables.format_percent, -0.0002, "0.0 %"),
    ],
)
def test_a_number_has_decimals_fitting_its_size(show, value, shown):
    assert show(value) == shown


FULL, SHORT, PAPER, AUDIT, *_ = markdown.BLOCKS


@pytest.fixture(autouse=True)
def short_scope(monkeypatch):
    """The short scope of these tests is the scope of the sample rows."""
    monkeypatch.setattr(markdown, "SHORT_SCOPE", SCOPE)


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    make_rows().write_csv(folder / "main.csv")
    return folder


def run_command(*arguments):
    return CliRunner().invoke(markdown.app, [str(argument) for argument in arguments])


def document_of(path, *blocks):
    path.write_text("head\n" + "\n".join(f"{block.start}\n{block.end}" for block in blocks) + "\n")
    return path


def test_a_summary_stands_under_its_own_scope_only():
    # The name of a thinned test set begins with the name of the whole one.
    thinned = make_row("compevo", 201.0, subset="n2f-test-100-every-5")
    rows = make_frame(make_row("compevo", 200.0), thinned)
    first, second = markdown.format_results(make_inputs(rows=rows)).split("one window in 5: pooled")

    assert "MAE 200.0 MW" in first and "MAE 201.0 MW" in second


def test_without_rows_the_documents_say_so():
    inputs = make_inputs(rows=empty_rows())
    for show in (markdown.format_results, markdown.format_short_results):
        assert show(inputs) == markdown.NO_ROWS
    assert summarize_results(make_scores(gbm=180.0)) == []


@pytest.mark.parametrize("text", ["# Title", "# Title\n<a>\n", "# Title\n</a>\n<a>\n"])
def test_a_document_without_markers_is_refused(text):
    with pytest.raises(DataError, match=r"notes\.md: .* is missing"):
        markdown.replace_between(text, "new", "<a>", "</a>", document="notes.md")


def test_the_command_writes_tables_it_agrees_with(tmp_path, results):
    readme = document_of(tmp_path / "README.md", SHORT)
    page = document_of(tmp_path / "results.md", FULL)

    check = run_command("--check", "--results", results, readme, page)
    assert check.exit_code == 1
    assert check.output.count("out of date: run `make readme`") == 2
    assert "| CompEvo |" not in readme.read_text(), "--check writes nothing"

    assert run_command("--results", results, readme, page).exit_code == 0
    assert run_command("--check", "--results", results, readme, page).exit_code == 0
    assert "198.4 | 307.4" in readme.read_text()
    assert "leakage check" not in readme.read_text()
    assert "leakage check" in page.read_text()


def test_a_document_without_blocks_is_an_error(tmp_path, results):
    document = tmp_path / "notes.md"
    document.write_text("nothing here\n")
    result = run_command("--results", results, document)

    assert result.exit_code == 1
    assert "notes.md: no place" in result.output
    assert document.read_text() == "nothing here\n"
