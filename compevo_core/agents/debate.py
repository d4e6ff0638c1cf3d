"""A debate among agents: MAD-RL (paper D.4).

Source: MAPoRL (Park et al., 2025), where language models answer, read each other's answers, answer
again, and are trained together by PPO on a verifier's scores. As the paper adapts it, an answer is
a forecast and its rationale the articles that the agent read; the reward is the forecast's error,
and the verifier's scores of the last turn weigh the agents. A forecast is sampled from a normal
distribution around the numeric head's. Training is in ``training.forecast_step``.

Shapes: A agents, B windows, T turns, H horizon, D hidden.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.agents.decoders import (
    VALUE,
    VERIFIER,
    AgentReadings,
    BatchForecasts,
    ForecastExample,
    RetrievedArticle,
)
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.agents.prompts import clean_text
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.strategy import ALL_AGENTS, StrategyExecutor
from compevo_core.agents.text_decoder import format_numbers
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, split_evenly, to_array
from compevo_core.data.view import WindowView
from compevo_core.lora.population import Population

_TITLE_CHARACTERS = 72
_SMALLEST_SPREAD = 1e-8


class DebateHeads(nn.Module):
    """The value head and the verifier head of every local agent; each maps a state to a number."""

    def __init__(self, agents: int, hidden: int) -> None:
        super().__init__()
        # Zeros: at first no forecast has a value, and all get the same verdict.
        for kind in (VALUE, VERIFIER):
            self.register_parameter(f"{kind}_AD", nn.Parameter(torch.zeros(agents, hidden)))
            self.register_parameter(f"{kind}_bias_A1", nn.Parameter(torch.zeros(agents, 1)))
        # States of deep layers are large and point in few directions; without a norm heads diverge.
        self.norm = nn.LayerNorm(hidden, elementwise_affine=False)

    def forward(self, kind: str, states_ABD: Tensor, agents: slice) -> Tensor:
        """Return the numbers (A, B) of one kind of head.

        The value is what an agent expects to earn from here on, the verifier's the logit that a
        forecast is better than the agents' mean error.
        """
        weight_AD = self.get_parameter(f"{kind}_AD")[agents]
        product_AB = torch.einsum("abd,ad->ab", self.norm(states_ABD), weight_AD)
        return product_AB + self.get_parameter(f"{kind}_bias_A1")[agents]


def write_notes(
    views: Sequence[WindowView],
    values_ABH: FloatArray,
    news: Sequence[Sequence[Sequence[RetrievedArticle]]],
) -> list[list[str]]:
    """Return what each agent reads of all others, by agent, then by window.

    Forecasts cover all agents, in the unit of each window; articles come best match first.
    """
    # Means of four parts of the horizon, as all numbers of all rivals would fill most of a prompt.
    spans = split_evenly(values_ABH.shape[2], 4)
    said: list[list[str]] = []
    for agent, by_window in enumerate(news):
        said.append([])
        for view, values_H, articles in zip(views, values_ABH[agent], by_window, strict=True):
            means = [float(values_H[span].mean()) for span in spans]
            numbers = ", ".join(format_numbers(means, view.unit))
            # A headline is data: it is cleaned like any other text in a prompt.
            reason = clean_text(articles[0].title, _TITLE_CHARACTERS) if articles else "no news"
            text = f"Agent_{agent} forecasts {numbers} {view.unit}, because of: {reason}"
            said[-1].append(text)
    return [
        ["\n".join(others) for others in zip(*said[:agent], *said[agent + 1 :], strict=True)]
        for agent in range(len(said))
    ]


def discount_rewards(reward_TAB: Tensor, discount: float) -> Tensor:
    """Return what each forecast led to, (T, A, B): its reward, and the later ones at a discount.

    Later rewards are means over all agents, as each of them read the forecast and may have been
    misled by it.
    """
    returns = [reward_TAB[-1]]
    for reward_AB in reward_TAB[:-1].flip(0):
        returns.append(reward_AB + discount * returns[-1].mean(0, keepdim=True))
    return torch.stack(returns[::-1])


def standardise_advantages(return_AB: Tensor, value_AB: Tensor) -> Tensor:
    """Return how much more each forecast earned than was expected, in standard deviations."""
    surplus_AB = return_AB - value_AB
    # Where all surpluses are equal there is no spread, and no advantage.
    spread = surplus_AB.std(unbiased=False).clamp(min=_SMALLEST_SPREAD)
    return (surplus_AB - surplus_AB.mean()) / spread


def log_density(sampled_ABH: Tensor, mean_ABH: Tensor, deviation: float) -> Tensor:
    """Return the log-density of forecasts, mean over the steps, up to a constant: (A, B)."""
    return -((sampled_ABH - mean_ABH) / deviation).square().mean(-1) / 2.0


def weigh_by_score(logit_AB: Tensor) -> Tensor:
    """Return the verifier's scores, normalised over the agents of a window, (B, A)."""
    # Scores are between 0 and 1, so that all weights are positive and no agent takes all.
    score_BA = torch.sigmoid(logit_AB).T
    return score_BA / score_BA.sum(1, keepdim=True)


