"""The judge by rule: every slot of a logic, and what a change of it is."""

import itertools

import pytest

from compevo_core.agents.logic_grammar import SLOT_SEED_LOGICS, build_slots, read_slots
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.lud.judge import JudgeReplyError, JudgeVerdict
from compevo_core.lud.slot_judge import SlotJudge

LOGIC = (
    "Watch news about fuel prices and rooftop solar in Victoria, above all at night, as a sign of "
    "lower values."
)
REWORDED, SHIFTED, RECOMBINED = JudgeVerdict(0, 0), JudgeVerdict(1, 0), JudgeVerdict(1, 1)


def test_the_slots_of_every_sentence_of_the_grammar_are_read_back() -> None:
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
def test_a_change_of_each_slot_has_its_verdict(old: str, new: str, verdict: JudgeVerdict) -> None:
    changed = LOGIC.replace(old, new)
    assert changed != LOGIC
    assert SlotJudge().judge(LOGIC, changed) == verdict


def test_free_text_is_no_logic_with_slots() -> None:
    assert all(read_slots(logic) is None for logic in SEED_LOGICS)
    with pytest.raises(JudgeReplyError, match="free text"):
        SlotJudge().judge(SLOT_SEED_LOGICS[0], SEED_LOGICS[0])
