"""Pretrained models of time series: Chronos-2, Chronos-Bolt, TimesFM 2.5 and Fracast.

Only ``config.json`` and safetensors are read: no pickle, and no code that a model brings along.
Every window is centred on the mean of its inputs and divided by their spread. What such a model
has read before is not published, so its rows are marked as possibly memorised.

Shapes: N windows, L lookback, H horizon, Q quantiles.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from compevo_core.baselines.base import (
    Baseline,
    MethodFacts,
    raise_if_held_out,
    read_baseline_file,
    write_baseline_file,
)
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView, find_horizon, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, ConfigError, import_package
from compevo_core.runtime.files import hash_file, hash_text

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")  # what is read of a model

_MEDIAN = 0.5

FRACAST = "fracast"
"""A model of 85,001 weights that its package brings along (Apache-2.0)."""

MedianForecast = Callable[["Tensor", int], "Tensor"]
"""From scaled inputs (N, L), float32, and the horizon to medians (N, H)."""


@lru_cache(maxsize=2)
def _load_once(name_or_path: str) -> tuple[MedianForecast, str]:
    """Load a model of time series; return it with the SHA-256 over its weights.

    Every fold of a prior and every seed asks for the same weights.
    """
    folder = _find_folder(name_or_path)
    weights = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not weights:
        raise ConfigError(
            f"{name_or_path} holds no config.json with *.safetensors; give the folder of "
            "a time series model"
        )

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights_hash = hash_text("".join(map(hash_file, weights)))
    kind = (config.get("architectures") or [""])[0]
    by_architecture = {
        "Chronos2Model": _load_chronos,
        "ChronosBoltModelForForecasting": _load_chronos,
        "TimesFm2_5ModelForPrediction": _load_timesfm,
    }
    if kind in by_architecture:
        return by_architecture[kind](folder), weights_hash
    if config.get("model", {}).get("family") == FRACAST:
        return _load_fracast(folder), weights_hash
    raise ConfigError(
        f"{name_or_path} has another kind ({kind or 'no architecture in its config.json'}); "
        f"known: {', '.join(by_architecture)}, Fracast"
    )


def short_name(name_or_path: str) -> str:
    """Return the last part of a path or hub id."""
    return Path(name_or_path).name


def _find_folder(name_or_path: str) -> Path:
    if Path(name_or_path).is_dir():
        return Path(name_or_path)
    # Its weights come with the package.
    if name_or_path == FRACAST and (package := find_spec(FRACAST)) and package.origin:
        return Path(package.origin).parent / "weights"

    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name_or_path, allow_patterns=list(FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ConfigError(
            f"no model {name_or_path!r}: it is not a folder, nor a hub id in the local cache, and "
            f"cannot be fetched ({type(error).__name__}); run `hf download {name_or_path}` where "
            "there is a network, or give a folder"
        ) from error


def _load_chronos(folder: Path) -> MedianForecast:
    library = import_package("chronos")
    pipeline = library.BaseChronosPipeline.from_pretrained(
        folder, device_map="cpu", dtype="float32", use_safetensors=True
    )
    # One series a window: windows of a batch must not read each other. Bolt never does.
    separate = {"cross_learning": False} if isinstance(pipeline, library.Chronos2Pipeline) else {}

    def forecast(x_NL: "Tensor", horizon: int) -> "Tensor":
        import torch

        # The median is the forecast that the mean absolute error asks for.
        quantiles, _ = pipeline.predict_quantiles(
            list(x_NL), prediction_length=horizon, quantile_levels=[_MEDIAN], **separate
        )
        return torch.stack([window.reshape(horizon) for window in quantiles])

    return forecast


def _load_timesfm(folder: Path) -> MedianForecast:
    import torch
    from transformers import TimesFm2_5ModelForPrediction

    model = TimesFm2_5ModelForPrediction.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True
    ).eval()
    patch = model.config.patch_length

    def forecast(x_NL: "Tensor", horizon: int) -> "Tensor":
        # Whole patches: what is missing in front is filled with zero, the mean of a scaled window.
        # Cutting at zero would look at the smallest value of the whole batch.
        length = math.ceil(x_NL.shape[1] / patch) * patch
        output = model(past_values=list(x_NL), forecast_context_len=length, truncate_negative=False)
        median_NH: Tensor = output.mean_predictions[:, :horizon]
        return median_NH

    return forecast


def _load_fracast(folder: Path) -> MedianForecast:
    library = import_package("fracast.inference")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    core, head = library.load_fracast(folder, weights="fp32")  # reads safetensors
    model = library.FracastModel(core, head, config)
    median = model.quantiles.index(_MEDIAN)

    def forecast(x_NL: "Tensor", horizon: int) -> "Tensor":
        import torch

        return torch.from_numpy(model.forecast_batch(x_NL.numpy(), horizon=horizon)[..., median])

    return forecast


PREFIX = "zero-shot:"
"""What the name of such a prior or method begins with; the model's folder or hub id follows."""

