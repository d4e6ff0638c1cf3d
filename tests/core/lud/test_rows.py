"""Rows of a measured run for a results folder."""

from compevo_core.lud.rows import tabulate_lud, write_lud_rows
from compevo_core.report.inputs import LUD_COLUMNS, read_inputs
from tests.support.report_samples import NOW

SUMMARY = {
    "encoder": "minilm",
    "config_hash": "c1",
    "artifact_hash": "a1",
    "agreement": [{"first": "x", "second": "y", "n": 9, "kappa_gate": 0.5, "pearson_lud": 0.6}],
    "judges": [
        {
            "name": "x",
            "gains": {
                "n": 4,
                "pearson_r": 0.3,
                "pearson_p": 0.2,
                "regimes": ["low", "high"],
                "n_by_regime": [3, 1],
                "mean_lud_by_regime": [0.1, 0.7],
                "mean_gain_by_regime": [0.0, 0.02],
            },
        }
    ],
}


def test_a_run_has_a_row_a_pair_of_judges_a_regime_and_one_over_all_updates():
    rows = tabulate_lud(SUMMARY, "electricity")
    assert rows["subject"].to_list() == ["x / y", "low", "high", "all"]
    assert rows["kappa"].to_list() == [0.5, None, None, None]
    assert rows["pearson_r"].to_list() == [0.6, None, None, 0.3]


def test_a_run_measured_again_replaces_its_rows_and_leaves_those_of_others(tmp_path):
    write_lud_rows(tmp_path, SUMMARY, "electricity")
    write_lud_rows(tmp_path, SUMMARY | {"artifact_hash": "a2"}, "electricity")
    write_lud_rows(tmp_path, SUMMARY, "electricity")
    lud = read_inputs(tmp_path, [], mode="archive", generated_at=NOW).lud
    assert [row["artifact_hash"] for row in lud] == ["a2"] * 4 + ["a1"] * 4
    assert set(LUD_COLUMNS) <= set(lud[0])
