"""The state of a running training, and its checkpoints: atomic, verified, newest intact one first.

There is one file per agent and one for what all agents share, so that a run can resume with another
number of processes. Supervised stages that several runs share are checkpoints, too.

Shapes: A agents (of this process), D hidden size.
"""

import dataclasses
import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from compevo_core.agents.logics import LogicRecords
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import GrpoConfig
from compevo_core.errors import CheckpointMismatch
from compevo_core.runtime.distributed import AgentShards
from compevo_core.runtime.files import hash_text, write_text
from compevo_core.training.diagnostics import RegretTracker
from compevo_core.training.ensemble import AgentEnsemble
from compevo_core.training.round import RoundState
from compevo_core.training.run_folder import RunFolder, verify_manifest, write_sealed_folder
from compevo_core.training.schedule import RunGenerators, seed_dropout

log = logging.getLogger(__name__)

KEPT_CHECKPOINTS = 2  # a crash of the machine may damage the newest, but not the one before
STATE_VERSION = 3  # of the stored names below

_DROPOUT_GENERATOR = "run.global"
_CUDA_GENERATORS = "run.cuda"
_AGENT_GENERATOR = "run.sampling"
_PREVIOUS_STATES = "run.previous_AD"
_OPTIMIZER_PREFIX = "optimizer."
_RUN_PREFIX = "run."

_SHARED_FILE = "shared.safetensors"
_STATE_FILE = "state.json"

_LATER_SETTINGS = {
    "evolution": {
        "update",
        "instruction",
        "max_new_tokens",
        "temperature",
        "every",
        "flat_share",
        "cross_share",
        "unread",
    },
    "grpo": set(GrpoConfig.model_fields),
    "objective": {"lambda_pg", "lambda_div", "lambda_prune"},
    "optim": {"policy_lr"},
}
"""Settings that have an effect only in the evolution stage, by section."""


@dataclasses.dataclass(frozen=True)
class TrainState:
    """A run between two rounds."""

    agents: Mapping[int, Mapping[str, Tensor]]  # of each local agent, by stored name
    shared: Mapping[str, Tensor]  # equal on every process
    values: dict[str, Any]  # plain, equal on every process


