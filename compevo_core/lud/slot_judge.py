"""A judge by rule, for logics with slots: which of them changed.

What belongs here: the paper's rubric (appendix F) read slot by slot. What does not: the slots
(``agents.logic_grammar``), judges that are language models (``lud.judge``).

A logic with slots says outright which news it looks for and what they would mean, so no opinion is
needed. The paper asks two language models; a rule beside one of them shows whether that one follows
the rubric at all.
"""

from compevo_core.agents.logic_grammar import SlotLogic, read_slots
from compevo_core.lud.judge import JudgeReplyError, JudgeVerdict


class SlotJudge:
    """Compares two logics slot by slot.

    The strategy shifts with a topic, the region, the time of day or the sign. Another verb is a
    rewording. Evidence is recombined by a topic that the logic did not name before; one that is
    dropped adds nothing.
    """

    name = "rule:slots"

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the verdict on the update from ``previous`` to ``current``.

        Raises:
            JudgeReplyError: a logic is free text.
        """
        before, after = _read(previous), _read(current)
        return JudgeVerdict(
            strategy_shift=int(before[1:] != after[1:]),
            evidence_recombination=int(not set(after.topics) <= set(before.topics)),
        )


def _read(logic: str) -> SlotLogic:
    slots = read_slots(logic)
    if slots is None:
        raise JudgeReplyError(
            f"no slots in {logic[:80]!r}: a logic in free text needs a language model as judge"
        )
    return slots
