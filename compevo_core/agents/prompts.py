"""The texts a backbone reads: the forecast template and the logic-update template (paper D.3, G).

What belongs here: wording, layout, the cleaning of untrusted text, tokens of prompts and the ids
at which generation stops. What does not: what is cut from a prompt that is too long (the decoders,
``agents.observation``), the judge's template (``paper.lud``).

News is data, never an instruction: control characters and special tokens are removed from it, and
from logics, which a model wrote. A forecast prompt begins with the part that all logics of a window
share, so that it is read only once for a group of logics.
"""

import bisect
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from compevo_core.agents.decoders import RetrievedArticle
from compevo_core.data.calendar import WEEKDAYS
from compevo_core.data.view import WindowView

Tokenizer = Any
"""A tokenizer of transformers."""


def tokenize_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text for generation to continue: started at most once, not ended."""
    # A chat template may write the begin-of-sequence token itself; the model has never seen two.
    bos = tokenizer.bos_token
    adds_bos = not (bos and text.startswith(bos))
    ids = list(tokenizer(text, add_special_tokens=adds_bos)["input_ids"])

    # Some tokenizers end every text, after which a model would generate nothing. A row needs at
    # least one token, so a single end token stays.
    if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id:
        return ids[:-1]
    return ids


def list_stop_tokens(tokenizer: Tokenizer) -> list[int]:
    """Return the token ids that end a logic or an answer: end of sequence, plain line break.

    They only save computation: :func:`count_first_line` finds line breaks within other tokens.
    """
    line_break = tokenizer.encode("\n", add_special_tokens=False)

    # SentencePiece tokenizers put a token that marks a space before the line break.
    plain = [id_ for id_ in line_break if tokenizer.decode([id_]) == "\n"]
    return [tokenizer.eos_token_id, *plain]


def count_first_line(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """Return the number of tokens up to the first line break that follows a word."""

    def ends_line(count: int) -> bool:
        text = tokenizer.decode(ids[:count], skip_special_tokens=True)
        return "\n" in text.lstrip()

    # A line that has ended stays ended, so the first such prefix is found by bisection.
    return min(bisect.bisect_left(range(len(ids) + 1), True, key=ends_line), len(ids))


# Chat marks and special tokens of the Llama, Qwen, Mistral and Gemma families.
_SPECIAL = re.compile(
    r"<\|[^|<>]{0,40}\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|<(?:pad|bos|eos|unk)>"
)
_SPACE = re.compile(r"\s+")
_CUT = "\u241e"  # marks where the shared part ends; cleaned texts cannot contain it

LOGIC_CHARACTERS = 400  # of a logic in a prompt; it is one sentence

_HOLIDAY_CHARACTERS = 60
_ENTITY_CHARACTERS = 60
_TASK_CHARACTERS = 200
_TITLE_CHARACTERS = 80  # of a headline in the logic-update prompt

#: Task words by data set: what is predicted, for whom (paper D.3: "Predict next-day load for VIC").
_TASKS = {
    "electricity": "Predict next-day electricity load for {entity}",
    "electricity-operational": "Predict next-day operational electricity demand for {entity}",
    "exchange": "Predict the next 48 daily rates of {entity} in US dollars",
    "bitcoin": "Predict the next 48 daily {entity} prices",
    "traffic": "Predict the next 48 hourly road occupancies of sensor {entity}",
}

#: The first logic of each agent, in the paper's style and on its topics (5.6).
SEED_LOGICS = (
    "Prioritize news about extreme weather such as heatwaves, cold snaps or storms that change "
    "demand directly.",
    "Focus on government policy, regulation and stimulus that shift economic activity.",
    "Track public holidays, school terms, travel plans and large events.",
    "Look for outages, accidents and infrastructure failures that interrupt normal operation.",
    "Follow industrial production, closures and restarts of large plants.",
    "Watch supply chains, fuel prices and commodity markets.",
    "Monitor renewable generation, rooftop solar and changes in technology.",
    "Follow central banks, interest rates, inflation and market sentiment.",
    "Track health measures, lockdowns and changes in how people work and move.",
    "Look for international conflict, trade and diplomacy that move markets.",
)

# The exact words of the paper (G).
_SYSTEM_LOGIC = (
    "You are a strategy analyst for a time-series forecasting agent. Your goal is to refine the "
    "agent's evidence-seeking strategy, realized as textual logic, to improve its prediction "
    "accuracy."
)
_TASK_LOGIC = (
    "Based on all this information, generate a new, refined logic for the agent. The new logic "
    "should be a single, concise sentence. It should be an evolution of the current logic, either "
    "by specializing, generalizing, or correcting it based on the performance feedback. Do not "
    "just copy a peer's logic; synthesize a new one."
)
#: The same task in other words, for the paper's robustness test (E.9).
_TASK_LOGIC_PARAPHRASED = (
    "Using everything above, write one improved logic for this agent. Keep it to one short "
    "sentence that develops the current logic: make it narrower, make it broader, or fix it in the "
    "light of its reward. Write your own; do not repeat what a peer uses."
)
LOGIC_CUE = "New Refined Logic:"
#: Instructions to the model; a text that repeats one is not a logic.
LOGIC_INSTRUCTIONS = (_SYSTEM_LOGIC, _TASK_LOGIC, _TASK_LOGIC_PARAPHRASED)


@dataclasses.dataclass(frozen=True)
class Observation:
    """What one agent knows when it rewrites its logic, o_i of Eq. 2."""

    agent: int
    logic: str
    reward: float
    # Number, reward and logic of the agents that it sees (decision 03-rounds)
    peers: Sequence[tuple[int, float, str]]
    recent: str = ""  # recent history in words, from :func:`describe_recent`
    headlines: Sequence[str] = ()  # titles that the agent read most in the round
    # Titles that it did not read, with the change of its error if it had
    unread: Sequence[tuple[str, float]] = ()


def clean_text(text: str, limit: int) -> str:
    """Return untrusted text as one line without control characters or special tokens."""
    text = "".join(c if c.isprintable() and c != _CUT else " " for c in text)

    # Repeat, as removing one token can join the pieces of another: "<|im<|im_end|>_end|>".
    while (shorter := _SPECIAL.sub(" ", text)) != text:
        text = shorter

    return _SPACE.sub(" ", text).strip()[:limit].rstrip()


def render_task(view: WindowView) -> str:
    """Return what is predicted and for whom, in words (paper D.3)."""
    usual = _TASKS.get(view.dataset, "Predict the next {horizon} values of {entity}")
    task = clean_text(view.task, _TASK_CHARACTERS) or usual
    # Not str.format: a declared task may contain other braces.
    named = task.replace("{entity}", clean_text(view.entity, _ENTITY_CHARACTERS))
    return named.replace("{horizon}", str(view.horizon))


def render_logic_and_news(
    logic: str | None, news: Sequence[RetrievedArticle] | None, *, title_characters: int
) -> str:
    """Return the lines of a forecast prompt that differ between logics; None omits a part."""
    lines = []
    if logic is not None:
        lines.append(f"Logic: {clean_text(logic, LOGIC_CHARACTERS)}")

    for article in news or []:
        lines.append(f"News {article.date}: {clean_text(article.title, title_characters)}")
    if news is not None and not news:
        lines.append("News: none.")

    return "\n".join(lines)


def render_forecast_prompt(
    view: WindowView,
    history: Sequence[str],
    base: Sequence[str],
    logic_and_news: str,
    *,
    tokenizer: Tokenizer,
) -> tuple[str, str]:
    """Render the prompt of the text decoder (paper D.3): what all logics share, and the rest.

    History, base and answer are in the unit of the series. With a base the answer is the correction
    to it, without one the forecast itself.
    """
    days = view.calendar
    target, previous = WEEKDAYS[days.target_weekday], WEEKDAYS[days.previous_weekday]
    target_day = f"{days.target_date.isoformat()}, {target}{_holiday(days.target_holiday)}"
    previous_day = f"{previous}{_holiday(days.previous_holiday)}"

    lines = [
        f"Historical data in {view.unit}: {', '.join(history)}",
        f"{render_task(view)}. Target day {target_day}; the day before was {previous_day}.",
    ]
    if view.covariates:
        known = ", ".join(
            f"{name.replace('_', ' ')} {value:.4g}" for name, value in view.covariates.items()
        )
        lines.append(f"Known before: {known}.")

    if base:
        lines.append(f"Statistical forecast in {view.unit}: {', '.join(base)}")
        lines.append(f"Answer with {view.horizon} corrections to add to it, in {view.unit}.")
    else:
        lines.append(f"Answer with {view.horizon} values in {view.unit}.")

    user = "\n".join(lines) + "\n" + _CUT + logic_and_news
    system = f"You forecast the next {view.horizon} values of a time series."
    shared, _, rest = f"{open_chat(system, user, tokenizer)}Forecast:".partition(_CUT)
    return shared, rest


def render_logic_prompt(seen: Observation, *, paraphrased: bool, tokenizer: Tokenizer) -> str:
    """Render the logic-update prompt of an agent (paper G), ending where the new logic begins."""
    system, user = build_logic_messages(seen, paraphrased=paraphrased)
    return f"{open_chat(system['content'], user['content'], tokenizer)}{LOGIC_CUE}"


def build_logic_messages(seen: Observation, *, paraphrased: bool) -> list[dict[str, str]]:
    """Return the task of rewriting a logic as a chat of two turns (paper G).

    History and news, if given, follow the reward, as the agent observes them too (Eq. 2).
    ``paraphrased`` words the task differently (E.9).
    """
    observed_lines = [f"Recent Data: {seen.recent}\n"] if seen.recent else []
    if seen.headlines:
        titles = "; ".join(f'"{clean_text(title, _TITLE_CHARACTERS)}"' for title in seen.headlines)
        observed_lines.append(f"News Read Most: {titles}\n")
    if seen.unread:
        titles = "; ".join(
            f'"{clean_text(title, _TITLE_CHARACTERS)}" ({change:+.4f})'
            for title, change in seen.unread
        )
        observed_lines.append(f"News Not Read (change of the error if it had been): {titles}\n")

    peer_lines = [
        f'Agent_{agent} (Reward: {reward:.4f}): "{clean_text(logic, LOGIC_CHARACTERS)}"'
        for agent, reward, logic in seen.peers
    ]
    peer_text = "\n".join(peer_lines) or "None."
    user = (
        f"Agent ID: Agent_{seen.agent}.\n"
        f'Agent\'s Current Logic: "{clean_text(seen.logic, LOGIC_CHARACTERS)}"\n'
        # The paper writes "Negative MSE"; the metric is a setting here.
        f"Agent's Recent Performance: {seen.reward:.4f} (Negative error, higher is better).\n"
        f"{''.join(observed_lines)}"
        f"Peer Information:\n{peer_text}\n"
        f"Task: {_TASK_LOGIC_PARAPHRASED if paraphrased else _TASK_LOGIC}\n"
        f"Output Format: {LOGIC_CUE} [Your logic here]"
    )
    return [{"role": "system", "content": _SYSTEM_LOGIC}, {"role": "user", "content": user}]


def describe_recent(views: Sequence[WindowView]) -> str:
    """Describe five windows of a batch coarsely, in the unit of each series."""
    return "; ".join(
        f"{clean_text(view.entity, _ENTITY_CHARACTERS)} {view.x.min():.4g} to {view.x.max():.4g} "
        f"{view.unit}, mean {view.x.mean():.4g}"
        for view in views[:5]
    )


def _holiday(name: str) -> str:
    return f", a public holiday ({clean_text(name, _HOLIDAY_CHARACTERS)})" if name else ""


def open_chat(system: str, user: str, tokenizer: Tokenizer, *, gap: str = "\n") -> str:
    """Return two turns as the backbone was trained on them, where the assistant's turn begins.

    Without a chat template, or a system turn in it, a ``gap`` separates the texts. A cue that is
    added opens the assistant's turn, so that the model continues it instead of greeting.
    """
    if not getattr(tokenizer, "chat_template", None):
        return f"{system}{gap}{user}{gap}"

    from jinja2 import TemplateError

    turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    render = tokenizer.apply_chat_template
    try:
        return str(render(turns, tokenize=False, add_generation_prompt=True))
    except TemplateError:
        # Some backbones (Gemma 2, Mistral 0.1) know no system turn.
        turns = [{"role": "user", "content": f"{system}{gap}{user}"}]
        return str(render(turns, tokenize=False, add_generation_prompt=True))
