"""From prompts to forecasts: a numeric head, or the paper's answer text (decision 1).

What belongs here: the two decoders, which turn prompts in tokens into scaled forecasts. What does
not: how prompts are written (``agents.strategy``), number syntax and the head itself
(``agents.decoding``), adapters and sampling (``lm.population``).

Both decoders share prompts, adapters and the prior's forecast. The head is the default: its loss
is differentiable end to end and a forecast costs one forward pass. Text is what the paper's
parameter counts imply; it is trained by the likelihood of the true answer, because greedy decoding
has no gradient.

Shapes: A agents, R prompts of an agent (a forecast each), H horizon, T tokens, L packed length,
D hidden.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents.decoding import NumericHead, format_answer, parse_answer
from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.tokens import list_stop_tokens
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import HORIZON
from compevo_core.errors import ForecastParseError
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population

#: Decimals of an answer by unit; rounding stays well below the error of a naive forecast.
_DECIMALS = {"MW": 1, "USD": 1, "USD/AUD": 5, "fraction": 4}
_DEFAULT_DECIMALS = 4
_TOKENS_PER_NUMBER = 12  # an upper bound for the packaged tokenizers; a longer answer is cut

#: Prompts of every agent: outer index the agent, inner index its prompt groups.
AgentPrompts = Sequence[Sequence[PromptGroup]]


@dataclasses.dataclass(frozen=True)
class DecodedForecasts:
    """What a decoder makes of a batch of prompts.

    Attributes:
        values_ARH: scaled forecasts; with a gradient path only from the head.
        token_loss_A: the text decoder's training loss of each agent, with gradient; zeros from the
            head and outside training.
        n_unparsed: answers that could not be read and are scored as the prior's forecast.
    """

    values_ARH: Tensor
    token_loss_A: Tensor
    n_unparsed: int


class ForecastDecoder(Protocol):
    """A way to turn prompts into scaled forecasts."""

    @property
    def module(self) -> nn.Module:
        """The parameters that are trained besides the adapters."""
        ...

    def decode(
        self, prompts: AgentPrompts, examples: Sequence[ForecastExample], *, train: bool
    ) -> DecodedForecasts:
        """Forecast after every prompt of each agent.

        Args:
            prompts: the prompt groups of each agent; all agents have the same number of prompts R.
            examples: the example that each of the R prompts asks for, the same for all agents.
            train: whether a loss is needed for the backward pass.
        """
        ...


class HeadDecoder:
    """Read the state at the last prompt token through one linear head per agent.

    The head forecasts the correction to the prior.
    """

    def __init__(self, population: Population) -> None:
        self.population = population
        self.module = NumericHead(len(population.local_agents), population.backbone.hidden_size)
        self.module.to(population.backbone.device)

    def decode(
        self, prompts: AgentPrompts, examples: Sequence[ForecastExample], *, train: bool
    ) -> DecodedForecasts:
        """See :meth:`ForecastDecoder.decode`; the forecasts carry the gradient."""
        del train

        states_ARD = self.population.last_token_states(self.population.pack(prompts))
        base_RH = torch.tensor(
            np.stack([example.base_H for example in examples]),
            dtype=torch.float32,
            device=states_ARD.device,
        )
        values_ARH = self.module(states_ARD) + base_RH
        return DecodedForecasts(values_ARH, values_ARH.new_zeros(len(prompts)), 0)


class TextDecoder:
    """Generate the answer as text, greedily, and parse it strictly.

    With a prior the text holds the correction to it in the unit of the series, without one the
    values themselves. An answer that cannot be read is counted and scored as the prior's forecast
    alone: nothing is padded or repaired.
    """

    def __init__(self, population: Population, scaler: Scaler, *, has_prior: bool) -> None:
        self.population = population
        self.scaler = scaler
        self.has_prior = has_prior
        self.module: nn.Module = nn.Module()  # the language-model head is frozen: no parameters

    def decode(
        self, prompts: AgentPrompts, examples: Sequence[ForecastExample], *, train: bool
    ) -> DecodedForecasts:
        """See :meth:`ForecastDecoder.decode`; the token loss carries the gradient."""
        loss_A = self._token_loss(prompts, examples) if train else torch.zeros(len(prompts))
        values_ARH, n_unparsed = self._generate_forecasts(prompts, examples)
        return DecodedForecasts(values_ARH, loss_A.to(values_ARH.device), n_unparsed)

    @torch.no_grad()
    def _generate_forecasts(
        self, prompts: AgentPrompts, examples: Sequence[ForecastExample]
    ) -> tuple[Tensor, int]:
        tokenizer = self.population.backbone.tokenizer
        cache = self.population.prefill(self.population.pack(prompts))
        ids_ART, mask_ART = self.population.sample(
            cache,
            max_new_tokens=HORIZON * _TOKENS_PER_NUMBER,
            temperature=0.0,
            stop_tokens=list_stop_tokens(tokenizer),
        )

        forecasts = []
        n_unparsed = 0
        rows = zip(ids_ART.flatten(0, 1), mask_ART.flatten(0, 1), strict=True)
        for row, (ids_T, mask_T) in enumerate(rows):
            example = examples[row % len(examples)]
            text = tokenizer.decode(ids_T[mask_T.bool()].tolist(), skip_special_tokens=True)
            try:
                forecasts.append(self._to_scaled(parse_answer(text), example))
            except ForecastParseError:
                n_unparsed += 1
                forecasts.append(example.base_H)

        values = torch.tensor(np.stack(forecasts), dtype=torch.float32, device=ids_ART.device)
        return values.reshape(len(prompts), len(examples), HORIZON), n_unparsed

    def _token_loss(self, prompts: AgentPrompts, examples: Sequence[ForecastExample]) -> Tensor:
        """Return the mean negative log-likelihood of each agent's answer tokens, (A,)."""
        answers = [self._encode_answer(example) for example in examples]
        packed = self.population.pack([_append_answers(groups, answers) for groups in prompts])
        states_ALD = self.population.hidden_states(packed)

        losses = []
        for agent, prompt_segments in enumerate(packed.prompt_segments):
            for prompt, (segment, answer) in enumerate(zip(prompt_segments, answers, strict=True)):
                if not answer:
                    continue

                # The state at a token scores the token after it, so the states start one earlier.
                before = packed.token_indices(agent, prompt)[-len(answer) - 1 : -1]
                end = packed.segments[agent][segment].end
                target_T = packed.ids_AL[agent, end - len(answer) : end]
                logp_T = self.population.token_logp(states_ALD[agent, before], target_T)
                losses.append(-logp_T.mean())

        if not losses:
            # No example has a complete truth: a zero that still has a gradient path, so that the
            # round can call backward as in any other.
            return states_ALD.flatten(1).sum(1) * 0.0

        # All agents score the same examples, so each has the same number of losses.
        return torch.stack(losses).reshape(len(prompts), -1).mean(1)

    def _encode_answer(self, example: ForecastExample) -> list[int]:
        """Return the tokens of the true answer.

        There are none if a target is missing: text, unlike the head's loss, cannot be masked.
        """
        if example.truth_H is None or not np.isfinite(example.truth_H).all():
            return []

        std = self.scaler.std[example.view.entity]
        mean = self.scaler.mean[example.view.entity]
        if self.has_prior:
            values_H = (example.truth_H - example.base_H) * std
        else:
            values_H = example.truth_H * std + mean

        # The leading space makes the first number the token that follows the cue in running text.
        text = " " + format_answer(values_H, _DECIMALS.get(example.view.unit, _DEFAULT_DECIMALS))
        tokenizer = self.population.backbone.tokenizer
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return [*ids, tokenizer.eos_token_id]

    def _to_scaled(self, values_H: FloatArray, example: ForecastExample) -> FloatArray:
        std = self.scaler.std[example.view.entity]
        if self.has_prior:
            return example.base_H + values_H / std

        return (values_H - self.scaler.mean[example.view.entity]) / std


def _append_answers(
    groups: Sequence[PromptGroup], answers: Sequence[Sequence[int]]
) -> list[PromptGroup]:
    """Return one agent's prompts, each continued by the answer of its example."""
    remaining = iter(answers)
    return [
        PromptGroup(
            group.prefix, [[*branch, *next(remaining)] for branch in group.suffixes or [()]]
        )
        for group in groups
    ]
