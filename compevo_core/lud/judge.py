"""Judges of logic updates: the paper's prompt, a local language model and a remote endpoint.

What belongs here: the fixed prompt, the verdict and its parser, and the kinds of judges, all at
temperature 0 (paper F.5, F.6). What does not: HTTP (a transport is passed in), remembering verdicts
(``lud.verdicts``), LUD itself (``lud.degree``).

A judge sees a pair of logics and nothing else: no method, agent, round or score.

Shapes: V the four possible verdicts, T tokens of the longest of them, W vocabulary.
"""

import dataclasses
import json
from typing import Any, Protocol

from compevo_core.agents.prompts import clean_text
from compevo_core.chat_endpoint import Transport, read_content
from compevo_core.data.files import hash_text
from compevo_core.errors import CompEvoError, DataError

# Both prompts are the paper's, word for word. Any change gives another PROMPT_HASH, and verdicts
# of the old prompt are not used again.
SYSTEM_PROMPT = (
    "You are a strict evaluator of logic updates for time-series forecasting with news.\n"
    "Your job is not to judge whether the logic is good, but whether the update shows substantive "
    "structural change.\n"
    "Follow the rubric and output only valid JSON."
)
USER_PROMPT = """Given two consecutive logics produced by the same agent:

Previous logic (t-1): {logic_prev}

Current logic (t): {logic_curr}

Decide two binary indicators:

1) Strategy Shift (0/1): output 1 iff the current logic changes the reasoning or news-filtering \
strategy compared to the previous logic, e.g., changes the main driver, decision rule, or \
prioritization strategy. Output 0 for paraphrasing, minor rewording, style changes, or generic \
additions.

2) Evidence Recombination (0/1): output 1 iff the current logic introduces new causal cues or \
reorganizes multi-source evidence into a materially different explanatory structure. Output 0 for \
paraphrasing or shallow elaboration.

Return only a valid JSON object. The values must be either 0 or 1.

{{
  "strategy_shift": 0,
  "evidence_recombination": 1
}}"""
LOGIC_CHARACTERS = 4000
"""Longest logic that a judge is shown; a longer one is cut."""

PROMPT_HASH = hash_text(f"{SYSTEM_PROMPT}\n{USER_PROMPT}")[:16]
"""Identifies the prompt in result files."""


class JudgeReplyError(CompEvoError):
    """A judge's answer is not the JSON object that the prompt asks for."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class JudgeVerdict:
    """Two binary indicators of one logic pair (paper F.3).

    Attributes:
        strategy_shift: 1 if the reasoning or the choice of news changed.
        evidence_recombination: 1 if causes are new or put together in another way.

    Raises:
        JudgeReplyError: an indicator is not the number 0 or 1.
    """

    strategy_shift: int
    evidence_recombination: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # Not isinstance: JSON's true is an int to Python, and no answer to the prompt.
            if type(value) is not int or value not in (0, 1):
                raise JudgeReplyError(
                    f"{field.name} is {value!r}, not 0 or 1: the judge did not follow its prompt"
                )

    def to_json(self) -> str:
        """Return the answer as the prompt shows it."""
        return json.dumps(dataclasses.asdict(self), indent=2)


ANSWERS = tuple(JudgeVerdict(shift, evidence) for shift in (0, 1) for evidence in (0, 1))
"""All possible answers; ties go to the first, which claims least."""


class Judge(Protocol):
    """Gives one verdict on one logic pair."""

    @property
    def name(self) -> str:
        """Identifies model and settings in result rows and in the cache."""

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the verdict on the update from ``previous`` to ``current``."""


def build_judge_messages(previous: str, current: str) -> list[dict[str, str]]:
    """Return the chat of paper F.6 for one pair."""
    # Logics are written by a model: its special tokens could end the turn and start another.
    user = USER_PROMPT.format(
        logic_prev=clean_text(previous, LOGIC_CHARACTERS),
        logic_curr=clean_text(current, LOGIC_CHARACTERS),
    )
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": user}]


