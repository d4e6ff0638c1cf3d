"""Strategy execution: a logic retrieves news, the agent reads them and forecasts (paper 4.1).

What belongs here: forecasts of the whole population with and without gradient, under one logic of
each agent or a group of logics, before calibration. What does not: ranking articles
(``agents.retrieval``), prompts and numbers (the decoders), rewards (``agents.selection``).

Shapes: A agents, G logics of an agent, B windows, P base models, H horizon.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from compevo_core.agents.decoders import (
    FORECAST,
    AgentReadings,
    BatchForecasts,
    ForecastExample,
    ForecastRequest,
    mix_bases,
)
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.agents.linear_reader import LinearReader
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.text_decoder import TextDecoder
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.lora.population import Population

ALL_AGENTS = slice(None)


@dataclasses.dataclass(eq=False)
class ReadingExecutor:
    """Agents that read what their logics retrieve: each corrects its base by a ridge's reading."""

    config: RunConfig
    agents: Sequence[int]  # numbers of the agents of this process
    mix_AP: FloatArray  # shares of the base models in each agent's base
    news_retriever: NewsRetriever
    linear_reader: LinearReader | None = None

    def play(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Return every agent's forecasts as they are scored and issued, without gradient."""
        readings = self.read(logics, examples)
        values_ABH = mix_bases(self.mix_AP, examples) + self.read_linearly(readings, self.agents)
        return BatchForecasts(values_ABH, news=list_news(readings))

    def read(
        self, logics: Sequence[str], examples: Sequence[ForecastExample], agents: slice = ALL_AGENTS
    ) -> list[list[ForecastRequest]]:
        """Return what some local agents read under their logics, by agent, then by window."""
        return self.read_groups([[logic] for logic in logics], examples, agents)

    def read_groups(
        self,
        groups: Sequence[Sequence[str]],
        examples: Sequence[ForecastExample],
        agents: slice = ALL_AGENTS,
        *,
        adds_no_news: bool = False,
    ) -> list[list[ForecastRequest]]:
        """Return one reading per window with all logics of an agent's group.

        With ``adds_no_news`` the first logic is repeated at the end, without news.
        """
        views = [example.view for example in examples]
        readings = []
        for agent, group in zip(self.agents[agents], groups, strict=True):
            member, retriever = self.config.population.list_members()[agent], self.news_retriever
            news = [retriever.retrieve_for(member, logic, views) for logic in group]
            if adds_no_news:
                group = [*group, group[0]]
                news.append([()] * len(views))
            readings.append(
                [
                    ForecastRequest(example, group, [retriever.resolve(ids) for ids in by_logic])
                    for example, *by_logic in zip(examples, *news, strict=True)
                ]
            )
        return readings

    def read_linearly(self, readings: AgentReadings, agents: Sequence[int]) -> FloatArray:
        """Return what ridges read in the agents' news (A, B, H); zero where there is none."""
        assert self.linear_reader is not None  # noqa: S101 - whoever asks has one
        count = sum(len(reading.logics) for reading in readings[0])
        linear_ABH = np.zeros((len(agents), count, readings[0][0].example.view.horizon))
        for linear_BH, agent, agent_readings in zip(linear_ABH, agents, readings, strict=True):
            evidence = [
                (reading.example.view, logic, articles)
                for reading in agent_readings
                for logic, articles in zip(reading.logics, reading.news, strict=True)
            ]
            for linear_H, (view, logic, articles) in zip(linear_BH, evidence, strict=True):
                if articles:
                    linear_H[:] = self.linear_reader.find(agent, logic).read(view, articles)
        return linear_ABH


def list_news(readings: AgentReadings) -> list[list[tuple[str, ...]]]:
    """Return the ids of the articles that each agent reads under one logic, by window."""
    return [
        [tuple(article.article_id for article in reading.news[0]) for reading in of_agent]
        for of_agent in readings
    ]


class StrategyExecutor(ReadingExecutor):
    """Execute the strategies of the local agents on a batch of windows by a language model."""

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        decoder: HeadDecoder | TextDecoder,
        news_retriever: NewsRetriever,
        linear_reader: LinearReader | None = None,
    ) -> None:
        super().__init__(config, population.local, decoder.mix_AP, news_retriever, linear_reader)
        self.population = population
        self.decoder = decoder

    def play(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Return every agent's forecasts as they are scored and issued, without gradient."""
        return self.forecast(self.read(logics, examples))

    def forecast(
        self,
        readings: AgentReadings,
        *,
        train: bool = False,
        drops_units: bool = True,
        agents: slice = ALL_AGENTS,
    ) -> BatchForecasts:
        """Forecast what some local agents read under one logic each, on the forecast adapters.

        With ``train`` the result carries gradient, and adapter dropout is on unless ``drops_units``
        is false.
        """
        dropout = self.config.population.dropout if train and drops_units else 0.0
        with (
            self.population.use_adapters(FORECAST, rows=agents, dropout=dropout),
            torch.set_grad_enabled(train),
        ):
            decoded = self.decoder.decode(readings, train=train, agents=agents)
            values_ABH = decoded.values_ABH
            if self.linear_reader is not None:
                linear_ABH = self.read_linearly(readings, self.agents[agents])
                values_ABH = values_ABH + torch.from_numpy(linear_ABH).to(values_ABH)
            return dataclasses.replace(decoded, values_ABH=values_ABH, news=list_news(readings))

    def forecast_groups(
        self,
        groups: Sequence[Sequence[str]],
        examples: Sequence[ForecastExample],
        *,
        adds_no_news: bool = False,
    ) -> BatchForecasts:
        """Forecast every example by every agent under each of its G logics, (A, G, B, H).

        With ``adds_no_news`` a last one is under the first logic, without news. What the logics of
        a window share is read once. There is no dropout: logics would be credited with its noise.
        """
        values, n_unparsed, n_cut = [], 0, 0
        size = self.config.run.micro_batch_size
        for start in range(0, len(examples), size):
            part = examples[start : start + size]
            decoded = self.forecast(self.read_groups(groups, part, adds_no_news=adds_no_news))
            agents, _, horizon = decoded.values_ABH.shape
            values_ABGH = decoded.values_ABH.reshape(agents, len(part), -1, horizon)
            values.append(values_ABGH.transpose(1, 2))
            n_unparsed += decoded.n_unparsed
            n_cut += decoded.n_cut
        return BatchForecasts(torch.cat(values, 2), decoded.token_loss_A, n_unparsed, n_cut)

    @torch.no_grad()
    def centre_readout(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> None:
        """Fix the statistics of the head's read-out; call once, before the first round."""
        if not isinstance(self.decoder, HeadDecoder):
            return  # answers as text need no read-out

        with self.population.use_adapters(FORECAST):
            states_ARTD, _ = self.decoder.read_states(self.read(logics, examples), ALL_AGENTS)
        self.decoder.readout.centre(states_ARTD)
