"""Result rows: all windows, the right columns, and what identifies a run."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from benchmarks.rows import REPO
from compevo_core.agents.online_selection import BoaState
from compevo_core.baselines import fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.data.quantiles import LEVELS
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation import metrics
from compevo_core.evaluation.result_rows import (
    POOLED,
    RESULT_COLUMNS,
    Identity,
    evaluate,
    forecast_windows,
    write_rows,
)
from compevo_core.evaluation.scoring import measure_regret
from compevo_core.paper.report.inputs import read_configs
from tests.support.window_samples import from_nem, make_set, make_window

N = 13


def make_windows(n=N, **changes):
    some = [make_window(i, **({"split": "test"} | changes)) for i in range(n)]
    other = {"split": "test", "entity": "SA1", "series_id": "AEMO/HISTDEMAND/SA1"}
    others = [make_window(i, window_id=f"s{i}", **other) for i in range(3)]
    return make_set([*some, *others], manifest={"synthetic": False})


TRAIN = make_set([make_window(i) for i in range(4)] + [make_window(9, entity="SA1")])
PERSISTENCE = fit_baseline("persistence", TRAIN)
IDENTITY = Identity(experiment="main", subset="made-up", config_hash="c", commit="abc")


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 15, 16, 17, 1000])
def test_every_batch_size_scores_all_manifest_windows(batch_size):
    windows = make_windows()
    rows = evaluate(PERSISTENCE, windows, IDENTITY, batch_size=batch_size, clock=lambda: 0.0)
    scored = dict(rows.select("entity", "n_windows").iter_rows())
    assert scored == {"NSW1": N, "SA1": 3, POOLED: windows.manifest["n_windows"]}
    assert rows.equals(evaluate(PERSISTENCE, windows, IDENTITY, clock=lambda: 0.0))


def test_rows_have_the_contracts_columns_in_order():
    rows = evaluate(PERSISTENCE, make_windows(), IDENTITY, train=TRAIN)
    last = rows.row(-1, named=True)

    assert tuple(rows.columns) == RESULT_COLUMNS
    assert (last["method"], last["data_hash"]) == ("persistence", make_windows().hash)
    assert (last["split"], last["subset"], last["unit"]) == ("test", "made-up", "MW")
    assert last["mase"] > 0


def test_mase_without_train_windows_is_null():
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
def test_windows_before_the_cutoff_may_be_memorised(cutoff, memorised):
    assert make_windows()[0].view.origin_utc == from_nem(2019, 3, 1)
    rows = evaluate(PERSISTENCE, make_windows(), Identity(experiment="x", knowledge_cutoff=cutoff))
    assert rows["possibly_memorised"].to_list() == [memorised] * 3


def test_only_rows_with_leaky_windows_say_so():
    rows = evaluate(PERSISTENCE, make_windows(leaky=True), IDENTITY)
    leaky = dict(rows.select("entity", "leaky").iter_rows())
    assert leaky == {"NSW1": True, "SA1": False, POOLED: True}


def test_dropped_windows_and_mixed_splits_are_refused():
    short = SimpleNamespace(name="short", predict=lambda views: np.zeros((len(views) - 1, 48)))
    with pytest.raises(DataError, match=r"short .*\(3, 48\) for 4"):
        forecast_windows(short, make_windows(), batch_size=4)
    with pytest.raises(DataError, match="every window once"):
        evaluate(np.zeros((3, 48)), make_windows(), Identity(experiment="x", method="m"))
    with pytest.raises(DataError, match="no method name"):
        evaluate(make_windows().truth(), make_windows(), IDENTITY)
    both = make_set([make_window(0), make_window(1, split="test")])
    with pytest.raises(DataError, match=r"one split, got \['test', 'train'\]"):
        evaluate(PERSISTENCE, both, IDENTITY)


def test_rows_survive_csv_with_nulls(tmp_path):
    rows = evaluate(PERSISTENCE, make_windows(), IDENTITY)
    write_rows(tmp_path / "results" / "a.csv", rows)
    stored = pl.read_csv(tmp_path / "results" / "a.csv", schema_overrides=rows.schema)
    assert tuple(stored.columns) == RESULT_COLUMNS
    assert stored["mae"].to_list() == rows["mae"].to_list()
    assert stored["mase"].null_count() == 3
    assert not list((tmp_path / "results").glob("*.part"))
    with pytest.raises(DataError, match="with evaluate"):
        write_rows(tmp_path / "b.csv", rows.drop("mae"))


def test_a_row_gives_its_share_of_choices():
    counts = [tuple(f"a{k}" for k in range(i)) for i in range(4)]
    some = [make_window(i, split="test", candidate_ids=ids) for i, ids in enumerate(counts)]
    windows = make_set(some, manifest={"synthetic": False})
    # 0, 1, 2 and 3 candidates: with two articles to read, one window leaves a choice.
    read_two = replace(IDENTITY, news_top_k=2)
    assert evaluate(PERSISTENCE, windows, read_two)["news_choice_share"].to_list() == [0.25, 0.25]
    assert evaluate(PERSISTENCE, windows, IDENTITY)["news_choice_share"].to_list() == [None, None]


def test_rows_hold_quantile_scores_where_given():
    windows = make_windows()
    spread = np.array(LEVELS)[:, None] * 20 - 10
    quantiles = windows.truth()[:, None] + spread
    identity = Identity(experiment="x", method="sure")
    rows = evaluate(windows.truth(), windows, identity, quantiles_NQH=quantiles)
    assert rows["coverage_80"].to_list() == [1.0] * 3
    assert rows["width_80"].to_list() == pytest.approx([16.0] * 3)
    plain = evaluate(windows.truth(), windows, identity)
    assert set(plain.select(metrics.QUANTILE_COLUMNS).null_count().row(0)) == {3}
    others = ("seconds", "seconds_per_window", *metrics.QUANTILE_COLUMNS)
    assert plain.drop(others).equals(rows.drop(others))

    # Each entity is scored on its own windows.
    quantiles[-1] += 100.0
    rows = evaluate(windows.truth(), windows, identity, quantiles_NQH=quantiles)
    missed = rows.filter(pl.col("coverage_80") < 1)["entity"]
    assert set(missed) == {windows[-1].view.entity, POOLED}

    with pytest.raises(DataError, match="1 quantiles for 16"):
        evaluate(windows.truth(), windows, identity, quantiles_NQH=quantiles[:1])


def test_committed_configurations_match_committed_rows():
    named = set()
    for path in (REPO / "results").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            named |= {row.get("config_hash") for row in csv.DictReader(file)}
    configs = read_configs(REPO / "results")
    assert set(configs) == named - {None, ""}
    assert all(RunConfig.from_mapping(tree).hash == name for name, tree in configs.items())


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


Y = np.array([[1.0, 2.0, 4.0], [10.0, 20.0, 40.0]])


def test_the_errors_are_those_of_their_definitions():
    scores = metrics.score(Y, Y + np.array([[1.0, -1.0, 2.0], [0.0, 2.0, -4.0]]))
    assert (scores.mae, scores.mse) == pytest.approx((10 / 6, 26 / 6))
    assert scores.rmse == pytest.approx((26 / 6) ** 0.5)
    assert scores.mape_pct == pytest.approx(100 * (1 + 0.5 + 0.5 + 0 + 0.1 + 0.1) / 6)
    assert scores.wape_pct == pytest.approx(100 * 10 / 77)
    assert (scores.n_windows, scores.n_points, scores.n_masked, scores.mape_skipped) == (2, 6, 0, 0)


def test_masked_and_small_truths_are_counted():
    y = np.array([[-0.5, 0.0, np.nan, 100.0, -50.0, 25.0]])
    scores = metrics.score(y, np.nan_to_num(y) + 10, mape_threshold=1.0)

    assert (scores.n_points, scores.n_masked, scores.mae) == (5, 1, 10.0)
    assert (scores.mape_skipped, scores.mape_threshold) == (2, 1.0)
    assert scores.mape_pct == pytest.approx(100 * (0.1 + 0.2 + 0.4) / 3)


def test_impossible_percentages_are_none():
    scores = metrics.score(np.zeros((1, 3)), np.ones((1, 3)))
    assert (scores.mape_pct, scores.wape_pct, scores.mase) == (None, None, None)
    assert scores.mape_skipped == 3


def test_mase_divides_each_window_by_its_own_scale():
    scores = metrics.score(Y, Y + np.array([[2.0], [10.0]]), mase_scale_N=np.array([1.0, 20.0]))
    assert scores.mase == pytest.approx((2.0 + 0.5) / 2)
    assert metrics.score(Y, Y + 1, mase_scale_N=np.array([1.0, np.nan])).mase is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_infinite_forecast_is_refused_despite_masks(bad):
    y, forecast = Y.copy(), Y.copy()
    y[1, 2], forecast[1, 2] = np.nan, bad
    with pytest.raises(DataError, match="window 1, step 2"):
        metrics.score(y, forecast)


def test_a_missing_window_is_refused_and_not_ignored():
    with pytest.raises(DataError, match=r"\(2, 3\) but the forecast is \(1, 3\)"):
        metrics.score(Y, Y[:1])
    with pytest.raises(DataError, match="nothing to score"):
        metrics.score(np.full((1, 3), np.nan), np.ones((1, 3)))


def test_the_naive_error_is_the_daily_difference():
    one = make_window(0, x=[100.0] * 48, y=[103.0] * 47 + [float("nan")])
    assert metrics.measure_naive_error([one]) == {"NSW1": 3.0}
    with pytest.raises(DataError, match="split 'test'"):
        metrics.measure_naive_error([make_window(0, split="test")])


def test_window_errors_are_means_over_known_steps():
    y = Y.copy()
    y[0, 0], y[1] = np.nan, np.nan
    scores = metrics.measure_window_errors(y, Y + 2)
    assert scores[0] == 2.0
    assert np.isnan(scores[1])


RNG = np.random.default_rng(0)


def make(by_level, windows=1, steps=4):
    """Return constant quantiles (N, Q, H); NaN at the levels that are not given."""
    found = np.full((windows, len(LEVELS), steps), np.nan)
    for level, value in by_level.items():
        found[:, LEVELS.index(level)] = value
    return found


def test_pinball_coverage_and_width_are_right():
    # Truths 80, 100, 130 and one that is missing; quantiles 90, 100 and 120 at 0.1, 0.5 and 0.9.
    truth = np.array([[80.0, 100.0, 130.0, np.nan]])
    found = metrics.score_quantiles(truth, make({0.1: 90.0, 0.5: 100.0, 0.9: 120.0}))

    # At 0.1: 0.9 * 10 below, 0.1 * 10 and 0.1 * 40 above: 9 + 1 + 4 over three points.
    assert found["pinball_q10"] == pytest.approx(14 / 3)
    # At 0.5: half of 20, 0 and 30. At 0.9: 0.1 * 40, 0.1 * 20, 0.9 * 10.
    assert found["pinball_q50"] == pytest.approx(25 / 3)
    assert found["pinball_q90"] == pytest.approx(15 / 3)
    assert found["pinball_10_50_90"] == pytest.approx((14 + 25 + 15) / 9)
    assert found["coverage_80"] == pytest.approx(1 / 3)
    assert found["width_80"] == 30.0
    # A truth at its quantile is at or below it.
    below = [found[f"below_{q}"] for q in ("q10", "q50", "q90")]
    assert below == pytest.approx([1 / 3, 2 / 3, 2 / 3])


def test_a_score_without_its_level_is_none():
    truth = np.full((1, 4), 100.0)
    found = metrics.score_quantiles(truth, make({0.1: 90.0, 0.5: 100.0, 0.9: 120.0}))
    assert set(found) == set(metrics.QUANTILE_COLUMNS)
    empty = {name for name, value in found.items() if value is None}
    assert {"wql", "coverage_95", "width_95", "pinball_q05", "below_q975"} <= empty
    assert not {"pinball_10_50_90", "coverage_80", "width_80", "pinball_q50"} & empty

    # One window without the level: no score, since it would be one of other windows.
    partly = make({0.5: 100.0}, windows=2)
    partly[1] = np.nan
    assert set(metrics.score_quantiles(np.full((2, 4), 100.0), partly).values()) == {None}


def test_the_weighted_quantile_loss_follows_its_formula():
    truth = RNG.normal(0, 50, (5, 4))
    truth[0, 0] = np.nan
    quantiles = np.sort(RNG.normal(0, 50, (5, len(LEVELS), 4)), axis=1)

    # GluonTS: sum of 2 |(q - y) ((y <= q) - level)| over sum of |y|, the mean over levels.
    losses = []
    for level in metrics.WQL_LEVELS:
        q = quantiles[:, LEVELS.index(level)]
        loss = 2 * np.abs((q - truth) * ((truth <= q) - level))
        losses.append(np.nansum(loss) / np.nansum(np.abs(truth)))
    assert metrics.score_quantiles(truth, quantiles)["wql"] == pytest.approx(np.mean(losses))
    assert metrics.score_quantiles(truth * 0, quantiles)["wql"] is None


def test_crossing_quantiles_and_other_shapes_are_refused():
    truth = np.full((1, 4), 100.0)
    crossing = make({0.1: 120.0, 0.9: 90.0})
    with pytest.raises(DataError, match="window 0, step 0"):
        metrics.score_quantiles(truth, crossing)
    with pytest.raises(DataError, match=r"each of 0\.025"):
        metrics.score_quantiles(truth, np.zeros((1, 3, 4)))


def test_the_best_fixed_mixture_may_lie_between():
    truth_Dh = np.zeros((3, 2))
    experts_DAh = np.stack([np.full((3, 2), -1.0), np.full((3, 2), 1.0)], axis=1)
    regret = measure_regret("boa", experts_DAh, np.full((3, 2), 0.5), truth_Dh, [0.5, 0.5])
    assert (regret.days, regret.loss) == (3, pytest.approx(1.5))
    assert regret.best_expert == pytest.approx(3.0)
    assert regret.best_mixture == pytest.approx(0.0, abs=1e-9)

    # Unknown truths count as nothing.
    holed_Dh = np.array([[0.0, np.nan], [np.nan, np.nan], [0.0, 0.0]])
    lone_DAh = np.ones((3, 1, 2))
    lone_DAh[0, 0, 1] = 50.0
    regret = measure_regret("equal", lone_DAh, lone_DAh[:, 0], holed_Dh, [1.0])
    assert (regret.days, regret.loss, regret.best_mixture) == (2, 2.0, pytest.approx(2.0))
    assert regret.bound is None


def test_bernstein_weights_stay_below_the_logged_promise():
    rng = np.random.default_rng(1)
    state = BoaState([1 / 3] * 3)
    truth_Dh = rng.normal(size=(200, 4))
    noise_DAh = rng.normal(size=(200, 3, 4)) * np.array([2.0, 1.0, 3.0])[:, None]
    experts_DAh = truth_Dh[:, None] + noise_DAh
    mixture_Dh = np.empty_like(truth_Dh)
    for day in range(200):
        mixture_Dh[day] = state.weights() @ experts_DAh[day]
        state.observe(experts_DAh[day], mixture_Dh[day], truth_Dh[day])

    regret = measure_regret("boa", experts_DAh, mixture_Dh, truth_Dh, [1 / 3] * 3)
    assert regret.best_mixture <= regret.best_expert
    assert regret.loss - regret.best_mixture <= regret.bound
