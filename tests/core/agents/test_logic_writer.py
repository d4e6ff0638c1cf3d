"""What agents observe, and what they, an endpoint or the frozen backbone write of it."""

import itertools

import pytest
import torch

from compevo_core.agents.decoders import LOGIC, RetrievedArticle
from compevo_core.agents.logics import SLOT_SEED_LOGICS, build_slots, read_slots
from compevo_core.agents.observation import fit_logic_prompt, list_most_read, observe
from compevo_core.agents.prompts import SEED_LOGICS, tokenize_prompt
from compevo_core.errors import ConfigError, DataError
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.lm.grammar import SlotGrammar
from compevo_core.lora import Population, PromptGroup
from compevo_core.paper.changes import find_variant
from compevo_core.training.trainer import train
from tests.support.answers import pad_rows
from tests.support.models import build_model
from tests.support.population import TITLES, news_pool, tiny, windows
from tests.support.rounds import build_round_trainer, run_step
from tests.support.tiny_backbone import build_backbone


def _propose(trainer, state, logics=None, peers=((1,), (2,), (0,))):
    """What three agents write, each of which sees the next one's logic."""
    generators = [torch.Generator().manual_seed(5 + agent) for agent in range(3)]
    peers = [list(numbers) for numbers in peers]
    observed = observe(logics or state.logics, [-0.1, -0.2, -0.3], peers)
    return trainer.writer.propose(observed, state.previous_AD, generators)


@pytest.fixture(scope="module")
def written():
    trainer, state, _ = build_round_trainer()
    # Soft prompts far from the neutral one and from each other, so that a mix-up shows.
    generator = torch.Generator().manual_seed(4)
    trainer.model.fusion.projection.weight.data.normal_(0, 0.3, generator=generator)

    return trainer.writer, _propose(trainer, state)


def _sampled_ids(proposal, row):
    """Token ids (1, T) of one sample, counted over all agents."""
    return proposal.ids_AGT.flatten(0, 1)[row][_sampled_mask(proposal, row)][None]


def _sampled_mask(proposal, row):
    return proposal.mask_AGT.flatten(0, 1)[row].bool()


def _states_alone(writer, kind, agent, embeds):
    """Last hidden states (T, D) of one unpadded row under one agent."""
    with writer.population.use_adapters(kind, rows=slice(agent, agent + 1)):
        packed = writer.population.pack([[PromptGroup([0] * embeds.shape[1])]])
        return writer.population.hidden_states(packed, embeds)[0]


def test_a_candidate_is_the_state_at_its_end(written):
    writer, proposal = written
    for agent, text in enumerate(proposal.candidates):
        ids = torch.tensor([tokenize_prompt(writer.population.backbone.tokenizer, text)])
        state = _states_alone(writer, LOGIC, agent, writer.population.embed(ids))[-1]
        assert torch.allclose(proposal.candidate_AD[agent], state, atol=1e-5)

    assert proposal.candidate_AD.requires_grad


def _expected_logits(writer, proposal, row, kind, soft):
    """Logits (T, V) at T_gen of soft prompt, instruction and sample, read as one row alone."""
    agent = row // writer.config.grpo.group_size
    embed = writer.population.embed
    sample = _sampled_ids(proposal, row)
    prompt = torch.tensor([proposal.prompt_ids[agent]])
    embeds = torch.cat([soft[None, None], embed(prompt), embed(sample)], 1)
    states = _states_alone(writer, kind, agent, embeds)[-sample.shape[1] - 1 : -1]
    return writer.population.logits(states) / writer.config.evolution.temperature


def _expected_logp(writer, proposal, row, kind, soft):
    logits = _expected_logits(writer, proposal, row, kind, soft)
    ids = _sampled_ids(proposal, row)[0]
    return torch.log_softmax(logits, -1).gather(1, ids[:, None]).squeeze(1)


