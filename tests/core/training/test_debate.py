"""A debate: what agents tell each other, what they are credited with, and who counts."""

import numpy as np
import pytest
import torch

from compevo_core.agents import debate
from compevo_core.agents.objective import policy_loss
from compevo_core.errors import ConfigError
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.backbone import load_backbone
from compevo_core.paper.changes import find_variant
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training import forecast_step
from compevo_core.training.model import PopulationModel
from tests.support import models
from tests.support.population import news_pool, tiny, windows
from tests.support.rounds import build_round_trainer, run_step
from tests.support.tiny_run import Killed, kill_after, train_days

LOGICS = ["Track public holidays.", "Follow the sun.", "Watch the smelters."]


def settings(**overrides):
    return find_variant("mad-rl").configure(tiny(**overrides))


def draw_debate(model):
    for parameter in model.debate.parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(3))


def build_debate(config):
    model = models.build_model(config)
    models.fill_with_noise(model)
    executor = models.build_executor(model)
    assert isinstance(executor, debate.DebateExecutor) and model.debate is not None
    draw_debate(model)
    return model, executor


def test_a_forecast_is_credited_with_its_influence():
    # Two turns of two agents on one window; by hand: 0.5 times the mean of (-0.2, -0.6) is -0.2.
    rewards_TAB = torch.tensor([[[-1.0], [-0.5]], [[-0.2], [-0.6]]])
    returns_TAB = debate.discount_rewards(rewards_TAB, 0.5)
    assert torch.allclose(returns_TAB, torch.tensor([[[-1.2], [-0.7]], [[-0.2], [-0.6]]]))
    # Without a later turn the reward is all there is.
    assert torch.equal(debate.discount_rewards(rewards_TAB[1:], 0.5), rewards_TAB[1:])


def test_an_advantage_is_the_scaled_surplus():
    # Surplus 0.3, -0.1 around a mean of 0.1, with a deviation of 0.2.
    advantage = debate.standardise_advantages(
        torch.tensor([[-0.2], [-0.6]]), torch.full((2, 1), -0.5)
    )
    assert torch.allclose(advantage, torch.tensor([[1.0], [-1.0]]))
    zeros = torch.zeros(2, 3)
    assert torch.equal(debate.standardise_advantages(torch.ones(2, 3), zeros), zeros)


def test_the_policy_moves_towards_forecasts_that_earned_more():
    tried, deviation = torch.full((1, 1, 48), 0.2), 0.1
    options = {"clip_range": 0.2, "kl_coefficient": 0.0}
    for advantage in (1.0, -2.0):
        mean = torch.zeros(1, 1, 48, requires_grad=True)
        logp = debate.log_density(tried, mean, deviation)[..., None]
        old, advantages, mask = logp.detach(), torch.tensor([[advantage]]), torch.ones_like(logp)

        policy_loss(logp, old, old, advantages, mask, **options).loss.backward()

        # By hand: minus advantage times (tried - mean) / deviation^2 / 48.
        assert torch.allclose(mean.grad, torch.full((1, 1, 48), -advantage * 0.2 / 0.01 / 48))


def test_scores_are_normalised_by_window():
    score_AB = torch.tensor([[0.2, 0.5], [0.6, 0.5]])
    weights_BA = debate.weigh_by_score(torch.logit(score_AB))
    assert torch.allclose(weights_BA, torch.tensor([[0.25, 0.75], [0.5, 0.5]]))

    better_AB = debate.find_better(torch.tensor([[0.1, 0.9], [0.3, 0.2]]))
    assert better_AB.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_an_agent_reads_all_others_only():
    _, executor = build_debate(settings())
    views = windows("train", 1).views()
    readings = executor.read(LOGICS, models.make_batch(settings()))
    values_ABH = np.arange(3.0)[:, None, None] * 1000.0 + np.zeros((3, len(views), 48))
    read = [[reading.news[0] for reading in row] for row in readings]

    notes = debate.write_notes(views, values_ABH, read)
    silent = debate.write_notes(views, values_ABH, [[()] * len(views)] * 3)

    lines = notes[1][0].split("\n")
    assert [line[:17] for line in lines] == ["Agent_0 forecasts", "Agent_2 forecasts"]
    assert "2000" in lines[1] and "MW, because of:" in lines[1]
    assert read[2][0][0].title[:20] in lines[1]
    assert silent[0][0].endswith("no news")


def test_others_change_revisions_and_no_first_forecast():
    config = settings()
    examples = models.make_batch(config)
    model, executor = build_debate(config)
    first = executor.forecast(executor.read(LOGICS, examples))
    final = executor.play(LOGICS, examples)

    model.decoder.module.readout.bias_AH.data[2] += 5.0
    changed = executor.forecast(executor.read(LOGICS, examples))
    revised = executor.play(LOGICS, examples)
    assert torch.equal(first.values_ABH[0], changed.values_ABH[0])
    assert not torch.equal(final.values_ABH[0], revised.values_ABH[0])
    assert not torch.equal(first.values_ABH[0], final.values_ABH[0])


