"""Reading forecasts out of the population: the numeric head, or the paper's answer text (design decision 1).

What belongs here: prompts of token rows in, scaled forecasts out, for both decoders.
What does not: how prompts are written (``strategy``), number syntax (``decoding``).
Legend: A agents, R leaves of an agent, H horizon, T tokens, L packed length, D hidden.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents.decoding import HORIZON, NumericHead, format_answer, parse_answer
from compevo_core.data.scaling import FloatArray, Scaler
from compevo_core.data.window import WindowView
from compevo_core.errors import ForecastParseError
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population

#: Decimals of an answer by unit; enough to lose less than the naive error by rounding.
_DECIMALS = {"MW": 1, "USD": 1, "USD/AUD": 5, "fraction": 4}
_DEFAULT_DECIMALS = 4
_TOKENS_PER_NUMBER = 12


@dataclasses.dataclass(frozen=True)
class ForecastExample:
    """A window prepared for the population: what it sees, the scaled forecast it corrects, the scaled truth; (H,)."""

    view: WindowView
    base_H: FloatArray
    truth_H: FloatArray | None = None


class ForecastDecoder(Protocol):
    """A way to turn prompts into scaled forecasts."""

    @property
    def module(self) -> nn.Module:
        """What of it is trained beside the adapters."""
        ...

    def answer(
        self,
        trees: Sequence[Sequence[PromptGroup]],
        tasks: Sequence[ForecastExample],
        *,
        train: bool,
    ) -> tuple[Tensor, Tensor, int]:
        """Forecasts at every leaf of each agent's prompts, one task a leaf.

        Returns:
            scaled forecasts (A, R, H), token losses (A,) (zeros for the head), and unreadable answers.
        """
        ...


def _base(tasks: Sequence[ForecastExample], device: torch.device) -> Tensor:
    return torch.tensor(np.stack([t.base_H for t in tasks]), dtype=torch.float32, device=device)


class HeadDecoder:
    """The state at the last prompt token through one linear head per agent, added to the prior's forecast."""

    def __init__(self, population: Population) -> None:
        self.population = population
        self.module = NumericHead(len(population.own), population.backbone.hidden_size)
        self.module.to(population.backbone.device)

    def answer(
        self,
        trees: Sequence[Sequence[PromptGroup]],
        tasks: Sequence[ForecastExample],
        *,
        train: bool,
    ) -> tuple[Tensor, Tensor, int]:
        """See :class:`ForecastDecoder`; the forecasts carry gradient."""
        del train
        states_ARD = self.population.leaf_states(self.population.pack(trees))
        values = self.module(states_ARD) + _base(tasks, states_ARD.device)
        return values, values.new_zeros(len(trees)), 0


class TextDecoder:
    """Greedy answer text, parsed strictly; an unreadable answer is counted and scored as the prior alone.

    With a prior the text is the correction to it in the series' unit, without one the values themselves.
    """

    def __init__(self, population: Population, scaler: Scaler, *, has_prior: bool) -> None:
        self.population, self.scaler, self.has_prior = population, scaler, has_prior
        self.module: nn.Module = nn.Module()

    def answer(
        self,
        trees: Sequence[Sequence[PromptGroup]],
        tasks: Sequence[ForecastExample],
        *,
        train: bool,
    ) -> tuple[Tensor, Tensor, int]:
        """See :class:`ForecastDecoder`; the token loss carries the gradient, the forecasts do not."""
        loss = self._token_loss(trees, tasks) if train else torch.zeros(len(trees))
        values, failures = self._generate(trees, tasks)
        return values, loss.to(values.device), failures

    @torch.no_grad()
    def _generate(
        self, trees: Sequence[Sequence[PromptGroup]], tasks: Sequence[ForecastExample]
    ) -> tuple[Tensor, int]:
        tokenizer = self.population.backbone.tokenizer
        prefix = self.population.read(self.population.pack(trees))
        ids_ART, mask_ART = self.population.sample(
            prefix,
            tokens=HORIZON * _TOKENS_PER_NUMBER,
            temperature=0.0,
            stop=stop_tokens(tokenizer),
        )
        out, failures = [], 0
        for row, (ids, mask) in enumerate(
            zip(ids_ART.flatten(0, 1), mask_ART.flatten(0, 1), strict=True)
        ):
            task = tasks[row % len(tasks)]
            text = tokenizer.decode(ids[mask.bool()].tolist(), skip_special_tokens=True)
            try:
                out.append(self._to_scaled(parse_answer(text), task))
            except ForecastParseError:
                failures += 1
                out.append(task.base_H)
        values = torch.tensor(np.stack(out), dtype=torch.float32, device=ids_ART.device)
        return values.reshape(len(trees), len(tasks), HORIZON), failures

    def _token_loss(
        self, trees: Sequence[Sequence[PromptGroup]], tasks: Sequence[ForecastExample]
    ) -> Tensor:
        """Mean negative log-likelihood of each agent's answer tokens, (A,); masked targets have no answer text."""
        answers = [self._answer_ids(t) for t in tasks]
        packed = self.population.pack([_extended(own, answers) for own in trees])
        states_ALD = self.population.states(packed)
        losses = []
        for agent, leaves in enumerate(packed.leaves):
            for leaf, (segment, answer) in enumerate(zip(leaves, answers, strict=True)):
                if answer:
                    path = packed.path(agent, leaf)[-len(answer) - 1 : -1]
                    end = packed.segments[agent][segment].end
                    target = packed.ids_AL[agent, end - len(answer) : end]
                    losses.append(
                        -self.population.token_logp(states_ALD[agent, path], target).mean()
                    )
        if not losses:
            return states_ALD.flatten(1).sum(1) * 0.0
        return torch.stack(losses).reshape(len(trees), -1).mean(1)

    def _answer_ids(self, task: ForecastExample) -> list[int]:
        if task.truth_H is None or not np.isfinite(task.truth_H).all():
            return []
        std, mean = self.scaler.std[task.view.entity], self.scaler.mean[task.view.entity]
        values = (task.truth_H - task.base_H) * std if self.has_prior else task.truth_H * std + mean
        text = " " + format_answer(values, _DECIMALS.get(task.view.unit, _DEFAULT_DECIMALS))
        tokenizer = self.population.backbone.tokenizer
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, tokenizer.eos_token_id]

    def _to_scaled(self, values: FloatArray, task: ForecastExample) -> FloatArray:
        std, mean = self.scaler.std[task.view.entity], self.scaler.mean[task.view.entity]
        return task.base_H + values / std if self.has_prior else (values - mean) / std


def _extended(trees: Sequence[PromptGroup], answers: Sequence[Sequence[int]]) -> list[PromptGroup]:
    """One agent's prompts with the answer of each leaf's task behind it."""
    rest = iter(answers)
    return [
        PromptGroup(tree.stem, [[*branch, *next(rest)] for branch in tree.branches or [()]])
        for tree in trees
    ]


def stop_tokens(tokenizer: Any) -> list[int]:
    """Tokens that end a logic or an answer: end of sequence and a plain line break."""
    line = tokenizer("\n", add_special_tokens=False)["input_ids"]
    ends = [tokenizer.eos_token_id]
    return ends + (line if len(line) == 1 else [])
