"""The trained model as a sealed folder, ``<run>/model``, with its base models and settings.

The hash over the folder's files is the artifact hash of every result row, and predicting must not
change it (decision 11-settings). Names of files and tensors are therefore part of the format.
"""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from compevo_core.agents.experience import Experience
from compevo_core.agents.numeric_inputs import NumericInputs
from compevo_core.config.run import RunConfig
from compevo_core.data.scaling import Scaler
from compevo_core.errors import CheckpointMismatch
from compevo_core.runtime.distributed import AgentShards
from compevo_core.training.ensemble import EXPERIENCE_FILE, Ensemble
from compevo_core.training.run_folder import RunFolder, verify_manifest, write_sealed_folder

_PACKAGES = (
    "compevo",
    "torch",
    "transformers",
    "peft",
    "polars",
    "numpy",
    "sentence-transformers",
    "lightgbm",
)


def write_model(
    folder: RunFolder, model: Ensemble, facts: Mapping[str, Any], shards: AgentShards | None = None
) -> str:
    """Write the sealed model of a run atomically, with facts in its manifest; return its hash.

    Every process writes its own agents; the first one writes the rest.
    """
    shards = shards or AgentShards(1)
    of_model = {
        "versions": installed_versions(),
        "seed": model.config.run.seed,
        "device": model.device,
        "processes": shards.processes,
        "knowledge_cutoff": model.knowledge_cutoff,
    }
    with write_sealed_folder(folder.path, folder.model, {**facts, **of_model}, shards) as part:
        model.save(part)

    manifest = json.loads(folder.model_manifest_file.read_text(encoding="utf-8"))
    return str(manifest["hash"])


def read_config(run: Path) -> RunConfig:
    """Return the configuration that the model of a run was trained with."""
    file = RunFolder(run).model_config_file
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointMismatch(
            f"{file} cannot be read ({error}); restore it or train again"
        ) from error
    return RunConfig.from_mapping(raw)


def read_scaler(run: Path) -> Scaler:
    """Return the scale of each series, as the model of a run was fitted."""
    file = RunFolder(run).model_scaler_file
    if file.is_file():
        return Scaler.from_json(file.read_text(encoding="utf-8"))
    return read_inputs(run).scaler  # agents store it with their other statistics


def read_inputs(run: Path) -> NumericInputs:
    """Return how the agents of a run turn windows into numbers, as fitted on its train split."""
    return NumericInputs.from_json(RunFolder(run).model_inputs_file.read_text(encoding="utf-8"))


def read_experience(run: Path) -> Experience:
    """Return the forecasts of a run's model up to its sealing, with their truth."""
    return Experience.load(sorted(read_scaler(run).mean), RunFolder(run).model / EXPERIENCE_FILE)


def read_model_manifest(run: Path) -> dict[str, Any]:
    """Return the manifest of a run's model after checking every file against it.

    It has facts of the training, ``files`` (sha256 by name) and the artifact's ``hash``.
    CheckpointMismatch if the model is unfinished or altered, or the run has been started over.
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
