"""The judge's prompt, its answers, the kinds of judges, and the file that keeps verdicts."""

import itertools
import json
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from compevo_core.agents.logics import SLOT_SEED_LOGICS, build_slots, read_slots
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import DataError, SourceTransient
from compevo_core.paper.lud_judges import (
    ANSWERS,
    EndpointJudge,
    JudgeReplyError,
    JudgeVerdict,
    LocalJudge,
    SlotJudge,
    VerdictCache,
    build_judge_messages,
    hash_question,
    judge_pairs,
    parse_verdict,
)

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' and forbid_system %}"
    "{{ raise_exception('no system') }}{% endif %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def make_byte_tokenizer(merges=None):
    pairs = merges or []
    tokens = [
        "<pad>",
        "<bos>",
        "<eos>",
        *sorted(pre_tokenizers.ByteLevel.alphabet()),
        *(a + b for a, b in pairs),
    ]
    raw = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=pairs))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw)


def make_tiny_llama(vocabulary, *, context=2048):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=context,
            initializer_range=0.3,
        )
        return LlamaForCausalLM(config).eval()


def make_local_judge(tokenizer=None, **options):
    tokenizer = tokenizer or make_byte_tokenizer()
    judge = LocalJudge(BackboneConfig())
    model = make_tiny_llama(len(tokenizer), **options)
    vars(judge)["backbone"] = SimpleNamespace(model=model, tokenizer=tokenizer)
    return judge


@pytest.fixture(scope="module")
def judge():
    return make_local_judge()


def test_the_prompt_holds_the_papers_rubric_the_pair_and_the_example_and_nothing_else():
    system, user = build_judge_messages("Watch the weather.", "Watch {logic_prev} and policy.")
    assert system["content"].startswith("You are a strict evaluator of logic updates")
    text = user["content"]
    assert "Previous logic (t-1): Watch the weather." in text
    assert "Current logic (t): Watch {logic_prev} and policy." in text
    assert "1) Strategy Shift (0/1): output 1 iff" in text
    assert "2) Evidence Recombination (0/1): output 1 iff" in text
    assert json.loads(text[text.rindex("{") :]) == {
        "strategy_shift": 0,
        "evidence_recombination": 1,
    }
    assert "compevo" not in (system["content"] + text).lower()


@pytest.mark.parametrize("verdict", ANSWERS)
def test_an_answer_survives_its_own_json(verdict):
    assert parse_verdict(verdict.to_json()) == verdict
    assert parse_verdict(f"```json\n{verdict.to_json()}\n```") == verdict


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "yes",
        "{",
        "[0, 1]",
        '{"strategy_shift": 0}',
        '{"strategy_shift": 2, "evidence_recombination": 0}',
        '{"strategy_shift": true, "evidence_recombination": 0}',
        '{"strategy_shift": "1", "evidence_recombination": 0}',
        '{"strategy_shift": 0, "evidence_recombination": 0, "why": ""}',
        '{"strategy_shift": NaN, "evidence_recombination": 0}',
        "[" * 100_000,
        "1" * 10_000,
    ],
)
def test_any_other_answer_is_a_typed_failure(reply):
    with pytest.raises(JudgeReplyError):
        parse_verdict(reply)