def test_each_verifier_reads_its_agents_revision():
    trainer, state, batch = build_round_trainer(system="mad-rl", evolution__every=0)
    executor, logics = trainer.executor, state.logics
    draw_debate(trainer.model)
    final = executor.play(logics, batch)

    readings = executor.read(logics, batch)
    first_ABH = executor.forecast(readings).values_ABH
    readings = executor.exchange(readings, first_ABH)
    changed_ABH = torch.stack([final.values_ABH[0], first_ABH[1], final.values_ABH[2]])
    before_AB, after_AB = (
        executor.judge("verifier", readings, base_ABH=values_ABH)
        for values_ABH in (final.values_ABH, changed_ABH)
    )
    assert torch.equal(before_AB[[0, 2]], after_AB[[0, 2]])
    assert not torch.allclose(before_AB[1], after_AB[1], atol=1e-4)

    weights_BA = debate.weigh_by_score(before_AB)
    assert torch.allclose(final.weights_BA, weights_BA, atol=1e-6)
    trained = torch.tensor(run_step(trainer, state, batch).weights)
    assert torch.allclose(trained, weights_BA.mean(0), atol=1e-5)


def test_a_round_trains_every_debater():
    trainer, state, batch = build_round_trainer(system="mad-rl", evolution__every=2)
    draw_debate(trainer.model)
    before = {name: value.clone() for name, value in trainer.model.agent_tensors().items()}

    result = run_step(trainer, state, batch)

    after = trainer.model.agent_tensors()
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    for kind in ("forecast", "value", "verifier"):
        assert any(f".{kind}.lora_b" in name for name in moved), kind
    for name in ("value_AD", "value_bias_A1", "verifier_AD", "verifier_bias_A1"):
        assert f"debate.{name}" in moved
    assert result.loss_pg != 0.0 and len(result.weights) == 3
    assert sum(result.weights) == pytest.approx(1.0)

    # Between those rounds no forecast is tried, and nothing is valued.
    quiet = run_step(trainer, state, batch)
    assert quiet.loss_pg == 0.0 and state.logics == result.logics


def test_before_updates_the_policy_is_the_sampler(spy):
    calls = spy(forecast_step, "policy_loss")
    changes = {"evolution__every": 1, "population__dropout": 0.5, "news__dropout": 0.5}
    trainer, state, batch = build_round_trainer(system="mad-rl", **changes)
    run_step(trainer, state, batch)
    # Every agent in both turns; equal except for rounding: agents are read singly and together.
    assert len(calls) == 6
    for (logp_1B1, old_1B1, *_), _ in calls:
        assert logp_1B1.requires_grad
        ratio_1B1 = torch.exp(logp_1B1.detach() - old_1B1)
        assert torch.allclose(ratio_1B1, torch.ones_like(ratio_1B1), rtol=0, atol=1e-4)


def test_the_recorded_loss_is_comparable():
    recorded = {}
    for loss in ("mse", "huber"):
        changes = {"objective__loss": loss, "population__agents": 2}
        trainer, state, batch = build_round_trainer(system="mad-rl", **changes)
        recorded[loss] = run_step(trainer, state, batch).loss_pred
    # Of small errors Huber's loss is half the square.
    assert recorded["huber"] == pytest.approx(recorded["mse"] / 2)


@pytest.mark.slow
def test_a_run_weighs_revisions_by_verifiers(tmp_path):
    config = settings(run__rounds=2, run__validation_windows=2, optim__forecast_lr=0.05)
    with pytest.raises(Killed):
        train_days(config, tmp_path / "stopped", days=4, val_days=2, on_round=kill_after(0))
    again = train_days(config, tmp_path / "stopped", days=4, val_days=2)
    whole = train_days(config, tmp_path / "run", days=4, val_days=2)
    assert whole["artifact_hash"] == again["artifact_hash"]

    forecaster = CompEvoForecaster.load(tmp_path / "run", news_pool())
    views = windows("test", 2, first_day=40).views()
    found = forecaster.predict_by_agent(views)
    mixed = np.einsum("anh,na->nh", found.agents, found.weights)
    assert forecaster.name == "mad-rl" and np.allclose(found.aggregate, mixed)
    if again["calibration"]["guard"] == "none":
        assert not np.allclose(found.weights[0], found.weights[1])
    # Windows do not change each other's debate.
    assert np.allclose(found.aggregate[:1], forecaster.predict(views[:1]), rtol=1e-5)


def test_a_debate_of_several_processes_is_refused():
    config = settings()
    backbone = load_backbone(config.backbone, device="cpu")
    with pytest.raises(ConfigError, match="one process"):
        PopulationModel(config, backbone, models.fit_inputs(config), AgentShards(3, 0, 3))
