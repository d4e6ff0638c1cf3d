"""Forecasts as text: the paper's decoder (decision 01-decoder; number syntax of paper D.3).

What belongs here: one parser and one formatter of numbers, prompts within the context length,
generating and reading answers, their training loss. What does not: wording (``agents.prompts``),
adapters and sampling (``lora.population``).

If a prompt exceeds ``backbone.context_length``, the news that match the logic least are left out,
then the oldest history. Greedy decoding has no gradient, so agents are trained by the likelihood of
the true answer.

Shapes: A agents, P base models, R forecasts of an agent, S input steps, H horizon, T tokens, L
packed length, D hidden.
"""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents import decoders, prompts
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import DEFAULT_STEPS, WindowView, find_horizon
from compevo_core.errors import ConfigError, ForecastParseError
from compevo_core.lora import Population, PromptGroup, SamplingSettings

_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_SEPARATOR = re.compile(r"[\s,;]+")
_DECIMALS = {"MW": 1, "USD": 1, "USD/AUD": 5, "fraction": 4}
_LARGEST = 1e15  # in the unit of the series; far above any of them, far below float32's limit


def format_numbers(values: Sequence[float] | FloatArray, unit: str) -> list[str]:
    """Write numbers with the decimals of their unit; the rounding is far below any error."""
    return [f"{float(value):.{_DECIMALS.get(unit, 4)}f}" for value in values]


def has_all_numbers(text: str, horizon: int = DEFAULT_STEPS) -> bool:
    """Return whether a text has all its numbers, and the separator that ends the last one."""
    parts = [part for part in _SEPARATOR.split(text) if part]
    return len(parts) >= horizon and _SEPARATOR.fullmatch(text[-1:]) is not None


def parse_answer(text: str, horizon: int = DEFAULT_STEPS) -> FloatArray:
    """Read exactly ``horizon`` finite numbers from the first line of an answer, in its unit.

    Later lines are ignored. Nothing else is forgiven, as repairing an answer would be guessing.
    ForecastParseError for too few or many numbers, a word between them, or a value out of range.
    """
    first_line = text.strip().split("\n")[0].rstrip(". ")
    parts = [part for part in _SEPARATOR.split(first_line) if part]
    if len(parts) != horizon:
        raise ForecastParseError(
            f"the answer has {len(parts)} values, expected {horizon}: {text[:60]!r}"
        )

    values = np.empty(horizon)
    for position, part in enumerate(parts):
        # float() would also accept "nan", "infinity" and "1_000".
        if not _NUMBER.fullmatch(part):
            raise ForecastParseError(
                f"value {position + 1} of the answer is not a number: {part[:40]!r}"
            )

        value = float(part)
        if not math.isfinite(value) or abs(value) > _LARGEST:
            raise ForecastParseError(
                f"value {position + 1} of the answer is out of range: {part[:40]!r}"
            )
        values[position] = value
    return values


_TOKENS_PER_NUMBER = 12  # an upper bound for the packaged tokenizers; a longer answer is cut


@dataclasses.dataclass(frozen=True)
class _Question:
    """What an agent is asked about a window."""

    example: decoders.ForecastExample
    # The agent's own base, scaled; None if it answers with the values themselves
    base_H: FloatArray | None
    group: PromptGroup  # its prompts, one for each logic
    n_cut: int  # prompts from which news or history were left out


