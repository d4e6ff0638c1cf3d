"""Logics: free text or none, and sentences with slots."""

import numpy as np
import pytest

from compevo_core.agents import logics
from compevo_core.agents.prompts import LOGIC_INSTRUCTIONS, SEED_LOGICS
from compevo_core.config.sections import BackboneConfig
from compevo_core.data.datasets import NEM_PLACES
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.grammar import SlotGrammar

#: The paper's own examples of logics (section G).
PAPER_LOGICS = (
    "Prioritize news about extreme weather conditions like heatwaves or storms as they directly "
    "impact residential cooling/heating demand.",
    "Track social media sentiment regarding holiday travel plans.",
    "Combine monitoring of extreme weather events with news on industrial recovery policies to "
    "capture both the volatility of residential usage and the baseline shifts in commercial "
    "demand.",
)


@pytest.mark.parametrize("was_cut", [False, True])
@pytest.mark.parametrize("logic", [*SEED_LOGICS, *logics.SLOT_SEED_LOGICS, *PAPER_LOGICS])
def test_a_complete_logic_stays_as_it_is(logic, was_cut):
    assert logics.clean_logic(logic, "old", was_cut=was_cut) == (logic, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Watch the weather in Victoria.\nAnd more", "Watch the weather in Victoria."),
        (' "Follow outages of large plants."', "Follow outages of large plants."),
        ("New Refined Logic: Follow large plants.", "Follow large plants."),
        ("**Follow large plants.**", "Follow large plants."),
    ],
)
def test_a_generated_logic_is_its_clean_first_line(text, expected):
    assert logics.clean_logic(text, "old") == (expected, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Watch news.",
        "[Your logic here]",
        "[briefly describe the role of the new logic]",
        "[Insert the refined logic of Agent_3 in one sentence",
        "Your new logic for the agent goes here",
        "Task: analyse the demand of the region",
        "Agent_2 (Reward: -0.0480): watch the weather",
        "Output Format: one sentence about the weather",
        "The new logic should be a single, concise sentence.",
        "I will generate a new, refined logic for the agent.",
        "Write your own; do not repeat what a peer uses.",
        *LOGIC_INSTRUCTIONS,
    ],
)
def test_placeholders_and_repeated_instructions_are_no_logic(text):
    assert logics.clean_logic(text, "old logic") == ("old logic", True)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Prioritize news about heatwaves. This would allow the agent to", 32),
        ("Prioritize news about heatwaves, cold snaps, and gov", -9),
        # A clause that keeps too little of the text is worth less than the words after it.
        ("Watch the news, and see which of the large plants will", None),
        ("Focus on U.S. government policy and", None),
        ("Prices above 0.5 in the market of", None),
    ],
)
def test_a_cut_logic_ends_at_its_last_clause(text, kept):
    expected = text if kept is None else text[:kept].removesuffix(",").removesuffix(".") + "."
    assert logics.clean_logic(text, "old", was_cut=True) == (expected, False)
    assert logics.clean_logic(text, "old") == (text, False)


def test_two_topics_differ_and_no_pair_repeats():
    topics = logics.build_slots([])[1]
    assert len({frozenset(topic.strip().split(" and ")) for topic in topics}) == len(topics) == 55


def test_a_logic_names_only_regions_of_the_data():
    assert logics.build_slots(["123456"])[2] == [" in any region,"]
    assert logics.build_slots(["SA1"])[2] == [" in any region,", " in South Australia,"]
    assert len(logics.build_slots(sorted(NEM_PLACES))[2]) == 6

    # Home news needs a region of its own.
    homes = ["SA1"], ["JENA"]
    placed, nowhere = (logics.build_slots(names, selects=True, top_k=12) for names in homes)
    assert placed[2] == [" in any region,", " in the home region,", " in South Australia,"]
    assert nowhere[2] == [" in any region,"]
    assert [len(slot) for slot in placed[3:6]] == [4, 2, 3]
    assert [len(slot) for slot in nowhere[3:6]] == [4, 1, 3]


