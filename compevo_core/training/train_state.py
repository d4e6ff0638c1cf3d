"""A run in progress as tensors: one set for each agent, one that all share; out of a run and back in.

What belongs here: what has to be kept so that a run goes on bit for bit. What does not: files (``checkpoint``).
What belongs to an agent is stored by agent, so that any number of processes can go on with what any other wrote.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from compevo_core.training.round import RoundTrainer

_GLOBAL = "run.global"  # torch's global generator, which draws LoRA dropout: one a process, kept with its first agent
_SAMPLING = "run.sampling"
_SLOT = "optimizer."


def take(
    player: RoundTrainer, previous_AD: Tensor, sampling: Sequence[torch.Generator]
) -> tuple[dict[int, dict[str, Tensor]], dict[str, Tensor]]:
    """The tensors of each own agent, and those that all processes share."""
    learner, own = player.learner, player.shards.local_agents
    stacked = learner.agent_tensors() | {
        _SAMPLING: torch.stack([one.get_state() for one in sampling])
    }
    shared = learner.shared_tensors() | {"run.previous_AD": previous_AD}
    whole = {id(parameter) for parameter in learner.shared_parameters()}
    slots = player.optimizer.state_dict()["state"]
    for index, parameter in enumerate(_parameters(player)):
        for key, value in slots.get(index, {}).items():
            shares = (
                id(parameter) in whole or not value.dim()
            )  # a count of steps belongs to no agent
            (shared if shares else stacked)[f"{_SLOT}{index}.{key}"] = value
    agents = {
        agent: {name: value[row] for name, value in stacked.items()}
        for row, agent in enumerate(own)
    }
    agents[own.start][_GLOBAL] = torch.get_rng_state()
    return agents, shared


def put(
    player: RoundTrainer,
    sampling: Sequence[torch.Generator],
    agents: Sequence[Mapping[str, Tensor]],
    shared: Mapping[str, Tensor],
    round_number: int,
) -> Tensor:
    """Sets a run to what :func:`take` gave, ``agents`` being the own ones in order; returns ``previous_AD``.

    A process that begins at another agent than any process that wrote has no dropout generator to go on with; it gets
    a fresh seeded one.
    """
    stacked = {
        name: torch.stack([one[name] for one in agents]) for name in agents[0] if name != _GLOBAL
    }
    everything = stacked | dict(shared)
    player.learner.load({k: v for k, v in everything.items() if not k.startswith(("run.", _SLOT))})
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in everything.items():
        if name.startswith(_SLOT):
            _, index, key = name.split(".")
            slots.setdefault(int(index), {})[key] = value
    player.optimizer.load_state_dict(player.optimizer.state_dict() | {"state": slots})
    for generator, state in zip(sampling, stacked[_SAMPLING], strict=True):
        generator.set_state(state.cpu().clone())
    if _GLOBAL in agents[0]:
        torch.set_rng_state(agents[0][_GLOBAL].cpu())
    else:
        seed_dropout(player.config.run.seed, player.shards.rank, round_number)
    return shared["run.previous_AD"].to(player.learner.backbone.device)


def seed_dropout(seed: int, rank: int, round_number: int) -> None:
    """Seeds torch's global generator, differently on every process: agents must not drop out in step."""
    torch.manual_seed(int(np.random.default_rng([seed, 3, rank, round_number]).integers(2**63)))


def _parameters(player: RoundTrainer) -> list[torch.nn.Parameter]:
    return [parameter for group in player.optimizer.param_groups for parameter in group["params"]]
