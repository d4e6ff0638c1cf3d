"""Strategy execution: a logic retrieves news, the agent reads them and forecasts (paper 4.1).

What belongs here: ranking the candidate articles of a window by a logic (decision 06-news), what an
agent gets to read of them, forecasts of the whole population with and without gradient, for one
logic an agent or a group of logics. What does not: which articles are candidates
(``data.context``), embeddings (``lm.encoder``), prompts and numbers (the decoders), rewards and
weights (``agents.selection``), logic updates (``agents.logic_writer``).

Forecasts here are the agents' own, before calibration (``agents.calibration``).

Shapes: A agents, G logics of an agent, B windows, P priors, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.decoders import (
    BatchForecasts,
    ForecastDecoder,
    ForecastExample,
    ForecastRequest,
    RetrievedArticle,
    mix_bases,
)
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.datasets import find_place
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.view import WindowView
from compevo_core.lm.adapters import FORECAST
from compevo_core.lm.encoder import Encoder
from compevo_core.lm.population import Population

_KEPT_EMBEDDINGS = 4096
"""Logics whose embedding is kept: those of a few rounds. A run of the paper samples 175,000."""


class NewsRetriever:
    """Rank a window's articles by their embedding's similarity to the logic's."""

    def __init__(self, pool: NewsPool, encoder: Encoder, top_k: int) -> None:
        self.pool = pool
        self.encoder = encoder
        self.top_k = top_k

        # One logic ranks the articles of every window of a round: embed it once.
        self._embed = lru_cache(maxsize=_KEPT_EMBEDDINGS)(lambda logic: encoder.encode([logic])[0])

    def retrieve(self, logic: str, view: WindowView, scope: str = "all") -> tuple[str, ...]:
        """Return the ids of the top k articles of a window, most similar to the logic first.

        Only the window's candidates are ranked: articles that were available before its origin. The
        scope is ``population.members.news_scope``: all of them, those that name the series' own
        region ("place"), or none.
        """
        return self.rank(logic, view, scope)[: self.top_k] if self.top_k else ()

    def rank(self, logic: str, view: WindowView, scope: str = "all") -> tuple[str, ...]:
        """Return the ids of all the window's candidates, most similar to the logic first."""
        candidates = self._list_candidates(view, scope)
        if not candidates:
            return ()

        rows = self.pool.find_rows(candidates)
        similarity = self.pool.embeddings[rows] @ self._embed(logic)

        # Candidates come newest first, so a stable sort gives ties to the newer article.
        order = np.argsort(-similarity, kind="stable")
        return tuple(candidates[i] for i in order)

    def resolve(self, ids: Sequence[str]) -> tuple[RetrievedArticle, ...]:
        """Return what an agent reads of articles."""
        return tuple(
            RetrievedArticle(
                article_id=name,
                date=f"{self.pool.get_date(name):%d %b}",
                title=self.pool.get_title(name),
                embedding=self.pool.embeddings[row],
            )
            for name, row in zip(ids, self.pool.find_rows(ids), strict=True)
        )

    def _list_candidates(self, view: WindowView, scope: str) -> tuple[str, ...]:
        if scope == "none":
            return ()
        # The candidates of a user's own data set are chosen by the entity's own words already.
        if scope == "place" and not view.task:
            place = find_place(view.dataset, view.entity)
            return tuple(i for i in view.candidate_ids if self.pool.names_region(i, place))
        return view.candidate_ids


ALL_AGENTS = slice(None)

NewsByAgent = Sequence[Sequence[tuple[str, ...]]]
"""Ids of the articles that each agent reads, by agent, then by window; best match first."""

NotesByAgent = Sequence[Sequence[str]]
"""What each agent reads of the others, by agent, then by window."""


@dataclasses.dataclass(frozen=True)
class GroupForecasts:
    """Scaled forecasts of every agent under each logic of its group, without gradient."""

    values_AGBH: Tensor
    n_unparsed: int
    n_cut: int = 0


