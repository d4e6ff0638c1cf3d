"""The trained population as a sealed folder: PEFT adapters, small tensors, logics, prior, scaler, configuration.

What belongs here: writing and reading ``<run>/model``. What does not: prediction (``forecaster``), checkpoints.
The folder's hash is the artifact hash: the 2026 inference must leave it as it was.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from compevo_core.adapters import load_adapter, save_adapter
from compevo_core.baselines import Baseline
from compevo_core.checkpoint import seal, verify
from compevo_core.config import RunConfig
from compevo_core.learner import Learner
from compevo_core.population import KINDS
from compevo_core.prior import save_prior
from compevo_core.scaling import Scaler

MODEL = "model"
_PACKAGES = ("compevo", "torch", "transformers", "peft", "polars", "numpy", "sentence-transformers", "lightgbm")


def write_model(run: Path, learner: Learner, logics: list[str], prior: Baseline | None,
                facts: Mapping[str, Any]) -> str:
    """Writes ``run/model`` atomically and returns its hash."""
    part = Path(tempfile.mkdtemp(prefix=".model-", dir=run))
    for agent in range(learner.config.population.agents):
        for kind in KINDS:
            save_adapter(learner.population, agent, kind, part / "adapters" / f"agent_{agent:02d}" / kind)
    small = {k: v.cpu().contiguous() for k, v in learner.tensors().items() if not k.startswith("adapters.")}
    save_file(small, part / "state.safetensors")
    (part / "logics.json").write_text(json.dumps(logics, indent=1), encoding="utf-8")
    (part / "scaler.json").write_text(learner.scaler.to_json(), encoding="utf-8")
    (part / "config.json").write_text(json.dumps(learner.config.to_dict(), indent=1, sort_keys=True), encoding="utf-8")
    save_prior(prior, part)
    digest = seal(part, facts)
    target = run / MODEL
    if target.exists():
        shutil.rmtree(target)
    part.rename(target)
    return digest


def read_config(run: Path) -> RunConfig:
    """The configuration a model was trained with."""
    return RunConfig.from_mapping(json.loads((run / MODEL / "config.json").read_text(encoding="utf-8")))


def read_scaler(run: Path) -> Scaler:
    """The scaler fitted on its train split."""
    return Scaler.from_json((run / MODEL / "scaler.json").read_text(encoding="utf-8"))


def read_logics(run: Path) -> list[str]:
    """The logics its agents ended with."""
    logics: list[str] = json.loads((run / MODEL / "logics.json").read_text(encoding="utf-8"))
    return logics


def load_into(learner: Learner, run: Path) -> None:
    """Sets a learner's tensors from ``run/model``."""
    folder = run / MODEL
    for agent in range(learner.config.population.agents):
        for kind in KINDS:
            load_adapter(learner.population, agent, kind, folder / "adapters" / f"agent_{agent:02d}" / kind)
    adapters = {k: v for k, v in learner.tensors().items() if k.startswith("adapters.")}
    learner.load(adapters | load_file(folder / "state.safetensors"))


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
