"""The inputs that networks get from a window, and the layers that several of them share.

What belongs here: turning views into arrays, the base class, series decomposition, embeddings of
values and time features. What does not: anything that only one network has.

Values are in units of the entity's train deviation. Time features follow the networks' authors:
hour of the day, day of the week, of the month and of the year, each in [-0.5, 0.5], in local time.

Shapes: N or B windows, L lookback or steps, H horizon, M time features, D width.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self
from zoneinfo import ZoneInfo

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.steps import shift
from compevo_core.data.view import WindowView, find_horizon, find_shared, stack_rows

TIME_FEATURES = 4

WIDTH, INNER, HEADS = 128, 256, 8  # of the transformers over variates, nodes and frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInputs:
    """Inputs of N windows, float32: scaled values, time features of the input and target steps."""

    values_NL: Tensor
    past_NLM: Tensor
    future_NHM: Tensor

    @classmethod
    def encode(cls, views: Sequence[WindowView], scaler: Scaler, **added: Tensor) -> Self:
        """Encode views; DataError if an entity was not in the train split.

        ``added`` is what else a subclass knows about the windows.
        """
        values_NL = stack_rows([scaler.scale(view.x, view.entity) for view in views])
        marks = [_encode_steps(view) for view in views]
        lookback = find_shared(views, "lookback")
        steps = lookback + find_horizon(views)
        marks_NTM = np.stack(marks) if marks else np.empty((0, steps, TIME_FEATURES))

        return cls(
            values_NL=torch.tensor(values_NL, dtype=torch.float32),
            past_NLM=torch.tensor(marks_NTM[:, :lookback], dtype=torch.float32),
            future_NHM=torch.tensor(marks_NTM[:, lookback:], dtype=torch.float32),
            **added,
        )

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.values_NL)

    def select(self, positions: Tensor) -> Self:
        """Return the windows at some positions, with all that a subclass adds."""
        chosen = {field.name: getattr(self, field.name)[positions] for field in fields(self)}
        return replace(self, **chosen)


def _encode_steps(view: WindowView) -> FloatArray:
    """Return the time features of the steps of input and horizon, (L + H, M)."""
    # Local time: demand follows the clock on the wall, also when it changes.
    zone = ZoneInfo(view.calendar.timezone)
    starts = (shift(view.origin_utc, i, view.step) for i in range(-view.lookback, view.horizon))
    return np.array(
        [
            [
                (moment.hour + moment.minute / 60) / 24 - 0.5,
                moment.weekday() / 6 - 0.5,
                (moment.day - 1) / 30 - 0.5,
                (moment.timetuple().tm_yday - 1) / 365 - 0.5,
            ]
            for moment in (start.astimezone(zone) for start in starts)
        ]
    )


TREND_STEPS = 25  # steps of the moving average of DLinear and FEDformer, as published


class Network(nn.Module, ABC):
    """Maps inputs whose values are normalised to forecasts on the same scale."""

    @abstractmethod
    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""


class SeriesDecomposition(nn.Module):
    """Splits a series into its moving average and the rest."""

    def forward(self, values_BLC: Tensor) -> tuple[Tensor, Tensor]:
        """Return remainder and trend, (B, L, C) each; ends are repeated, so no step is lost."""
        half = (TREND_STEPS - 1) // 2
        padded_BCL = functional.pad(values_BLC.transpose(1, 2), (half, half), mode="replicate")
        trend_BLC = functional.avg_pool1d(padded_BCL, TREND_STEPS, stride=1).transpose(1, 2)
        return values_BLC - trend_BLC, trend_BLC


class StepEmbedding(nn.Module):
    """Embeds every step: a circular convolution of three values, plus its time features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.values = nn.Conv1d(1, width, 3, padding=1, padding_mode="circular", bias=False)
        nn.init.kaiming_normal_(self.values.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.marks = nn.Linear(TIME_FEATURES, width, bias=False)

    def forward(self, values_BL: Tensor, marks_BLM: Tensor) -> Tensor:
        """Return one vector per step, (B, L, D)."""
        values_BLD: Tensor = self.values(values_BL.unsqueeze(1)).transpose(1, 2)
        marks_BLD: Tensor = self.marks(marks_BLM)
        return values_BLD + marks_BLD


def count_trainable(module: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def encode_positions(steps: int, width: int) -> Tensor:
    """Return sine and cosine position codes (steps, width)."""
    rate = torch.exp(torch.arange(0, width, 2) * (-torch.log(torch.tensor(10_000.0)) / width))
    angle = torch.arange(steps).unsqueeze(1) * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
