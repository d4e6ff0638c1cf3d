"""The texts a backbone reads: the forecast template and the logic-update template.

What belongs here: wording, layout, and the cleaning of untrusted news text. What does not: tokens, sampling,
parsing. The judge's template stands in ``judge``. Paper: D.3 (forecast), G (logic update).
News is data: control characters and a tokenizer's special tokens are removed before it enters a prompt.

A forecast prompt is laid out so that what all logics of a window share comes first (history, calendar,
weather) and what differs last (logic, news), so that the shared part is read once (design 5).
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateError

from compevo_core.data.window import WindowView

_SPECIAL = re.compile(
    r"<\|[^|<>]{0,40}\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>|<(?:pad|bos|eos|unk)>"
)
_SPACE = re.compile(r"\s+")
_CUT = "\u241e"  # marks where the shared part ends; cleaned texts cannot hold it
_SYSTEM_FORECAST = "You forecast the next 48 values of a time series."

#: Task words by data set: what is predicted, for whom (paper D.3: "Predict next-day load for VIC").
_TASKS = {
    "electricity": "Predict next-day electricity load for {entity}",
    "exchange": "Predict the next 48 daily rates of {entity} in US dollars",
    "bitcoin": "Predict the next 48 daily {entity} prices",
    "traffic": "Predict the next 48 hourly road occupancies of sensor {entity}",
}

#: Where agents start: one evidence-seeking logic each, in the paper's style and topics (section 5.6).
SEED_LOGICS = (
    "Prioritize news about extreme weather such as heatwaves, cold snaps or storms that change demand directly.",
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

_SYSTEM_LOGIC = (
    "You are a strategy analyst for a time-series forecasting agent. Your goal is to refine the agent's "
    "evidence-seeking strategy, realized as textual logic, to improve its prediction accuracy."
)
_TASK_LOGIC = (
    "Based on all this information, generate a new, refined logic for the agent. The new logic should be a single, "
    "concise sentence. It should be an evolution of the current logic, either by specializing, generalizing, or "
    "correcting it based on the performance feedback. Do not just copy a peer's logic; synthesize a new one."
)
#: The same task in other words, for the paper's robustness test (E.9).
_TASK_LOGIC_PARAPHRASED = (
    "Using everything above, write one improved logic for this agent. Keep it to one short sentence that develops the "
    "current logic: make it narrower, make it broader, or fix it in the light of its reward. Write your own; do not "
    "repeat what a peer uses."
)
ANSWER_CUE = "New Refined Logic:"
_PLACEHOLDER = "your logic here"
_SHORTEST_LOGIC = 12


@dataclasses.dataclass(frozen=True)
class PeerReport:
    """What an agent sees of another: number, reward and logic of the previous round."""

    agent: int
    reward: float
    logic: str


def clean(text: str, limit: int) -> str:
    """One line of untrusted text without control characters or special tokens, at most ``limit`` characters."""
    text = "".join(c if c.isprintable() and c != _CUT else " " for c in text)
    while (shorter := _SPECIAL.sub(" ", text)) != text:
        text = shorter
    return _SPACE.sub(" ", text).strip()[:limit].rstrip()


def forecast_prompt(
    view: WindowView,
    history: Sequence[str],
    logic: str | None,
    news: Sequence[tuple[str, str]],
    *,
    title_characters: int,
    tokenizer: Any,
) -> tuple[str, str]:
    """The forecast prompt in two parts: shared by all logics of the window, and the rest.

    Args:
        view: the window; only its calendar, covariates and names are used.
        history: history values as they shall stand in the text.
        logic: the agent's logic, or ``None`` to leave it out.
        news: (date, headline) of the chosen articles.
        title_characters: longest headline.
        tokenizer: gives the chat layout of the backbone, if it has one.
    """
    days = view.calendar
    task = _TASKS.get(view.dataset, "Predict the next 48 values of {entity}").format(
        entity=view.entity
    )
    target = (
        f"{days.target_date.isoformat()}, {days.target_weekday_name}{_holiday(days.target_holiday)}"
    )
    before = f"{days.previous_weekday_name}{_holiday(days.previous_holiday)}"
    lines = [
        f"Historical data: {' '.join(history)}",
        f"{task}. Target day {target}; the day before was {before}.",
    ]
    if view.covariates:
        known = ", ".join(
            f"{name.replace('_', ' ')} {value:.4g}" for name, value in view.covariates.items()
        )
        lines.append(f"Known before: {known}.")
    rest = [f"Logic: {clean(logic, 400)}"] if logic is not None else []
    rest += [f"News {date}: {clean(title, title_characters)}" for date, title in news] or [
        "News: none."
    ]
    shared = "\n".join(lines) + "\n"
    return _split(_SYSTEM_FORECAST, shared + _CUT + "\n".join(rest), "Forecast:", tokenizer)


def logic_prompt(
    agent: int,
    logic: str,
    reward: float,
    peers: Sequence[PeerReport],
    *,
    paraphrased: bool,
    tokenizer: Any,
) -> str:
    """The agent-side logic-update prompt, ending where the new logic begins."""
    seen = (
        "\n".join(
            f'Agent_{p.agent} (Reward: {p.reward:.4f}): "{clean(p.logic, 400)}"' for p in peers
        )
        or "None."
    )
    user = (
        f"Agent ID: Agent_{agent}.\n"
        f'Agent\'s Current Logic: "{clean(logic, 400)}"\n'
        f"Agent's Recent Performance: {reward:.4f} (Negative error, higher is better).\n"
        f"Peer Information:\n{seen}\n"
        f"Task: {_TASK_LOGIC_PARAPHRASED if paraphrased else _TASK_LOGIC}\n"
        f"Output Format: {ANSWER_CUE} [Your logic here]{_CUT}"
    )
    return "".join(_split(_SYSTEM_LOGIC, user, ANSWER_CUE, tokenizer))


def clean_logic(text: str, fallback: str) -> tuple[str, bool]:
    """The first line of a generated logic, and whether it was empty (the fallback is used then).

    The template's own placeholder, repeated as if it were a logic, counts as empty.
    """
    line = clean(text.strip().split("\n")[0], 400).removeprefix(ANSWER_CUE).strip("\"'[] ")
    empty = len(line) < _SHORTEST_LOGIC or line.lower().startswith(_PLACEHOLDER)
    return (fallback, True) if empty else (line, False)


def history_index(x: npt.NDArray[np.float64], level: float, points: int) -> list[str]:
    """History as whole numbers, 1000 = the usual level, averaged down to ``points`` values."""
    means = [float(part.mean()) for part in np.array_split(x, points)]
    return [str(round(1000.0 * v / level)) for v in means]


def _holiday(name: str) -> str:
    return f", a public holiday ({clean(name, 60)})" if name else ""


def _split(system: str, user: str, cue: str, tokenizer: Any) -> tuple[str, str]:
    if getattr(tokenizer, "chat_template", None):
        turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            text = (
                tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
                + cue
            )
        except TemplateError:  # some backbones (Gemma 2, Mistral 0.1) know no system turn
            turns = [{"role": "user", "content": f"{system}\n{user}"}]
            text = (
                tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
                + cue
            )
    else:
        text = f"{system}\n{user}\n{cue}"
    shared, _, rest = text.partition(_CUT)
    return shared, rest
