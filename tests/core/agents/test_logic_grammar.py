"""Logics with slots: readable sentences, of which a grammar allows each and nothing else."""

import itertools

import pytest

from compevo_core.agents.logic_grammar import SLOT_SEED_LOGICS, build_slots, list_seed_logics
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.config_sections import BackboneConfig
from compevo_core.data.datasets import NEM_PLACES
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.grammar import SlotGrammar


def test_a_logic_names_the_regions_of_the_data_set_alone() -> None:
    assert build_slots(["123456"])[2] == [" in any region,"]
    assert build_slots(["SA1"])[2] == [" in any region,", " in South Australia,"]
    assert len(build_slots(sorted(NEM_PLACES))[2]) == 6


def test_two_topics_of_a_logic_differ_and_no_sentence_has_two_spellings() -> None:
    topics = build_slots([])[1]
    assert all(
        len(set(topic.strip().split(" and "))) == topic.count(" and ") + 1 for topic in topics
    )
    assert len({frozenset(topic.strip().split(" and ")) for topic in topics}) == len(topics) == 55

    slots = build_slots(sorted(NEM_PLACES))
    sentences = {"".join(parts) for parts in itertools.product(*slots)}
    assert len(sentences) == 5 * 55 * 6 * 5 * 3


@pytest.mark.parametrize("backbone", ["tiny-random", "packaged:smollm2-135m"])
def test_every_seed_logic_is_a_sentence_of_the_grammar_that_ends_there(backbone: str) -> None:
    tokenizer = load_backbone(BackboneConfig(name_or_path=backbone), device="cpu").tokenizer
    stops = [tokenizer.eos_token_id]
    grammar = SlotGrammar(build_slots(sorted(NEM_PLACES)), tokenizer, stops)

    for logic in SLOT_SEED_LOGICS:
        ids = tokenizer(f" {logic}", add_special_tokens=False)["input_ids"]
        assert all(ids[place] in grammar.allowed(tuple(ids[:place])) for place in range(len(ids)))
        assert list(grammar.allowed(tuple(ids))) == stops
        assert len(ids) < grammar.max_tokens


def test_both_forms_have_a_seed_logic_of_its_own_for_ten_agents() -> None:
    for form in ("free", "slots"):
        assert len(set(list_seed_logics(form))) == 10
    assert list_seed_logics("free") == SEED_LOGICS