def score_directly(judge, prompt):
    scores = []
    for verdict in ANSWERS:
        prefix = judge.backbone.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer = judge.backbone.tokenizer(verdict.to_json(), add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = judge.backbone.model(torch.tensor([prefix + answer])).logits[0].log_softmax(-1)
        scores.append(
            sum(float(logits[len(prefix) + k - 1, token]) for k, token in enumerate(answer))
        )
    return scores


def join_prompt(previous, current):
    system, user = build_judge_messages(previous, current)
    return f"{system['content']}\n\n{user['content']}\n\n"


def test_local_scores_equal_one_full_forward_per_answer(judge):
    scores = judge.log_likelihoods("Watch rain.", "Watch tariffs.")
    assert list(scores) == list(ANSWERS)
    expected = score_directly(judge, join_prompt("Watch rain.", "Watch tariffs."))
    assert list(scores.values()) == pytest.approx(expected, abs=1e-3)
    assert judge.judge("Watch rain.", "Watch tariffs.") == ANSWERS[expected.index(max(expected))]


def test_answers_of_different_lengths_are_scored_without_their_padding():
    # Merging ' 1' makes answers with a one shorter than answers with a zero.
    tokenizer = make_byte_tokenizer([("Ġ", "1")])
    judge = make_local_judge(tokenizer)
    lengths = {len(tokenizer(v.to_json())["input_ids"]) for v in ANSWERS}
    assert len(lengths) > 1
    scores = list(judge.log_likelihoods("a", "b").values())
    assert scores == pytest.approx(score_directly(judge, join_prompt("a", "b")), abs=1e-3)


@pytest.mark.parametrize("forbid_system", [False, True])
def test_a_chat_template_is_used_with_or_without_a_system_turn(forbid_system):
    tokenizer = make_byte_tokenizer()
    tokenizer.chat_template = TEMPLATE.replace("forbid_system", str(forbid_system).lower())
    judge = make_local_judge(tokenizer)
    system, user = build_judge_messages("a", "b")
    turns = (
        f"<user>{system['content']}\n\n{user['content']}\n"
        if forbid_system
        else f"<system>{system['content']}\n<user>{user['content']}\n"
    )
    assert list(judge.log_likelihoods("a", "b").values()) == pytest.approx(
        score_directly(judge, f"{turns}<assistant>"), abs=1e-3
    )


def test_a_pair_longer_than_the_models_context_is_refused_with_both_lengths():
    with pytest.raises(DataError, match="holds 128"):
        make_local_judge(context=128).judge("a", "b")


def make_endpoint_judge(content):
    sent = []

    def transport(body):
        sent.append(dict(body))
        return {"choices": [{"message": {"content": content}}]}

    return sent, EndpointJudge(model="m-1", transport=transport)


def test_an_endpoint_is_asked_at_temperature_zero_with_the_same_prompt():
    sent, judge = make_endpoint_judge('{"strategy_shift": 1, "evidence_recombination": 0}')
    assert judge.judge("old", "new") == JudgeVerdict(1, 0)
    assert sent == [
        {
            "model": "m-1",
            "temperature": 0,
            "messages": build_judge_messages("old", "new"),
            "response_format": {"type": "json_object"},
        }
    ]
    assert judge.name == "endpoint:m-1"


@pytest.mark.parametrize("content", [None, "I cannot.", ["text"]])
def test_a_refusal_of_the_endpoint_is_a_typed_failure(content):
    with pytest.raises(JudgeReplyError):
        make_endpoint_judge(content)[1].judge("a", "b")


LOGIC = (
    "Watch news about fuel prices and rooftop solar in Victoria, above all at night, as a sign of "
    "lower values."
)
REWORDED, SHIFTED, RECOMBINED = JudgeVerdict(0, 0), JudgeVerdict(1, 0), JudgeVerdict(1, 1)


def test_the_slots_of_every_sentence_of_the_grammar_are_read_back():
    for parts in itertools.product(*build_slots(["NSW1", "AUD"])):
        verb, topics, region, time, sign = (part.strip(" ,.") for part in parts)
        slots = read_slots("".join(parts))
        assert slots is not None
        assert slots == (
            verb.removesuffix(" news about"),
            tuple(topics.split(" and ")),
            region.removeprefix("in "),
            time,
            sign.removeprefix("as a sign of "),
            (),
        )


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("Watch", "Look for", REWORDED),
        ("Victoria", "Tasmania", SHIFTED),
        ("at night", "in the morning", SHIFTED),
        ("lower values", "sudden changes", SHIFTED),
        ("fuel prices and rooftop solar", "fuel prices", SHIFTED),
        ("fuel prices and rooftop solar", "fuel prices and power outages", RECOMBINED),
        ("fuel prices and rooftop solar", "public holidays", RECOMBINED),
    ],
)
def test_a_change_of_each_slot_has_its_verdict(old, new, verdict):
    changed = LOGIC.replace(old, new)
    assert changed != LOGIC
    assert SlotJudge().judge(LOGIC, changed) == verdict