def find_better(error_AB: Tensor) -> Tensor:
    """Return 1 where a forecast beats the agents' mean error on its window, otherwise 0, (A, B)."""
    return (error_AB < error_AB.mean(0, keepdim=True)).to(error_AB.dtype)


class DebateExecutor(StrategyExecutor):
    """Let a population debate; :meth:`forecast` returns a single turn of one agent."""

    decoder: HeadDecoder

    def __init__(
        self,
        config: RunConfig,
        population: Population,
        decoder: HeadDecoder,
        news_retriever: NewsRetriever,
        heads: DebateHeads,
    ) -> None:
        super().__init__(config, population, decoder, news_retriever)
        self.heads = heads

    @torch.no_grad()
    def play(self, logics: Sequence[str], examples: Sequence[ForecastExample]) -> BatchForecasts:
        """Let the agents debate; return the last forecasts, and the weights that verifiers give."""
        readings: AgentReadings = self.read(logics, examples)
        forecasts = self.forecast(readings)
        for _ in range(self.config.debate.revisions):
            readings = self.exchange(readings, forecasts.values_ABH)
            forecasts = self.forecast(readings)

        logit_AB = self.judge(VERIFIER, readings, base_ABH=forecasts.values_ABH)
        return dataclasses.replace(forecasts, weights_BA=weigh_by_score(logit_AB))

    def exchange(self, readings: AgentReadings, values_ABH: Tensor) -> AgentReadings:
        """Return the readings with a note of the others' forecasts and reasons after the news."""
        scaled_ABH = to_array(values_ABH).astype(np.float64)
        views = [reading.example.view for reading in readings[0]]
        scaler = self.decoder.inputs.scaler
        in_unit_ABH = np.stack(
            [scaler.unscale(scaled_ABH[:, b], view.entity) for b, view in enumerate(views)], axis=1
        )
        news = [[reading.news[0] for reading in of_agent] for of_agent in readings]
        notes = write_notes(views, in_unit_ABH, news)
        return [
            [
                dataclasses.replace(reading, note=note)
                for reading, note in zip(*of_agent, strict=True)
            ]
            for of_agent in zip(readings, notes, strict=True)
        ]

    def judge(
        self,
        kind: str,
        readings: AgentReadings,
        *,
        base_ABH: Tensor | None = None,
        agents: slice = ALL_AGENTS,
    ) -> Tensor:
        """Return the number (A, B) that one kind of head gives each window.

        Agents read ``base_ABH``, where it is given, in place of their base.
        """
        base = None if base_ABH is None else to_array(base_ABH).astype(np.float64)
        with self.population.use_adapters(kind, rows=agents):
            states_ABTD, _ = self.decoder.read_states(readings, agents, base)
        value_AB: Tensor = self.heads(kind, states_ABTD[:, :, -1], agents)
        return value_AB
