"""Track the regret of a run against fixed logics: the comparators and the running sums (B.3).

What belongs here: which fixed logics an agent is compared with, and the bookkeeping over rounds.
What does not: scoring a logic (``training.round``), the arithmetic (``diagnostics.theory``), the
growth at the end of a run (``diagnostics.regret_growth``), plots (``report.theory_section``).

Shapes: A agents, K fixed logics.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from compevo_core.agents.logic_grammar import list_seed_logics
from compevo_core.diagnostics.theory import regret_of_sums


def assign_fixed_logics(agents: int, count: int, form: str = "free") -> list[list[str]]:
    """Return K fixed logics for each agent, (A, K).

    They are the agent's own seed logic, what it would play without any evolution, then the seed
    logics after it, cyclically.

    Args:
        agents: number of agents A.
        count: number of fixed logics K.
        form: that of the logics, as ``evolution.form`` names it.
    """
    seeds = list_seed_logics(form)
    return [[seeds[(agent + k) % len(seeds)] for k in range(count)] for agent in range(agents)]


@dataclasses.dataclass(frozen=True)
class RoundRegret:
    """What the record of a round holds on regret.

    Attributes:
        regret: (A,) against the best fixed logic in hindsight up to this round.
        fixed_rewards: (A, K) rewards of the fixed logics in this round.
        played_rewards: (A,) rewards of the played logics, scored as the fixed ones were.
        group_regret: (A,) against the best sampled logic of every round. This comparator may switch
            each round, so its regret can grow linearly where the other does not.

    The first three are None if no fixed logic is scored. A round that rewrites no logic scores
    none: rewards are None then, and the regrets stand where they stood.
    """

    regret: list[float] | None
    fixed_rewards: list[list[float]] | None
    played_rewards: list[float] | None
    group_regret: list[float]


@dataclasses.dataclass
class RegretTracker:
    """Running sums of rewards over the rounds that rewrote logics.

    The sums are plain lists, so that a checkpoint in JSON restores them to the last bit.

    Attributes:
        played: (A,) rewards of the played logics.
        fixed: (A, K) rewards of the fixed logics.
        group: (A,) best-response gaps.
    """

    played: list[float]
    fixed: list[list[float]]
    group: list[float]

    @classmethod
    def start(cls, agents: int, count: int) -> Self:
        """Start before the first round, for A agents with K fixed logics each."""
        return cls([0.0] * agents, [[0.0] * count for _ in range(agents)], [0.0] * agents)

    @classmethod
    def from_dict(cls, sums: Mapping[str, Any]) -> Self:
        """Restore the sums that :meth:`to_dict` gave."""
        return cls(sums["played"], sums["fixed"], sums["group"])

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as plain values for a checkpoint."""
        return dataclasses.asdict(self)

    def without_round(self) -> RoundRegret:
        """Return the sums as they stand, for a round that scored no logics."""
        has_fixed = any(map(len, self.fixed))
        regret = regret_of_sums(self.played, self.fixed).tolist() if has_fixed else None
        return RoundRegret(regret, None, None, list(self.group))

    def add_round(
        self,
        reward_AK: npt.NDArray[np.floating[Any]],
        group_gap_A: npt.NDArray[np.floating[Any]],
    ) -> RoundRegret:
        """Add one round to the sums.

        Args:
            reward_AK: (A, 1 + K), rewards of the played logic and then of the fixed ones, on the
                same windows; (A, 0) if no fixed logic is scored.
            group_gap_A: reward by which the best sampled logic of the round beat the played one, at
                least 0.
        """
        # Needs no forecast beyond those of the group, so every run measures it.
        self.group = (np.asarray(self.group) + group_gap_A).tolist()
        if not reward_AK.shape[1]:
            return RoundRegret(None, None, None, list(self.group))

        # Rewards are float32; thousands of them are summed, so the sums are float64.
        scores_AK = reward_AK.astype(np.float64)
        self.played = (np.asarray(self.played) + scores_AK[:, 0]).tolist()
        self.fixed = (np.asarray(self.fixed) + scores_AK[:, 1:]).tolist()

        return RoundRegret(
            regret=regret_of_sums(self.played, self.fixed).tolist(),
            fixed_rewards=scores_AK[:, 1:].tolist(),
            played_rewards=scores_AK[:, 0].tolist(),
            group_regret=list(self.group),
        )
