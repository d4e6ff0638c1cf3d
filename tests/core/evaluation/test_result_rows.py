"""Result rows: all windows, the right columns, and what identifies a run."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.data.quantiles import LEVELS
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.metrics import QUANTILE_COLUMNS
from compevo_core.evaluation.result_rows import (
    POOLED,
    RESULT_COLUMNS,
    Identity,
    evaluate,
    forecast_windows,
    write_rows,
)
from compevo_core.evaluation.score_files import read_configs
from tests.support.window_samples import from_nem, make_window

N = 13


def make_windows(n=N, **changes):
    some = [make_window(i, **({"split": "test"} | changes)) for i in range(n)]
    other = [
        make_window(
            i, split="test", entity="SA1", series_id="AEMO/HISTDEMAND/SA1", window_id=f"s{i}"
        )
        for i in range(3)
    ]
    return WindowSet([*some, *other], dataset="electricity", manifest={"synthetic": False})


TRAIN = WindowSet(
    [make_window(i) for i in range(4)] + [make_window(9, entity="SA1")], dataset="electricity"
)
PERSISTENCE = fit_baseline("persistence", TRAIN)
IDENTITY = Identity(experiment="main", subset="made-up", config_hash="c", commit="abc")


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 15, 16, 17, 1000])
def test_as_many_windows_are_scored_as_the_manifest_names_for_every_batch_size(batch_size):
    windows = make_windows()
    rows = evaluate(PERSISTENCE, windows, IDENTITY, batch_size=batch_size, clock=lambda: 0.0)
    scored = dict(rows.select("entity", "n_windows").iter_rows())
    assert scored == {"NSW1": N, "SA1": 3, POOLED: windows.manifest["n_windows"]}
    assert rows.equals(evaluate(PERSISTENCE, windows, IDENTITY, clock=lambda: 0.0))


def test_rows_have_the_columns_of_the_contract_in_its_order():
    rows = evaluate(PERSISTENCE, make_windows(), IDENTITY, train=TRAIN)
    assert tuple(rows.columns) == RESULT_COLUMNS
    last = rows.row(-1, named=True)
    assert last["method"] == "persistence"
    assert (last["split"], last["subset"], last["unit"]) == ("test", "made-up", "MW")
    assert last["data_hash"] == make_windows().hash
    assert last["mase"] > 0


def test_mase_of_an_entity_without_train_windows_is_null():
    rows = evaluate(PERSISTENCE, make_windows(), IDENTITY, train=TRAIN.entity("NSW1"))
    assert rows.filter(pl.col("entity") == "SA1")["mase"].item() is None
    assert rows.filter(pl.col("entity") == "NSW1")["mase"].item() > 0


@pytest.mark.parametrize(
    ("cutoff", "memorised"),
    [
        ("", False),
        ("2019-01", False),
        ("2019-02", True),
        ("2019-02-28", True),
        ("2019-02-27", False),
        ("2018", False),
        ("2024", True),
    ],
)
def test_windows_before_the_knowledge_cutoff_are_marked_as_possibly_memorised(cutoff, memorised):
    assert make_windows()[0].view.origin_utc == from_nem(2019, 3, 1)
    rows = evaluate(PERSISTENCE, make_windows(), Identity(experiment="x", knowledge_cutoff=cutoff))
    assert rows["possibly_memorised"].to_list() == [memorised] * 3


def test_a_row_made_with_a_leaky_window_says_so_and_others_do_not():
    rows = evaluate(PERSISTENCE, make_windows(leaky=True), IDENTITY)
    assert dict(rows.select("entity", "leaky").iter_rows()) == {
        "NSW1": True,
        "SA1": False,
        POOLED: True,
    }


def test_masked_points_and_points_left_out_of_mape_are_in_the_row():
    y = np.full(48, 500.0)
    y[0], y[1] = np.nan, 0.0
    rows = evaluate(PERSISTENCE, make_windows(y=y), IDENTITY)
    nsw = rows.row(0, named=True)
    assert (nsw["n_points"], nsw["n_masked"], nsw["mape_skipped"]) == (47 * N, N, N)
    assert nsw["mape_threshold"] == 1.0


def test_windows_of_two_splits_are_refused():
    both = WindowSet([make_window(0), make_window(1, split="test")], dataset="electricity")
    with pytest.raises(DataError, match=r"one split, got \['test', 'train'\]"):
        evaluate(PERSISTENCE, both, IDENTITY)


class Short:
    name = "short"

    def predict(self, views):
        return np.zeros((len(views) - 1, 48))


def test_a_forecaster_that_drops_a_window_is_refused():
    with pytest.raises(DataError, match=r"short returned shape \(3, 48\) for 4 windows"):
        forecast_windows(Short(), make_windows(), batch_size=4)
    with pytest.raises(DataError, match="forecast every window once"):
        evaluate(np.zeros((3, 48)), make_windows(), Identity(experiment="x", method="m"))
    with pytest.raises(DataError, match="no method name"):
        evaluate(make_windows().truth(), make_windows(), IDENTITY)


def test_rows_are_written_as_csv_and_read_back_with_nulls(tmp_path):
    rows = evaluate(PERSISTENCE, make_windows(), IDENTITY)
    write_rows(tmp_path / "results" / "a.csv", rows)
    stored = pl.read_csv(tmp_path / "results" / "a.csv", schema_overrides=rows.schema)
    assert tuple(stored.columns) == RESULT_COLUMNS
    assert stored["mae"].to_list() == rows["mae"].to_list()
    assert stored["mase"].null_count() == 3
    assert not list((tmp_path / "results").glob("*.part"))
    with pytest.raises(DataError, match="make them with evaluate"):
        write_rows(tmp_path / "b.csv", rows.drop("mae"))


def test_a_row_says_in_what_share_of_its_windows_a_logic_had_a_choice_of_news():
    some = [
        make_window(i, split="test", candidate_ids=tuple(f"a{k}" for k in range(i)))
        for i in range(4)
    ]
    windows = WindowSet(some, dataset="electricity", manifest={"synthetic": False})
    # 0, 1, 2 and 3 candidates: with two articles to read, one window leaves a choice.
    read_two = replace(IDENTITY, news_top_k=2)
    assert evaluate(PERSISTENCE, windows, read_two)["news_choice_share"].to_list() == [0.25, 0.25]
    assert evaluate(PERSISTENCE, windows, IDENTITY)["news_choice_share"].to_list() == [None, None]


def test_rows_hold_scores_of_quantiles_where_they_are_given_and_nulls_elsewhere():
    windows = make_windows()
    spread = np.array(LEVELS)[:, None] * 20 - 10
    quantiles = windows.truth()[:, None] + spread
    identity = Identity(experiment="x", method="sure")
    rows = evaluate(windows.truth(), windows, identity, quantiles_NQH=quantiles)
    assert rows["coverage_80"].to_list() == [1.0] * 3
    assert rows["width_80"].to_list() == pytest.approx([16.0] * 3)
    plain = evaluate(windows.truth(), windows, identity)
    assert plain.select(QUANTILE_COLUMNS).null_count().row(0) == (3,) * len(QUANTILE_COLUMNS)
    assert plain.drop("seconds", "seconds_per_window", *QUANTILE_COLUMNS).equals(
        rows.drop("seconds", "seconds_per_window", *QUANTILE_COLUMNS)
    )

    # Each entity is scored on its own windows.
    quantiles[-1] += 100.0
    by_entity = dict(
        evaluate(windows.truth(), windows, identity, quantiles_NQH=quantiles)
        .select("entity", "coverage_80")
        .iter_rows()
    )
    last = windows[-1].view.entity
    assert {name for name, share in by_entity.items() if share < 1} == {last, POOLED}

    with pytest.raises(DataError, match="1 quantiles for 16 windows"):
        evaluate(windows.truth(), windows, identity, quantiles_NQH=quantiles[:1])


REPO = Path(__file__).resolve().parents[3]


def test_the_committed_configurations_are_those_of_the_committed_rows():
    named = set()
    for path in (REPO / "results").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            named |= {row.get("config_hash") for row in csv.DictReader(file)}
    assert set(read_configs(REPO / "results")) == named - {None, ""}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", DataError, "not readable as JSON"),
        ("[1]", DataError, "holds a list"),
        ('{"run": {"speed": 1}}', ConfigError, "speed"),
    ],
)
def test_a_torn_or_unknown_configuration_is_refused(tmp_path, text, error, message):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.json").write_text(text)
    with pytest.raises(error, match=message):
        read_configs(tmp_path)
