"""Agents without a language model: a search in seconds, sealed, resumed, its parts adding up."""

import json

import numpy as np
import pytest

from compevo_core.agents.logics import GENERALIST_LOGIC, list_first_logics
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.ensemble import read_inputs
from compevo_core.training.loop import ReadingModel
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.trainer import train
from tests.support.planted import planted_world, search
from tests.support.tiny_run import Killed, kill_after

SPECIALISTS = {
    "population.agents": 2,
    "population.members": [{}, {"reads": "everything"}],
    "forecast.prior": "persistence",
    "forecast.prior_folds": 1,
    "grpo.group_size": 4,
    "grpo.reward_windows": 80,
    "run.rounds": 3,
}
JOINT = {
    "news__fit": "joint",
    "news__other_logics": 0.0,
    "evolution__credit": "contribution",
    "grpo__reward_windows": 80,
    "grpo__group_size": 4,
}


def configure(**changes):
    return RunConfig.preset("specialists").with_overrides({**SPECIALISTS, **changes})


def assert_parts_add_up(prediction, rtol=1e-6):
    parts_NAH = prediction.step_weights * prediction.agents.swapaxes(0, 1)
    np.testing.assert_allclose(parts_NAH.sum(1), prediction.aggregate, rtol=rtol)


def run(config, out, **options):
    world = planted_world()
    return train(config, world.split("train"), world.split("val"), world.news, out, **options)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    out = tmp_path_factory.mktemp("search") / "run"
    run(configure(), out)
    return out


def _slope(out):
    world = planted_world()
    test = world.split("test")
    prediction = CompEvoForecaster.load(out, world.news).predict_by_agent(test.views())
    added_N = (prediction.aggregate - prediction.prior).mean(1)
    return np.polyfit(world.effects_of(test), added_N, 1)[0], prediction


def test_a_search_finds_what_acts(searched):
    slope, prediction = _slope(searched)
    assert slope > 0.5
    assert_parts_add_up(prediction)
    assert prediction.chosen_news[0] != prediction.chosen_news[1]

    metrics = RunFolder(searched).read_metrics()
    assert len(set(metrics["calibration"]["blend"])) == 1  # what was fitted to add up
    assert metrics["calibration"]["guard"] == "none"
    *_, last = RunFolder(searched).read_rounds()
    assert last.logics[1] == GENERALIST_LOGIC
    assert last.group_logics[1] == []
    assert sum(last.weights) == pytest.approx(1)


def test_a_logic_is_scored_by_what_its_news_add(searched):
    world = planted_world()
    forecaster = CompEvoForecaster.load(searched, world.news)
    found, _ = forecaster.logics
    # The first finds what acts, the second does not; a reader of everything leaves little of it.
    candidates = [[found, "Track news about interest rates in any region, as a sign of x."]]
    candidates.append([GENERALIST_LOGIC] * 2)
    gain_A2 = forecaster.score_logics(forecaster.logics, candidates, world.split("test"))
    assert gain_A2[0, 0] > 2 * gain_A2[0, 1]
    assert gain_A2[1, 0] == gain_A2[1, 1]


def test_a_killed_search_reaches_the_same_model(searched, tmp_path):
    seen = []
    with pytest.raises(Killed):
        run(configure(), tmp_path, on_round=kill_after(1))
    resumed = run(configure(), tmp_path, on_round=lambda record: seen.append(record.round))
    assert seen == [2]
    assert resumed["artifact_hash"] == RunFolder(searched).read_metrics()["artifact_hash"]
    files = (RunFolder(out).model_logics_file for out in (tmp_path, searched))
    logics, expected = (json.loads(path.read_text()) for path in files)
    assert logics == expected


def test_the_round_that_validates_best_is_sealed(tmp_path):
    summary = run(configure(**{"run.validate_every": 1, "run.validation_windows": 8}), tmp_path)
    errors = [record.val_mae_scaled for record in RunFolder(tmp_path).read_rounds()]
    assert summary["val_mae_scaled"] <= min(errors)
    assert summary["chosen_round"] in (0, 1 + int(np.argmin(errors)))


def test_several_processes_are_refused(searched):
    shards = AgentShards(2)
    shards.processes = 2
    with pytest.raises(ConfigError, match="in one process"):
        ReadingModel(configure(), read_inputs(searched), shards)


def test_ten_choosing_agents_leave_generalists_room():
    members = [{}] * 4 + [{"reads": "everything"}] + [{}] * 6
    config = configure(**{"population.agents": 11, "population.members": members})
    logics = list_first_logics(config)
    assert logics[4] == GENERALIST_LOGIC
    assert len(set(logics)) == 11


def test_online_weights_begin_with_those_of_training(tmp_path):
    run(configure(**{"selection.online": True, "selection.rule": "boa"}), tmp_path)
    world = planted_world()
    forecaster = CompEvoForecaster.load(tmp_path, world.news)
    followed = forecaster.follow(world.split("test"))

    first_A = followed.step_weights[0].mean(1)
    trained = forecaster._model.selection.weights(["NSW1"])[0].tolist()
    assert len(set(np.round(trained, 3))) == 2
    assert np.argmax(first_A) == np.argmax(trained)
    assert_parts_add_up(followed)


def test_adapters_learn_from_the_aggregate_on_top(tmp_path):
    run(search(**JOINT, population__agents=2), tmp_path)
    slope, prediction = _slope(tmp_path)
    assert slope > 0.3
    assert_parts_add_up(prediction, rtol=1e-5)
    first, second, *_ = RunFolder(tmp_path).read_rounds()
    assert first.evolved and not second.evolved
    # Only a rewriting pays: the reward of the next round is the one of the last.
    assert second.rewards == first.rewards and second.fitness != first.fitness
    assert second.effective_agents is None
