"""Run folders: their names, and which run of a data set is the current one.

What belongs here: naming a run by what decides it, and the pointer to the newest finished one. What
does not: the files of a run folder (``compevo_core.training.run_folder``).

A name holds the hashes of configuration and data, so that the same training started twice finds its
own checkpoints, and another training never overwrites it.
"""

import json
from pathlib import Path

from compevo_core.config import RunConfig
from compevo_core.data.files import write_text
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
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


def _pointer(layout: Layout, dataset: str) -> Path:
    return layout.root / "runs" / f"current-{dataset}.json"
