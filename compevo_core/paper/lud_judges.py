"""Judges of logic updates: a local language model, a remote endpoint, a rule for slots.

What belongs here: the paper's prompt, the verdict and its parser, the kinds of judges, all at
temperature 0 (paper F.5, F.6), and the file that keeps verdicts. What does not: HTTP (a transport
is passed in), LUD itself (``paper.lud``).

A judge sees a pair of logics and nothing else: no method, agent, round or score. It is never asked
twice about the same pair: endpoints cost money, and measuring a run again must give the same
numbers.

Shapes: V the four possible verdicts, T tokens of the longest of them, W vocabulary.
"""

import dataclasses
import functools
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from compevo_core.agents.logics import SlotLogic, read_slots
from compevo_core.agents.prompts import clean_text, open_chat
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import CompEvoError, DataError
from compevo_core.lm.model_sources import Transport, read_content
from compevo_core.paper.declared import read_declared
from compevo_core.runtime.files import ask_once, hash_text

if TYPE_CHECKING:
    from compevo_core.lora.backbone import Backbone

log = logging.getLogger(__name__)

SYSTEM_PROMPT, USER_PROMPT = (read_declared("judge_prompt")[turn] for turn in ("system", "user"))
LOGIC_CHARACTERS = 4000  # longest logic that a judge is shown; a longer one is cut

LogicPair = tuple[str, str]  # an agent's logic in the round before, and its logic now

PROMPT_HASH = hash_text(f"{SYSTEM_PROMPT}\n{USER_PROMPT}")[:16]
"""Identifies the prompt in result files."""


class JudgeReplyError(CompEvoError):
    """A judge's answer is not the JSON object that the prompt asks for."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class JudgeVerdict:
    """Two binary indicators of one logic pair (paper F.3); JudgeReplyError for another number."""

    strategy_shift: int  # 1 if the reasoning or the choice of news changed
    evidence_recombination: int  # 1 if causes are new or put together in another way

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # Not isinstance: JSON's true is an int to Python, and no answer to the prompt.
            if type(value) is not int or value not in (0, 1):
                raise JudgeReplyError(
                    f"{field.name} is {value!r}, not 0 or 1: the judge did not follow its prompt"
                )

    @property
    def rius(self) -> int:
        """The rubric score, s_1 + s_2 (appendix F.2)."""
        return self.strategy_shift + self.evidence_recombination

    def to_json(self) -> str:
        """Return the answer as the prompt shows it."""
        return json.dumps(dataclasses.asdict(self), indent=2)


ANSWERS = tuple(JudgeVerdict(shift, evidence) for shift in (0, 1) for evidence in (0, 1))
"""All possible answers; ties go to the first, which claims the least."""


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
    """Read a JSON object with exactly the two indicators; JudgeReplyError for anything else."""
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
    """Any OpenAI-compatible chat endpoint."""

    model: str  # name of the model, as the endpoint knows it
    transport: Transport  # sends the request, with its key and retries

    @property
    def name(self) -> str:
        """``endpoint:<model>``."""
        return f"endpoint:{self.model}"

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Ask once, at temperature 0; JudgeReplyError if the answer holds no verdict."""
        # Temperature 0: the same pair gets the same verdict (paper F.5).
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": 0,
            "messages": build_judge_messages(previous, current),
            "response_format": {"type": "json_object"},
        }
        answer = self.transport(body)
        reply = read_content(answer, self.name, JudgeReplyError)

        # A refusal comes as null, tool calls as a list: neither is a verdict.
        if not isinstance(reply, str):
            raise JudgeReplyError(
                f"{self.name}: the message holds no text (a refusal?): {str(answer)[:200]!r}"
            )
        return parse_verdict(reply)


