"""The trained population as a sealed folder: PEFT adapters, small tensors, logics, prior, scaler, configuration.

What belongs here: writing and reading ``<run>/model``. What does not: prediction (``forecaster``), checkpoints.
The folder's hash is the artifact hash: the 2026 inference must leave it as it was.
"""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from compevo_core.baselines import Baseline
from compevo_core.config import RunConfig
from compevo_core.data.scaling import Scaler
from compevo_core.lm.peft_io import load_adapter, save_adapter
from compevo_core.lm.population import KINDS
from compevo_core.training.checkpoint import MANIFEST, verify, written_together
from compevo_core.training.model import PopulationModel
from compevo_core.training.prior import save_prior

MODEL = "model"
_HEAD = "head.safetensors"
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
    run: Path,
    learner: PopulationModel,
    logics: list[str],
    prior: Baseline | None,
    facts: Mapping[str, Any],
) -> str:
    """Writes ``run/model`` atomically and returns its hash; every process writes its own agents' folders."""
    target, shards = run / MODEL, learner.shards
    with written_together(run, target, facts, shards) as part:
        for row, agent in enumerate(shards.local_agents):
            for kind in KINDS:
                save_adapter(learner.population, agent, kind, _agent(part, agent) / kind)
            if head := {
                k: v[row].cpu().contiguous()
                for k, v in learner.agent_tensors().items()
                if _is_head(k)
            }:
                save_file(head, _agent(part, agent) / _HEAD)
        if shards.is_first:
            small = {k: v.cpu().contiguous() for k, v in learner.shared_tensors().items()}
            save_file(small, part / "state.safetensors")
            (part / "logics.json").write_text(json.dumps(logics, indent=1), encoding="utf-8")
            (part / "scaler.json").write_text(learner.scaler.to_json(), encoding="utf-8")
            settings = json.dumps(learner.config.to_dict(), indent=1, sort_keys=True)
            (part / "config.json").write_text(settings, encoding="utf-8")
            save_prior(prior, part)
    return str(json.loads((target / MANIFEST).read_text(encoding="utf-8"))["hash"])


def read_config(run: Path) -> RunConfig:
    """The configuration a model was trained with."""
    return RunConfig.from_mapping(
        json.loads((run / MODEL / "config.json").read_text(encoding="utf-8"))
    )


def read_scaler(run: Path) -> Scaler:
    """The scaler fitted on its train split."""
    return Scaler.from_json((run / MODEL / "scaler.json").read_text(encoding="utf-8"))


def read_logics(run: Path) -> list[str]:
    """The logics its agents ended with."""
    logics: list[str] = json.loads((run / MODEL / "logics.json").read_text(encoding="utf-8"))
    return logics


def load_into(learner: PopulationModel, run: Path) -> None:
    """Sets a learner's tensors from ``run/model``."""
    folder, heads = run / MODEL, []
    for agent in learner.shards.local_agents:
        for kind in KINDS:
            load_adapter(learner.population, agent, kind, _agent(folder, agent) / kind)
        file = _agent(folder, agent) / _HEAD
        heads.append(load_file(file) if file.is_file() else {})
    adapters = {k: v for k, v in learner.agent_tensors().items() if not _is_head(k)}
    stacked = {name: torch.stack([head[name] for head in heads]) for name in heads[0]}
    learner.load(adapters | stacked | load_file(folder / "state.safetensors"))


def model_manifest(run: Path) -> dict[str, Any]:
    """The verified manifest of ``run/model``: facts, file hashes and the artifact hash."""
    return verify(run / MODEL)


def versions() -> dict[str, str]:
    """Installed versions of what can change a number."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def _agent(model: Path, agent: int) -> Path:
    return model / "adapters" / f"agent_{agent:02d}"


def _is_head(name: str) -> bool:
    return name.startswith("answers.")
