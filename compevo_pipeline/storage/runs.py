"""Run folders: their names, and which run of a data set is the one in use.

What belongs here: naming by what decides a run, and the pointer to the newest finished one. What does not: what lies in
a run folder (the trainer's). A name holds the hashes of configuration and data, so that the same training started twice
finds its own checkpoints, and another training never overwrites it.
"""

import json
from pathlib import Path

from compevo_core.config import RunConfig
from compevo_core.errors import DataError
from compevo_pipeline.settings import Layout

_HASH = 8


def run_name(label: str, config: RunConfig, data_hash: str) -> str:
    """``<label>-<configuration>-<data>``."""
    return f"{label}-{config.hash[:_HASH]}-{data_hash[:_HASH]}"


def set_current(layout: Layout, dataset: str, name: str) -> None:
    """Makes a finished run the one that evaluation, leakage check and report use."""
    pointer = _pointer(layout, dataset)
    pointer.parent.mkdir(parents=True, exist_ok=True)
    part = pointer.with_suffix(".part")
    part.write_text(json.dumps({"run": name}), encoding="utf-8")
    part.replace(pointer)


def has_run(layout: Layout, dataset: str) -> bool:
    """Whether a training of the data set has finished."""
    return _pointer(layout, dataset).exists()


def current(layout: Layout, dataset: str) -> Path:
    """Folder of the run in use.

    Raises:
        DataError: no training of the data set has finished.
    """
    pointer = _pointer(layout, dataset)
    if not pointer.exists():
        raise DataError(
            f"no trained population for {dataset} in {layout.root}: materialize models/compevo for it"
        )
    return layout.run(str(json.loads(pointer.read_text(encoding="utf-8"))["run"]))


def _pointer(layout: Layout, dataset: str) -> Path:
    return layout.root / "runs" / f"current-{dataset}.json"