@pytest.mark.parametrize("backbone", ["tiny-random", "packaged:smollm2-135m"])
def test_every_seed_logic_is_a_complete_grammar_sentence(backbone):
    tokenizer = load_backbone(BackboneConfig(name_or_path=backbone), device="cpu").tokenizer
    stops = [tokenizer.eos_token_id]
    grammar = SlotGrammar(logics.build_slots(sorted(NEM_PLACES)), tokenizer, stops)

    for logic in logics.SLOT_SEED_LOGICS:
        ids = tokenizer(f" {logic}", add_special_tokens=False)["input_ids"]
        assert all(ids[place] in grammar.allowed(tuple(ids[:place])) for place in range(len(ids)))
        assert list(grammar.allowed(tuple(ids))) == stops
        assert len(ids) < grammar.max_tokens


def test_a_crossed_logic_has_its_parents_slots():
    parents = [
        "Watch news about power outages in Victoria, above all at night, as a sign of lower "
        "values.",
        "Track news about rooftop solar and fuel prices in any region, one article at a time, at "
        "any time of day, as a sign of higher values.",
    ]
    known = [slots for slots in map(logics.read_slots, parents) if slots is not None]
    draw = np.random.default_rng(0).integers
    crossed = [logics.cross_logics(parents, lambda below: int(draw(below))) for _ in range(200)]
    children = list(map(logics.read_slots, crossed))
    for slot in ("verb", "region", "time", "sign", "selectors"):
        ours, theirs = ({getattr(one, slot) for one in some} for some in (children, known))
        assert ours == theirs
    named = {child.topics for child in children if child is not None}
    assert {len(topics) for topics in named} == {1, 2} and len(named) == 6
    assert {("power outages", "rooftop solar"), ("rooftop solar",)} < named

    # What is not a sentence with slots has none to give.
    assert logics.cross_logics(["Follow large plants.", parents[0]], lambda _: 0) == parents[0]


STEADY, LUCKY, BAD = np.full(16, 0.2), np.array([4.0, *[0.0] * 15]), np.full(16, -0.1)


def test_a_record_holds_mean_and_standard_error():
    gains = np.array([0.5, -0.1, 0.3, 0.1, 0.7])
    record = logics.LogicRecord().add(gains[:2]).add(gains[2:])
    assert np.isclose(record.gain, gains.mean())
    assert np.isclose(record.standard_error, gains.std() / np.sqrt(5))
    assert np.isclose(record.lower_bound, record.gain - record.standard_error)


def test_an_earlier_steady_gain_beats_luck():
    records = logics.LogicRecords()
    records.add(0, ["bad", "steady"], np.stack([BAD, STEADY]))
    assert LUCKY.mean() > STEADY.mean()
    assert records.add(0, ["bad", "lucky"], np.stack([BAD, LUCKY])) == "steady"

    gains = np.stack([np.zeros(16), np.full(16, 0.01)])
    assert records.add(0, ["steady", "new"], gains) == "steady"
    weight, total, _ = records.to_json()["0"]["steady"]
    assert np.allclose((weight, total), (0.49 * 16 + 16, 0.49 * STEADY.sum()))


def test_ties_keep_the_played_logic_counted_once():
    records = logics.LogicRecords()
    assert records.add(0, ["played", "other", "other"], np.stack([STEADY] * 3)) == "played"
    (values,) = records.to_json().values()
    assert values["other"][0] == 16


def test_old_gains_count_less_and_are_forgotten():
    records = logics.LogicRecords()
    records.add(0, ["old"], STEADY[None])
    for _ in range(3):
        records.add(0, ["new"], BAD[None])
    (values,) = records.to_json().values()
    assert 2.0 < values["old"][0] < 8.0 < values["new"][0]
    for _ in range(4):
        records.add(0, ["new"], BAD[None])
    assert "old" not in records.to_json()["0"]


def test_the_best_other_logics_are_kept_by_agent():
    records = logics.LogicRecords()
    names = ["a", "b", "c", "d", "e"]
    gains = np.stack([np.full(4, rank / 10) for rank in range(5)])
    records.add(0, names, gains)
    records.add(1, names[::-1], gains)
    assert records.list_best(0, but="e") == ["d", "c", "b"]
    assert records.list_best(1, but="e") == ["a", "b", "c"]
    assert len(records.list_best(0, but="e")) == logics.REMEMBERED
    assert records.list_best(7, but="e") == []


def test_records_survive_a_checkpoint():
    records = logics.LogicRecords()
    records.add(0, ["a", "b"], np.stack([STEADY, LUCKY]))
    again = logics.LogicRecords.from_json(records.to_json())
    assert again.to_json() == records.to_json()
    assert again.list_best(0, but="a") == ["b"]