class StrategyExecutor:
    """Execute the strategies of the local agents on a batch of windows."""

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        decoder: ForecastDecoder,
        news_retriever: NewsRetriever,
        mix_AP: FloatArray,
    ) -> None:
        self.config = config
        self.population = population
        self.decoder = decoder
        self.news_retriever = news_retriever
        self.mix_AP = mix_AP

    def retrieve_news(
        self,
        logics: Sequence[str],
        views: Sequence[WindowView],
        agents: Sequence[int] | None = None,
    ) -> list[list[tuple[str, ...]]]:
        """Return the article ids that each logic retrieves, by agent, then by window.

        The logics are of some agents, whose news scopes may differ; of the local ones by default.
        """
        numbers = self.population.local_agents if agents is None else agents
        scopes = [self.config.population.member(agent).news_scope for agent in numbers]
        return [
            [self.news_retriever.retrieve(logic, view, scope) for view in views]
            for logic, scope in zip(logics, scopes, strict=True)
        ]

    def base_forecasts(
        self, examples: Sequence[ForecastExample], agents: slice = ALL_AGENTS
    ) -> Tensor:
        """Return the base that each local agent corrects, scaled, (A, B, H)."""
        base_ABH = mix_bases(self.mix_AP[agents], examples)
        return torch.tensor(base_ABH, dtype=torch.float32, device=self.population.backbone.device)

    def forecast(
        self,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        *,
        news: NewsByAgent | None = None,
        notes: NotesByAgent | None = None,
        train: bool = False,
        drops_units: bool = True,
        agents: slice = ALL_AGENTS,
    ) -> BatchForecasts:
        """Forecast every example by every agent under its one logic, on the forecast adapters.

        Agents read what their logics retrieve unless ``news`` is given, and ``notes`` of the others
        if there are any. With ``train`` the result carries gradient, and adapter dropout is on
        unless ``drops_units`` is false. ``logics``, ``news`` and ``notes`` are those of ``agents``.
        """
        numbers = self.population.local_agents[agents]
        if news is None:
            news = self.retrieve_news(logics, [example.view for example in examples], numbers)

        readings = self.build_readings(logics, examples, news, notes)
        dropout = self.config.population.dropout if train and drops_units else 0.0
        with (
            self.population.use_adapters(FORECAST, agents=agents, dropout=dropout),
            torch.set_grad_enabled(train),
        ):
            return self.decoder.decode(readings, train=train, agents=agents)

    def build_readings(
        self,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        news: NewsByAgent,
        notes: NotesByAgent | None,
    ) -> list[list[ForecastRequest]]:
        """Return what agents read under one logic each, by agent, then by window."""
        by_agent = notes or [[""] * len(examples)] * len(logics)
        return [
            [
                ForecastRequest(example, [logic], [self.news_retriever.resolve(ids)], note)
                for example, ids, note in zip(examples, agent_news, agent_notes, strict=True)
            ]
            for logic, agent_news, agent_notes in zip(logics, news, by_agent, strict=True)
        ]

    @torch.no_grad()
    def forecast_groups(
        self, groups: Sequence[Sequence[str]], examples: Sequence[ForecastExample]
    ) -> GroupForecasts:
        """Forecast every example by every agent under each of the G logics of its group.

        What the logics of a window share is read once, ``run.micro_batch_size`` windows at a time.
        No dropout: logics of a group are compared with each other, and noise between them would be
        credited to the logic.
        """
        values: list[Tensor] = []
        n_unparsed = 0
        n_cut = 0

        size = self.config.run.micro_batch_size
        for start in range(0, len(examples), size):
            part = examples[start : start + size]
            readings = self._build_group_readings(groups, part)
            with self.population.use_adapters(FORECAST):
                decoded = self.decoder.decode(readings, train=False)

            agents, _, horizon = decoded.values_ABH.shape
            values_ABGH = decoded.values_ABH.reshape(agents, len(part), -1, horizon)
            values.append(values_ABGH.transpose(1, 2))
            n_unparsed += decoded.n_unparsed
            n_cut += decoded.n_cut
        return GroupForecasts(torch.cat(values, 2), n_unparsed, n_cut)

    @torch.no_grad()
    def centre_readout(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> None:
        """Fix the statistics of the head's read-out; call once, before the first round."""
        if not isinstance(self.decoder, HeadDecoder):
            return  # answers as text are read out by the language model's own layer

        readings = self._build_group_readings([[logic] for logic in logics], examples)
        with self.population.use_adapters(FORECAST):
            self.decoder.centre(readings)

    def _build_group_readings(
        self, groups: Sequence[Sequence[str]], examples: Sequence[ForecastExample]
    ) -> list[list[ForecastRequest]]:
        """Return one reading a window with all logics of an agent's group."""
        views = [example.view for example in examples]
        readings = []
        for agent, group in zip(self.population.local_agents, groups, strict=True):
            news = self.retrieve_news(group, views, [agent] * len(group))
            readings.append(
                [
                    ForecastRequest(
                        example, group, [self.news_retriever.resolve(ids) for ids in by_logic]
                    )
                    for example, *by_logic in zip(examples, *news, strict=True)
                ]
            )
        return readings
