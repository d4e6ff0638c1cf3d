"""When a run trains what, and at which rate: stages, rewriting rounds, warm-up, cosine (D.2).

What belongs here: the stage of a round, whether it rewrites the logics, the share of the base rate,
setting it. What does not: the base rates (``training.update``), what a round does in its stage
(``training.round``).

A run has two stages (decision 40). The supervised stage trains the forecasts under the seed logics.
The evolution stage rewrites the logics as well, in every round or in some. Each stage has a warm-up
and a cosine decay of its own. All of it follows from the number of the round alone: nothing has to
be kept in a checkpoint.

transformers' ``get_cosine_schedule_with_warmup`` starts the warm-up at zero, so the first round
would play and score logics, and learn nothing from them; here round 0 has 1 / warm-up of the rate.
"""

import dataclasses
from typing import Literal, Self

import numpy as np
from torch.optim import Optimizer

from compevo_core.config import RunConfig

Stage = Literal["supervised", "evolution"]
SUPERVISED: Stage = "supervised"
EVOLUTION: Stage = "evolution"


@dataclasses.dataclass(frozen=True)
class RunSchedule:
    """The plan of a run, by round.

    Attributes:
        supervised_rounds: rounds of the supervised stage, the first ones.
        evolution_rounds: rounds after them.
        every: rounds from one rewriting of the logics to the next; 0 = never.
        warmup_ratio: share of a stage's rounds in which the rate rises; at least one round.
    """

    supervised_rounds: int
    evolution_rounds: int
    every: int
    warmup_ratio: float

    @classmethod
    def plan(cls, config: RunConfig, rounds_per_epoch: int) -> Self:
        """Return the schedule of a run whose passes over the train windows take so many rounds."""
        run = config.run
        return cls(
            supervised_rounds=run.supervised_rounds or run.supervised_epochs * rounds_per_epoch,
            evolution_rounds=run.rounds or run.epochs * rounds_per_epoch,
            every=config.evolution.every,
            warmup_ratio=config.optim.warmup_ratio,
        )

    @property
    def total_rounds(self) -> int:
        """Rounds of both stages."""
        return self.supervised_rounds + self.evolution_rounds

    def stage(self, round_number: int) -> Stage:
        """Return the stage of a round."""
        return SUPERVISED if round_number < self.supervised_rounds else EVOLUTION

    def rewrites(self, round_number: int) -> bool:
        """Whether the agents write new logics in a round (paper: in every round)."""
        position = round_number - self.supervised_rounds
        return position >= 0 and self.every > 0 and position % self.every == 0

    def factor(self, round_number: int) -> float:
        """Return the share of the base rates in a round, by its place in its stage."""
        if self.stage(round_number) == SUPERVISED:
            return learning_rate_factor(round_number, self.supervised_rounds, self.warmup_ratio)

        position = round_number - self.supervised_rounds
        return learning_rate_factor(position, self.evolution_rounds, self.warmup_ratio)


def learning_rate_factor(round_number: int, total_rounds: int, warmup_ratio: float) -> float:
    """Return the share of the base learning rate in a round.

    Args:
        round_number: from 0.
        total_rounds: rounds of the whole stage.
        warmup_ratio: share of the rounds in which the rate rises; at least one round.
    """
    warmup_rounds = max(1, round(warmup_ratio * total_rounds))
    if round_number < warmup_rounds:
        return (round_number + 1) / warmup_rounds

    # Clamped: a run that goes on past its planned rounds stays at rate zero.
    progress = (round_number - warmup_rounds) / max(1, total_rounds - warmup_rounds)
    return 0.5 * (1.0 + float(np.cos(np.pi * min(progress, 1.0))))


def set_learning_rates(optimizer: Optimizer, factor: float) -> None:
    """Set the rate of every group of parameters to a share of its ``base_lr``."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
