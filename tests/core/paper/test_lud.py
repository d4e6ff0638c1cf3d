"""Delta, RIUS, LUD and gains by hand; the judge's prompt, kinds of judges, kept verdicts."""

import itertools
import json
import math
import warnings
from dataclasses import asdict
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from compevo_core.agents.logics import SLOT_SEED_LOGICS, build_slots, read_slots
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import CheckpointMismatch, DataError, SourceTransient
from compevo_core.lm import backbone
from compevo_core.lm.backbone import TINY
from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper import lud
from compevo_core.paper.report.inputs import KINDS, read_inputs
from compevo_core.runtime.files import write_text
from compevo_core.training.run_folder import RunFolder
from tests.support.commands import invoke
from tests.support.lud import LOGICS, ScriptedJudge, finished_run
from tests.support.report_samples import LUD, NOW
from tests.support.round_records import round_record


def test_magnitude_by_hand_same_orthogonal_opposite():
    delta = lud.update_magnitude(
        [[1, 0], [1, 0], [1, 0], [2, 0]], [[3, 0], [0, 1], [-1, 0], [1, 1]]
    )
    np.testing.assert_allclose(delta, [0.0, 1.0, 2.0, 1 - math.sqrt(0.5)], atol=1e-12)
    with pytest.raises(DataError, match="not finite"):
        lud.update_magnitude([[0.0, 0.0]], [[1.0, 0.0]])


def test_updates_compare_neighbouring_rounds_with_changes():
    vectors = {"north": [1.0, 0.0], "east": [0.0, 1.0], "south": [-1.0, 0.0]}
    asked = []

    def judge(pairs):
        asked.extend(pairs)
        return [lud.JudgeVerdict(int(b == "east"), 0) for _, b in pairs]

    rounds = [["north", "north"], ["east", "north"], ["south", "south"]]
    table = lud.build_lud_table(
        rounds, {text: np.array(vector) for text, vector in vectors.items()}, judge
    )

    assert asked == [("north", "east"), ("east", "south"), ("north", "south")]
    assert dict(table.schema) == lud.LUD_SCHEMA
    first, second = [(1, 0, 1.0, 1.0, False), (1, 1, 0.0, 0.0, True)], [(2, 0, 1.0, 0.0, False)]
    rows = table.select("round", "agent", "delta", "lud", "unchanged_text").rows()
    assert rows == [*first, *second, (2, 1, 2.0, 0.0, False)]


def test_ragged_rounds_are_refused():
    vectors = {"a": np.ones(2), "b": np.ones(2)}
    assert lud.build_lud_table([["a"]], vectors, lambda p: []).height == 0
    with pytest.raises(DataError, match="different numbers"):
        lud.build_lud_table([["a"], ["a", "b"]], vectors, lambda p: [])


