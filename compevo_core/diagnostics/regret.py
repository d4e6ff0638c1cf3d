"""Regret of a run against fixed logics: who the comparators are, the running sums, the growth at the end.

What belongs here: bookkeeping between ``rounds`` (scores), ``trainer`` (checkpoints, summary) and ``theory`` (the
mathematics). What does not: scoring a logic, drawing. Legend: A agents, G group, K fixed logics.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.diagnostics.theory import GrowthFit, fit_growth_exponent, regret_of_sums


def fixed_logics(agents: int, count: int) -> list[list[str]]:
    """K fixed logics an agent: its own seed logic, then the seed logics that follow it, cyclically; (A, K)."""
    return [
        [SEED_LOGICS[(agent + k) % len(SEED_LOGICS)] for k in range(count)]
        for agent in range(agents)
    ]


@dataclasses.dataclass
class RegretBook:
    """Running sums of rewards since round 0; plain lists, so that a checkpoint holds them exactly."""

    played: list[float]
    fixed: list[list[float]]
    group: list[float]

    @classmethod
    def start(cls, agents: int, count: int) -> Self:
        """Sums before the first round, for A agents with K fixed logics."""
        return cls([0.0] * agents, [[0.0] * count for _ in range(agents)], [0.0] * agents)

    @classmethod
    def restore(cls, saved: Mapping[str, Any]) -> Self:
        """The sums as :meth:`saved` gave them."""
        return cls(saved["played"], saved["fixed"], saved["group"])

    def saved(self) -> dict[str, Any]:
        """The sums as plain values."""
        return dataclasses.asdict(self)

    def add(
        self, rewards: npt.NDArray[np.floating[Any]], group_gap: npt.NDArray[np.floating[Any]]
    ) -> dict[str, Any]:
        """Adds one round and returns what its record says about regret.

        Args:
            rewards: (A, 1 + K) of the played logic and then the fixed ones, on the same windows; (A, 0) if unmeasured.
            group_gap: (A,) reward by which the best sampled logic of the round beat the played one, at least 0.

        Returns:
            ``regret`` (A,) against the best fixed logic in hindsight up to this round, ``fixed_rewards`` (A, K),
            ``played_rewards`` (A,), all three None where no fixed logic is scored; ``group_regret`` (A,).
        """
        self.group = (np.asarray(self.group) + group_gap).tolist()
        found: dict[str, Any] = {"regret": None, "fixed_rewards": None, "played_rewards": None}
        if rewards.shape[1]:
            scores = rewards.astype(np.float64)
            self.played = (np.asarray(self.played) + scores[:, 0]).tolist()
            self.fixed = (np.asarray(self.fixed) + scores[:, 1:]).tolist()
            found = {
                "regret": regret_of_sums(self.played, self.fixed).tolist(),
                "fixed_rewards": scores[:, 1:].tolist(),
                "played_rewards": scores[:, 0].tolist(),
            }
        return found | {"group_regret": list(self.group)}


def growth(regrets: Sequence[Sequence[float] | None], seed: int) -> dict[str, Any] | None:
    """Growth exponent of each agent's regret and of the agents' mean, as plain values; None if regret is unmeasured.

    ``regrets``: T rounds of (A,). A number that could not be fitted is null beside its ``reason``.
    """
    if not regrets or any(row is None for row in regrets):
        return None
    regret_ta = np.asarray(regrets, dtype=np.float64)
    generator = np.random.default_rng([seed, 3])
    return {
        "agents": [
            _plain(fit_growth_exponent(column, generator=generator)) for column in regret_ta.T
        ],
        "mean": _plain(fit_growth_exponent(regret_ta.mean(axis=1), generator=generator)),
    }


def _plain(fit: GrowthFit) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in dataclasses.asdict(fit).items()
    }
