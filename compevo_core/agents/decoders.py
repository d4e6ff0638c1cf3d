"""The contract of the two decoders, which turn readings into scaled forecasts (decision 1).

What belongs here: what a decoder is given and what it returns. What does not: the numeric head
(``agents.head_decoder``), answers as text (``agents.text_decoder``), which news a logic retrieves
(``agents.strategy``).

The head is the default: its loss is differentiable end to end, and a forecast costs one forward
pass. Text is what the paper's parameter counts imply; it is trained by the likelihood of the true
answer, because greedy decoding has no gradient.

Shapes: A agents, R forecasts of an agent, H horizon.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from compevo_core.agents.forecast_example import ForecastExample


@dataclasses.dataclass(frozen=True, eq=False)
class RetrievedArticle:
    """An article as an agent reads it.

    Attributes:
        article_id: its id in the news pool.
        date: when it became available, as a prompt shows it.
        title: its headline.
        embedding: of length one.
    """

    article_id: str
    date: str
    title: str
    embedding: npt.NDArray[np.float32]


def format_headlines(articles: Sequence[RetrievedArticle]) -> list[tuple[str, str]]:
    """Return (date, headline) of articles, as prompts show them."""
    return [(article.date, article.title) for article in articles]


@dataclasses.dataclass(frozen=True)
class Reading:
    """A window that an agent reads under one or more logics.

    What the logics of a window share is read once.

    Attributes:
        example: the window.
        logics: at least one; each gives one forecast.
        news: for each logic the articles that it retrieved, best match first.
        note: what the agent reads of others after its news, in lines; empty without any.
    """

    example: ForecastExample
    logics: Sequence[str]
    news: Sequence[Sequence[RetrievedArticle]]
    note: str = ""


AgentReadings = Sequence[Sequence[Reading]]
"""Readings by agent; all agents have the same number of forecasts R."""


@dataclasses.dataclass(frozen=True)
class DecodedForecasts:
    """What a decoder makes of a batch of readings.

    Attributes:
        values_ARH: scaled forecasts; with a gradient path only from the head.
        token_loss_A: the text decoder's training loss of each agent, with gradient; zeros from the
            head and outside training.
        n_unparsed: answers that could not be read and are scored as the agent's base.
        n_cut: prompts that were too long and lost news or history.
    """

    values_ARH: Tensor
    token_loss_A: Tensor
    n_unparsed: int = 0
    n_cut: int = 0


class ForecastDecoder(Protocol):
    """A way to turn readings into scaled forecasts."""

    @property
    def module(self) -> nn.Module:
        """The parameters that are trained besides the adapters; the agent is their first axis."""
        ...

    def decode(
        self, readings: AgentReadings, *, train: bool, agents: slice = slice(None)
    ) -> DecodedForecasts:
        """Forecast every reading under each of its logics.

        Args:
            readings: by agent; forecasts come in their order, logics within a reading.
            train: whether a loss is needed for the backward pass.
            agents: which of the local agents the readings belong to.
        """
        ...
