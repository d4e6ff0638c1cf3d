"""Forecast prompts of the text decoder, in tokens and within the context length.

What belongs here: the numbers of a prompt as text, prompts of one window under several logics, what
is left out of a prompt that is too long. What does not: wording (``agents.prompts``), answers
(``agents.text_decoder``).

A prompt never exceeds ``backbone.context_length``. What does not fit is left out in this order: the
news that match the logic least, then the oldest history. Task, logic and cue always stay.

Shapes: H horizon, S input steps.
"""

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from compevo_core.agents.decoding import format_numbers
from compevo_core.agents.prompts import render_forecast_prompt, render_logic_and_news
from compevo_core.agents.tokens import Tokenizer, tokenize_prompt
from compevo_core.config import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import LOOKBACK, WindowView
from compevo_core.errors import ConfigError
from compevo_core.lm.packing import PromptGroup

Headlines = Sequence[tuple[str, str]]
"""(date, title) of articles, best match first."""


@dataclasses.dataclass(frozen=True)
class ReadingPrompts:
    """The prompts of one window.

    Attributes:
        group: one prompt for each logic, what they share once.
        n_cut: prompts from which news or history were left out.
    """

    group: PromptGroup
    n_cut: int


class TextPromptBuilder:
    """Lay out windows and logics as prompts that fit."""

    def __init__(self, config: RunConfig, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer

    def build(
        self,
        view: WindowView,
        logics: Sequence[str],
        headlines: Sequence[Headlines],
        base_H: FloatArray | None,
        lookback: int,
    ) -> ReadingPrompts:
        """Return the prompts of a window under each of its logics.

        Args:
            view: the window.
            logics: at least one.
            headlines: of the articles that each logic retrieved.
            base_H: the agent's base in the unit of the series; None without one.
            lookback: last input steps that the agent sees.

        Raises:
            ConfigError: a prompt without news and with one history value is still too long.
        """
        points = self.config.forecast.history_points
        history = _average(view.x[-lookback:], max(points * lookback // LOOKBACK, 1), view.unit)
        base = [] if base_H is None else _average(base_H, points, view.unit)

        prefix, kept = self._fit_history(view, history, base, logics)
        allowed = self.config.backbone.context_length - len(prefix)

        suffixes = []
        n_cut = 0
        for logic, news in zip(logics, headlines, strict=True):
            suffix, has_all_news = self._fit_news(view, logic, news, allowed)
            suffixes.append(suffix)
            n_cut += kept < len(history) or not has_all_news
        return ReadingPrompts(PromptGroup(prefix, suffixes), n_cut)

    def _fit_history(
        self, view: WindowView, history: list[str], base: list[str], logics: Sequence[str]
    ) -> tuple[list[int], int]:
        """Return the shared part with as much of the history as fits, and how many values that is.

        The room is that beside the longest logic without its news: news go before history.
        """
        longest = max(len(self._encode_suffix(view, logic, [])) for logic in logics)
        limit = self.config.backbone.context_length

        def encode(count: int) -> list[int]:
            shared, _ = render_forecast_prompt(
                view, history[len(history) - count :], base, "", tokenizer=self.tokenizer
            )
            return tokenize_prompt(self.tokenizer, shared)

        def is_too_long(count: int) -> bool:
            return len(encode(count)) + longest > limit

        # Nearly every prompt fits whole; only the others are searched for the largest part.
        kept = len(history)
        if is_too_long(kept):
            kept = bisect.bisect_left(range(1, kept), True, key=is_too_long)

        if not kept:
            raise ConfigError(
                f"backbone.context_length = {limit} is too short: the forecast prompt of window "
                f"{view.window_id} has {len(encode(1)) + longest} tokens without news and with one "
                "history value; raise it"
            )
        return encode(kept), kept

    def _fit_news(
        self, view: WindowView, logic: str, headlines: Headlines, allowed: int
    ) -> tuple[list[int], bool]:
        """Return a logic's own part with as many headlines as fit, and whether that is all."""
        for kept in range(len(headlines), -1, -1):
            # Headlines come best match first, so the least similar go first.
            suffix = self._encode_suffix(view, logic, headlines[:kept])
            if len(suffix) <= allowed:
                break
        return suffix, kept == len(headlines)

    def _encode_suffix(self, view: WindowView, logic: str, headlines: Headlines) -> list[int]:
        text = render_logic_and_news(
            logic if self.config.forecast.logic_in_prompt else None,
            headlines,
            title_characters=self.config.news.title_characters,
        )
        _, rest = render_forecast_prompt(view, [], [], text, tokenizer=self.tokenizer)
        return list(self.tokenizer(rest, add_special_tokens=False)["input_ids"])


def _average(values_S: FloatArray, points: int, unit: str) -> list[str]:
    """Return values averaged down to some points, as text in their unit."""
    means = [float(part.mean()) for part in np.array_split(values_S, points)]
    return format_numbers(means, unit)