def test_log_probabilities_are_those_of_the_sample(written):
    writer, proposal = written
    size = writer.config.grpo.group_size
    logp_AGT = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)

    for row in range(3 * size):
        agent = row // size
        expected = _expected_logp(writer, proposal, row, LOGIC, proposal.soft_prompt_AD[agent])
        measured = logp_AGT[agent, row % size][_sampled_mask(proposal, row)]
        assert torch.allclose(measured, expected, atol=1e-4)

    # Some agents are scored under their own adapters.
    alone_AGT = writer.logp(proposal, slice(1, 2), proposal.soft_prompt_AD)
    assert torch.allclose(alone_AGT[0], logp_AGT[1], atol=1e-4)


def test_the_reference_is_frozen_behind_neutral_prompts(written):
    writer, proposal = written
    size = writer.config.grpo.group_size
    reference_AGT = writer.reference_logp(proposal)
    assert not reference_AGT.requires_grad

    for row in range(0, 3 * size, 2):
        expected = _expected_logp(writer, proposal, row, None, writer.fusion.neutral_D)
        measured = reference_AGT[row // size, row % size][_sampled_mask(proposal, row)]
        assert torch.allclose(measured, expected, atol=1e-4)

    policy_AGT = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)
    assert not torch.allclose(reference_AGT, policy_AGT, atol=1e-2)


@pytest.mark.parametrize(("update", "readings"), [("simplified", 1), ("three-stage", 2)])
def test_prompts_are_read_again_after_soft_prompts_only(spy, update, readings):
    trainer, state, _ = build_round_trainer(evolution__update=update)
    read = trainer.writer.population.prefill
    counted = spy(trainer.writer.population, "prefill")
    proposal = _propose(trainer, state)
    assert (proposal.soft_prompt_AD is None) == (update == "simplified")
    assert len(counted) == readings

    # A sample does not change the states that it continues.
    (packed, _) = counted[-1]
    shared, fresh = read(*packed), read(*packed)
    sampled = []
    for cache, samples in ((shared, 1), (shared, 2), (fresh, 2)):
        generators = [torch.Generator().manual_seed(agent) for agent in range(3)]
        sampled.append(trainer.writer._sample(cache, samples, generators)[0])
    assert torch.equal(sampled[1], sampled[2])


def test_the_prompt_names_own_reward_and_exposed_peers(written):
    writer, proposal = written
    text = writer.population.backbone.tokenizer.decode(proposal.prompt_ids[0])
    assert "Recent Performance: -0.1000" in text and "-0.3000" not in text
    assert f'Agent_1 (Reward: -0.2000): "{SEED_LOGICS[1]}"' in text
    assert SEED_LOGICS[2] not in text
    assert proposal.n_cut == 0


def _write(texts, monkeypatch, **overrides):
    """What a writer makes of these samples, the first of each agent being its draft as well."""
    trainer, state, _ = build_round_trainer(**overrides)
    encode = trainer.writer.population.backbone.tokenizer
    rows = [[encode(t, add_special_tokens=False)["input_ids"] for t in group] for group in texts]

    def sample(_, cache, settings):
        return pad_rows([ids for group in rows for ids in group[: settings.samples]], agents=3)

    monkeypatch.setattr(Population, "sample", sample)
    return trainer.writer, _propose(trainer, state)


SAMPLES = [
    ["Follow storms in Victoria.\n", "[Your logic here]\n", "Watch the large plants.\n"],
    ["Watch fuel prices closely.\nAnd so on and on.\n", "Follow the banks.\n", "\n"],
    ["[describe it]\n", "Task: write a logic\n", "short\n"],
]


def test_an_empty_sample_is_replaced_without_its_tokens(monkeypatch):
    writer, proposal = _write(SAMPLES, monkeypatch)
    is_empty = [[False, True, False], [False, False, True], [True, True, True]]
    assert proposal.is_empty_AG.tolist() == is_empty
    assert proposal.n_empty == 5 + 1  # samples, and the draft of the last agent
    assert proposal.candidates[2] == SEED_LOGICS[2]

    for agent, group in enumerate(proposal.group_logics):
        for sample, logic in enumerate(group):
            if is_empty[agent][sample]:
                assert logic == SEED_LOGICS[agent]
                assert proposal.mask_AGT[agent, sample].sum() == 0
            else:
                assert logic == SAMPLES[agent][sample].split("\n")[0]

    logp_AGT = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)
    assert (logp_AGT[proposal.is_empty_AG] == 0).all()
    assert (logp_AGT[~proposal.is_empty_AG].sum(-1) < 0).all()


