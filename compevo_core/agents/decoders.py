"""What ensembles and decoders of agents are given, and what they return (decision 01-decoder).

What belongs here: prepared windows, requests and forecasts, kinds of adapters, the bases of
members, and equal weights. What does not: the numeric head (``agents.head_decoder``), answers as
text (``agents.text_decoder``), agents that read (``agents.strategy``), fitting base models and
scaling (``training.prior``), weights that rounds train (``agents.selection``).

Shapes: A agents or members, B windows or forecasts of an agent, P base models, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView

FORECAST = "forecast"
LOGIC = "logic"
KINDS = (FORECAST, LOGIC)  # paper 5.1: two adapters for each agent
VALUE = "value"
VERIFIER = "verifier"
DEBATE_KINDS = (FORECAST, VALUE, VERIFIER)  # paper D.4: three in a debate, the first its policy


@dataclasses.dataclass(frozen=True)
class ForecastExample:
    """A window with the forecasts of the run's base models and, in training, the truth.

    All arrays are in the scaled units of the train split, so that series of any size compare.
    """

    view: WindowView
    # The forecast of every base model; each agent corrects its own mixture of them, its base
    # (decision 02-priors). Without any base model P is 0, and the base is zero
    priors_PH: FloatArray
    truth_H: FloatArray | None = None  # the observed values, NaN where missing; None at inference

    @property
    def has_whole_truth(self) -> bool:
        """Whether every observed value is known."""
        return self.truth_H is not None and bool(np.isfinite(self.truth_H).all())


def mix_bases(mix_AP: FloatArray, examples: Sequence[ForecastExample]) -> FloatArray:
    """Return the forecast that each agent corrects, scaled, (A, B, H)."""
    priors_BPH = np.stack([example.priors_PH for example in examples])
    return np.asarray(np.einsum("ap,bph->abh", mix_AP, priors_BPH))


@dataclasses.dataclass(frozen=True, eq=False)
class RetrievedArticle:
    """An article as an agent reads it."""

    article_id: str
    date: str  # when it became available, as a prompt shows it
    title: str
    embedding: npt.NDArray[np.float32]  # of length one


@dataclasses.dataclass(frozen=True)
class ForecastRequest:
    """A window that an agent reads once, under one or more logics."""

    example: ForecastExample
    logics: Sequence[str]  # at least one; each gives one forecast
    # For each logic the articles that it retrieved, best match first
    news: Sequence[Sequence[RetrievedArticle]]
    note: str = ""  # lines about other agents, which it reads after its news


AgentReadings = Sequence[Sequence[ForecastRequest]]
"""Readings by agent; all agents have the same number of forecasts."""


@dataclasses.dataclass(frozen=True)
class BatchForecasts:
    """Forecasts of every agent: tensors, or arrays of agents without a language model."""

    # Scaled: one for each of B windows, or for each logic of one window. Only the head's have a
    # gradient
    values_ABH: Any
    # Training loss of each agent's answers as text, with gradient; otherwise zeros, or nothing
    token_loss_A: Any = None
    n_unparsed: int = 0  # answers that could not be read and are scored as the agent's base
    n_cut: int = 0  # prompts that were too long and lost news or history
    weights_BA: Any = None  # weight of each agent, if the agents weigh each other
    # Ids of the articles that each agent read, by agent and window, best match first
    news: Sequence[Sequence[tuple[str, ...]]] = ()


@dataclasses.dataclass
class EqualFitness:
    """Fitness and weights that are equal for all members, as before the first round."""

    members: int

    @property
    def gates_A(self) -> npt.NDArray[np.float32]:  # noqa: N802 - shape suffix
        """The gate of each member, fully open."""
        return np.ones(self.members, dtype=np.float32)

    def weights(self, entities: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the weights (B, A), in single precision as a softmax gives them."""
        return np.full((len(entities), self.members), 1.0 / self.members, dtype=np.float32)

    def fitness(self, entities: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the fitness (B, A)."""
        return np.zeros((len(entities), self.members), dtype=np.float32)