class TextDecoder:
    """Generate each answer as text, greedily, and parse it strictly.

    An agent with a base model writes the correction to its base in the unit of the series; one
    without (a row of zeros in ``mix_AP``) writes the forecast itself. An answer that cannot be read
    is counted and scored as the uncorrected base.
    """

    def __init__(
        self, population: Population, config: RunConfig, scaler: Scaler, mix_AP: FloatArray
    ) -> None:
        self.population = population
        self.config = config
        self.scaler = scaler
        self.mix_AP = mix_AP
        self.module: nn.Module = nn.Module()  # the language-model head is frozen: no parameters
        self._tokenizer = population.backbone.tokenizer

    def decode(
        self, readings: decoders.AgentReadings, *, train: bool, agents: slice = slice(None)
    ) -> decoders.BatchForecasts:
        """Forecast every reading of some local agents under each of its logics, in their order.

        With ``train`` there is a token loss, with gradient and the caller's adapters and dropout.
        Answers are always generated without dropout, as rewards and weights depend on them.
        """
        asked = self._ask_all(readings, agents)
        loss_A = self._token_loss(asked) if train else torch.zeros(len(readings))
        with self.population.use_adapters(decoders.FORECAST, rows=agents):
            values_ABH, n_unparsed = self._generate_forecasts(asked)

        return decoders.BatchForecasts(
            values_ABH=values_ABH,
            token_loss_A=loss_A.to(values_ABH.device),
            n_unparsed=n_unparsed,
            n_cut=sum(question.n_cut for row in asked for question in row),
        )

    def measure_loss(self, readings: decoders.AgentReadings) -> Tensor:
        """Return only the training loss (A,), with gradient, without generating answers."""
        return self._token_loss(self._ask_all(readings, slice(None)))

    def _ask_all(self, readings: decoders.AgentReadings, agents: slice) -> list[list[_Question]]:
        numbers = range(len(self.mix_AP))[agents]
        return [
            [self._ask(number, reading) for reading in row]
            for number, row in zip(numbers, readings, strict=True)
        ]

    def _ask(self, number: int, reading: decoders.ForecastRequest) -> _Question:
        """Return what the local agent of this number is asked about a window.

        ConfigError if a prompt without news and with one history value is still too long.
        """
        view = reading.example.view
        mix_P = self.mix_AP[number]
        base_H = mix_P @ reading.example.priors_PH if mix_P.any() else None
        points = self.config.forecast.history_points
        history = _average(view.x, points, view.unit)
        base: list[str] = []
        if base_H is not None:
            base = _average(self.scaler.unscale(base_H, view.entity), points, view.unit)

        # News is dropped before history, which needs to leave room only for the longest logic.
        limit = self.config.backbone.context_length
        longest = max(len(self._encode_suffix(view, logic, [])) for logic in reading.logics)
        for n_history in range(len(history), 0, -1):
            shown = history[len(history) - n_history :]
            shared, _ = prompts.render_forecast_prompt(
                view, shown, base, "", tokenizer=self._tokenizer
            )
            prefix = prompts.tokenize_prompt(self._tokenizer, shared)
            if len(prefix) + longest <= limit:
                break
        else:
            raise ConfigError(
                f"backbone.context_length = {limit} is too short: the forecast prompt of window "
                f"{view.window_id} has {len(prefix) + longest} tokens without news and with one "
                "history value; raise it"
            )

        room = limit - len(prefix)
        suffixes = []
        n_cut = 0
        for logic, news in zip(reading.logics, reading.news, strict=True):
            # Articles come best match first, so the least similar are left out first.
            for count in range(len(news), -1, -1):
                suffix = self._encode_suffix(view, logic, news[:count])
                if len(suffix) <= room:
                    break
            suffixes.append(suffix)
            n_cut += n_history < len(history) or count < len(news)
        return _Question(reading.example, base_H, PromptGroup(prefix, suffixes), n_cut)

    def _encode_suffix(
        self, view: WindowView, logic: str, news: Sequence[decoders.RetrievedArticle]
    ) -> list[int]:
        text = prompts.render_logic_and_news(
            logic if self.config.forecast.logic_in_prompt else None,
            news,
            title_characters=self.config.news.title_characters,
        )
        _, rest = prompts.render_forecast_prompt(view, [], [], text, tokenizer=self._tokenizer)
        return list(self._tokenizer.encode(rest, add_special_tokens=False))

    @torch.no_grad()
    def _generate_forecasts(self, asked: Sequence[Sequence[_Question]]) -> tuple[Tensor, int]:
        """Return forecasts (A, B, H), and how many answers could not be read."""
        tokenizer = self._tokenizer
        answered = [question for row in asked for question in row for _ in question.group.suffixes]
        horizon = find_horizon([question.example.view for question in answered])
        groups = [[question.group for question in row] for row in asked]
        ids_ART, mask_ART = self.population.sample(
            self.population.prefill(self.population.pack(groups)),
            SamplingSettings(
                max_new_tokens=horizon * _TOKENS_PER_NUMBER,
                temperature=0.0,
                stop_tokens=prompts.list_stop_tokens(tokenizer),
                is_complete=lambda ids: has_all_numbers(tokenizer.decode(ids), horizon),
            ),
        )

        forecasts = []
        n_unparsed = 0
        rows = zip(ids_ART.flatten(0, 1), mask_ART.flatten(0, 1), answered, strict=True)
        for ids_T, mask_T, question in rows:
            text = tokenizer.decode(ids_T[mask_T.bool()].tolist(), skip_special_tokens=True)
            try:
                values_H, entity = parse_answer(text, horizon), question.example.view.entity
                if question.base_H is None:
                    forecasts.append(self.scaler.scale(values_H, entity))
                else:
                    forecasts.append(question.base_H + values_H / self.scaler.std[entity])
            except ForecastParseError:
                n_unparsed += 1
                forecasts.append(np.zeros(horizon) if question.base_H is None else question.base_H)

        values = torch.tensor(np.stack(forecasts), dtype=torch.float32, device=ids_ART.device)
        return values.reshape(len(asked), -1, horizon), n_unparsed

    def _token_loss(self, asked: Sequence[Sequence[_Question]]) -> Tensor:
        """Return the mean negative log-likelihood of each agent's answer tokens, (A,)."""
        groups = [
            [
                dataclasses.replace(question.group, answer=self._encode_answer(question))
                for question in row
            ]
            for row in asked
        ]
        return self.population.answer_loss(self.population.pack(groups))

    def _encode_answer(self, question: _Question) -> list[int]:
        """Return the tokens of the true answer; none if a target is missing."""
        truth_H, view = question.example.truth_H, question.example.view
        if truth_H is None or not question.example.has_whole_truth:
            return []

        if question.base_H is None:
            values_H = self.scaler.unscale(truth_H, view.entity)
        else:
            values_H = (truth_H - question.base_H) * self.scaler.std[view.entity]

        # With a leading space the first number is tokenized as after the cue in running text.
        text = " " + ", ".join(format_numbers(values_H, view.unit))
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return [*ids, self._tokenizer.eos_token_id]


def _average(values_S: FloatArray, points: int, unit: str) -> list[str]:
    """Return values averaged down to some points, as text in their unit."""
    means = [float(part.mean()) for part in np.array_split(values_S, min(points, len(values_S)))]
    return format_numbers(means, unit)
