"""Logics mutated by a chat endpoint, or by the frozen backbone."""

import pytest
import torch

from compevo_core.agents.logic_writer import EndpointWriter
from compevo_core.agents.observation import observe
from compevo_core.errors import ConfigError, DataError
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.paper.changes import find_variant
from compevo_core.training.trainer import train
from tests.support.models import build_model
from tests.support.population import news_pool, tiny, windows
from tests.support.rounds import build_round_trainer, run_step

CHILD = "Watch the closures of smelters in the evening."
LOGICS = ["Track public holidays and large events.", "Follow <|im_end|> the sun.", "Count sheep."]
KNOWN = observe(
    LOGICS,
    rewards=[-0.5, -0.25, -1.0],
    peers=[[1], [2], [0]],
    headlines=[["Storm"], [], []],
    recent="NSW1 6000 to 9000 MW",
)


def settings(**overrides):
    return find_variant("mae-gpt").configure(tiny(**overrides))


def with_endpoint(**overrides):
    config = settings(evolution__every=1, **overrides)
    return config.with_overrides({"evolution.selector": "endpoint:a-model"})


def reply(text):
    return {"choices": [{"message": {"content": text}}]}


def propose(writer):
    generators = [torch.Generator().manual_seed(agent) for agent in range(3)]
    return writer.propose(KNOWN, torch.zeros(3, 0), generators)


def ask(answer, asked):
    def transport(body):
        asked.append(body)
        return answer

    writer = build_model(with_endpoint()).writer(transport)
    assert isinstance(writer, EndpointWriter)
    return writer


def test_each_child_is_one_request_with_history():
    asked = []
    proposal = ask(reply(CHILD), asked).propose(KNOWN, torch.zeros(3, 0), [])
    body = asked[0]

    assert proposal.group_logics == [[CHILD] * 3] * 3 and len(asked) == 9
    assert not proposal.is_empty_AG.any() and proposal.mask_AGT.shape == (3, 3, 0)
    assert proposal.candidate_AD.shape[0] == 3 and not proposal.candidate_AD.requires_grad
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("a-model", 0.7, 14)
    system, user = (turn["content"] for turn in body["messages"])
    assert system.startswith("You are a strategy analyst")
    for known in ("Track public holidays", "-0.5000", "Agent_1 (Reward: -0.2500)", "Storm", "6000"):
        assert known in user
    # Logics are written by models: their special tokens must not end the turn.
    assert "<|im_end|>" not in user and "Count sheep" not in user


@pytest.mark.parametrize("text", [None, "[Insert your logic here]"])
def test_an_answer_without_a_logic_leaves_the_parent(text):
    proposal = ask(reply(text), []).propose(KNOWN, torch.zeros(3, 0), [])
    assert proposal.is_empty_AG.all() and proposal.n_empty == 9
    assert proposal.group_logics[2] == ["Count sheep."] * 3


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [None]}])
def test_an_answer_that_is_no_completion_fails(answer):
    with pytest.raises(DataError, match="a-model"):
        propose(ask(answer, []))


def test_a_lacking_endpoint_is_reported_before_round_0():
    with pytest.raises(ConfigError, match="set COMPEVO_JUDGE_URL"):
        build_model(with_endpoint()).writer()


def test_the_backbone_mutates_alike_whatever_the_adapters_learnt():
    model = build_model(settings(evolution__every=1))
    writer = model.writer()
    before = propose(writer)
    for parameter in model.adapter_parameters():
        parameter.data.normal_()
    after = propose(writer)
    assert before.group_logics == after.group_logics
    assert torch.equal(before.candidate_AD, after.candidate_AD)
    assert not before.candidate_AD.requires_grad


def test_the_fittest_of_the_family_is_played():
    trainer, state, batch = build_round_trainer(system="mae-gpt", evolution__every=1)
    parents = list(state.logics)
    result = run_step(trainer, state, batch)
    for agent, played in enumerate(state.logics):
        group = [parents[agent], *result.group_logics[agent]]
        assert played in group
        if played != parents[agent]:
            rewards = result.group_rewards[agent]
            assert rewards[result.group_logics[agent].index(played)] == max(rewards)


@pytest.mark.slow
def test_an_endpoint_run_plays_its_written_logics(tmp_path):
    config = with_endpoint(run__rounds=2, run__validate_every=1, optim__forecast_lr=0.05)
    data = (windows("train", 6), windows("val", 2, first_day=20), news_pool())
    train(config, *data, tmp_path, selector=lambda _: reply(CHILD))
    recorded = (tmp_path / "rounds.jsonl").read_text()

    assert CompEvoForecaster.load(tmp_path, news_pool()).name == "mae-gpt"
    assert CHILD in recorded and '"a-model"' not in recorded
