"""Reading rows, runs and panels; tables and numbers made of them."""

import math
from datetime import datetime

import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_core.evaluation.panels import ForecastPanel, read_panels, write_panels
from compevo_core.report import result_tables, wording
from compevo_core.report.inputs import read_inputs, read_run
from compevo_core.report.rows import RESULT_SCHEMA, latest, over_seeds, pooled, read_rows
from compevo_core.report.tables import Table, to_html, to_markdown
from tests.support.report_samples import HOSTILE, NOW, inputs, panel, row, rows, write_run


def frame(*made) -> pl.DataFrame:
    return pl.DataFrame(list(made), schema=RESULT_SCHEMA)


def test_rows_survive_the_way_through_csv(tmp_path):
    rows().write_csv(tmp_path / "main.csv")
    assert read_rows(tmp_path).equals(rows())


def test_a_missing_column_is_named_with_its_file(tmp_path):
    rows().drop("mase").write_csv(tmp_path / "main.csv")
    with pytest.raises(DataError, match=r"main\.csv.*mase"):
        read_rows(tmp_path)


def test_text_for_a_number_is_refused_with_the_file(tmp_path):
    text = frame(row("gbm", 1.0)).write_csv()
    (tmp_path / "main.csv").write_text(text.replace("12.5", "soon"))
    with pytest.raises(DataError, match=r"main\.csv"):
        read_rows(tmp_path)


def test_the_last_row_of_one_identity_stands():
    kept = latest(frame(row("gbm", 1.0), row("gbm", 2.0), row("gbm", 3.0, seed=1)))
    assert kept.get_column("mae").to_list() == [2.0, 3.0]


def test_a_row_without_a_subset_is_of_its_whole_split():
    kept = latest(frame(row("gbm", 1.0, subset=""), row("gbm", 2.0, subset=None, split="val")))
    assert kept.get_column("subset").to_list() == ["test", "val"]


def test_seeds_become_one_line_with_their_range():
    (line,) = over_seeds(frame(row("gbm", 180.0), row("gbm", 184.0, seed=1))).to_dicts()
    assert (line["mae"], line["mae_low"], line["mae_high"], line["seeds"]) == (
        182.0,
        180.0,
        184.0,
        2,
    )


def test_pooled_and_ablation_rows_do_not_mix():
    assert "no-grpo" not in pooled(rows()).get_column("method").to_list()
    assert set(pooled(rows(), ablation=True).get_column("experiment")) == {"ablation"}


def test_the_headline_is_ordered_by_error_and_marks_the_best():
    table = result_tables.headline(rows(), "electricity", "n2f-test-100")
    assert [line[0] for line in table.rows] == [
        "Boosted trees",
        "CompEvo",
        "Calendar ridge",
        "Persistence",
    ]
    assert table.best == {(0, column) for column in range(1, 6)}
    assert table.own == {1}
    assert table.header[1] == "MAE MW"


def test_mape_comes_with_what_it_leaves_out():
    table = result_tables.headline(rows(), "electricity", "n2f-test-100")
    assert "Not in MAPE" in table.header
    assert table.notes[0] == "MAPE leaves out truths below 50 in size."


def test_leaky_and_unreadable_rows_are_named_under_the_table():
    made = frame(
        row("compevo", 200.0, leaky=True, parse_failure_rate=0.25),
        row("gbm", 180.0, possibly_memorised=False),
    )
    notes = result_tables.headline(made, "electricity", "n2f-test-100").notes
    assert "Made with a leaky prompt: CompEvo." in notes
    assert "Answers that could not be read, their fallback scored: CompEvo 25.0 %." in notes


def test_one_method_in_two_configurations_is_told_apart():
    made = frame(
        row("compevo", 200.0, config_hash="aaaaaaaaaaaa"),
        row("compevo", 210.0, config_hash="bbbbbbbbbbbb"),
    )
    assert [
        line[0] for line in result_tables.headline(made, "electricity", "n2f-test-100").rows
    ] == [
        "CompEvo (aaaaaaaaaa)",
        "CompEvo (bbbbbbbbbb)",
    ]


def test_regions_stand_in_columns_and_a_missing_one_says_so():
    made = rows().filter(~((pl.col("method") == "gbm") & (pl.col("entity") == "TAS1")))
    table = result_tables.by_entity(made, "electricity", "n2f-test-100", "mae", "MAE")
    assert table is not None
    assert table.rows[0] == ["Boosted trees", "288.2", "234.1", "90.0", "n/a", "252.1"]
    assert (1, 4) in table.best


