"""Capture and restore everything that a run needs to resume bit for bit.

What belongs here: which tensors and values that is, and the names they are stored under. What does
not: files (``training.checkpoint``), when to save (``training.trainer``).

Tensors of an agent are stored by agent, all others once: a run that was started with any number of
processes can resume with any other.

Shapes: A agents (of this process), D hidden size.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from compevo_core.diagnostics.regret import RegretTracker
from compevo_core.errors import CheckpointMismatch
from compevo_core.training.checkpoint import Checkpoint
from compevo_core.training.generators import DropoutState, RunGenerators, seed_dropout
from compevo_core.training.round import RoundTrainer
from compevo_core.training.round_state import RoundState

STATE_VERSION = 2
"""Version of the stored names; a checkpoint without one is of version 1. Version 2 added the news
dropout's generator, and groups of heads and of fusion to the optimiser."""

# Stored names. A change here needs a new version, and a way to read the old one.
_DROPOUT_GENERATOR = "run.global"
_CUDA_GENERATORS = "run.cuda"
_AGENT_GENERATOR = "run.sampling"
_PREVIOUS_STATES = "run.previous_AD"
_OPTIMIZER_PREFIX = "optimizer."
_RUN_PREFIX = "run."


@dataclasses.dataclass
class RunProgress:
    """Numbers of the whole run that grow with its rounds.

    Attributes:
        best_error: lowest validation error so far, scaled; infinite before the first validation.
        train_seconds: time of all rounds so far, in seconds.
    """

    best_error: float = math.inf
    train_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class TrainState:
    """A run between two rounds.

    Attributes:
        agents: tensors of each local agent, by stored name.
        shared: tensors that all agents share, equal on every process.
        values: plain values, equal on every process.
    """

    agents: dict[int, dict[str, Tensor]]
    shared: dict[str, Tensor]
    values: dict[str, Any]


def capture_state(
    trainer: RoundTrainer, state: RoundState, generators: RunGenerators, progress: RunProgress
) -> TrainState:
    """Return everything that the rest of the run depends on; tensors are not copied."""
    by_agent = trainer.model.agent_tensors()
    by_agent[_AGENT_GENERATOR] = torch.stack([g.get_state() for g in generators.agents])
    shared = trainer.model.shared_tensors()
    shared[_PREVIOUS_STATES] = state.previous_AD

    # The optimiser's moments have the shape of their parameter; its counts of steps are scalars,
    # which belong to no agent.
    shared_parameters = {id(parameter) for parameter in trainer.model.shared_parameters()}
    slots = trainer.optimizer.state_dict()["state"]
    for index, parameter in enumerate(_list_parameters(trainer)):
        for key, value in slots.get(index, {}).items():
            name = f"{_OPTIMIZER_PREFIX}{index}.{key}"
            if id(parameter) in shared_parameters or not value.dim():
                shared[name] = value
            else:
                by_agent[name] = value

    local_agents = trainer.shards.local_agents
    agents = {
        agent: {name: value[row] for name, value in by_agent.items()}
        for row, agent in enumerate(local_agents)
    }
    # torch's global generators draw dropout. A process has one, and one a GPU: they are stored with
    # its first agent.
    dropout = DropoutState.read()
    agents[local_agents.start][_DROPOUT_GENERATOR] = dropout.cpu
    if dropout.cuda is not None:
        agents[local_agents.start][_CUDA_GENERATORS] = dropout.cuda

    values = {
        "version": STATE_VERSION,
        "round": state.round,
        "logics": state.logics,
        "rewards": state.rewards,
        "regret": state.regret.to_dict(),
        "drawing": generators.numpy_rng.bit_generator.state,
        "news_drawing": generators.news_rng.bit_generator.state,
        "best": progress.best_error,
        "seconds": progress.train_seconds,
    }
    return TrainState(agents, shared, values)


def restore_state(
    saved: Checkpoint, trainer: RoundTrainer, generators: RunGenerators, progress: RunProgress
) -> RoundState:
    """Set a run to what :func:`capture_state` gave; return the state of its next round.

    Raises:
        CheckpointMismatch: the checkpoint is of a later version, or of another model.
    """
    values = saved.state
    # Refused, not guessed: names that this version does not know would be dropped in silence, and
    # the run would go on from a state that it never had.
    version = values.get("version", 1)
    if version != STATE_VERSION:
        raise CheckpointMismatch(
            f"{saved.folder} was written by another version of CompEvo (state version {version}, "
            f"this one reads {STATE_VERSION}); resume with that version, or start over with "
            "resume=False"
        )

    agents = [saved.read_agent(agent) for agent in trainer.shards.local_agents]
    shared = saved.read_shared()
    _restore_tensors(trainer, agents, shared)
    _restore_generators(trainer, generators, agents, values)

    progress.best_error = values["best"]
    progress.train_seconds = values["seconds"]
    return RoundState(
        round=values["round"],
        logics=values["logics"],
        rewards=values["rewards"],
        previous_AD=shared[_PREVIOUS_STATES].to(trainer.model.backbone.device),
        regret=RegretTracker.from_dict(values["regret"]),
    )


def _restore_tensors(
    trainer: RoundTrainer, agents: Sequence[Mapping[str, Tensor]], shared: Mapping[str, Tensor]
) -> None:
    # The dropout generator is stored with some agents only, so it cannot be stacked.
    names = [name for name in agents[0] if not name.startswith(_RUN_PREFIX)]
    tensors = {name: torch.stack([agent[name] for agent in agents]) for name in names}
    tensors |= {k: v for k, v in shared.items() if not k.startswith(_RUN_PREFIX)}

    slots: dict[int, dict[str, Tensor]] = {}
    for name in [name for name in tensors if name.startswith(_OPTIMIZER_PREFIX)]:
        _, index, key = name.split(".")
        slots.setdefault(int(index), {})[key] = tensors.pop(name)

    # The optimiser's own groups stay: rates and weight decay come from the configuration.
    trainer.model.load(tensors)
    trainer.optimizer.load_state_dict(trainer.optimizer.state_dict() | {"state": slots})


def _restore_generators(
    trainer: RoundTrainer,
    generators: RunGenerators,
    agents: Sequence[Mapping[str, Tensor]],
    values: Mapping[str, Any],
) -> None:
    for generator, tensors in zip(generators.agents, agents, strict=True):
        generator.set_state(tensors[_AGENT_GENERATOR].cpu().clone())
    generators.numpy_rng.bit_generator.state = values["drawing"]
    generators.news_rng.bit_generator.state = values["news_drawing"]

    # Where no process of the earlier run began at this agent, or it ran without a GPU, there is no
    # generator to resume: on other processes the dropout masks are others (decision 29).
    seed_dropout(trainer.config.run.seed, trainer.shards.dropout_stream, values["round"])
    if _DROPOUT_GENERATOR in agents[0]:
        cuda = agents[0].get(_CUDA_GENERATORS)
        DropoutState(
            agents[0][_DROPOUT_GENERATOR].cpu(), None if cuda is None else cuda.cpu()
        ).restore()


def _list_parameters(trainer: RoundTrainer) -> list[torch.nn.Parameter]:
    # In the order in which the optimiser numbers its slots.
    return [p for group in trainer.optimizer.param_groups for p in group["params"]]
