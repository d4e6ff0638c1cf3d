"""A pretrained model of time series, used as it is: nothing is fitted on this data.

What belongs here: this baseline and the names that ask for it. What does not: the libraries of such
models (``baselines.pretrained``).

Every window is centred on the mean of its 48 inputs and divided by their spread, as for the
networks. What such a model has read before is not published window by window, so its rows are
marked as possibly memorised.

Shapes: N windows, L lookback (48), H horizon (48).
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Self

import numpy as np

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    stack_rows,
    write_baseline_file,
)
from compevo_core.baselines.facts import MethodFacts
from compevo_core.baselines.pretrained import PretrainedModel, load_pretrained, short_name
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, ConfigError

PREFIX = "zero-shot:"
"""What the name of such a prior or method begins with; the model's folder or hub id follows."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

UNKNOWN_CUTOFF = "unknown"
_LEAST_SPREAD = 1e-6  # of a window that never changes, as a share of its mean


def is_zero_shot(name: str) -> bool:
    """Return whether a name asks for a pretrained model."""
    return name.startswith(PREFIX)


def make_folder_name(name: str) -> str:
    """Return the name of a baseline without what a folder's name cannot hold."""
    return _UNSAFE.sub("-", name)


class ZeroShot:
    """A pretrained model behind the contract of a baseline."""

    def __init__(self, path: str, model: PretrainedModel) -> None:
        """Take a loaded model; use :meth:`fit` or :meth:`load`."""
        self._path = path
        self._model = model

    @property
    def name(self) -> str:
        """The method name in result rows: a machine's path is none of a reader's business."""
        return f"zero-shot-{self._model.name}"

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        return MethodFacts(
            trainable_parameters=0,
            backbone=self._model.name,
            knowledge_cutoff=UNKNOWN_CUTOFF,
            artifact_hash=self._model.weights_hash,
        )

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0, name: str = PREFIX) -> Self:
        """Load the model that a name asks for; train windows are only checked.

        Args:
            train: windows of the train split.
            seed: not used; nothing is drawn.
            name: ``zero-shot:`` and a folder or hub id.

        Raises:
            ConfigError: there is no such model, or its library is missing.
            LeakageError: a window is of the test or inference split.
        """
        path = name.removeprefix(PREFIX)
        if not path:
            raise ConfigError(
                f"{name!r} names no model; write {PREFIX}FOLDER or {PREFIX}HUB-ID, or for a prior "
                "forecast.zero_shot_model"
            )
        # Nothing is learnt from them, but a method that took any split would hide a mistake.
        refuse_held_out_splits(train, name)
        return cls(path, _load_once(path))

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit."""
        if not views:
            return stack_rows([])

        import torch

        # Models were trained on series of all sizes; in float32 a scaled window keeps its digits.
        x_NL = np.stack([view.x for view in views])
        mean_N1 = x_NL.mean(axis=1, keepdims=True)
        least_N1 = _LEAST_SPREAD * np.maximum(np.abs(mean_N1), 1.0)
        spread_N1 = np.maximum(x_NL.std(axis=1, keepdims=True), least_N1)

        scaled = torch.tensor((x_NL - mean_N1) / spread_N1, dtype=torch.float32)
        with torch.inference_mode():
            median_NH = self._model.forecast(scaled).double().numpy()
        return np.asarray(median_NH * spread_N1 + mean_N1, dtype=np.float64)

    def save(self, folder: Path) -> None:
        """Write which model it is; its weights stay where they are."""
        write_baseline_file(folder, PREFIX + self._path, weights=self._model.weights_hash)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what :meth:`save` wrote, and load the model again.

        Raises:
            CheckpointMismatch: the folder is incomplete, or the model has other weights by now.
        """
        facts = read_baseline_file(folder)
        path = facts["baseline"].removeprefix(PREFIX)
        model = _load_once(path)
        # A folder or a hub id may hold other weights by now, and rows would not say so.
        if model.weights_hash != facts["weights"]:
            raise CheckpointMismatch(
                f"{short_name(path)} has other weights than when {folder} was written; restore "
                "them, or fit again"
            )
        return cls(path, model)


@lru_cache(maxsize=2)
def _load_once(path: str) -> PretrainedModel:
    # Every fold of a prior and every seed asks for the same weights.
    return load_pretrained(path)
