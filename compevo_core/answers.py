"""Reading forecasts out of the population: the numeric head, or the paper's answer text (design decision 1).

What belongs here: prompts of token rows in, scaled forecasts out, for both decoders.
What does not: how prompts are written (``strategy``), number syntax (``decoding``).
Legend: A agents, R rows of an agent, H horizon, T tokens, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.decoding import HORIZON, NumericHead, format_answer, parse_answer
from compevo_core.errors import ForecastParseError
from compevo_core.population import Population, Prefix, pad_rows
from compevo_core.scaling import FloatArray, Scaler
from compevo_core.windowset import WindowView

#: Decimals of an answer by unit; enough to lose less than the naive error by rounding.
_DECIMALS = {"MW": 1, "USD": 1, "USD/AUD": 5, "fraction": 4}
_DEFAULT_DECIMALS = 4
_TOKENS_PER_NUMBER = 12


@dataclasses.dataclass(frozen=True)
class Task:
    """A window prepared for the population: what it sees, the scaled forecast it corrects, the scaled truth; (H,)."""

    view: WindowView
    base_H: FloatArray
    truth_H: FloatArray | None = None


class Answers(Protocol):
    """A way to turn prompts into scaled forecasts."""

    @property
    def module(self) -> nn.Module:
        """What of it is trained beside the adapters."""
        ...

    def direct(self, rows: Sequence[Sequence[int]], agents: int, tasks: Sequence[Task], *,
               train: bool) -> tuple[Tensor, Tensor, int]:
        """Whole prompts, agent-major, to forecasts (A, B, H), token losses (A,) and unreadable answers."""
        ...

    def continued(self, prefix: Prefix, rest: Sequence[Sequence[int]], agents: int,
                  tasks: Sequence[Task]) -> tuple[Tensor, int]:
        """Continuations of a shared prefix to forecasts (A, R, H) and unreadable answers."""
        ...


def _base(tasks: Sequence[Task], device: torch.device) -> Tensor:
    return torch.tensor(np.stack([t.base_H for t in tasks]), dtype=torch.float32, device=device)


class HeadAnswers:
    """The state at the last prompt token through one linear head per agent, added to the prior's forecast."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.module = NumericHead(len(population.own), population.backbone.hidden_size)
        self.module.to(population.backbone.device)

    def direct(self, rows: Sequence[Sequence[int]], agents: int, tasks: Sequence[Task], *,
               train: bool) -> tuple[Tensor, Tensor, int]:
        """See :class:`Answers`; the forecasts carry gradient."""
        del train
        pad, device = self.population.backbone.tokenizer.pad_token_id, self.population.backbone.device
        ids, mask = pad_rows(rows, pad, left=True, device=device)
        states = self.population.hidden(self.population.embed(ids), mask)[0][:, -1]
        values = self.module(states.reshape(agents, len(tasks), -1)) + _base(tasks, device)
        return values, values.new_zeros(agents), 0

    def continued(self, prefix: Prefix, rest: Sequence[Sequence[int]], agents: int,
                  tasks: Sequence[Task]) -> tuple[Tensor, int]:
        """See :class:`Answers`."""
        pad, device = self.population.backbone.tokenizer.pad_token_id, self.population.backbone.device
        ids, mask = pad_rows(rest, pad, left=False, device=device)
        states = self.population.continue_from(prefix, ids, mask)
        last = states[torch.arange(len(rest), device=device), mask.sum(1) - 1]
        return self.module(last.reshape(agents, len(tasks), -1)) + _base(tasks, device), 0


