"""What counts as a logic: from what a model wrote to one sentence, or none (decision 39).

What belongs here: which texts hold no logic, and where a text that was cut off ends. What does not:
sampling (``agents.logic_writer``), cleaning of special tokens (``agents.prompts``), the form with
slots, whose grammar allows nothing else (``agents.logic_grammar``).
"""

import re

from compevo_core.agents.prompts import (
    LOGIC_CHARACTERS,
    LOGIC_CUE,
    LOGIC_INSTRUCTIONS,
    clean_text,
)

_SHORTEST_LOGIC = 12  # characters; less is no sentence
_SHORTEST_CLAUSE = 0.5  # of a text that was cut off; a shorter one lost what the text was about

#: Beginnings of the template's lines, which small models write on with; in lower case.
_TEMPLATE_BEGINNINGS = (
    "your logic",
    "your new logic",
    "your refined logic",
    "new logic",
    "the new logic",
    "the refined logic",
    "new refined logic",
    "refined logic",
    "output format",
    "peer information",
    "task:",
    "agent id",
    "agent_",
    "agent's",
    "insert ",
    "write your",
)

_REPEATED_WORDS = 4  # in a row, to count as words of the instruction
_REPEATED_SHARE = 0.5  # of a text's runs of words, above which it repeats the instruction

_WORD = re.compile(r"[a-z0-9']+")
_SENTENCE_END = re.compile(r"(?<!\b[A-Z])[.!?](?=\s|$)")  # not that of "U.S."
_CLAUSE_END = re.compile(r"[,;:](?=\s)|\s[\u2013\u2014-](?=\s)")


def clean_logic(text: str, fallback: str, *, was_cut: bool = False) -> tuple[str, bool]:
    """Return the first line of a generated text as a logic, or the fallback if it holds none.

    Args:
        text: what the model wrote.
        fallback: stands in for a text without a logic.
        was_cut: whether the text ended at the largest number of tokens.

    Returns:
        the logic, and whether it is the fallback.
    """
    first_line = clean_text(text.strip().split("\n")[0], LOGIC_CHARACTERS)
    bare = first_line.removeprefix(LOGIC_CUE).strip("\"'* ").rstrip("]")

    # Square brackets hold what the template wants replaced, in whatever words.
    if bare.startswith("[") or is_instruction(bare):
        return fallback, True

    logic = end_at_clause(bare) if was_cut else bare
    return (fallback, True) if len(logic) < _SHORTEST_LOGIC else (logic, False)


def is_instruction(text: str) -> bool:
    """Return whether a text repeats the instruction instead of following it."""
    lowered = text.lower()
    if lowered.startswith(_TEMPLATE_BEGINNINGS):
        return True

    runs = _list_runs(lowered)
    return len(runs & _INSTRUCTION_RUNS) > _REPEATED_SHARE * len(runs)


def end_at_clause(text: str) -> str:
    """Return a text that was cut off up to its last complete sentence or long enough clause.

    A text without either stays as it is: its words still retrieve news.
    """
    sentences = [match.end() for match in _SENTENCE_END.finditer(text)]
    if sentences and sentences[-1] >= _SHORTEST_LOGIC:
        return text[: sentences[-1]]

    clauses = [match.start() for match in _CLAUSE_END.finditer(text)]
    if clauses and clauses[-1] >= max(_SHORTEST_CLAUSE * len(text), _SHORTEST_LOGIC):
        return text[: clauses[-1]] + "."
    return text


def _list_runs(text: str) -> set[tuple[str, ...]]:
    """Return every run of words of a text."""
    words = _WORD.findall(text.lower())
    return {
        tuple(words[start : start + _REPEATED_WORDS])
        for start in range(len(words) - _REPEATED_WORDS + 1)
    }


_INSTRUCTION_RUNS = set().union(*map(_list_runs, LOGIC_INSTRUCTIONS))
