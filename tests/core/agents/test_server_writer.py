"""Logics sampled by a server with the agents' adapters, against a local one of vLLM's protocol."""

import itertools
import logging
import shutil

import pytest
import torch

from compevo_core.agents.decoders import LOGIC
from compevo_core.agents.observation import Observation
from compevo_core.agents.remote_writers import EndpointWriter, ServerWriter
from compevo_core.errors import ConfigError, DataError, SourceBlocked, SourceTransient
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.paper.changes import find_variant
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.seeding import derive_seed
from compevo_core.training.checkpoint import hash_stage
from compevo_core.training.trainer import train
from compevo_pipeline.config.endpoints import read_server, server_transport
from tests.support.lora_server import MODEL, serve
from tests.support.models import build_model, fill_with_noise
from tests.support.population import news_pool, tiny, windows
from tests.support.rounds import build_round_trainer, run_step
from tests.support.tiny_run import Killed, kill_after, read_hash, read_records, train_days

KEY = "canary-of-the-writer"
WRITER = {"evolution__writer": f"server:{MODEL}", "evolution__update": "simplified"}
OBSERVATION = Observation(["Track holidays."] * 3, [-0.5, -0.25, -1.0], [[1], [2], [0]], round=7)


@pytest.fixture(scope="module")
def server():
    with serve(KEY) as running:
        yield running


@pytest.fixture
def transport(server):
    server.asked.clear()
    for name in list(server.loaded):
        server.answer("unload_lora_adapter", {"lora_name": name})
    return server_transport(server.url, api_key=KEY)


def build_writer(transport, folder, **overrides):
    """A writer of a population whose agents are far apart, and greedy where that is asked for."""
    temperature = overrides.pop("temperature", 0.7)
    model = build_model(tiny(**(WRITER | overrides)))
    fill_with_noise(model, scale=0.3)
    evolution = model.config.evolution.model_copy(update={"temperature": temperature})
    model.config = model.config.model_copy(update={"evolution": evolution})
    return model.writer(server=transport, served=folder / "served")


def propose(writer, observation=OBSERVATION):
    generators = [torch.Generator().manual_seed(agent) for agent in range(3)]
    return writer.propose(observation, torch.zeros(3, 0), generators)


def list_names(folder):
    return sorted(path.name for path in (folder / "served").iterdir())


def test_greedy_server_samples_equal_local_ones(server, transport, tmp_path):
    writer = build_writer(transport, tmp_path, temperature=0.0)
    asked = propose(writer)
    writer.__class__ = ServerWriter.__base__  # the same population, sampled in this process
    own = propose(writer)

    assert torch.equal(asked.mask_AGT, own.mask_AGT) and asked.mask_AGT.sum() > 9
    assert torch.equal(asked.ids_AGT * asked.mask_AGT, own.ids_AGT * own.mask_AGT)
    assert asked.candidates == own.candidates and asked.group_logics == own.group_logics
    assert len({tuple(ids[0].tolist()) for ids in own.ids_AGT}) == 3  # a mix-up would show


def test_a_request_names_all_that_shapes_a_sample(server, transport, tmp_path):
    writer = build_writer(transport, tmp_path)
    proposal = propose(writer)
    bodies = [body for route, body in server.asked if route == "completions"]
    groups, names = bodies[3:], list_names(tmp_path)

    assert [body["n"] for body in bodies] == [1] * 3 + [3] * 3
    assert sorted(body["model"] for body in groups) == names == list(server.loaded)
    assert [name[-32:-13] for name in names] == [f"agent-0{i}-round-0007" for i in range(3)]
    assert {tuple(body["prompt"]) for body in groups} == {tuple(p) for p in proposal.prompt_ids}
    streams = itertools.product(range(3), (1, 3))
    seeds = {derive_seed(0, "server", agent, 7, samples) for agent, samples in streams}
    assert {body["seed"] for body in bodies} == seeds
    wanted = {"max_tokens": 14, "temperature": 0.7, "top_p": 1, "top_k": 0, "min_p": 0}
    assert all(body.items() >= (wanted | {"repetition_penalty": 1}).items() for body in bodies)

    # What the update takes as the probability of a token is what the server drew it with.
    logp_AGT = writer.logp(proposal, slice(0, 3), None)
    for agent, name in enumerate(names):
        for ids, drawn in [(k[1:], v) for k, v in server.logp.items() if k[0] == name][1:]:
            row = [r[: len(ids)].tolist() for r in proposal.ids_AGT[agent]].index(list(ids))
            kept = int(proposal.mask_AGT[agent, row].sum())
            assert torch.allclose(logp_AGT[agent, row, :kept], drawn[:kept], atol=1e-4)


def test_a_round_asked_again_replaces_no_equal_adapter(server, transport, tmp_path):
    first = propose(build_writer(transport, tmp_path))
    held = list(server.loaded)
    # As in another process: the same round, the server still up, even where the folder went.
    shutil.rmtree(tmp_path / "served")
    again = build_writer(transport, tmp_path)
    assert propose(again).group_logics == first.group_logics and list(server.loaded) == held

    again.population.adapter_parameters(LOGIC)[0].data.add_(1.0)
    propose(again)
    # Another content never has an earlier name, by which a server keeps what it has read.
    assert len(server.loaded) == 3 and not {*server.loaded} & {*held}
    assert list_names(tmp_path) == sorted(server.loaded)


