"""Run folders: their names, and which run of a data set is the current one.

What belongs here: naming a run by what decides it, the pointer to the newest finished one, and the
version of the code that an asset trained it by. What does not: the files that training writes into
a run folder (``compevo_core.training.run_folder``).

A name holds the hashes of configuration and data, so that the same training started twice finds its
own checkpoints, and another training never overwrites it.
"""

import json
from pathlib import Path

from compevo_core.config import RunConfig
from compevo_core.data.files import write_json, write_text
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.training.manifest import verify_manifest
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.settings import Layout

_HASH_DIGITS = 8


def make_run_name(label: str, config: RunConfig, windows: WindowSet) -> str:
    """Return ``<label>-<hash of the configuration>-<hash of the data>``.

    The data is what a training sees, train and validation windows: another day of test or inference
    windows is no reason to train again.
    """
    digits = _HASH_DIGITS
    return f"{label}-{config.hash[:digits]}-{windows.training_hash[:digits]}"


def set_current_run(layout: Layout, dataset: str, name: str) -> None:
    """Make a finished run the one that evaluation, leakage check and report use."""
    # One small file, replaced atomically: a reader sees the run before or this one.
    write_text(_pointer(layout, dataset), json.dumps({"run": name}))


def has_current_run(layout: Layout, dataset: str) -> bool:
    """Whether a training of the data set has finished."""
    return _pointer(layout, dataset).exists()


def find_current_run(layout: Layout, dataset: str) -> Path:
    """Return the folder of the current run.

    Raises:
        DataError: no training of the data set has finished.
    """
    pointer = _pointer(layout, dataset)
    if not pointer.exists():
        raise DataError(
            f"no trained population for {dataset} in {layout.root}: materialize "
            f"models/compevo/{dataset}"
        )

    return layout.run(str(json.loads(pointer.read_text(encoding="utf-8"))["run"]))


def hash_model(run: Path) -> str:
    """Return the hash of a run's sealed model.

    Raises:
        CheckpointMismatch: the model is unfinished or was altered.
    """
    return str(verify_manifest(RunFolder(run).model)["hash"])


def write_code_version(run: Path, version: str) -> None:
    """Keep by which version of the code a run was trained that has just finished.

    Args:
        run: the run folder.
        version: as ``assets.definition.code_version`` gives it.

    Raises:
        CheckpointMismatch: the model is unfinished or was altered.
    """
    write_json(RunFolder(run).code_file, {"code_version": version, "model": hash_model(run)})


def read_code_version(run: Path) -> str | None:
    """Return by which version of the code a finished run was trained.

    None where nobody kept it, as for a run that a command trained, also in the place of another.

    Raises:
        CheckpointMismatch: the model is unfinished or was altered.
    """
    file = RunFolder(run).code_file
    if not file.is_file():
        return None
    kept = json.loads(file.read_text(encoding="utf-8"))
    return str(kept["code_version"]) if kept["model"] == hash_model(run) else None


def _pointer(layout: Layout, dataset: str) -> Path:
    return layout.root / "runs" / f"current-{dataset}.json"
