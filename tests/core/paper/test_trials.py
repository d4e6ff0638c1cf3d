"""Scoring the changes of an experiment: what trains nothing is made of a run that is there."""

import logging

import polars as pl
import pytest

from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.score_files import read_configs
from compevo_core.evaluation.scoring import load_population
from compevo_core.paper.changes import EXPERIMENTS
from compevo_core.paper.trials import Trial, _select_scopes, list_trials_of_runs, score_experiment
from compevo_core.report.inputs import read_inputs
from compevo_core.report.paper.tables import build_paper_tables
from compevo_core.training.trainer import train
from tests.support.population import news_pool, tiny
from tests.support.population import windows as make_windows
from tests.support.report_samples import NOW

LOG = logging.getLogger("experiments")
CONFIG = tiny(run__rounds=2, run__validate_every=0, evolution__every=0, selection__ema=0.0)
CHANGES = ("tau=0.1", "tau=0.5", "tau=5")


@pytest.fixture(scope="module")
def windows():
    parts = [
        make_windows("train", 6),
        make_windows("val", 2, first_day=40),
        make_windows("test", 5, first_day=60),
    ]
    return WindowSet([window for part in parts for window in part], dataset="electricity")


@pytest.fixture(scope="module")
def run(tmp_path_factory, windows):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(CONFIG, windows.split("train"), windows.split("val"), news_pool(), folder)
    return folder


def test_a_temperature_moves_the_weights_and_leaves_the_agents(windows, run):
    views = windows.split("test").views()
    forecaster = load_population(run, news_pool())
    forecaster._model.calibration.override_A.fill(0.0)
    forecaster._model.selection.fitness_EA.copy_(
        forecaster._model.selection.fitness_EA.new_tensor([[-1.0, -2.0, -3.0]])
    )
    before = forecaster.predict_by_agent(views)
    forecaster.reweigh(CONFIG.with_overrides({"selection.temperature": 0.05}))
    after = forecaster.predict_by_agent(views)
    assert (after.agents == before.agents).all()
    assert after.step_weights[:, 0].min() > 0.99 > before.step_weights[:, 0].max()
    assert forecaster.config.selection.temperature == 0.05


def test_a_sweep_of_a_run_becomes_rows_pairs_configurations_and_a_table(tmp_path, windows, run):
    experiment = EXPERIMENTS["tau"]
    changes = experiment.select(CHANGES)
    trials = list_trials_of_runs(changes, [(run, CONFIG)], windows, news_pool())
    score_experiment(experiment, trials, news_pool(), tmp_path, commit="c", log=LOG)

    inputs = read_inputs(tmp_path, [], mode="archive", generated_at=NOW)
    pooled = inputs.rows.filter(pl.col("entity") == "pooled")
    assert set(pooled["experiment"]) == {"experiment-tau"}
    assert set(pooled["method"]) == set(CHANGES)
    # The settings that a row was made with, not those of the run that it was made from.
    assert set(read_configs(tmp_path)) == set(pooled["config_hash"])
    assert {(test["method_a"], test["method_b"]) for test in inputs.paired} == {
        ("tau=0.1", "tau=0.5"),
        ("tau=5", "tau=0.5"),
    }
    captions = [table.caption for table in build_paper_tables("sensitivity", inputs)]
    assert "Electricity, test split: temperature of the weights, against tau=0.5" in captions


def test_changed_news_is_scored_on_the_windows_it_was_changed_in(windows, run):
    changes = EXPERIMENTS["news"].select(["news=own", "news=none", "news=noisy"])
    trials = list_trials_of_runs(changes, [(run, CONFIG)], windows, news_pool())
    counts = [len(trial.windows[0].view.candidate_ids) for trial in trials]
    assert counts[1] == 0
    assert counts[2] >= counts[0] > 0


def test_parts_that_may_come_back_are_judged_on_validation_alone(windows):
    (scope,) = _select_scopes(EXPERIMENTS["parts"], windows, 1, None)
    assert scope.subset == "val"
    assert {window.view.split for window in scope.windows} == {"val"}
    assert scope.days is None


def test_days_after_the_test_are_scored_in_one_pass_with_it(tmp_path):
    parts = [
        make_windows("train", 24),
        make_windows("val", 6, first_day=30),
        make_windows("test", 6, first_day=50),
        make_windows("inference", 4, first_day=70),
    ]
    days = WindowSet([window for part in parts for window in part], dataset="electricity")
    base = RunConfig().with_overrides(
        {
            "forecast.decoder": "none",
            "population.agents": 2,
            "population.members": [{"prior": "persistence", "weight": 3.0}, {"prior": "theta"}],
            "selection.online": True,
            "selection.rule": "boa",
        }
    )
    weather = EXPERIMENTS["weather"]
    trials = []
    for change in weather.select(["weather=own", "weights=fixed"]):
        config, folder = change.configure(base), tmp_path / change.name
        train(config, days.split("train"), days.split("val"), news_pool(), folder)
        trials.append(Trial(change=change.name, config=config, windows=days, run=folder))

    _, rows, paired = score_experiment(
        weather, trials, news_pool(), tmp_path, commit="c", log=LOG, scopes=1
    )
    assert set(rows["split"]) == {"test", "inference"}
    assert set(paired["subset"]) == {"test", "inference"}
    pooled = rows.filter(pl.col("entity") == "pooled", pl.col("split") == "inference")
    assert set(pooled["n_windows"]) == {len(days.split("inference"))}

    # Weights that go on have learnt from the test by then, fixed ones have not.
    population = load_population(trials[0].run, news_pool())
    both = days.with_windows([*days.split("test"), *days.split("inference")])
    later = [view.split == "inference" for view in both.views()]
    error = abs(population.follow(both).aggregate - both.truth())[later].mean()
    assert pooled.filter(method="weather=own")["mae"].item() == pytest.approx(error)
    scopes = _select_scopes(weather, days, 1, 1)
    assert [len(scope.days) for scope in scopes] == [len(both), len(both)]
