"""What each agent knows of the logics that it has tried: by how much their news lowered its error.

Credit rule: on a window, a logic is credited with the error of the agent's forecast without news
minus the error of its forecast with the news that the logic retrieves. Both use the same adapters
and the same wording, so whatever makes a window hard is in both and cancels. A logic is
judged by all windows that it was ever scored on, the last rewriting counting most: the reader
learns, and what a logic was worth to an earlier reader is worth less now.

What belongs here: these records and the choice by them. What does not: forecasting under a logic
(``agents.strategy``), rewards of a round (``training.round``).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Self

from compevo_core.data.arrays import FloatArray

REMEMBERED = 3
"""Logics of an agent's record that are scored again beside the new ones: the best by its record."""

_KEPT_WEIGHT = 0.7  # of what was recorded before, at each rewriting
_LEAST_WINDOWS = 2.0  # below, a record has no spread, and the logic is forgotten


@dataclasses.dataclass(frozen=True)
class LogicRecord:
    """Gains of one logic over the windows that scored it, in units of the metric."""

    windows: float = 0.0  # how many, older ones counting less
    total: float = 0.0
    squares: float = 0.0

    @property
    def gain(self) -> float:
        """Mean gain of a window."""
        return self.total / self.windows

    @property
    def standard_error(self) -> float:
        """Standard error of :attr:`gain`, windows taken as independent."""
        variance = max(0.0, self.squares / self.windows - self.gain**2)
        return math.sqrt(variance / self.windows)

    @property
    def lower_bound(self) -> float:
        """What a logic is chosen by: its gain less one standard error."""
        return self.gain - self.standard_error

    def add(self, gain_W: FloatArray) -> Self:
        """Return the record with the gains of more windows."""
        return dataclasses.replace(
            self,
            windows=self.windows + len(gain_W),
            total=self.total + float(gain_W.sum()),
            squares=self.squares + float((gain_W**2).sum()),
        )

    def age(self) -> Self:
        """Return the record with less weight."""
        values = {name: value * _KEPT_WEIGHT for name, value in dataclasses.asdict(self).items()}
        return type(self)(**values)


class LogicRecords:
    """The records of all agents, each by the text of the logic."""

    def __init__(self, by_agent: Mapping[int, dict[str, LogicRecord]] | None = None) -> None:
        self._by_agent = dict(by_agent or {})

    def list_best(self, agent: int, *, but: str) -> list[str]:
        """Return the best logics of an agent besides the one that it plays, at most three."""
        records = self._by_agent.get(agent, {})
        ranked = sorted(records, key=lambda logic: -records[logic].lower_bound)
        return [logic for logic in ranked if logic != but][:REMEMBERED]

    def add_round(
        self, logics: Sequence[Sequence[str]], gain_ACW: Sequence[FloatArray]
    ) -> list[str]:
        """Add the gains of a rewriting; return the logic that each agent now does best to play.

        ``logics`` are those that were scored, by agent, the played one first: it stays on ties. A
        logic that comes twice was forecast twice, with the same gains, and counts once.
        """
        chosen = []
        for agent, (candidates, gain_CW) in enumerate(zip(logics, gain_ACW, strict=True)):
            scored = dict(zip(candidates, gain_CW, strict=True))
            records = {k: record.age() for k, record in self._by_agent.get(agent, {}).items()}
            records |= {
                k: records.get(k, LogicRecord()).add(gain_W) for k, gain_W in scored.items()
            }

            by_rank = sorted(
                [*scored, *(logic for logic in records if logic not in scored)],
                key=lambda logic: -records[logic].lower_bound,
            )
            chosen.append(by_rank[0])
            # A record that has aged to nothing is forgotten.
            self._by_agent[agent] = {
                logic: records[logic]
                for logic in by_rank
                if records[logic].windows >= _LEAST_WINDOWS
            }
        return chosen

    def to_json(self) -> dict[str, dict[str, list[float]]]:
        """Return plain values, for a checkpoint."""
        return {
            str(agent): {logic: list(dataclasses.astuple(r)) for logic, r in records.items()}
            for agent, records in self._by_agent.items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, Sequence[float]]]) -> Self:
        """Read what :meth:`to_json` gave."""
        return cls(
            {
                int(agent): {logic: LogicRecord(*numbers) for logic, numbers in records.items()}
                for agent, records in values.items()
            }
        )
