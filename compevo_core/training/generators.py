"""The random generators of a run.

What belongs here: which generator draws what, its seed, the state of torch's own. What does not:
drawing.

Every stream of random numbers has a seed of its own, derived from ``run.seed`` and a fixed number.
Taking more from one stream therefore never changes what another one gives:

    [seed, epoch]           order of the days (``training.sampler``)
    [seed, 1, agent]        logics that an agent samples (``agents.logic_writer``)
    [seed, 2]               peers and reward windows, equal on every process
    [seed, 3, rank, round]  dropout masks, different on every process
    [seed, 4]               which agents see no news of a window, equal on every process
"""

import dataclasses
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from torch import Tensor

from compevo_core.agents.logic_writer import seed_agent_generators


@dataclasses.dataclass(frozen=True)
class RunGenerators:
    """The generators that a round draws from.

    Attributes:
        agents: one generator for each local agent, for sampling logics.
        numpy_rng: draws peers and reward windows; in the same state on every process.
        news_rng: draws news dropout; in the same state on every process.
    """

    agents: Sequence[torch.Generator]
    numpy_rng: np.random.Generator
    news_rng: np.random.Generator

    @classmethod
    def from_seed(cls, seed: int, local_agents: Sequence[int], device: torch.device) -> Self:
        """Return the generators of a fresh run."""
        return cls(
            seed_agent_generators(seed, local_agents, device),
            np.random.default_rng([seed, 2]),
            np.random.default_rng([seed, 4]),
        )


@dataclasses.dataclass(frozen=True)
class DropoutState:
    """The state of torch's global generators, which draw LoRA dropout.

    Attributes:
        cpu: of the processor's generator.
        cuda: of the generators of all GPUs that the process sees, one row a GPU; None without any.
    """

    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def read(cls) -> Self:
        """Return the present state."""
        is_gpu_used = torch.cuda.is_available()
        return cls(
            torch.get_rng_state(),
            torch.stack(torch.cuda.get_rng_state_all()) if is_gpu_used else None,
        )

    def restore(self) -> None:
        """Set the generators back to this state.

        GPUs that the state does not know keep theirs.
        """
        torch.set_rng_state(self.cpu)
        if self.cuda is not None and torch.cuda.is_available():
            known = min(len(self.cuda), torch.cuda.device_count())
            for device in range(known):
                torch.cuda.set_rng_state(self.cuda[device], device)


def seed_dropout(seed: int, rank: int, round_number: int) -> None:
    """Seed torch's global generators, which draw LoRA dropout.

    Processes must differ: with one seed for all, their agents would drop the same units.
    """
    torch.manual_seed(int(np.random.default_rng([seed, 3, rank, round_number]).integers(2**63)))
