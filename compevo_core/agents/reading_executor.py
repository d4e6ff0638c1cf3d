"""Agents without a language model: each forecasts its base and what a ridge reads in its news.

What belongs here: these forecasts. What does not: the ridges (``agents.linear_reader``,
``agents.joint_reader``), agents that a language model corrects (``agents.strategy``).

Shapes: A agents, B windows, P priors, H horizon.
"""

from collections.abc import Sequence

import numpy as np

from compevo_core.agents.decoders import BaseExecutor, BatchForecasts, ForecastExample
from compevo_core.agents.linear_reader import LinearReader
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.config.sections import MemberConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView


class ReadingExecutor(BaseExecutor):
    """Forecasts each window by each agent's base and reading."""

    def __init__(
        self,
        mix_AP: FloatArray,
        members: Sequence[MemberConfig],
        retriever: NewsRetriever,
        reader: LinearReader,
    ) -> None:
        super().__init__(mix_AP)
        self.reader = reader
        self._members = members
        self._retriever = retriever

    def retrieve_news(
        self, logics: Sequence[str], views: Sequence[WindowView]
    ) -> list[list[tuple[str, ...]]]:
        """Return the ids of the articles that each agent reads, by agent, then by window."""
        return [
            self._retriever.retrieve_for(member, logic, views)
            for member, logic in zip(self._members, logics, strict=True)
        ]

    def play(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Return bases with readings as the agents' forecasts."""
        values_ABH = self.base_forecasts(examples)
        news = self.retrieve_news(logics, [example.view for example in examples])
        for agent, (logic, by_window) in enumerate(zip(logics, news, strict=True)):
            fit = self.reader.find(agent, logic)
            for b, (example, ids) in enumerate(zip(examples, by_window, strict=True)):
                if ids:
                    reading_H = fit.read(example.view, self._retriever.resolve(ids))
                    values_ABH[agent, b] += reading_H
        return BatchForecasts(values_ABH, np.zeros(len(logics)))