def test_free_text_is_no_logic_with_slots():
    assert all(read_slots(logic) is None for logic in SEED_LOGICS)
    with pytest.raises(JudgeReplyError, match="free text"):
        SlotJudge().judge(SLOT_SEED_LOGICS[0], SEED_LOGICS[0])


class CountingJudge:
    """A judge by text length that counts its questions and may fail at one of them."""

    def __init__(self, name="counting", fail_at=-1, error=None):
        self.name, self.asked, self._fail_at, self._error = name, 0, fail_at, error

    def judge(self, previous, current):
        if self.asked == self._fail_at:
            raise self._error
        self.asked += 1
        return ANSWERS[len(current) % 4]


PAIRS = [("a", "bb"), ("a", "ccc"), ("a", "bb")]


def test_a_pair_is_judged_once_in_a_call_and_never_again_with_a_cache(tmp_path):
    judge, path = CountingJudge(), tmp_path / "deep" / "verdicts.jsonl"
    first = judge_pairs(judge, PAIRS, VerdictCache(path))
    assert first == [ANSWERS[2], ANSWERS[3], ANSWERS[2]]
    assert judge.asked == 2
    assert judge_pairs(judge, PAIRS, VerdictCache(path)) == first
    assert judge.asked == 2

    # A line names its judge: verdicts of several share the file.
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = {"key", "judge", "strategy_shift", "evidence_recombination"}
    assert [set(row) for row in rows] == [names] * 2
    assert {row["judge"] for row in rows} == {"counting"}


def test_another_judge_another_text_or_another_prompt_has_another_key(monkeypatch):
    keys = {
        hash_question("j", "a", "b"),
        hash_question("k", "a", "b"),
        hash_question("j", "b", "a"),
        hash_question("j", "a", "c"),
    }
    monkeypatch.setattr("compevo_core.paper.lud_judges.SYSTEM_PROMPT", "Be kind.")
    keys.add(hash_question("j", "a", "b"))
    assert len(keys) == 5


def test_what_was_judged_before_a_failure_is_kept(tmp_path):
    path = tmp_path / "v.jsonl"
    with pytest.raises(SourceTransient):
        judge_pairs(
            CountingJudge(fail_at=1, error=SourceTransient("status 503")), PAIRS, VerdictCache(path)
        )
    assert len(path.read_text().splitlines()) == 1


def test_a_reply_that_is_no_verdict_is_none_and_is_asked_again(tmp_path):
    path = tmp_path / "v.jsonl"
    torn = CountingJudge(fail_at=1, error=JudgeReplyError("prose"))
    assert judge_pairs(torn, PAIRS, VerdictCache(path)) == [ANSWERS[2], None, ANSWERS[2]]
    whole = CountingJudge()
    assert judge_pairs(whole, PAIRS, VerdictCache(path)) == [ANSWERS[2], ANSWERS[3], ANSWERS[2]]
    assert whole.asked == 1


@pytest.mark.parametrize(
    "line",
    ["{", "[]", '{"key": "x"}', '{"key": "x", "strategy_shift": 3, "evidence_recombination": 0}'],
)
def test_a_damaged_line_is_refused_with_file_and_line(tmp_path, line):
    path = tmp_path / "v.jsonl"
    judge_pairs(CountingJudge(), PAIRS, VerdictCache(path))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(DataError, match=r"v\.jsonl, line 3"):
        VerdictCache(path)