class TextAnswers:
    """Greedy answer text, parsed strictly; an unreadable answer is counted and scored as the prior alone.

    With a prior the text is the correction to it in the series' unit, without one the values themselves.
    """

    def __init__(self, population: Population, scaler: Scaler, *, has_prior: bool) -> None:
        self.population, self.scaler, self.has_prior = population, scaler, has_prior
        self.module: nn.Module = nn.Module()

    def direct(self, rows: Sequence[Sequence[int]], agents: int, tasks: Sequence[Task], *,
               train: bool) -> tuple[Tensor, Tensor, int]:
        """See :class:`Answers`; the token loss carries the gradient, the forecasts do not."""
        pad, device = self.population.backbone.tokenizer.pad_token_id, self.population.backbone.device
        loss = self._token_loss(rows, agents, tasks) if train else torch.zeros(agents, device=device)
        ids, mask = pad_rows(rows, pad, left=True, device=device)
        with torch.no_grad():
            prefix = self.population.read(self.population.embed(ids), mask)
            values, failures = self._generate(prefix, agents, tasks)
        return values, loss, failures

    def continued(self, prefix: Prefix, rest: Sequence[Sequence[int]], agents: int,
                  tasks: Sequence[Task]) -> tuple[Tensor, int]:
        """See :class:`Answers`."""
        pad, device = self.population.backbone.tokenizer.pad_token_id, self.population.backbone.device
        ids, mask = pad_rows(rest, pad, left=False, device=device)
        states = self.population.continue_from(prefix, ids, mask)
        last = states[torch.arange(len(rest), device=device), mask.sum(1) - 1]
        return self._generate(Prefix(prefix.cache, torch.cat([prefix.mask_RT, mask], 1), last), agents, tasks)

    def _generate(self, prefix: Prefix, agents: int, tasks: Sequence[Task]) -> tuple[Tensor, int]:
        tokenizer = self.population.backbone.tokenizer
        ids, mask = self.population.sample(prefix, tokens=HORIZON * _TOKENS_PER_NUMBER, temperature=0.0,
                                           stop=stop_tokens(tokenizer))
        out, failures = [], 0
        for row in range(ids.shape[0]):
            task = tasks[row % len(tasks)]
            text = tokenizer.decode(ids[row][mask[row].bool()].tolist(), skip_special_tokens=True)
            try:
                out.append(self._to_scaled(parse_answer(text), task))
            except ForecastParseError:
                failures += 1
                out.append(task.base_H)
        values = torch.tensor(np.stack(out), dtype=torch.float32, device=ids.device)
        return values.reshape(agents, len(tasks), HORIZON), failures

    def _token_loss(self, rows: Sequence[Sequence[int]], agents: int, tasks: Sequence[Task]) -> Tensor:
        """Mean negative log-likelihood of each agent's answer tokens, (A,); masked targets have no answer text."""
        backbone = self.population.backbone
        answers = [self._answer_ids(t) for t in tasks]
        joined = [list(row) + answers[i % len(tasks)] for i, row in enumerate(rows)]
        ids, mask = pad_rows(joined, backbone.tokenizer.pad_token_id, left=True, device=backbone.device)
        states = self.population.hidden(self.population.embed(ids), mask)[0]
        losses = []
        for i in range(len(rows)):
            count = len(answers[i % len(tasks)])
            if count:
                logits = self.population.logits(states[i, -count - 1:-1])
                losses.append(torch.nn.functional.cross_entropy(logits, ids[i, -count:]))
        if not losses:
            return states.reshape(agents, -1).sum(1) * 0.0
        return torch.stack(losses).reshape(agents, -1).mean(1)

    def _answer_ids(self, task: Task) -> list[int]:
        if task.truth_H is None or not np.isfinite(task.truth_H).all():
            return []
        std, mean = self.scaler.std[task.view.entity], self.scaler.mean[task.view.entity]
        values = (task.truth_H - task.base_H) * std if self.has_prior else task.truth_H * std + mean
        text = " " + format_answer(values, _DECIMALS.get(task.view.unit, _DEFAULT_DECIMALS))
        tokenizer = self.population.backbone.tokenizer
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, tokenizer.eos_token_id]

    def _to_scaled(self, values: FloatArray, task: Task) -> FloatArray:
        std, mean = self.scaler.std[task.view.entity], self.scaler.mean[task.view.entity]
        return task.base_H + values / std if self.has_prior else (values - mean) / std


def stop_tokens(tokenizer: Any) -> list[int]:  # noqa: ANN401 - tokenizers vary
    """Tokens that end a logic or an answer: end of sequence and a plain line break."""
    line = tokenizer("\n", add_special_tokens=False)["input_ids"]
    ends = [tokenizer.eos_token_id]
    return ends + (line if len(line) == 1 else [])
