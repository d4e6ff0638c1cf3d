"""What an agent did not read, and what reading it would have changed (part of o_i, Eq. 2).

An agent that sees only what its logic retrieved can but guess which other news matters. Here a
ridge that reads all articles of a window says of single ones how they would have moved the agent's
error. It is fitted on train windows, and tells of train windows.

What belongs here: these titles and changes. What does not: the ridge (``agents.linear_reader``),
how they are put into words (``agents.prompts``).

Shapes: A agents, P priors, B windows of the round, S sampled articles, H horizon.
"""

from collections.abc import Sequence

import numpy as np
import torch

from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.linear_reader import FittedReader
from compevo_core.agents.selection import forecast_error

_SAMPLED = 256  # unread articles of a round that are tried
_NO_LOGIC = "news"  # everything is read, whatever the logic


class UnreadNews:
    """Tries articles that an agent did not read."""

    def __init__(self, reader: FittedReader, metric: str) -> None:
        """Take a reader of all articles, and the metric of the error."""
        self._reader = reader
        self._metric = metric

    def list_best(
        self,
        row: int,
        examples: Sequence[ForecastExample],
        read: Sequence[Sequence[str]],
        values_BH: torch.Tensor,
        rng: np.random.Generator,
        count: int,
    ) -> list[tuple[str, float]]:
        """Return the titles that a local agent should have read, each with the change of its error.

        Of a sample of the articles that it did not read, in the windows that it has forecast.
        """
        views = [example.view for example in examples]
        seen = self._reader.retrieve(row, _NO_LOGIC, views)
        unread = [
            (b, name) for b, names in enumerate(seen) for name in names if name not in read[b]
        ]
        sampled = [unread[i] for i in rng.permutation(len(unread))[:_SAMPLED]]
        if not sampled:
            return []

        articles = self._reader.retriever.resolve([name for _, name in sampled])
        fit = self._reader.find(row, _NO_LOGIC)
        # The ridge reads the mean of a window's articles: one of them moves it by its share.
        reading_SH = np.stack(
            [
                fit.predict(examples[b].view, [article]) / len(seen[b])
                for (b, _), article in zip(sampled, articles, strict=True)
            ]
        )
        windows = [b for b, _ in sampled]
        truth_SH = torch.from_numpy(np.stack([examples[b].truth_H for b in windows]))
        values_SH = values_BH[windows].cpu().double()
        before_S, after_S = (
            forecast_error(values, truth_SH, self._metric)
            for values in (values_SH, values_SH + torch.from_numpy(reading_SH))
        )
        changes = (after_S - before_S).tolist()

        best: dict[str, float] = {}
        for article, change in sorted(
            zip(articles, changes, strict=True), key=lambda pair: pair[1]
        ):
            best.setdefault(article.title, change)
        return list(best.items())[:count]