def test_kappa_by_hand():
    # Agreement 0.7; chance 0.5 * 0.6 + 0.5 * 0.4 = 0.5; kappa 0.4.
    first = [1] * 5 + [0] * 5
    second = [1, 1, 1, 1, 0, 0, 0, 0, 1, 1]
    assert lud.cohens_kappa(first, second) == pytest.approx(0.4)
    assert lud.cohens_kappa([0, 1], [1, 0]) == pytest.approx(-1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lud.cohens_kappa([1, 1], [1, 1]) is None


def test_agreement_of_two_judges_gates_the_same_magnitudes():
    def tabulate(*verdicts):
        rius = [verdict.rius for verdict in verdicts]
        rows = {"round": range(1, 5), "agent": [0] * 4, "unchanged_text": [False] * 4}
        rows["lud"] = lud.logic_update_degree([0.2, 0.9, 0.6, 0.1], rius)
        marks = pl.DataFrame([asdict(verdict) for verdict in verdicts])
        return marks.with_columns(**pl.DataFrame(rows | {"rius": rius}).to_dict())

    no, both = lud.JudgeVerdict(0, 0), lud.JudgeVerdict(1, 1)
    first = tabulate(lud.JudgeVerdict(1, 0), no, both, no)
    second = tabulate(lud.JudgeVerdict(0, 1), no, both, lud.JudgeVerdict(1, 0))
    correlation = np.corrcoef([0.2, 0, 0.6, 0], [0.2, 0, 0.6, 0.1])[0, 1]
    kappas = {"gate": 0.5, "strategy_shift": 0.0, "evidence_recombination": 0.5}
    agreement = {f"kappa_{name}": value for name, value in kappas.items()}
    assert lud.measure_agreement(first, second) == pytest.approx(
        {"n": 4, "pearson_lud": correlation, **agreement}
    )
    assert lud.measure_agreement(first, first)["kappa_gate"] == 1.0


def test_a_gain_is_the_new_logics_reward_less_the_olds():
    played = [["a", "x"], ["c", "x"], ["d", "y"]]
    rounds = [round_record(number, logics=logics) for number, logics in enumerate(played)]
    asked = []

    def score(logics, pairs):
        asked.append((logics, pairs))
        return np.array([[-0.75, -0.25], [-0.5, -1.0]])

    # An unchanged logic gains nothing, even if its two scores differ.
    gains = lud.measure_gains(rounds, [1, 2], score).rows()
    assert gains == [(1, 0, 0.5), (1, 1, 0.0), (2, 0, 0.5), (2, 1, -0.5)]
    assert asked[0] == (["a", "x"], [("a", "c"), ("x", "x")])


def make_lud_rows(degrees):
    nothing = pl.DataFrame(schema=lud.LUD_SCHEMA)
    rows = {"round": range(1, len(degrees) + 1), "agent": [0] * len(degrees), "lud": degrees}
    return pl.concat([nothing, pl.DataFrame(rows)], how="diagonal_relaxed")


def test_the_summary_joins_updates_with_gains():
    gains = pl.DataFrame({"round": [4, 3, 1, 2], "agent": [0] * 4, "gain": [0.4, 0.3, 0.1, 9.0]})
    summary = lud.summarize_gains(make_lud_rows([0.1, None, 0.3, 0.7]), gains)

    correlation = np.corrcoef([0.1, 0.3, 0.7], [0.1, 0.3, 0.4])[0, 1]
    assert (summary["n"], summary["n_by_regime"]) == (3, [1, 1, 1])
    assert summary["mean_gain_by_regime"] == [0.1, 0.3, 0.4]
    assert summary["pearson_r"] == pytest.approx(correlation)


@pytest.mark.parametrize("is_fresh", [False, True])
def test_equal_logics_rarely_correlate_significantly(is_fresh):
    # An agent keeps its logic where none of three others earns more on the same windows.
    rng, runs, significant, gains = np.random.default_rng(0), 400, 0, []
    for _ in range(runs):
        earned = rng.normal(size=(24, 4))
        texts = np.cumsum(np.r_[0, earned.argmax(1) > 0])
        rounds = [
            round_record(t, agents=1, logics=[f"logic {text}"]) for t, text in enumerate(texts)
        ]
        rewards = rng.normal(size=(24, 1, 2))
        if not is_fresh:
            rewards = np.stack([earned[:, 0], earned.max(1)], axis=1)[:, None]
        score = partial(lambda left, *_: next(left), iter(rewards))
        found = lud.measure_gains(rounds, range(1, 25), score)
        is_same = np.diff(texts) == 0
        degrees = np.where(is_same, 0.0, rng.uniform(0.2, 0.6, 24))
        rows = make_lud_rows(degrees.tolist()).with_columns(unchanged_text=pl.Series(is_same))
        significant += lud.summarize_gains(rows, found)["pearson_p"] < 0.05
        gains += found["gain"].to_list()

    # One run in twenty by chance; with the unchanged logics it would be most of them.
    assert 0.02 < significant / runs < 0.08
    # Only on windows that chose nothing are equal logics equally good.
    assert (abs(np.mean(gains)) < 0.05) == is_fresh


@settings(deadline=None)
@given(arrays(float, 30, elements=st.one_of(st.floats(0, 2), st.sampled_from(lud.REGIME_EDGES))))
def test_every_update_falls_into_exactly_one_regime(degrees):
    gains = pl.DataFrame({"round": range(1, 31), "agent": [0] * 30, "gain": [0.5] * 30})
    summary = lud.summarize_gains(make_lud_rows(degrees.tolist()), gains)
    assert sum(summary["n_by_regime"]) == 30
    means = zip(summary["n_by_regime"], summary["mean_lud_by_regime"], strict=True)
    assert sum(n * mean for n, mean in means if n) == pytest.approx(degrees.sum())


ENCODER = HashingEncoder()


def measure_delta(before, after):
    return float(lud.update_magnitude(ENCODER.encode([before]), ENCODER.encode([after]))[0])


def test_updates_are_measured_from_end_to_end(tmp_path):
    judges = [ScriptedJudge(fails="outages")]
    summary = lud.measure_lud(finished_run(tmp_path / "run"), judges, ENCODER)
    first, second = summary["agents"]
    assert first["first_to_last"] == 0.0  # it came back to its seed logic
    steps = [measure_delta(LOGICS[t - 1][0], LOGICS[t][0]) if t != 2 else 0.0 for t in range(1, 5)]
    assert first["mean_delta"] == pytest.approx(sum(steps) / 4)
    assert (first["unchanged"], second["unchanged"]) == (1, 2)
    assert second["first_to_last"] == pytest.approx(measure_delta(LOGICS[0][1], LOGICS[4][1]))

    # A reply in prose is a failure, which is counted.
    judged = summary["judges"][0]
    assert (judged["failures"], [one["pairs"] for one in judged["agents"]]) == (1, [3, 4])


def test_gains_are_of_the_judged_updates(tmp_path):
    asked = []

    def score(played, pairs):
        asked.append(tuple(played))
        return np.array([[0.0, 1.0], [0.0, -2.0]])

    run = finished_run(tmp_path / "run")
    summary = lud.measure_lud(run, [ScriptedJudge()], ENCODER, pairs=2, score=score)
    assert asked == [LOGICS[t - 1] for t in summary["judged_rounds"]] == [LOGICS[0], LOGICS[3]]
    # The second agent keeps its logic in both.
    assert 1.0 in summary["judges"][0]["gains"]["mean_gain_by_regime"]


def test_rounds_that_rewrote_nothing_are_not_judged(tmp_path):
    run = RunFolder(tmp_path / "run")
    finished_run(run.path, LOGICS[:1])
    write_text(run.rounds_file, "")
    # Two supervised rounds, then a rewriting every second round.
    played = ["seed", "seed", "seed", "storms", "storms", "outages"]
    rewrites = [False, False, True, False, True, False]
    for number, (logic, evolved) in enumerate(zip(played, rewrites, strict=True)):
        texts = [logic, f"{logic} too"]
        run.append_round(round_record(number, logics=texts, evolved=evolved))

    judge = ScriptedJudge()
    summary = lud.measure_lud(run.path, [judge], ENCODER)
    rows = pl.read_csv(run.path / "lud.csv")

    assert (summary["rounds"], summary["updates_an_agent"]) == (6, 2)
    assert summary["judged_rounds"] == [3, 5]
    updates = [("seed", "storms"), ("storms", "outages")]
    assert set(judge.asked) == {*updates, *((f"{a} too", f"{b} too") for a, b in updates)}
    assert sorted(rows["round"].to_list()) == [3, 3, 5, 5]
    steps = [measure_delta(*update) for update in updates]
    assert summary["agents"][0]["unchanged"] == 0
    assert summary["agents"][0]["mean_delta"] == pytest.approx(sum(steps) / 2)


@pytest.mark.parametrize(
    ("updates", "count", "rounds"),
    [(59, 8, [1, 9, 18, 26, 34, 42, 51, 59]), (3, 8, [1, 2, 3]), (5, 1, [5]), (0, 8, [])],
)
def test_judged_rounds_are_few_and_evenly_spaced(updates, count, rounds):
    assert lud.space_rounds(updates, count) == rounds


def test_missing_runs_and_altered_models_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"no rounds\.jsonl"):
        lud.measure_lud(tmp_path, [ScriptedJudge()], ENCODER)
    run = finished_run(tmp_path / "run")
    (run / "model" / "config.json").write_text((run / "model" / "config.json").read_text() + " ")
    with pytest.raises(CheckpointMismatch, match="altered"):
        lud.measure_lud(run, [ScriptedJudge()], ENCODER)


