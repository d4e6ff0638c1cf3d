"""FiLM: Legendre memories of the past, filtered in the frequency domain.

What belongs here: this network. Source: Zhou et al., "FiLM: Frequency improved Legendre Memory
Model for Long-term Time Series Forecasting", NeurIPS 2022; the measure is LegT of HiPPO (Gu et al.,
2020), discretised bilinearly. No library at hand provides it faithfully.

Differs: 64 Legendre coefficients instead of 256, since inputs are short; the recurrence over
time is applied as one precomputed map (equal values, tested). The memories span 1, 2 and 4 horizons
as published, though only one horizon of input exists here.

Shapes: B windows, L input steps, T steps of the states, N coefficients, K frequencies.
"""

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.networks.layers import Network, NetworkInputs

SCALES = (1, 2, 4)  # lengths of the memories, in horizons
MOST_FREQUENCIES = 32


class FiLM(Network):
    """One filtered memory for each scale, and a linear mix of their forecasts."""

    def __init__(
        self,
        lookback: int = DEFAULT_STEPS,
        horizon: int = DEFAULT_STEPS,
        *,
        coefficients: int = 64,
    ) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.shift = nn.Parameter(torch.zeros(1))
        self.memories = nn.ModuleList(
            FilteredMemory(scale * horizon, coefficients, lookback, horizon) for scale in SCALES
        )
        self.mix = nn.Linear(len(SCALES), 1)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        # The affine map of reversible normalisation, undone at the end.
        values_BL = inputs.values_NL * self.scale + self.shift
        forecasts = [memory(values_BL) for memory in self.memories]
        mixed_BH: Tensor = self.mix(torch.stack(forecasts, dim=-1)).squeeze(-1)
        return (mixed_BH - self.shift) / (self.scale + 1e-10)


class FilteredMemory(nn.Module):
    """Coefficients of the past at every step, filtered over steps, read out as a forecast."""

    memory_TLN: Tensor
    readout_HN: Tensor

    def __init__(self, span: int, coefficients: int, lookback: int, horizon: int) -> None:
        super().__init__()
        transition, drive = discretise_legendre(coefficients, step=1 / span)
        memory = build_memory(transition, drive, lookback)
        readout = evaluate_legendre(coefficients, span)[-horizon:]
        self.register_buffer("memory_TLN", torch.tensor(memory, dtype=torch.float32))
        self.register_buffer("readout_HN", torch.tensor(readout, dtype=torch.float32))

        size = (coefficients, coefficients, min(MOST_FREQUENCIES, lookback // 2))
        bound = 1 / coefficients**2
        self.filter_real = nn.Parameter(bound * torch.rand(size))
        self.filter_imaginary = nn.Parameter(bound * torch.rand(size))

    def forward(self, values_BL: Tensor) -> Tensor:
        """Return a forecast (B, H)."""
        states_BTN = torch.einsum("bl,tln->btn", values_BL, self.memory_TLN)

        # Only the newest step of the filtered states is read, so the inverse transform is a sum.
        spectrum_BKN = torch.fft.rfft(states_BTN, dim=1)[:, : self.filter_real.shape[-1]]
        weights = torch.complex(self.filter_real, self.filter_imaginary)
        filtered_BKN = torch.einsum("bkn,nmk->bkm", spectrum_BKN, weights)
        newest_BN = _invert_at_last_step(filtered_BKN, values_BL.shape[1])
        return newest_BN @ self.readout_HN.T


def discretise_legendre(coefficients: int, *, step: float) -> tuple[FloatArray, FloatArray]:
    """Return the bilinear discretisation of the LegT system: matrix (N, N) and drive (N,)."""
    order = np.arange(coefficients, dtype=np.float64)
    rate = (2 * order + 1)[:, None]
    row, column = order[:, None], order[None, :]
    system = np.where(row < column, -1.0, (-1.0) ** (row - column + 1)) * rate
    drive = (-1.0) ** order * rate[:, 0]

    identity = np.eye(coefficients)
    backward = identity - step / 2 * system
    transition = np.linalg.solve(backward, identity + step / 2 * system)
    discrete_drive = np.linalg.solve(backward, step * drive)
    return np.asarray(transition, dtype=np.float64), np.asarray(discrete_drive, dtype=np.float64)


def build_memory(transition: FloatArray, drive: FloatArray, steps: int) -> FloatArray:
    """Return the map (T, L, N) from inputs to the states after each step.

    State t is the sum over inputs l <= t of ``transition ** (t - l) @ drive`` times input l.
    """
    powers = [drive]
    for _ in range(steps - 1):
        powers.append(transition @ powers[-1])

    lag_TL = np.arange(steps)[:, None] - np.arange(steps)
    return np.where((lag_TL >= 0)[..., None], np.array(powers)[lag_TL], 0.0)


def evaluate_legendre(coefficients: int, span: int) -> FloatArray:
    """Return the values of the Legendre polynomials at the steps of a memory, (span, N).

    The oldest step is first: the system holds the newest value at -1 of their interval.
    """
    grid = 1 - 2 * np.arange(span) / span
    return np.asarray(np.polynomial.legendre.legvander(grid, coefficients - 1), dtype=np.float64)


def _invert_at_last_step(spectrum_BKN: Tensor, steps: int) -> Tensor:
    """Return the last of L steps of the inverse real transform of a spectrum whose tail is zero."""
    frequency = torch.arange(spectrum_BKN.shape[1])
    angle = 2 * torch.pi * frequency * (steps - 1) / steps

    # Every frequency but zero stands for itself and its mirror image.
    wave = torch.polar(torch.where(frequency == 0, 1.0, 2.0), angle)
    return torch.einsum("bkn,k->bn", spectrum_BKN, wave).real / steps