def test_tokens_after_the_first_line_do_not_count(monkeypatch):
    writer, proposal = _write(SAMPLES, monkeypatch)
    ended = len("Watch fuel prices closely.\n")
    mask_T = proposal.mask_AGT[1, 0]
    assert mask_T[:ended].all()
    assert not mask_T[ended:].any()

    one_line = [[*group] for group in SAMPLES]
    one_line[1][0] = "Watch fuel prices closely.\n"
    _, short = _write(one_line, monkeypatch)
    logp_T = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)[1, 0]
    expected_T = writer.logp(short, slice(0, 3), proposal.soft_prompt_AD)[1, 0]
    assert torch.allclose(logp_T[:ended], expected_T[:ended], atol=1e-5)


def test_a_cut_sample_ends_at_its_last_clause(monkeypatch):
    texts = [["Follow storms in Victoria, the large plants, and the"] * 3 for _ in range(3)]
    _, proposal = _write(texts, monkeypatch)
    assert proposal.group_logics[0][0] == "Follow storms in Victoria, the large plants."
    assert proposal.mask_AGT[0, 0].all()  # the tokens were sampled, and the logic is theirs


def test_empty_samples_have_log_probabilities_with_a_gradient(monkeypatch):
    writer, proposal = _write([["\n"] * 3 for _ in range(3)], monkeypatch)
    assert proposal.is_empty_AG.all()
    logp_AGT = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)
    assert logp_AGT.abs().sum() == 0
    logp_AGT.sum().backward()
    assert writer.reference_logp(proposal).abs().sum() == 0


SLOTS = build_slots(["NSW1", "SA1"])
SENTENCES = {"".join(parts).strip() for parts in itertools.product(*SLOTS)}


def test_slot_logics_are_sampled_and_scored_by_grammar():
    trainer, state, _ = build_round_trainer(evolution__form="slots", grpo__group_size=2)
    writer = trainer.writer
    proposal = _propose(trainer, state)

    assert set(proposal.candidates) <= SENTENCES
    assert {logic for group in proposal.group_logics for logic in group} <= SENTENCES
    assert not proposal.is_empty_AG.any()
    assert len({logic for group in proposal.group_logics for logic in group}) > 3

    # By hand: the softmax over what the grammar allows, at T_gen.
    end = writer.population.backbone.tokenizer.eos_token_id
    grammar = SlotGrammar(SLOTS, writer.population.backbone.tokenizer, [end])
    logp_T = writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)[1, 1]
    ids = _sampled_ids(proposal, 3)[0].tolist()
    soft_D = proposal.soft_prompt_AD[1]
    logits_TV = _expected_logits(writer, proposal, 3, LOGIC, soft_D)
    for place, token in enumerate(ids):
        allowed = list(grammar.allowed(tuple(ids[:place])))
        expected = torch.log_softmax(logits_TV[place, allowed], 0)[allowed.index(token)]
        assert torch.allclose(logp_T[place], expected, atol=1e-4)
    # How a sentence ends is not a choice, and nothing is learnt of it.
    assert ids[-1] == end and logp_T[len(ids) - 1] == 0


def test_flat_draws_come_last_and_outside_the_policy():
    half = {"evolution__form": "slots", "evolution__flat_share": 0.5}
    trainer, state, _ = build_round_trainer(grpo__group_size=4, **half)
    proposal = _propose(trainer, state)
    assert [len(set(group) & SENTENCES) for group in proposal.group_logics] == [4, 4, 4]
    assert proposal.is_empty_AG.tolist() == [[False, False, True, True]] * 3
    assert proposal.n_empty == 0 and not proposal.mask_AGT[:, 2:].any()

    logp_AGT = trainer.writer.logp(proposal, slice(0, 3), proposal.soft_prompt_AD)
    assert (logp_AGT[:, :2].sum(-1) < 0).all() and not logp_AGT[:, 2:].any()