_AT_HAND = {
    "amazon/chronos-2": "chronos",
    "amazon/chronos-bolt-base": "chronos",
    "amazon/chronos-bolt-small": "chronos",
    "google/timesfm-2.5-200m-transformers": "transformers",
}
"""Models that are a candidate where their weights are, the best first, and their libraries."""


def find_at_hand() -> str:
    """Return the name of a model whose weights are on this machine; empty without any.

    They are in the local cache, or came with a package. Nothing is fetched.
    """
    for model, library in _AT_HAND.items():
        if find_spec(library):
            from huggingface_hub import try_to_load_from_cache

            # What the cache holds of a model that is whole.
            files = ("config.json", "model.safetensors")
            if all(isinstance(try_to_load_from_cache(model, name), str) for name in files):
                return model
    return FRACAST if find_spec(FRACAST) else ""


def is_zero_shot(name: str) -> bool:
    """Return whether a name asks for a pretrained model."""
    return name.startswith(PREFIX)


def make_folder_name(name: str) -> str:
    """Return the name of a baseline without what a folder's name cannot hold."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


class ZeroShot(Baseline):
    """A pretrained model behind the contract of a baseline."""

    cost = 10.0

    def __init__(self, path: str) -> None:
        # In rows: a machine's path is none of a reader's business.
        self.name = f"zero-shot-{short_name(path)}"
        self._path = path
        self._forecast, self._weights_hash = _load_once(path)

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        return MethodFacts(
            trainable_parameters=0,
            backbone=short_name(self._path),
            knowledge_cutoff="unknown",
            artifact_hash=self._weights_hash,
        )

    @classmethod
    def fit(cls, train: WindowSet, *, seed: int = 0, name: str = PREFIX) -> Self:
        """Load the model that a name asks for; train windows are only checked."""
        path = name.removeprefix(PREFIX)
        if not path:
            raise ConfigError(
                f"{name!r} names no model; write {PREFIX}FOLDER or {PREFIX}HUB-ID, or for a prior "
                "forecast.zero_shot_model"
            )
        # Nothing is learnt from them, but a method that took any split would hide a mistake.
        raise_if_held_out(train, name)
        return cls(path)

    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        if not views:
            return stack_rows([])

        import torch

        # Windows of one length are forecast together.
        forecast_NH = np.empty((len(views), find_horizon(views)))
        places: dict[int, list[int]] = {}
        for i, view in enumerate(views):
            # Whole look-backs, so that few lengths differ, of at most 1024 values or a look-back.
            whole = (len(view.past) // view.lookback + 1) * view.lookback
            length = min(whole, max(view.lookback, 1024))
            places.setdefault(length, []).append(i)
        for length, place in places.items():
            x_NL = np.stack([views[i].known[-length:] for i in place])

            # Models know series of all sizes; in float32 a scaled window keeps its digits.
            mean_N1 = x_NL.mean(axis=1, keepdims=True)
            least_N1 = 1e-6 * np.maximum(np.abs(mean_N1), 1.0)  # if it never changes
            spread_N1 = np.maximum(x_NL.std(axis=1, keepdims=True), least_N1)

            scaled = torch.tensor((x_NL - mean_N1) / spread_N1, dtype=torch.float32)
            with torch.inference_mode():
                median_NH = self._forecast(scaled, forecast_NH.shape[1]).double().numpy()
            forecast_NH[place] = median_NH * spread_N1 + mean_N1
        return forecast_NH

    def save(self, folder: Path) -> None:
        """Write which model it is; its weights stay where they are."""
        write_baseline_file(folder, PREFIX + self._path, weights=self._weights_hash)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load the model again; CheckpointMismatch if it has other weights by now."""
        facts = read_baseline_file(folder)
        loaded = cls(facts["baseline"].removeprefix(PREFIX))
        # A folder or a hub id may hold other weights by now, and rows would not say so.
        if loaded._weights_hash != facts["weights"]:
            raise CheckpointMismatch(
                f"{short_name(loaded._path)} has other weights than when {folder} was written; "
                "restore them, or fit again"
            )
        return loaded
