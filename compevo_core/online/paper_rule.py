"""The paper's fitness as a rule of daily use: M goes on from where training left it (Eq. 3 to 5).

What belongs here: this state. What does not: the arithmetic of fitness and weights
(``agents.selection``), the other rules (``online.rules``).

Shapes: A agents, h steps of a part of the day.
"""

from typing import Self

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.selection import FitnessSelection, reward, weigh_fitness
from compevo_core.config_sections import SelectionConfig
from compevo_core.data.arrays import FloatArray


class PaperState:
    """Fitness of A agents; gates stay as they are, no gradient is taken.

    Args:
        fitness_A: where it begins.
        gates_A: of training.
        config: temperature, average, unit of the fitness.
        metric: of the reward.
    """

    def __init__(
        self, fitness_A: Tensor, gates_A: Tensor, config: SelectionConfig, metric: str
    ) -> None:
        self._fitness_1A = fitness_A[None].clone()
        self._gates_A = gates_A
        self._config = config
        self._metric = metric

    @classmethod
    def continue_training(cls, trained: FitnessSelection, entity: str, metric: str) -> Self:
        """Return the state that training left for a series."""
        fitness_A = trained.fitness([entity])[0].detach().cpu().double()
        return cls(fitness_A, trained.gates_A.detach().cpu().double(), trained.config, metric)

    def weights(self) -> FloatArray:
        """Return softmax(g * M / tau) (Eq. 5)."""
        weights_1A = weigh_fitness(self._fitness_1A, self._gates_A, self._config)
        return np.asarray(weights_1A[0].numpy())

    def observe(self, experts_Ah: FloatArray, mixture_h: FloatArray, truth_h: FloatArray) -> None:
        """Set M <- beta M + (1 - beta) R (Eq. 4) with the rewards of a day."""
        reward_A = reward(
            torch.from_numpy(experts_Ah)[:, None], torch.from_numpy(truth_h)[None], self._metric
        )
        beta = self._config.ema
        self._fitness_1A = beta * self._fitness_1A + (1.0 - beta) * reward_A