@pytest.mark.parametrize("peers", [[[1], [2], [0]], [[], [], []]])
def test_a_share_of_draws_is_crossed_with_logics(peers):
    drawn = {"evolution__form": "slots", "evolution__flat_share": 1.0}
    drawn |= {"evolution__cross_share": 0.5, "grpo__enabled": False, "grpo__group_size": 64}
    trainer, state, _ = build_round_trainer(**drawn)
    # Regions that no slot holds tell whose slot it is.
    logics = [SLOT_SEED_LOGICS[i].replace("any region", f"place {i}") for i in range(3)]

    groups = _propose(trainer, state, logics, peers).group_logics

    drawn = {"any region", "New South Wales", "South Australia"}
    for agent, group in enumerate(groups):
        regions = [slots.region for slots in map(read_slots, group) if slots is not None]
        known = {f"place {i}" for i in (agent, *peers[agent])}
        assert {*regions[:32]} == known | drawn and {*regions[32:]} == drawn


TOKENIZER = build_backbone().tokenizer
OBSERVED = observe(
    logics=list(SEED_LOGICS[:3]),
    rewards=[-0.1234, -0.2345, -0.3456],
    peers=[[1, 2], [2], [0]],
    headlines=[list(TITLES[:3]), [], []],
    recent="NSW1 6351 to 9804 MW, mean 8011",
)

#: What may never be cut: system text, own logic and reward, task, and the cue at the very end.
KEPT = ("You are a strategy", f'Current Logic: "{SEED_LOGICS[0]}"', "-0.1234", "Task: Based on")
#: What goes first to last.
CUT = (TITLES[2], TITLES[1], TITLES[0], OBSERVED[0].recent, SEED_LOGICS[2], SEED_LOGICS[1])


def _fit(length, **overrides):
    config = tiny(backbone__context_length=length, **overrides)
    ids, was_cut = fit_logic_prompt(OBSERVED[0], config, TOKENIZER)
    return TOKENIZER.decode(ids), len(ids), was_cut


def test_one_token_less_cuts_a_fitting_prompt():
    text, length, was_cut = _fit(4096)
    assert all(piece in text for piece in (*KEPT, *CUT))
    assert not was_cut

    # The soft prompt takes a place of its own.
    assert _fit(length + 1) == (text, length, False)
    assert _fit(length)[2]
    assert _fit(length, evolution__update="simplified") == (text, length, False)


def test_news_then_history_then_peers_are_cut():
    shown = set()
    with pytest.raises(ConfigError, match=r"needs (\d+) tokens") as caught:
        _fit(64)
    shortest = int(str(caught.value).partition("needs ")[2].split()[0])
    longest = _fit(4096)[1] + 1
    # A piece that is cut has more characters, and so tokens, than a step.
    for length in (*range(shortest, longest, 7), longest):
        text, n_tokens, was_cut = _fit(length)
        assert n_tokens < length
        assert all(piece in text for piece in KEPT)
        assert text.endswith("New Refined Logic:")

        is_there = tuple(piece in text for piece in CUT)
        assert was_cut == (not all(is_there))
        shown.add(is_there)

    # Nothing goes before what comes earlier in the order, and each piece is cut at some length.
    expected = {tuple(place >= cut for place in range(len(CUT))) for cut in range(len(CUT) + 1)}
    assert shown == expected


def test_titles_read_most_often_come_first():
    encode = HashingEncoder().encode
    a, b, c, d = (RetrievedArticle(name, "01 Jan", name, encode([name])[0]) for name in "abcd")
    assert list_most_read([(a, b), (c, b), (d, a)]) == ["a", "b", "c"]
    assert list_most_read([(), ()]) == []


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


def ask(answer):
    """What a writer makes of an endpoint that always answers so, and what it asks."""
    asked = []

    def transport(body):
        asked.append(body)
        return answer

    writer = build_model(with_endpoint()).writer(transport)
    return writer.propose(KNOWN, torch.zeros(3, 0), []), asked


def test_each_child_is_one_request_with_history():
    proposal, asked = ask(reply(CHILD))
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
    proposal, _ = ask(reply(text))
    assert proposal.is_empty_AG.all() and proposal.n_empty == 9
    assert proposal.group_logics[2] == ["Count sheep."] * 3


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [None]}])
def test_an_answer_that_is_no_completion_fails(answer):
    with pytest.raises(DataError, match="a-model"):
        ask(answer)


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