def parse_verdict(reply: str) -> JudgeVerdict:
    """Read a JSON object with exactly the two indicators.

    Raises:
        JudgeReplyError: the reply is anything else; nothing is guessed from prose.
    """
    text = reply.strip()
    # Many models put JSON into a code fence even so: the answer is still whole.
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text[text.index("\n") : -3].strip()

    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # a thousand brackets exhaust the parser's stack
        raise JudgeReplyError(
            f"not JSON: {reply[:200]!r}; choose a judge that answers in JSON"
        ) from error

    names = {field.name for field in dataclasses.fields(JudgeVerdict)}
    if not isinstance(values, dict) or set(values) != names:
        raise JudgeReplyError(
            f"expected an object with {sorted(names)}, got {reply[:200]!r}; choose another judge"
        )
    return JudgeVerdict(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndpointJudge:
    """Any OpenAI-compatible chat endpoint.

    Attributes:
        model: name of the model, as the endpoint knows it.
        transport: sends the request; retries and keys are its business.
        json_mode: ask for ``response_format = json_object``; switch it off for endpoints that do
            not know it.
    """

    model: str
    transport: Transport
    json_mode: bool = True

    @property
    def name(self) -> str:
        """``endpoint:<model>``."""
        return f"endpoint:{self.model}"

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Ask once, at temperature 0.

        Raises:
            JudgeReplyError: the answer holds no verdict.
        """
        # Temperature 0: the same pair gets the same verdict (paper F.5).
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": 0,
            "messages": build_judge_messages(previous, current),
        }
        if self.json_mode:
            body["response_format"] = {"type": "json_object"}
        answer = self.transport(body)
        reply = read_content(answer, self.name, JudgeReplyError)

        # A refusal comes as null, tool calls as a list: neither is a verdict.
        if not isinstance(reply, str):
            raise JudgeReplyError(
                f"{self.name}: the message holds no text (a refusal?): {str(answer)[:200]!r}"
            )
        return parse_verdict(reply)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalJudge:
    """A causal language model that picks the likeliest of the four answers, so it always replies.

    A small model leans towards some answer whatever the pair (the prompt shows one): report its
    agreement with a second judge next to any LUD made with it.

    Attributes:
        name: identifies model and settings.
        model: causal language model of transformers.
        tokenizer: its tokenizer.
    """

    name: str
    model: Any
    tokenizer: Any

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the likeliest of the four answers.

        Raises:
            DataError: the pair does not fit into the model's context.
        """
        scores = self.log_likelihoods(previous, current)
        return max(ANSWERS, key=lambda verdict: scores[verdict])

    def log_likelihoods(self, previous: str, current: str) -> dict[JudgeVerdict, float]:
        """Return the summed log-probability of every answer's tokens after the prompt, in nats.

        Raises:
            DataError: the pair does not fit into the model's context.
        """
        import torch

        prompt_ids = self._tokenize_prompt(previous, current)
        answer_ids = [
            self.tokenizer(answer.to_json(), add_special_tokens=False)["input_ids"]
            for answer in ANSWERS
        ]
        longest = max(map(len, answer_ids))
        self._require_room(len(prompt_ids) + longest)

        # Padding stands right of every scored token, so that a causal model never sees it.
        device = self.model.device
        answers_VT = torch.tensor(
            [ids + [0] * (longest - len(ids)) for ids in answer_ids], device=device
        )
        is_scored_VT = torch.tensor(
            [[1.0] * len(ids) + [0.0] * (longest - len(ids)) for ids in answer_ids], device=device
        )

        with torch.no_grad():
            # The prompt is read once; its cache is shared by the four answers.
            prompt = self.model(
                torch.tensor([prompt_ids], device=device), use_cache=True, logits_to_keep=1
            )
            cache = prompt.past_key_values
            cache.batch_repeat_interleave(len(ANSWERS))
            rest = self.model(answers_VT[:, :-1], past_key_values=cache, use_cache=True)

        # The prompt's last position predicts the first token, each answer token the next one.
        first_V1W = prompt.logits[:, -1:].expand(len(ANSWERS), -1, -1)
        logits_VTW = torch.cat([first_V1W, rest.logits], dim=1).float()
        picked_VT = logits_VTW.log_softmax(-1).gather(-1, answers_VT[..., None]).squeeze(-1)
        return dict(zip(ANSWERS, (picked_VT * is_scored_VT).sum(-1).tolist(), strict=True))

    def _require_room(self, n_tokens: int) -> None:
        room = getattr(self.model.config, "max_position_embeddings", None)
        if room is not None and n_tokens > room:
            raise DataError(
                f"{self.name}: a pair needs {n_tokens} tokens, the model holds {room}: "
                "choose a judge with a longer context"
            )

    def _tokenize_prompt(self, previous: str, current: str) -> list[int]:
        system, user = build_judge_messages(previous, current)
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
        # The template has written the special tokens already.
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