def test_the_command_loads_the_runs_backbone_lazily(tmp_path, monkeypatch):
    command = ["paper", "lud", finished_run(tmp_path / "run"), "--pairs", "1"]
    first = invoke(*command)
    monkeypatch.setattr(backbone, "load_backbone", lambda _: pytest.fail("nothing was asked"))
    assert json.loads(first)["judges"][0]["name"] == "local:tiny-random/float32"
    assert invoke(*command) == first


SUMMARY = LUD | {"config_hash": "c1", "judges": LUD["judges"][1:]}


def test_a_run_has_rows_per_judge_and_regime(tmp_path):
    rows = pl.read_csv(lud.write_lud_rows(tmp_path, SUMMARY, "electricity"))
    pair, *regimes = rows["subject"]
    assert pair == "local:packaged:smollm2-135m/float32 / endpoint:m-1"
    assert regimes == ["low", "medium", "high", "changed"]
    assert rows["kappa"].to_list() == [0.61, None, None, None, None]
    assert rows["pearson_r"].to_list() == [0.77, None, None, None, 0.46]


def test_a_repeated_measurement_replaces_its_rows(tmp_path):
    for artifact in ("a0", "a2", "a0"):
        lud.write_lud_rows(tmp_path, SUMMARY | {"artifact_hash": artifact}, "electricity")
    rows = read_inputs(tmp_path, [], mode="archive", generated_at=NOW).lud
    assert [row["artifact_hash"] for row in rows] == ["a2"] * 5 + ["a0"] * 5
    assert set(KINDS["lud"]) <= set(rows[0])


TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' and forbid_system %}"
    "{{ raise_exception('no system') }}{% endif %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def judge():
    return lud.LocalJudge(BackboneConfig(name_or_path=TINY))


def test_the_prompt_holds_exactly_the_papers_rubric():
    system, user = lud.build_judge_messages("Watch the weather.", "Watch {logic_prev} and policy.")
    text = user["content"]
    example = json.loads(text[text.rindex("{") :])

    assert system["content"].startswith("You are a strict evaluator")
    facts = ("Watch the weather.", "Watch {logic_prev} and policy.", "1) Strategy", "2) Evidence")
    places = [text.index(fact) for fact in facts]
    assert places[0] < places[1] and text.count("output 1 iff") == 2
    assert example == {"strategy_shift": 0, "evidence_recombination": 1}
    assert "compevo" not in (system["content"] + text).lower()


@pytest.mark.parametrize("verdict", lud.ANSWERS)
def test_an_answer_survives_its_own_json(verdict):
    assert lud.parse_verdict(verdict.to_json()) == verdict
    assert lud.parse_verdict(f"```json\n{verdict.to_json()}\n```") == verdict


@pytest.mark.parametrize(
    "reply",
    [
        "yes",
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
    with pytest.raises(lud.JudgeReplyError):
        lud.parse_verdict(reply)


def score_directly(judge, prompt):
    scores = []
    tokenizer, model = judge.backbone.tokenizer, judge.backbone.model
    prefix = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    for verdict in lud.ANSWERS:
        answer = tokenizer(verdict.to_json(), add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logp_TV = model(torch.tensor([prefix + answer])).logits[0].log_softmax(-1)
        steps = logp_TV[len(prefix) - 1 : -1]
        scores.append(float(steps[range(len(answer)), answer].sum()))
    return scores


@pytest.mark.parametrize("is_ragged", [False, True])
def test_local_scores_equal_one_full_forward_per_answer(judge, monkeypatch, is_ragged):
    # Answers of other lengths are scored without their padding.
    if is_ragged:
        write = lambda mark: json.dumps(asdict(mark), indent=1 + mark.rius)  # noqa: E731
        monkeypatch.setattr(lud.JudgeVerdict, "to_json", write)
    scores = judge.log_likelihoods("Watch rain.", "Watch tariffs.")
    turns = lud.build_judge_messages("Watch rain.", "Watch tariffs.")
    expected = score_directly(judge, "".join(f"{turn['content']}\n\n" for turn in turns))

    assert list(scores) == list(lud.ANSWERS)
    assert list(scores.values()) == pytest.approx(expected, abs=1e-3)
    assert (
        judge.judge("Watch rain.", "Watch tariffs.") == lud.ANSWERS[expected.index(max(expected))]
    )


@pytest.mark.parametrize("forbid_system", [False, True])
def test_chat_templates_work_without_system_turns(judge, monkeypatch, forbid_system):
    template = TEMPLATE.replace("forbid_system", str(forbid_system).lower())
    monkeypatch.setattr(judge.backbone.tokenizer, "chat_template", template)
    system, user = (message["content"] for message in lud.build_judge_messages("a", "b"))
    with_turn = f"<system>{system}\n<user>{user}\n"
    turns = f"<user>{system}\n\n{user}\n" if forbid_system else with_turn

    scores = list(judge.log_likelihoods("a", "b").values())
    expected = score_directly(judge, f"{turns}<assistant>")
    assert scores == pytest.approx(expected, abs=1e-3)


def test_a_pair_beyond_the_context_is_refused(judge, monkeypatch):
    monkeypatch.setattr(judge.backbone.model.config, "max_position_embeddings", 128)
    with pytest.raises(DataError, match="holds 128"):
        judge.judge("a", "b")


def make_endpoint_judge(content):
    sent = []

    def transport(body):
        sent.append(dict(body))
        return {"choices": [{"message": {"content": content}}]}

    return sent, lud.EndpointJudge(model="m-1", transport=transport)


def test_an_endpoint_gets_the_same_prompt_cold():
    sent, judge = make_endpoint_judge('{"strategy_shift": 1, "evidence_recombination": 0}')
    assert judge.judge("old", "new") == lud.JudgeVerdict(1, 0)
    (body,) = sent
    assert (body.pop("model"), body.pop("temperature")) == ("m-1", 0)
    assert body.pop("messages") == lud.build_judge_messages("old", "new")
    assert body == {"response_format": {"type": "json_object"}}
    assert judge.name == "endpoint:m-1"


@pytest.mark.parametrize("content", [None, "I cannot.", ["text"]])
def test_an_endpoints_refusal_is_a_typed_failure(content):
    with pytest.raises(lud.JudgeReplyError):
        make_endpoint_judge(content)[1].judge("a", "b")


LOGIC = (
    "Watch news about fuel prices and rooftop solar in Victoria, above all at night, as a sign of "
    "lower values."
)
REWORDED, SHIFTED, RECOMBINED = (
    lud.JudgeVerdict(0, 0),
    lud.JudgeVerdict(1, 0),
    lud.JudgeVerdict(1, 1),
)


def test_only_grammar_slots_are_read_back():
    for parts in itertools.product(*build_slots(["NSW1", "AUD"])):
        verb, topics, region, time, sign = (part.strip(" ,.") for part in parts)
        slots = read_slots("".join(parts))
        verb, topics = verb.removesuffix(" news about"), tuple(topics.split(" and "))
        region, sign = region.removeprefix("in "), sign.removeprefix("as a sign of ")
        assert slots == (verb, topics, region, time, sign, ())

    assert all(read_slots(logic) is None for logic in SEED_LOGICS)
    with pytest.raises(lud.JudgeReplyError, match="free text"):
        lud.SlotJudge().judge(SLOT_SEED_LOGICS[0], SEED_LOGICS[0])


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
    assert lud.SlotJudge().judge(LOGIC, changed) == verdict


PAIRS = [("a", "bb"), ("a", "ccc"), ("a", "bb")]


def test_a_pair_is_judged_once_a_call(tmp_path):
    judge, path = ScriptedJudge(zero="ccc"), tmp_path / "deep" / "verdicts.json"
    first = lud.judge_pairs(judge, PAIRS, path)
    assert (first, judge.asked) == ([SHIFTED, REWORDED, SHIFTED], PAIRS[:2])
    again = lud.judge_pairs(judge, PAIRS, path)
    assert (again, judge.asked) == (first, PAIRS[:2])

    # A verdict names its judge: several share the file.
    kept = json.loads(path.read_text())
    assert [set(row) for row in kept.values()] == [{"strategy_shift", "evidence_recombination"}] * 2
    assert {question.split()[0] for question in kept} == {"scripted"}


def test_judge_text_and_prompt_make_the_key(monkeypatch):
    keys = {lud.hash_question(*question) for question in ("jab", "kab", "jba", "jac")}
    monkeypatch.setattr("compevo_core.paper.lud.SYSTEM_PROMPT", "Be kind.")
    keys.add(lud.hash_question("j", "a", "b"))
    assert len(keys) == 5


def test_what_was_judged_before_a_failure_is_kept(tmp_path):
    path = tmp_path / "v.json"
    judge = ScriptedJudge(fails="ccc", error=SourceTransient("status 503"))
    with pytest.raises(SourceTransient):
        lud.judge_pairs(judge, PAIRS, path)
    assert len(json.loads(path.read_text())) == 1


def test_an_invalid_reply_is_asked_for_again(tmp_path):
    path = tmp_path / "v.json"
    torn, whole = ScriptedJudge(fails="ccc"), ScriptedJudge()

    assert lud.judge_pairs(torn, PAIRS, path) == [SHIFTED, None, SHIFTED]
    assert lud.judge_pairs(whole, PAIRS, path) == [SHIFTED] * 3
    assert whole.asked == [("a", "ccc")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-1], "not readable"),
        (lambda text: "[]", "holds a list"),
        (lambda text: text.replace('shift": 1', 'shift": 3'), "is 3, not 0 or 1"),
        (lambda text: text.replace("strategy", "tactic"), "expected an object"),
    ],
)
def test_a_damaged_file_of_verdicts_is_refused(tmp_path, change, message):
    path = tmp_path / "v.json"
    lud.judge_pairs(ScriptedJudge(), PAIRS, path)
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=rf"v\.json: .*{message}"):
        lud.judge_pairs(ScriptedJudge(), PAIRS, path)
