"""A debate: agents forecast, read each other, forecast again, and are verified (paper D.4).

What belongs here: its order at inference, and reading a window for the value and verifier heads.
What does not: what agents tell each other and the heads (``agents.debate``), training
(``training.debate``). All agents are in one process, as each reads all others.

Shapes: A agents, B windows, H horizon, D hidden.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.debate import DebateHeads, weigh_by_score, write_notes
from compevo_core.agents.forecast_example import ForecastExample
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.strategy import (
    ALL_AGENTS,
    BatchForecasts,
    NewsByAgent,
    NotesByAgent,
    StrategyExecutor,
)
from compevo_core.config import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.lm.adapter_routing import VERIFIER
from compevo_core.lm.population import Population


class DebateExecutor(StrategyExecutor):
    """Let a population debate; what :meth:`forecast` gives is one turn of an agent alone.

    Args:
        config: the run's settings.
        population: the agents.
        decoder: reads numbers and forecasts them.
        news_retriever: ranks the articles of a window.
        mix_AP: share of each agent in the priors.
        heads: value and verifier of each agent.
    """

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        decoder: HeadDecoder,
        news_retriever: NewsRetriever,
        mix_AP: FloatArray,
        heads: DebateHeads,
    ) -> None:
        super().__init__(config, population, decoder, news_retriever, mix_AP)
        self.heads = heads
        self._reader = decoder

    @torch.no_grad()
    def execute(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Return the revised forecasts, and the weights that the verifiers give them."""
        news = self.retrieve_news(logics, [example.view for example in examples])
        forecasts = self.forecast(logics, examples, news=news)
        notes: NotesByAgent | None = None
        for _ in range(self.config.debate.revisions):
            notes = self.exchange(examples, forecasts.values_ABH, news)
            forecasts = self.forecast(logics, examples, news=news, notes=notes)

        logit_AB = self.verify(logics, examples, forecasts.values_ABH, news=news, notes=notes)
        return BatchForecasts(
            forecasts.values_ABH,
            forecasts.token_loss_A,
            forecasts.n_unparsed,
            forecasts.n_cut,
            weights_BA=weigh_by_score(logit_AB),
        )

    def exchange(
        self, examples: Sequence[ForecastExample], values_ABH: Tensor, news: NewsByAgent
    ) -> NotesByAgent:
        """Return what each agent reads of the others' forecasts and of their reasons."""
        scaled_ABH = values_ABH.detach().cpu().numpy().astype(np.float64)
        views = [example.view for example in examples]
        scaler = self._reader.inputs.scaler
        in_unit_ABH = np.stack(
            [scaler.unscale(scaled_ABH[:, b], view.entity) for b, view in enumerate(views)], axis=1
        )
        read = [[self.news_retriever.resolve(ids) for ids in row] for row in news]
        return write_notes(views, in_unit_ABH, read)

    def verify(
        self,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        values_ABH: Tensor,
        *,
        news: NewsByAgent,
        notes: NotesByAgent | None,
        agents: slice = ALL_AGENTS,
    ) -> Tensor:
        """Return the verifiers' logits (A, B) of forecasts, with gradient where one is recorded.

        Each agent's verifier reads what the agent read, and its forecast in the place of its base.
        """
        states_ABD = self.read_states(
            VERIFIER, logics, examples, news=news, notes=notes, base_ABH=values_ABH, agents=agents
        )
        return self.heads.verify(states_ABD, agents)

    def read_states(
        self,
        kind: str,
        logics: Sequence[str],
        examples: Sequence[ForecastExample],
        *,
        news: NewsByAgent,
        notes: NotesByAgent | None,
        base_ABH: Tensor | None = None,
        agents: slice = ALL_AGENTS,
    ) -> Tensor:
        """Return the state after each window (A, B, D), read by one kind of adapters.

        Args:
            kind: of the adapters.
            logics: one logic for each of the chosen agents.
            examples: B windows.
            news: what each agent reads.
            notes: what it reads of the others; None before they have said anything.
            base_ABH: forecast to read in place of each agent's base.
            agents: which of the agents.
        """
        readings = self.build_readings(logics, examples, news, notes)
        base = None if base_ABH is None else base_ABH.detach().cpu().numpy().astype(np.float64)
        with self.population.use_adapters(kind, agents=agents):
            return self._reader.read_last_states(readings, agents, base)