def capture_state(
    model: AgentEnsemble,
    optimizer: torch.optim.Optimizer | None,
    state: RoundState,
    generators: RunGenerators,
) -> TrainState:
    """Return everything that the rest of the run depends on; tensors are not copied."""
    by_agent = model.agent_tensors()
    by_agent[_AGENT_GENERATOR] = torch.stack([g.get_state() for g in generators.agents])
    shared = model.shared_tensors() | {_PREVIOUS_STATES: state.previous_AD}

    # The optimiser numbers its slots in the order of its groups. Moments have the shape of their
    # parameter; counts of steps are scalars, and shared.
    if optimizer is not None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        shared_parameters = {id(parameter) for parameter in model.shared_parameters()}
        for index, slot in optimizer.state_dict()["state"].items():
            is_shared = id(parameters[index]) in shared_parameters
            for key, value in slot.items():
                owner = shared if is_shared or not value.dim() else by_agent
                owner[f"{_OPTIMIZER_PREFIX}{index}.{key}"] = value

    local_agents = model.shards.local_agents
    agents = {
        agent: {name: value[row] for name, value in by_agent.items()}
        for row, agent in enumerate(local_agents)
    }
    # torch's global generators sample dropout: one of the process, and one of each GPU. They are
    # stored with the first agent of the process.
    agents[local_agents.start][_DROPOUT_GENERATOR] = torch.get_rng_state()
    if torch.cuda.is_available():
        agents[local_agents.start][_CUDA_GENERATORS] = torch.stack(torch.cuda.get_rng_state_all())

    values = {
        "version": STATE_VERSION,
        "round": state.round,
        "logics": state.logics,
        "rewards": state.rewards,
        "regret": dataclasses.asdict(state.regret),
        "records": state.records.to_json(),
        "drawing": generators.numpy_rng.bit_generator.state,
        "news_drawing": generators.news_rng.bit_generator.state,
        "best": state.best_error,
        "seconds": state.train_seconds,
    }
    return TrainState(agents, shared, values)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk of which only the plain values have been read."""

    folder: Path
    state: dict[str, Any]


def restore_state(
    saved: Checkpoint,
    model: AgentEnsemble,
    optimizer: torch.optim.Optimizer | None,
    generators: RunGenerators,
) -> RoundState:
    """Set a run to what :func:`capture_state` gave; return the state of its next round.

    CheckpointMismatch if the checkpoint has another version, or belongs to another model.
    """
    values = saved.state
    # Names of another version would be ignored silently, and the run resumed from a wrong state.
    if values["version"] != STATE_VERSION:
        raise CheckpointMismatch(
            f"{saved.folder} was written by another version of CompEvo (state version "
            f"{values['version']}, this one reads {STATE_VERSION}); resume with that version, or "
            "start over with resume=False"
        )

    agents = [load_file(saved.folder / _agent_file(agent)) for agent in model.shards.local_agents]
    shared = load_file(saved.folder / _SHARED_FILE)

    # The dropout generator is stored with some agents only, so it cannot be stacked.
    names = [name for name in agents[0] if not name.startswith(_RUN_PREFIX)]
    tensors = {name: torch.stack([agent[name] for agent in agents]) for name in names}
    tensors |= {k: v for k, v in shared.items() if not k.startswith(_RUN_PREFIX)}
    slots: dict[int, dict[str, Tensor]] = {}
    for name in [name for name in tensors if name.startswith(_OPTIMIZER_PREFIX)]:
        _, index, key = name.split(".")
        slots.setdefault(int(index), {})[key] = tensors.pop(name)
    model.load(tensors)
    if optimizer is not None:
        # The optimiser's own groups stay: rates and weight decay come from the configuration.
        optimizer.load_state_dict(optimizer.state_dict() | {"state": slots})

    for generator, tensors in zip(generators.agents, agents, strict=True):
        generator.set_state(tensors[_AGENT_GENERATOR].clone())
    generators.numpy_rng.bit_generator.state = values["drawing"]
    generators.news_rng.bit_generator.state = values["news_drawing"]
    # If no process of the earlier run began at this agent, or it ran without a GPU, there is no
    # generator to resume, and the dropout masks differ (decision 12-engine).
    seed_dropout(model.config.run.seed, model.shards.dropout_stream, values["round"])
    if _DROPOUT_GENERATOR in agents[0]:
        torch.set_rng_state(agents[0][_DROPOUT_GENERATOR])
        # GPUs that the checkpoint does not know keep theirs.
        known = zip(
            agents[0].get(_CUDA_GENERATORS, ()), range(torch.cuda.device_count()), strict=False
        )
        for state, device in known:
            torch.cuda.set_rng_state(state, device)

    return RoundState(
        round=values["round"],
        logics=values["logics"],
        rewards=values["rewards"],
        previous_AD=shared[_PREVIOUS_STATES].to(model.device),
        regret=RegretTracker(**values["regret"]),
        records=LogicRecords.from_json(values["records"]),
        best_error=values["best"],
        train_seconds=values["seconds"],
    )


def save_checkpoint(
    root: Path, round_number: int, captured: TrainState, shards: AgentShards, *, start: int = 0
) -> Path:
    """Write ``root/round_<n>`` and remove all but the newest two checkpoints.

    Every process writes its own agents, the first the rest, on one file system. CheckpointMismatch
    if the processes' copies of what they share differ.
    """
    target = root / f"round_{round_number:06d}"
    facts = {"round": round_number, "start": start}
    with write_sealed_folder(root, target, facts, shards) as part:
        for agent in shards.written_agents:
            _write_tensors(captured.agents[agent], part / _agent_file(agent))

        # Each process updates its own copy of gates and fusion, and of the adapters of agents that
        # several processes hold. If the copies differ, nothing is saved.
        copies = dict(captured.shared)
        if not shards.splits_agents:
            for agent, tensors in captured.agents.items():
                copies |= {f"{agent}.{name}": tensor for name, tensor in tensors.items()}
        digest = hashlib.sha256()
        for name in sorted(copies):
            digest.update(name.encode())
            digest.update(copies[name].detach().cpu().contiguous().numpy().tobytes())
        what = f"gates, fusion, fitness or adapters after round {round_number}"
        shards.assert_identical(what, digest.hexdigest())
        if shards.is_first:
            _write_tensors(captured.shared, part / _SHARED_FILE)
            write_text(part / _STATE_FILE, json.dumps(captured.values, sort_keys=True))

    if shards.is_first:
        for old in _list_newest_first(root)[KEPT_CHECKPOINTS:]:
            shutil.rmtree(old)
    return target


def load_newest_checkpoint(
    root: Path, shards: AgentShards, start: int = 0, *, most_rounds: int | None = None
) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None; the ones that are passed over are logged.

    They are damaged, belong to an earlier start than ``start``, or have more than ``most_rounds``
    rounds. The first process checks the files, and all open the one that it chose.
    """
    name = None
    for folder in _list_newest_first(root) if shards.is_first else ():
        try:
            manifest = verify_manifest(folder)
        except CheckpointMismatch as error:
            log.warning("checkpoint %s is passed over: %s", folder.name, error)
            continue

        if manifest["start"] < start:
            log.info("checkpoint %s was left by an earlier start of this run", folder.name)
        elif most_rounds is not None and manifest["round"] > most_rounds:
            log.warning("checkpoint %s has more rounds than are recorded", folder.name)
        else:
            log.info("resuming from checkpoint %s", folder.name)
            name = folder.name
            break

    name = shards.broadcast(name)
    if name is None:
        return None
    state = json.loads((root / name / _STATE_FILE).read_text(encoding="utf-8"))
    return Checkpoint(root / name, state)


def _list_newest_first(root: Path) -> list[Path]:
    return sorted(root.glob("round_*"), reverse=True) if root.is_dir() else []


def _agent_file(agent: int) -> str:
    return f"agent_{agent:02d}.safetensors"


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    save_file({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, path)


def hash_stage(config: RunConfig, identity: Mapping[str, str]) -> str:
    """Return the hash of what determines a supervised stage: settings, windows and articles."""
    settings = config.to_dict()
    for section, names in _LATER_SETTINGS.items():
        settings[section] = {k: v for k, v in settings[section].items() if k not in names}

    data = {name: value for name, value in identity.items() if name != "config_hash"}
    return hash_text(repr((sorted(data.items()), settings)))[:16]


def keep_stage(run: RunFolder, stage: RunFolder) -> None:
    """Keep the state of a run at the end of its supervised stage, for runs with the same one.

    A variant that only rewrites logics differently has the supervised stage of the full method, to
    the last bit. A stage is identified by settings and data (:func:`hash_stage`), not by the code:
    use a folder with only one version of the code, and remove it after the last run.
    """
    shutil.rmtree(stage.path, ignore_errors=True)
    write_text(stage.rounds_file, run.rounds_file.read_text(encoding="utf-8"))
    if run.best.is_dir():
        shutil.copytree(run.best, stage.best)

    # The checkpoint at the end comes last: a stage that has one is complete.
    part = stage.path / ".part-end"
    shutil.copytree(run.checkpoints, part)
    part.rename(stage.checkpoints)
