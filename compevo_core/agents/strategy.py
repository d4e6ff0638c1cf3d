"""Strategy execution: a logic retrieves news, the agent reads them and forecasts (paper 4.1).

What belongs here: retrieving articles by a logic, laying out the prompts of all agents and windows,
forecasts of the whole population with and without gradient. What does not: rewards and weights
(``agents.selection``), logic updates (``agents.logic_writer``), wording (``agents.prompts``).

Shapes: A agents, G logics of an agent, B windows, H horizon, T tokens, D hidden.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from compevo_core.agents.decoders import ForecastDecoder
from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.prompts import format_history, render_forecast_prompt
from compevo_core.agents.tokens import Tokenizer, tokenize_prompt
from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowView
from compevo_core.lm.adapter_routing import FORECAST
from compevo_core.lm.encoder import Encoder
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import Population

_MIN_SUFFIX_TOKENS = 16  # of the part after the shared prefix, however long that prefix is


class NewsRetriever:
    """Rank a window's articles by their embedding's similarity to the logic's (decision 10)."""

    def __init__(self, pool: NewsPool, encoder: Encoder, top_k: int) -> None:
        self.pool = pool
        self.encoder = encoder
        self.top_k = top_k
        self._embeddings: dict[str, npt.NDArray[np.float32]] = {}

    def retrieve(self, logic: str, view: WindowView) -> tuple[str, ...]:
        """Return the ids of the top k articles, most similar first.

        Only the window's candidates are ranked: articles that were available before its origin.
        """
        if not view.candidate_ids or not self.top_k:
            return ()

        rows = self.pool.find_rows(view.candidate_ids)
        similarity = self.pool.embeddings[rows] @ self._embed(logic)

        # Candidates come newest first, so a stable sort gives ties to the newer article.
        order = np.argsort(-similarity, kind="stable")
        return tuple(view.candidate_ids[i] for i in order[: self.top_k])

    def format_headlines(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return (date, title) of articles, as a prompt shows them."""
        return [(f"{self.pool.get_date(i):%d %b}", self.pool.get_title(i)) for i in ids]

    def _embed(self, logic: str) -> npt.NDArray[np.float32]:
        # One logic ranks the articles of every window of a round: embed it once.
        if logic not in self._embeddings:
            self._embeddings[logic] = self.encoder.encode([logic])[0]
        return self._embeddings[logic]


@dataclasses.dataclass(frozen=True)
class BatchForecasts:
    """Forecasts of every agent under one logic each.

    Attributes:
        values_ABH: scaled forecasts, differentiable in training if the decoder is the head.
        token_loss_A: each agent's token loss of the text decoder, zeros otherwise.
        n_unparsed: answers that could not be read.
    """

    values_ABH: Tensor
    token_loss_A: Tensor
    n_unparsed: int


@dataclasses.dataclass(frozen=True)
class GroupForecasts:
    """Forecasts of every agent under each logic of its group, without gradient.

    Attributes:
        values_AGBH: scaled forecasts.
        n_unparsed: answers that could not be read.
    """

    values_AGBH: Tensor
    n_unparsed: int


class StrategyExecutor:
    """Execute every agent's strategy on a batch of windows."""

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        decoder: ForecastDecoder,
        news_retriever: NewsRetriever,
        scaler: Scaler,
    ) -> None:
        self.config = config
        self.population = population
        self.decoder = decoder
        self.news_retriever = news_retriever
        self.scaler = scaler

    def retrieve_news(
        self, logics: Sequence[str], views: Sequence[WindowView]
    ) -> list[list[tuple[str, ...]]]:
        """Return the article ids each logic retrieves, by agent, then by window."""
        return [[self.news_retriever.retrieve(logic, view) for view in views] for logic in logics]

    def forecast(
        self, logics: Sequence[str], examples: Sequence[ForecastExample], *, train: bool = False
    ) -> BatchForecasts:
        """Forecast every example by every agent under its one logic, on the forecast adapters.

        Args:
            logics: one logic for each of A agents.
            examples: B windows.
            train: whether the result shall carry gradient; it also turns adapter dropout on.
        """
        prompts = [
            [self._build_prompts(example.view, [logic]) for example in examples] for logic in logics
        ]
        dropout = self.config.population.dropout if train else 0.0
        with (
            self.population.use_adapters(FORECAST, dropout=dropout),
            torch.set_grad_enabled(train),
        ):
            decoded = self.decoder.decode(prompts, examples, train=train)

        # One prompt an example: the prompts of an agent are its windows.
        return BatchForecasts(decoded.values_ARH, decoded.token_loss_A, decoded.n_unparsed)

    @torch.no_grad()
    def forecast_groups(
        self, groups: Sequence[Sequence[str]], examples: Sequence[ForecastExample]
    ) -> GroupForecasts:
        """Forecast every example by every agent under each logic of its group.

        What the logics of a window share in the prompt is read once. No dropout: logics of a group
        are compared with each other, and noise between them would be credited to the logic.

        Args:
            groups: G logics for each of A agents.
            examples: B windows.
        """
        size = len(groups[0])
        prompts = [
            [self._build_prompts(example.view, group) for example in examples] for group in groups
        ]
        with self.population.use_adapters(FORECAST):
            decoded = self.decoder.decode(
                prompts, [example for example in examples for _ in range(size)], train=False
            )

        values_ABGH = decoded.values_ARH.reshape(len(groups), len(examples), size, -1)
        return GroupForecasts(values_ABGH.transpose(1, 2), decoded.n_unparsed)

    def _build_prompts(self, view: WindowView, logics: Sequence[str]) -> PromptGroup:
        """Return the prompts of one window under several logics, their common beginning once."""
        parts = [
            self._tokenize_parts(view, logic, self.news_retriever.retrieve(logic, view))
            for logic in logics
        ]
        return PromptGroup(parts[0][0], [suffix for _, suffix in parts])

    def _tokenize_parts(
        self, view: WindowView, logic: str, news: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        """Return the tokens that all logics of a window share, and those of this logic."""
        tokenizer: Tokenizer = self.population.backbone.tokenizer
        forecast = self.config.forecast

        # The history is shown relative to this level, so it must not be zero.
        level = abs(self.scaler.mean[view.entity]) or self.scaler.std[view.entity]
        shared_text, logic_text = render_forecast_prompt(
            view,
            format_history(view.x, level, forecast.history_points),
            logic if forecast.logic_in_prompt else None,
            self.news_retriever.format_headlines(news),
            title_characters=self.config.news.title_characters,
            tokenizer=tokenizer,
        )

        prefix = tokenize_prompt(tokenizer, shared_text)
        suffix = tokenizer(logic_text, add_special_tokens=False)["input_ids"]

        # The cue for the answer stands at the end, so a prompt that is too long is cut before it.
        allowed = self.config.backbone.context_length - len(prefix)
        return prefix, suffix[-max(allowed, _MIN_SUFFIX_TOKENS) :]
