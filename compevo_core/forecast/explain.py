"""Why a forecast is what it is: the parts that it adds up from, read from its sealed record.

What belongs here: reading the parts of one series out of an issued forecast. What does not: making
the record (``compevo_core.forecast.issued``), tables and pages of it (the command line,
``report``).

No model is run. A forecast is the sum over agents of weight * (prior + correction + level): the
prior is the numeric forecast that the agent starts from, the correction is what it adds after
reading numbers and news, the level is its mean known error. The parts say how the number came
about. They do not say what caused it: an article that was read need not have changed anything.

Shapes: H horizon (48 steps).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError
from compevo_core.forecast.issued import AGENT, BASE, METHOD, PUBLISHED, IssuedForecast


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadArticle:
    """An article that an agent read; title and domain are untrusted text."""

    article_id: str
    title: str
    domain: str
    available_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPart:
    """What one agent adds to a series' forecast; arrays are (H,), the logic untrusted text."""

    agent: int
    logic: str
    weights: FloatArray
    prior: FloatArray  # the forecast that it corrects
    correction: FloatArray  # what it adds to that
    level: FloatArray  # its mean known error, which is added last
    articles: Sequence[ReadArticle]  # what it read, best match first

    @property
    def forecast(self) -> FloatArray:
        """The agent's own forecast, (H,)."""
        return self.prior + self.correction + self.level

    @property
    def contribution(self) -> FloatArray:
        """What it adds to the population's forecast, (H,): weight times its own."""
        return self.weights * self.forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The forecast of one series and what it adds up from; all arrays are (H,) in ``unit``."""

    entity: str
    unit: str
    facts: Mapping[str, Any]  # of the whole record
    starts: Sequence[datetime]  # of each step, UTC
    forecast: FloatArray
    published: FloatArray | None  # what somebody else published
    inputs: FloatArray  # the values before the origin, NaN where nobody had measured them
    parts: Sequence[AgentPart]  # their contributions sum to ``forecast``

    def weigh(self, name: str) -> FloatArray:
        """Return the weighted sum over agents of ``prior``, ``correction`` or ``level``, (H,)."""
        total: FloatArray = np.sum([part.weights * getattr(part, name) for part in self.parts], 0)
        return total

    def share(self, name: str) -> float:
        """Return the mean size of ``correction`` or ``level`` in percent of the mean forecast."""
        size = float(np.abs(self.forecast).mean())
        return 100 * float(np.abs(self.weigh(name)).mean()) / size if size else 0.0


def explain(issued: IssuedForecast, entity: str) -> Explanation:
    """Return what the forecast of a series adds up from.

    Raises:
        DataError: the record has no such series.
    """
    facts = issued.facts
    by_entity = {str(one["entity"]): one for one in facts["series"]}
    if entity not in by_entity:
        raise DataError(
            f"the forecast of {facts['dataset']} has no series {entity!r}; it has "
            f"{', '.join(by_entity)}"
        )

    series = by_entity[entity]
    points = issued.select_points(entity)
    parts = [
        _read_part(agent, facts, series, points, np.array(weight_H))
        for agent, weight_H in enumerate(series["step_weights"])
    ]
    inputs = [np.nan if value is None else value for value in series["inputs"]]
    return Explanation(
        entity=entity,
        unit=issued.unit,
        facts=facts,
        starts=issued.starts,
        forecast=points[METHOD],
        published=points.get(PUBLISHED),
        inputs=np.array(inputs),
        parts=parts,
    )


def _read_part(
    agent: int,
    facts: Mapping[str, Any],
    series: Mapping[str, Any],
    points: Mapping[str, FloatArray],
    weight_H: FloatArray,
) -> AgentPart:
    own = points[f"{AGENT}{agent}"]
    prior = points[f"{BASE}{agent}"]
    level = np.array(series["levels"][agent])
    return AgentPart(
        agent=agent,
        logic=str(facts["logics"][agent]),
        weights=weight_H,
        prior=prior,
        # What is left of its forecast: so the parts add up whatever the model does inside.
        correction=own - level - prior,
        level=level,
        articles=[
            ReadArticle(
                article_id=name,
                title=facts["articles"][name]["title"],
                domain=facts["articles"][name]["domain"],
                available_at=datetime.fromisoformat(facts["articles"][name]["available_at"]),
            )
            for name in series["chosen_news"][agent]
        ],
    )
