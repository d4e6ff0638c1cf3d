"""Strategy execution: a logic chooses news, the agent reads them and forecasts (paper 4.1).

What belongs here: choosing articles by a logic, laying out the prompts of all agents and windows,
forecasts of the whole population with and without gradient. What does not: rewards, weights, logic updates.
Legend: A agents, G logics of an agent, B windows, H horizon, T tokens, D hidden.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from compevo_core.agents.decoders import ForecastDecoder, ForecastExample
from compevo_core.agents.prompts import forecast_prompt, history_index
from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowView
from compevo_core.lm.encoder import Encoder
from compevo_core.lm.packing import PromptGroup
from compevo_core.lm.population import FORECAST, Population


class NewsChooser:
    """Ranks a window's candidates by the similarity of their embedding to the logic's (design decision 10)."""

    def __init__(self, pool: NewsPool, encoder: Encoder, top_k: int) -> None:
        self.pool, self.encoder, self.top_k = pool, encoder, top_k
        self._vectors: dict[str, npt.NDArray[np.float32]] = {}

    def choose(self, logic: str, view: WindowView) -> tuple[str, ...]:
        """Ids of the chosen articles, best first; ties go to the newer article."""
        if not view.candidate_ids or not self.top_k:
            return ()
        rows = self.pool.rows(view.candidate_ids)
        order = np.argsort(-(self.pool.embeddings[rows] @ self.vector(logic)), kind="stable")
        return tuple(view.candidate_ids[i] for i in order[: self.top_k])

    def vector(self, logic: str) -> npt.NDArray[np.float32]:
        """Embedding of a logic, computed once per text."""
        if logic not in self._vectors:
            self._vectors[logic] = self.encoder.encode([logic])[0]
        return self._vectors[logic]

    def headlines(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """(date, title) of articles, as a prompt shows them."""
        return [(f"{self.pool.date(i):%d %b}", self.pool.title(i)) for i in ids]


class StrategyExecutor:
    """Runs every agent's strategy on a batch of windows."""

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        answers: ForecastDecoder,
        chooser: NewsChooser,
        scaler: Scaler,
    ) -> None:
        self.config, self.population, self.answers = config, population, answers
        self.chooser, self.scaler = chooser, scaler

    @property
    def _tokenizer(self) -> Any:
        return self.population.backbone.tokenizer

    def chosen(
        self, logics: Sequence[str], views: Sequence[WindowView]
    ) -> list[list[tuple[str, ...]]]:
        """News choices by agent, then by window."""
        return [[self.chooser.choose(logic, view) for view in views] for logic in logics]

    def _parts(
        self, view: WindowView, logic: str, news: Sequence[str]
    ) -> tuple[list[int], list[int]]:
        forecast = self.config.forecast
        level = abs(self.scaler.mean[view.entity]) or self.scaler.std[view.entity]
        shared, rest = forecast_prompt(
            view,
            history_index(view.x, level, forecast.history_points),
            logic if forecast.logic_in_prompt else None,
            self.chooser.headlines(news),
            title_characters=self.config.news.title_characters,
            tokenizer=self._tokenizer,
        )
        head = self._tokenizer(shared, add_special_tokens=True)["input_ids"]
        if head and head[-1] == self._tokenizer.eos_token_id:
            head = head[:-1]
        tail = self._tokenizer(rest, add_special_tokens=False)["input_ids"]
        keep = self.config.backbone.context_tokens - len(head)
        return head, tail[-max(keep, 16) :]

    def forecast(
        self, logics: Sequence[str], tasks: Sequence[ForecastExample], *, train: bool = False
    ) -> tuple[Tensor, Tensor, int]:
        """Every agent's forecast of every task under its one logic; keep the backward pass in the same routing.

        Returns:
            scaled forecasts (A, B, H), differentiable if ``train`` and the decoder is the head;
            each agent's token loss of the text decoder (A,), zero otherwise; how many answers could not be read.
        """
        trees = [[self._tree(t.view, [logic]) for t in tasks] for logic in logics]
        with self.routing(train=train), torch.set_grad_enabled(train):
            return self.answers.answer(trees, tasks, train=train)

    def routing(self, *, train: bool) -> AbstractContextManager[None]:
        """Forecast adapters for all agents, with dropout while training."""
        return self.population.using(
            FORECAST, dropout=self.config.population.dropout if train else 0.0
        )

    @torch.no_grad()
    def forecast_groups(
        self, groups: Sequence[Sequence[str]], tasks: Sequence[ForecastExample]
    ) -> tuple[Tensor, int]:
        """Forecasts of every agent under each logic of its group, reading what the logics share once.

        Args:
            groups: G logics for each of A agents.
            tasks: B windows.

        Returns:
            scaled forecasts (A, G, B, H) and how many answers could not be read.
        """
        size = len(groups[0])
        trees = [[self._tree(task.view, group) for task in tasks] for group in groups]
        with self.population.using(FORECAST):
            values, _, failures = self.answers.answer(
                trees, [t for t in tasks for _ in range(size)], train=False
            )
        return values.reshape(len(groups), len(tasks), size, -1).transpose(1, 2), failures

    def _tree(self, view: WindowView, logics: Sequence[str]) -> PromptGroup:
        parts = [self._parts(view, logic, self.chooser.choose(logic, view)) for logic in logics]
        return PromptGroup(parts[0][0], [tail for _, tail in parts])