@pytest.mark.parametrize("entities", [1, 862])
def test_one_entity_or_hundreds_make_no_region_table(entities):
    made = frame(*(row("gbm", 1.0, entity=str(index)) for index in range(entities)))
    assert result_tables.by_entity(made, "electricity", "n2f-test-100", "mae", "MAE") is None


def test_a_table_refuses_a_row_of_another_width():
    with pytest.raises(ValueError, match="3 cells under 2"):
        Table(header=["a", "b"], rows=[["1", "2", "3"]])


def test_cells_are_escaped_in_both_forms():
    table = Table(header=["Agent", "Logic"], rows=[["agent 0", HOSTILE + "\nnext"]])
    assert "<script>" not in to_html(table)
    assert (
        to_markdown(table).splitlines()[2].count("|")
        - to_markdown(table).splitlines()[2].count("\\|")
        == 3
    )


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("mae", [1234.5, 20.04], ["1,234.5", "20.0"]),
        ("mae", [0.0312, 0.004], ["0.03120", "0.00400"]),
        ("mae", [5.125, None], ["5.125", "n/a"]),
        ("mape_pct", [12.3456, math.inf], ["12.35", "n/a"]),
        ("mase", [1.0], ["1.000"]),
    ],
)
def test_numbers_of_a_column_have_equal_decimals(name, values, shown):
    assert wording.column(name, values) == shown


def test_a_thinned_set_of_windows_says_so():
    assert wording.scope_name("electricity", "n2f-test-100-every-5").endswith(
        "test set, 2021, one window in 5"
    )


def test_panels_survive_the_way_through_their_file(tmp_path):
    write_panels(tmp_path / "panels.jsonl", [panel(), panel("QLD1", news=())])
    first, second = read_panels(tmp_path / "panels.jsonl")
    assert first.truth[30] is None and first.forecasts == panel().forecasts
    assert (
        first.news[0][1] == HOSTILE and second.news == () and first.origin_utc == panel().origin_utc
    )


def test_a_torn_panel_line_is_named(tmp_path):
    write_panels(tmp_path / "panels.jsonl", [panel()])
    with (tmp_path / "panels.jsonl").open("a") as file:
        file.write('{"window_id": "w"}\n')
    with pytest.raises(DataError, match="line 2"):
        read_panels(tmp_path / "panels.jsonl")


def test_a_panel_refuses_a_short_forecast_and_a_stamp_without_zone():
    with pytest.raises(DataError, match="gbm has 2 values"):
        panel(forecasts={"gbm": [1.0, 2.0]})
    with pytest.raises(DataError, match="no zone"):
        panel(origin_utc=datetime(2021, 1, 1))


def test_a_run_folder_is_read_whole(tmp_path):
    record = read_run(write_run(tmp_path / "electricity"))
    assert (record.name, record.agents, len(record.rounds), len(record.panels)) == (
        "electricity",
        3,
        6,
        1,
    )
    assert (
        record.setting("forecast", "prior") == "calendar-ridge"
        and record.setting("forecast", "nothing") == ""
    )


def test_a_folder_without_rounds_is_no_run(tmp_path):
    with pytest.raises(DataError, match=r"no rounds\.jsonl"):
        read_run(tmp_path)


def test_a_torn_round_is_named_by_line(tmp_path):
    folder = write_run(tmp_path / "a")
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 6, "lo')
    with pytest.raises(DataError, match="line 7"):
        read_run(folder)


def test_checks_and_tests_are_told_from_rows_and_strangers_are_listed(tmp_path):
    rows().write_csv(tmp_path / "main.csv")
    pl.DataFrame(inputs().paired).write_csv(tmp_path / "paired.csv")
    (tmp_path / "checks.csv").write_text(
        "check,passed,detail\nhash unchanged,true,\nno 2026 in training,false,one window\n"
    )
    (tmp_path / "memory.csv").write_text("method,gib\ncompevo,3\n")
    read = read_inputs(
        tmp_path, [write_run(tmp_path / "electricity")], mode="archive", generated_at=NOW
    )
    assert read.checks == [
        ("hash unchanged", True, ""),
        ("no 2026 in training", False, "one window"),
    ]
    assert [one["p_value"] for one in read.paired] == [0.031]
    assert list(read.unread) == ["memory.csv"]
    assert isinstance(read.runs[0].panels[0], ForecastPanel)
