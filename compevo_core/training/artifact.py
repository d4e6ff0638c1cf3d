"""The trained population as a sealed folder, ``<run>/model``: tensors, logics, priors, scales.

The hash over the folder's files is the artifact hash of every result row: predicting must leave it
as it was (decision 11-settings). Names of files and tensors are therefore part of the format.

Shapes: A agents (of this process).
"""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from compevo_core.agents.experience import Experience
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import to_array
from compevo_core.errors import CheckpointMismatch
from compevo_core.runtime.files import write_json, write_text
from compevo_core.training.members import MemberModel
from compevo_core.training.prior import PriorSet
from compevo_core.training.run_folder import RunFolder, verify_manifest, write_sealed_folder

_HEAD_FILE = "head.safetensors"
_SHARED_FILE = "state.safetensors"
_EXPERIENCE_FILE = "experience.safetensors"
_HEAD_PREFIXES = ("answers.", "debate.", "linear.", "calibration.blend")
"""Stored names of an agent's tensors beside its adapters: its decoder's and its calibration's."""
_PACKAGES = (
    *("compevo", "torch", "transformers", "peft", "polars", "numpy"),
    *("sentence-transformers", "lightgbm"),
)


def write_model(
    folder: RunFolder,
    model: MemberModel,
    logics: list[str],
    priors: PriorSet,
    facts: Mapping[str, Any],
) -> str:
    """Write the sealed model of a run atomically; return the artifact hash.

    Every process writes the adapters of its own agents; the first writes the rest. ``logics`` are
    the (A,) texts that all agents forecast with, ``facts`` are values for the manifest.
    """
    with write_sealed_folder(folder.path, folder.model, facts, model.shards) as part:
        _write_agents(model, part)
        if model.shards.is_first:
            _write_values(model.shared_tensors(), part / _SHARED_FILE)
            write_json(part / folder.model_logics_file.name, logics)
            write_text(part / folder.model_inputs_file.name, model.inputs.to_json())
            write_json(part / folder.model_config_file.name, model.config.to_dict())
            model.experience.save(part / _EXPERIENCE_FILE)
            priors.save(part)

    manifest = json.loads(folder.model_manifest_file.read_text(encoding="utf-8"))
    return str(manifest["hash"])


def load_model(folder: RunFolder, model: MemberModel) -> None:
    """Set a model's tensors from the sealed model of a run of the same configuration."""
    heads = []
    for agent in model.shards.local_agents:
        model.load_adapters(agent, _agent_folder(folder.model, agent))
        heads.append(load_file(_agent_folder(folder.model, agent) / _HEAD_FILE))

    # The adapters are in place already; `load` wants every tensor, so it gets them back.
    tensors = {k: v for k, v in model.agent_tensors().items() if not k.startswith(_HEAD_PREFIXES)}
    tensors |= {name: np.stack([head[name] for head in heads]) for name in heads[0]}
    tensors |= load_file(folder.model / _SHARED_FILE)
    model.load(tensors)

    experience = folder.model / _EXPERIENCE_FILE
    model.experience = Experience.load(model.calibration.entities, experience)


def read_config(run: Path) -> RunConfig:
    """Return the configuration that the model of a run was trained with."""
    text = RunFolder(run).model_config_file.read_text(encoding="utf-8")
    return RunConfig.from_mapping(json.loads(text))


def read_inputs(run: Path) -> NumericInputs:
    """Return how a run turns windows into numbers, as fitted on its train split."""
    return NumericInputs.from_json(RunFolder(run).model_inputs_file.read_text(encoding="utf-8"))


def read_experience(run: Path) -> Experience:
    """Return what the population of a run had forecast when it was sealed, and what came."""
    entities = sorted(read_inputs(run).scaler.mean)
    return Experience.load(entities, RunFolder(run).model / _EXPERIENCE_FILE)


def read_logics(run: Path) -> list[str]:
    """Return the logics that the model of a run forecasts with, one an agent."""
    return list(json.loads(RunFolder(run).model_logics_file.read_text(encoding="utf-8")))


def read_model_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of a run's model after checking every file against it.

    It has the facts of :func:`write_model`, ``files`` (sha256 by name) and the artifact's ``hash``.
    CheckpointMismatch if the model is unfinished or altered, or the run was started over since.
    """
    folder = RunFolder(run)
    manifest = verify_manifest(folder.model)
    if not folder.is_sealed:
        raise CheckpointMismatch(
            f"{folder.model} was left by an earlier start of this training; train to the end again"
        )
    return manifest


def installed_versions() -> dict[str, str]:
    """Return the installed versions of the packages that can change a number."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed as a package"
    return versions


def _write_agents(model: MemberModel, part: Path) -> None:
    # A folder an agent and kind, as PEFT saves them: each loads with plain PEFT, without this code.
    tensors = model.agent_tensors()
    for agent in model.shards.written_agents:
        row = model.shards.local_agents.index(agent)
        model.save_adapters(agent, _agent_folder(part, agent))

        # The text decoder has no head of its own, but calibration is fitted for it too.
        head = {
            name: value[row] for name, value in tensors.items() if name.startswith(_HEAD_PREFIXES)
        }
        _agent_folder(part, agent).mkdir(parents=True, exist_ok=True)
        _write_values(head, _agent_folder(part, agent) / _HEAD_FILE)


def _write_values(values: Mapping[str, Any], file: Path) -> None:
    # In the order of C, as the format wants it; numbers stay numbers.
    save_file({k: np.array(to_array(v), order="C") for k, v in values.items()}, file)


def _agent_folder(model: Path, agent: int) -> Path:
    return model / "adapters" / f"agent_{agent:02d}"