@dataclasses.dataclass(frozen=True)
class LocalJudge:
    """A run's own frozen backbone, without adapters, loaded at the first question.

    It picks the likeliest of the four answers, so it always replies. A small model leans towards
    one answer for every pair (the prompt shows one): report its agreement with a second judge next
    to any LUD made with it.
    """

    config: BackboneConfig  # the backbone section of the run's configuration

    @property
    def name(self) -> str:
        """``local:<model>/<dtype>``."""
        return f"local:{self.config.name_or_path}/{self.config.dtype}"

    @functools.cached_property
    def backbone(self) -> "Backbone":
        """The model and its tokenizer."""
        # Loading takes gigabytes; a second measurement finds every verdict in the cache.
        from compevo_core.lm.backbone import load_backbone

        return load_backbone(self.config)

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the likeliest of the four answers; DataError if the pair exceeds the context."""
        scores = self.log_likelihoods(previous, current)
        return max(ANSWERS, key=lambda verdict: scores[verdict])

    def log_likelihoods(self, previous: str, current: str) -> dict[JudgeVerdict, float]:
        """Return the summed log-probability of every answer's tokens after the prompt, in nats."""
        import torch

        model, tokenizer = self.backbone.model, self.backbone.tokenizer
        system, user = (turn["content"] for turn in build_judge_messages(previous, current))
        # A template has written the special tokens already.
        prompt_ids = tokenizer(
            open_chat(system, user, tokenizer, gap="\n\n"),
            add_special_tokens=not getattr(tokenizer, "chat_template", None),
        )["input_ids"]
        answer_ids = [
            tokenizer(answer.to_json(), add_special_tokens=False)["input_ids"] for answer in ANSWERS
        ]
        longest = max(map(len, answer_ids))
        room = getattr(model.config, "max_position_embeddings", None)
        if room is not None and (n_tokens := len(prompt_ids) + longest) > room:
            raise DataError(
                f"{self.name}: a pair needs {n_tokens} tokens, the model holds {room}: "
                "choose a judge with a longer context"
            )

        # Padding is to the right of every scored token, so that a causal model never sees it.
        device = model.device
        answers_VT = torch.tensor(
            [ids + [0] * (longest - len(ids)) for ids in answer_ids], device=device
        )
        is_scored_VT = torch.tensor(
            [[1.0] * len(ids) + [0.0] * (longest - len(ids)) for ids in answer_ids], device=device
        )

        with torch.no_grad():
            # The prompt is read once; its cache is shared by the four answers.
            prompt = model(
                torch.tensor([prompt_ids], device=device), use_cache=True, logits_to_keep=1
            )
            cache = prompt.past_key_values
            cache.batch_repeat_interleave(len(ANSWERS))
            rest = model(answers_VT[:, :-1], past_key_values=cache, use_cache=True)

        # The prompt's last position predicts the first token, each answer token the next one.
        first_V1W = prompt.logits[:, -1:].expand(len(ANSWERS), -1, -1)
        logits_VTW = torch.cat([first_V1W, rest.logits], dim=1).float()
        picked_VT = logits_VTW.log_softmax(-1).gather(-1, answers_VT[..., None]).squeeze(-1)
        return dict(zip(ANSWERS, (picked_VT * is_scored_VT).sum(-1).tolist(), strict=True))


class SlotJudge:
    """Compares two logics with slots by rule: which slots changed (the rubric of appendix F).

    Such a logic states which news it looks for and what they would mean, so no opinion is needed.
    Comparing a language model with a rule shows whether the model follows the rubric at all.

    The strategy shifts with a topic, the region, the time of day or the sign. Another verb is a
    rewording. Evidence is recombined by a topic that the logic did not name before; one that is
    dropped adds nothing.
    """

    name = "rule:slots"

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the verdict on an update; JudgeReplyError if a logic is free text."""
        before, after = _read_slots(previous), _read_slots(current)
        return JudgeVerdict(
            strategy_shift=int(before[1:] != after[1:]),
            evidence_recombination=int(not set(after.topics) <= set(before.topics)),
        )


def _read_slots(logic: str) -> SlotLogic:
    slots = read_slots(logic)
    if slots is None:
        raise JudgeReplyError(
            f"no slots in {logic[:80]!r}: a logic in free text needs a language model as judge"
        )
    return slots


def hash_question(name: str, previous: str, current: str) -> str:
    """Return a judge's name and the sha256 of the exact messages that it gets."""
    # The messages, not the two logics: an old verdict is no answer to a new prompt.
    messages = json.dumps(build_judge_messages(previous, current), sort_keys=True)
    return f"{name} {hash_text(messages)}"


def judge_pairs(judge: Judge, pairs: Sequence[LogicPair], cache: Path) -> list[JudgeVerdict | None]:
    """Return verdicts for (previous, current) pairs, in order; DataError if the cache is torn.

    ``cache`` is the file of a run's verdicts: what it holds is not asked again. A reply that is not
    a verdict gives None, which the caller counts; its pair is asked again the next time. Any other
    error ends the work, and the verdicts before it are stored.
    """
    by_question = {hash_question(judge.name, *pair): pair for pair in pairs}

    def ask(questions: list[str]) -> list[dict[str, int] | None]:
        (question,) = questions
        try:
            return [dataclasses.asdict(judge.judge(*by_question[question]))]
        except JudgeReplyError as error:
            log.warning("%s gave no verdict, which is counted: %s", judge.name, error)
            return [None]

    answers = ask_once(cache, by_question, ask)
    try:
        known = {key: value and parse_verdict(json.dumps(value)) for key, value in answers.items()}
    except JudgeReplyError as error:
        raise DataError(f"{cache}: {error}; delete it, and its pairs are judged again") from error
    return [known[hash_question(judge.name, *pair)] for pair in pairs]


def build_judges(config: RunConfig, endpoint: EndpointJudge | None) -> list[Judge]:
    """Return every judge that a run can have: its backbone, the rule for slots, the endpoint.

    With two judges their agreement can be measured (Cohen's kappa).
    """
    # Agents that read with a ridge have no backbone that could judge them.
    has_backbone = config.forecast.decoder != "linear"
    judges: list[Judge] = [LocalJudge(config.backbone)] if has_backbone else []
    if config.evolution.form == "slots":
        judges.append(SlotJudge())
    if endpoint is not None:
        judges.append(endpoint)
    return judges
