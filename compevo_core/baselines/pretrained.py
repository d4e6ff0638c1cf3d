"""Pretrained models of time series: Chronos-2, Chronos-Bolt, TimesFM 2.5 and Toto 2.

What belongs here: finding a model's folder, telling its kind, loading it with its own library and
asking it for medians. What does not: forecasts in the units of a series (``baselines.zero_shot``).

Only ``config.json`` and safetensors are read: no pickle, and no code that a model brings along.
``chronos-forecasting`` loads the Chronos models, ``transformers`` TimesFM, ``toto-2`` (Python 3.12
or newer) Toto.

Shapes: N windows, L lookback, H horizon, V variables (one), Q quantiles.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compevo_core.data.files import hash_file
from compevo_core.data.view import HORIZON
from compevo_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

FILES = ("config.json", "*.safetensors", "*.safetensors.index.json")
"""What is read of a model."""

_MEDIAN = 0.5
_TOTO_MEDIAN = 4  # of its nine quantiles, 0.1 to 0.9
_TOTO_PARTS = {"layer_group_size", "num_variate_layers_per_group"}
_TOTO_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_CHRONOS = "pip install 'compevo[zero-shot]'"
_TOTO = "pip install toto-2 (Python 3.12 or newer)"

MedianForecast = Callable[["Tensor"], "Tensor"]
"""From scaled inputs (N, L), float32, to medians (N, H)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedModel:
    """A loaded model.

    Attributes:
        name: its short name, the last part of its path or hub id.
        forecast: from scaled inputs to medians.
        weights_hash: SHA-256 over its weights.
    """

    name: str
    forecast: MedianForecast
    weights_hash: str


def load_pretrained(name_or_path: str) -> PretrainedModel:
    """Load a model of time series.

    Args:
        name_or_path: a folder, or a hub id that is in the local cache or can be fetched.

    Raises:
        ConfigError: there is no such model, it is of another kind, or its library is missing.
    """
    folder = _find_folder(name_or_path)
    weights = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not weights:
        raise ConfigError(
            f"{name_or_path} holds no config.json with *.safetensors beside it; give the folder of "
            "a model of time series"
        )

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return PretrainedModel(
        name=short_name(name_or_path),
        forecast=_choose_loader(config, name_or_path)(folder),
        weights_hash=hashlib.sha256("".join(map(hash_file, weights)).encode()).hexdigest(),
    )


def short_name(name_or_path: str) -> str:
    """Return the last part of a path or hub id."""
    return Path(name_or_path).name


def _find_folder(name_or_path: str) -> Path:
    if Path(name_or_path).is_dir():
        return Path(name_or_path)

    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name_or_path, allow_patterns=list(FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ConfigError(
            f"no model {name_or_path!r}: it is no folder, and no hub id that is in the local cache "
            f"or can be fetched ({type(error).__name__}); fetch it where there is a network with "
            f"`hf download {name_or_path}`, or give a folder"
        ) from error


def _choose_loader(config: dict[str, Any], name: str) -> Callable[[Path], MedianForecast]:
    architectures = config.get("architectures") or [""]
    by_architecture = {
        "Chronos2Model": _load_chronos_2,
        "ChronosBoltModelForForecasting": _load_chronos_bolt,
        "TimesFm2_5ModelForPrediction": _load_timesfm,
    }
    if architectures[0] in by_architecture:
        return by_architecture[architectures[0]]
    # Toto's configuration names no architecture, and may stand below a key of its own.
    if set(config) | set(config.get("config", {})) >= _TOTO_PARTS:
        return _load_toto
    raise ConfigError(
        f"{name} is of another kind ({architectures[0] or 'no architecture in its config.json'}); "
        f"known: {', '.join(by_architecture)}, Toto 2"
    )


def _load_chronos_2(folder: Path) -> MedianForecast:
    pipeline = _load_chronos(folder)

    def forecast(x_NL: "Tensor") -> "Tensor":
        import torch

        # One series a window: windows of a batch must not read each other.
        quantiles, _ = pipeline.predict_quantiles(
            x_NL[:, None],
            prediction_length=HORIZON,
            quantile_levels=[_MEDIAN],
            cross_learning=False,
        )
        return torch.stack([one_VHQ[0, :, 0] for one_VHQ in quantiles])

    return forecast


def _load_chronos_bolt(folder: Path) -> MedianForecast:
    pipeline = _load_chronos(folder)

    def forecast(x_NL: "Tensor") -> "Tensor":
        # The median is the forecast that the mean absolute error asks for.
        quantiles_NHQ, _ = pipeline.predict_quantiles(
            x_NL, prediction_length=HORIZON, quantile_levels=[_MEDIAN]
        )
        median_NH: Tensor = quantiles_NHQ[..., 0]
        return median_NH

    return forecast


def _load_chronos(folder: Path) -> Any:  # noqa: ANN401 - a pipeline of chronos
    try:
        from chronos import BaseChronosPipeline
    except ImportError as error:
        raise ConfigError(f"{folder} needs chronos-forecasting: {_CHRONOS}") from error

    return BaseChronosPipeline.from_pretrained(
        folder, device_map="cpu", dtype="float32", use_safetensors=True
    )


def _load_timesfm(folder: Path) -> MedianForecast:
    import torch
    from transformers import TimesFm2_5ModelForPrediction

    model = TimesFm2_5ModelForPrediction.from_pretrained(
        folder, dtype=torch.float32, use_safetensors=True
    ).eval()
    patch = model.config.patch_length

    def forecast(x_NL: "Tensor") -> "Tensor":
        # Whole patches: what is missing in front is filled with zero, the mean of a scaled window.
        # Cutting at zero would look at the smallest value of the whole batch.
        made = model(
            past_values=list(x_NL),
            forecast_context_len=-(-x_NL.shape[1] // patch) * patch,
            truncate_negative=False,
        )
        median_NH: Tensor = made.mean_predictions[:, :HORIZON]
        return median_NH

    return forecast


def _load_toto(folder: Path) -> MedianForecast:
    # Its library reads these where they are, and pickled weights where they are not.
    if not any((folder / name).is_file() for name in _TOTO_WEIGHTS):
        raise ConfigError(f"{folder} holds none of {', '.join(_TOTO_WEIGHTS)}")
    try:
        from toto2 import Toto2Model as Toto
    except ImportError as error:
        raise ConfigError(f"{folder} needs Toto's library: {_TOTO}") from error

    model = Toto.from_pretrained(str(folder)).eval()

    def forecast(x_NL: "Tensor") -> "Tensor":
        import torch

        # A window is one series of one variable, and no window reads another.
        target_NVL = x_NL[:, None]
        quantiles_QNVH = model.forecast(
            {
                "target": target_NVL,
                "target_mask": torch.ones_like(target_NVL, dtype=torch.bool),
                "series_ids": torch.zeros(len(x_NL), 1, dtype=torch.long),
            },
            horizon=HORIZON,
            has_missing_values=False,
        )
        median_NH: Tensor = quantiles_QNVH[_TOTO_MEDIAN, :, 0]
        return median_NH

    return forecast