def test_the_policy_learns_from_samples_of_the_server(transport, tmp_path):
    served = {"served": tmp_path / "served"}
    trainer, state, batch = build_round_trainer(
        writer=lambda model: model.writer(server=transport, **served), **WRITER
    )
    before = [p.detach().clone() for p in trainer.model.policy_adapter_parameters()]
    state.round = 4
    result = run_step(trainer, state, batch)
    assert all("-round-0004-" in name for name in list_names(tmp_path))
    assert result.equal_groups < 3 and 0 < abs(result.loss_pg) < 1e3
    after = trainer.model.policy_adapter_parameters()

    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


def train_with(transport, out, **options):
    config = tiny(run__rounds=4, optim__policy_lr=0.01, **WRITER)
    return train_days(config, out, days=2, server=transport, **options)


@pytest.mark.slow
def test_a_killed_training_resumes(server, transport, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("COMPEVO_WRITER_URL", server.url)
    monkeypatch.setenv("COMPEVO_WRITER_KEY", KEY)
    with caplog.at_level(logging.DEBUG):
        train_with(read_server(tiny(**WRITER)), tmp_path / "whole")

    with pytest.raises(Killed):
        train_with(transport, tmp_path / "killed", on_round=kill_after(1))
    train_with(transport, tmp_path / "killed")
    whole, killed = (read_records(tmp_path / name) for name in ("whole", "killed"))
    assert [r["group_logics"] for r in whole] == [r["group_logics"] for r in killed]
    assert read_hash(tmp_path / "whole") == read_hash(tmp_path / "killed")

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.name for path in written if KEY.encode() in path.read_bytes()] == []
    assert KEY not in caplog.text


@pytest.fixture(scope="module")
def bare_writer(tmp_path_factory):
    return build_writer(lambda *_: {"data": [{"id": MODEL}]}, tmp_path_factory.mktemp("bare"))


IDS = {"token_ids": [1, 2]}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"choices": None},
        {"choices": [{"text": "Watch the heat."}]},
        {"choices": [{"token_ids": None}]},
        {"choices": [IDS, IDS]},
        *({"choices": [{"token_ids": ids}]} for ids in ([], [-1], [True], [1] * 15, "12")),
    ],
)
def test_an_answer_without_token_ids_is_refused(answer, bare_writer, monkeypatch):
    monkeypatch.setattr(bare_writer, "_server", lambda *_: answer)
    with pytest.raises(DataError, match=r"not 1 choices .* return_token_ids"):
        bare_writer._ask(1, "adapter", [1, 2], 0)


def test_ids_end_with_the_vocabulary(bare_writer, monkeypatch):
    size = bare_writer.population.vocabulary_size
    answers = iter([{"choices": [{"token_ids": [last]}]} for last in (size - 1, size)])
    monkeypatch.setattr(bare_writer, "_server", lambda *_: next(answers))
    assert bare_writer._ask(1, "adapter", [1, 2], 0) == [[size - 1]]
    with pytest.raises(DataError, match=f"token_ids below {size}"):
        bare_writer._ask(1, "adapter", [1, 2], 0)


def test_a_lacking_server_is_reported_before_round_0(server, transport, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"server:other.* has the models .*'tiny'"):
        build_writer(transport, tmp_path, evolution__writer="server:other")
    with pytest.raises(SourceBlocked, match="the writer's key") as caught:
        build_writer(server_transport(server.url, api_key="wrong"), tmp_path)
    assert "wrong" not in str(caught.value)
    with pytest.raises(SourceTransient, match="the writer up"):
        build_writer(server_transport("http://127.0.0.1:9/v1", api_key=KEY), tmp_path)
    for build in (lambda: build_writer(None, tmp_path), lambda: read_server(tiny(**WRITER))):
        with pytest.raises(ConfigError, match="set COMPEVO_WRITER_URL"):
            build()
    with pytest.raises(ConfigError, match="set COMPEVO_JUDGE_URL"):
        build_model(with_endpoint()).writer()
    assert read_server(tiny()) is None

    model = build_model(tiny(**WRITER))
    model.shards = AgentShards(3, splits_agents=False)
    with pytest.raises(ConfigError, match="leave --shard-backbone"):
        model.writer(server=transport, served=tmp_path)

    # A folder that the server does not see.
    writer = build_writer(transport, tmp_path)
    monkeypatch.setattr(server, "_load", lambda *_: (404, "No adapter found"))
    with pytest.raises(ConfigError, match=r"this folder.* rank 4"):
        propose(writer)


def test_a_writer_joins_after_the_first_stage():
    served, own = tiny(**WRITER), tiny(evolution__update="simplified")
    assert served.hash != own.hash and hash_stage(served, {}) == hash_stage(own, {})


CHILD = "Watch the closures of smelters in the evening."
LOGICS = ["Track public holidays and large events.", "Follow <|im_end|> the sun.", "Count sheep."]
KNOWN = Observation(
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
        propose(ask(answer, []), KNOWN)


def test_the_backbone_mutates_alike_whatever_the_adapters_learnt():
    model = build_model(settings(evolution__every=1))
    writer = model.writer()
    before = propose(writer, KNOWN)
    for parameter in model.adapter_parameters():
        parameter.data.normal_()
    after = propose(writer, KNOWN)
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
