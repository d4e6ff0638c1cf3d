"""Layers that several networks share.

What belongs here: series decomposition, embeddings of values and time features, the base class.
What does not: anything that one network alone has.

Shapes: B windows, L steps, M time features, D width.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from compevo_core.networks.inputs import TIME_FEATURES, NetworkInputs

TREND_STEPS = 25
"""Steps of the moving average of DLinear and FEDformer, as published."""


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
        """Make an embedding of ``width`` features."""
        super().__init__()
        self.values = nn.Conv1d(1, width, 3, padding=1, padding_mode="circular", bias=False)
        nn.init.kaiming_normal_(self.values.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.marks = nn.Linear(TIME_FEATURES, width, bias=False)

    def forward(self, values_BL: Tensor, marks_BLM: Tensor) -> Tensor:
        """Return one vector a step, (B, L, D)."""
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
