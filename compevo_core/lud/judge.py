"""LLM judges of logic updates: the paper's prompt, a local judge and one behind an endpoint (paper F.5, F.6).

What belongs here: the fixed prompt, the verdict and its parser, and who gives verdicts, at temperature 0.
What does not: HTTP (a callable passed in), remembering verdicts (``verdicts``), LUD itself (``lud``).
A judge sees a pair of logics and nothing else: no method, agent, round or score.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from compevo_core.agents.prompts import clean
from compevo_core.errors import CompEvoError, DataError

SYSTEM_PROMPT = (
    "You are a strict evaluator of logic updates for time-series forecasting with news.\n"
    "Your job is not to judge whether the logic is good, but whether the update shows substantive structural change.\n"
    "Follow the rubric and output only valid JSON."
)
USER_PROMPT = """Given two consecutive logics produced by the same agent:

Previous logic (t-1): {logic_prev}

Current logic (t): {logic_curr}

Decide two binary indicators:

1) Strategy Shift (0/1): output 1 iff the current logic changes the reasoning or news-filtering strategy compared to \
the previous logic, e.g., changes the main driver, decision rule, or prioritization strategy. Output 0 for \
paraphrasing, minor rewording, style changes, or generic additions.

2) Evidence Recombination (0/1): output 1 iff the current logic introduces new causal cues or reorganizes multi-source \
evidence into a materially different explanatory structure. Output 0 for paraphrasing or shallow elaboration.

Return only a valid JSON object. The values must be either 0 or 1.

{{
  "strategy_shift": 0,
  "evidence_recombination": 1
}}"""
LOGIC_CHARACTERS = 4000
PROMPT_HASH = hashlib.sha256(f"{SYSTEM_PROMPT}\n{USER_PROMPT}".encode()).hexdigest()[:16]
"""Identifies the prompt in result files."""

Transport = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends the JSON body of a chat completion and returns the JSON answer."""


class JudgeReplyError(CompEvoError):
    """A judge's answer is not the JSON object that the prompt asks for."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Verdict:
    """Two binary indicators of one logic pair (paper F.3)."""

    strategy_shift: int
    evidence_recombination: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value not in (0, 1):
                raise JudgeReplyError(
                    f"{field.name} is {value!r}, not 0 or 1: the judge did not follow its prompt"
                )

    def to_json(self) -> str:
        """The answer as the prompt shows it."""
        return json.dumps(dataclasses.asdict(self), indent=2)


ANSWERS = tuple(Verdict(a, b) for a in (0, 1) for b in (0, 1))
"""All answers there are; ties go to the first, which claims least."""


class Judge(Protocol):
    """Gives one verdict on one logic pair."""

    @property
    def name(self) -> str:
        """Identifies model and settings in result rows and in the cache."""

    def judge(self, previous: str, current: str) -> Verdict:
        """Verdict on the update from ``previous`` to ``current``."""


def judge_messages(previous: str, current: str) -> list[dict[str, str]]:
    """The chat of paper F.6 with the pair filled in; both texts are cleaned of special tokens."""
    user = USER_PROMPT.format(
        logic_prev=clean(previous, LOGIC_CHARACTERS), logic_curr=clean(current, LOGIC_CHARACTERS)
    )
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": user}]


def parse_verdict(reply: str) -> Verdict:
    """Reads a JSON object with exactly the two indicators; one code fence around it is allowed."""
    text = reply.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text[text.index("\n") : -3].strip()
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JudgeReplyError(
            f"not JSON: {reply[:200]!r}; choose a judge that answers in JSON"
        ) from error
    names = {field.name for field in dataclasses.fields(Verdict)}
    if not isinstance(values, dict) or set(values) != names:
        raise JudgeReplyError(
            f"expected an object with {sorted(names)}, got {reply[:200]!r}; choose another judge"
        )
    return Verdict(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndpointJudge:
    """Any OpenAI-compatible chat endpoint, reached through ``transport``; a bad answer raises ``JudgeReplyError``.

    ``json_mode`` asks for ``response_format = json_object``; switch it off for endpoints that do not know it.
    """

    model: str
    transport: Transport
    json_mode: bool = True

    @property
    def name(self) -> str:
        """``endpoint:<model>``."""
        return f"endpoint:{self.model}"

    def judge(self, previous: str, current: str) -> Verdict:
        """Asks once, at temperature 0."""
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": 0,
            "messages": judge_messages(previous, current),
        }
        if self.json_mode:
            body["response_format"] = {"type": "json_object"}
        answer = self.transport(body)
        try:
            reply = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise JudgeReplyError(
                f"{self.name}: no choices[0].message.content in {str(answer)[:200]!r}; "
                "is this an OpenAI-compatible endpoint?"
            ) from error
        if not isinstance(reply, str):
            raise JudgeReplyError(
                f"{self.name}: the message holds no text (a refusal?): {str(answer)[:200]!r}"
            )
        return parse_verdict(reply)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalJudge:
    """A causal language model scored over the four possible answers: always valid, argmax of log-likelihood.

    The prompt's cache is computed once and shared by the four answers. A small model leans towards some answer
    whatever the pair (the prompt shows one): report its agreement with a second judge beside any LUD made with it.
    """

    name: str
    model: Any
    tokenizer: Any

    def judge(self, previous: str, current: str) -> Verdict:
        """The likeliest of the four answers."""
        scores = self.log_likelihoods(previous, current)
        return max(ANSWERS, key=lambda verdict: scores[verdict])

    def log_likelihoods(self, previous: str, current: str) -> dict[Verdict, float]:
        """Summed log-probability of every answer's tokens after the prompt, in nats."""
        import torch

        prompt_ids = self._prompt_ids(previous, current)
        answer_ids = [
            self.tokenizer(v.to_json(), add_special_tokens=False)["input_ids"] for v in ANSWERS
        ]
        longest = max(map(len, answer_ids))
        room = getattr(self.model.config, "max_position_embeddings", None)
        if room is not None and len(prompt_ids) + longest > room:
            raise DataError(
                f"{self.name}: a pair needs {len(prompt_ids) + longest} tokens, the model holds {room}: "
                "choose a judge with a longer context"
            )
        device = self.model.device
        # Padding stands right of every scored token, so that a causal model never sees it.
        answers_at = torch.tensor(
            [ids + [0] * (longest - len(ids)) for ids in answer_ids], device=device
        )
        scored_at = torch.tensor(
            [[1.0] * len(ids) + [0.0] * (longest - len(ids)) for ids in answer_ids], device=device
        )
        with torch.no_grad():
            prompt = self.model(
                torch.tensor([prompt_ids], device=device), use_cache=True, logits_to_keep=1
            )
            cache = prompt.past_key_values
            cache.batch_repeat_interleave(len(ANSWERS))
            rest = self.model(answers_at[:, :-1], past_key_values=cache, use_cache=True)
        logits_atv = torch.cat(
            [prompt.logits[:, -1:].expand(len(ANSWERS), -1, -1), rest.logits], dim=1
        ).float()
        picked_at = logits_atv.log_softmax(-1).gather(-1, answers_at[..., None]).squeeze(-1)
        return dict(zip(ANSWERS, (picked_at * scored_at).sum(-1).tolist(), strict=True))

    def _prompt_ids(self, previous: str, current: str) -> list[int]:
        system, user = judge_messages(previous, current)
        joined = f"{system['content']}\n\n{user['content']}"
        if not getattr(self.tokenizer, "chat_template", None):
            return list(self.tokenizer(f"{joined}\n\n")["input_ids"])
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                [system, user], tokenize=False, add_generation_prompt=True
            )
        except TemplateError:  # some models (Gemma 2, Mistral 0.1) know no system turn
            turns = [{"role": "user", "content": joined}]
            text = self.tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=True
            )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
