"""FiLM and FEDformer: networks that learn weights of frequencies, not of steps.

What belongs here: these two, as published except for the differences that each lists. A library
(neuralforecast) provides FEDformer; none at hand provides FiLM faithfully.

Shapes: B windows, L input steps, T steps of the states, S steps of the decoder (half of L, then H),
M time features, N coefficients, D width, E width of a head, K frequencies.
"""

import numpy as np
import torch
from torch import Tensor, nn

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import DEFAULT_STEPS
from compevo_core.paper.networks.layers import (
    HEADS,
    INNER,
    WIDTH,
    Network,
    NetworkInputs,
    SeriesDecomposition,
    StepEmbedding,
)

SCALES = (1, 2, 4)  # lengths of the memories, in horizons
MOST_FREQUENCIES = 32  # that a memory is filtered by

FREQUENCIES = 32  # that attention works on
_FREQUENCY_SEED = 2022


class FiLM(Network):
    """Legendre memories of the past, filtered: one for each scale, and a mix of their forecasts.

    Source: Zhou et al., "FiLM: Frequency improved Legendre Memory Model for Long-term Time Series
    Forecasting", NeurIPS 2022; the measure is LegT of HiPPO (Gu et al., 2020), discretised
    bilinearly.

    Differs: 64 Legendre coefficients instead of 256, since inputs are short; the recurrence over
    time is applied as one precomputed map (equal values, tested). The memories span 1, 2 and 4
    horizons as published, though only one horizon of input exists here.
    """

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

    # Every frequency but zero counts for itself and its mirror image.
    wave = torch.polar(torch.where(frequency == 0, 1.0, 2.0), angle)
    return torch.einsum("bkn,k->bn", spectrum_BKN, wave).real / steps


class FEDformer(Network):
    """A decomposing transformer in its Fourier form: two encoder layers and one decoder layer.

    Its attention works on a few random frequencies. Source: Zhou et al., "FEDformer: Frequency
    Enhanced Decomposed Transformer for Long-term Series Forecasting", ICML 2022.

    Differs: key and value projections that the Fourier block never reads are left out, which
    changes no forecast; the two encoder layers have a Fourier block each, where the published code
    shares one, and heads are put back in order before the output projection, where it mixes them
    with steps; tanh is taken of real and imaginary parts separately; one moving average instead of
    several; the sampled frequencies are saved with the weights.
    """

    def __init__(self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS) -> None:
        super().__init__()
        self._half, self._horizon = lookback // 2, horizon
        # The decoder sees the second half of the input again.
        decoded = self._half + horizon
        self.decomposition = SeriesDecomposition()
        self.encoder_embedding = StepEmbedding(WIDTH)
        self.decoder_embedding = StepEmbedding(WIDTH)
        self.encoder = nn.ModuleList(EncoderLayer(WIDTH, INNER, HEADS, lookback) for _ in range(2))
        self.encoder_norm = SeasonalNorm(WIDTH)
        self.decoder = DecoderLayer(WIDTH, INNER, HEADS, lookback, decoded)
        self.decoder_norm = SeasonalNorm(WIDTH)
        self.projection = nn.Linear(WIDTH, 1)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        values_BL1 = inputs.values_NL.unsqueeze(-1)
        seasonal_BL1, trend_BL1 = self.decomposition(values_BL1)

        # The decoder starts from the mean as trend and from nothing as season.
        half = self._half
        mean_BH1 = values_BL1.mean(dim=1, keepdim=True).expand(-1, self._horizon, -1)
        trend_BS1 = torch.cat([trend_BL1[:, -half:], mean_BH1], dim=1)
        seasonal_BS1 = torch.cat([seasonal_BL1[:, -half:], torch.zeros_like(mean_BH1)], dim=1)
        marks_BSM = torch.cat([inputs.past_NLM[:, -half:], inputs.future_NHM], dim=1)

        memory_BLD = self.encoder_embedding(inputs.values_NL, inputs.past_NLM)
        for layer in self.encoder:
            memory_BLD = layer(memory_BLD)
        memory_BLD = self.encoder_norm(memory_BLD)

        decoded_BSD = self.decoder_embedding(seasonal_BS1.squeeze(-1), marks_BSM)
        decoded_BSD, added_trend_BS1 = self.decoder(decoded_BSD, memory_BLD)
        seasonal_BS1 = self.projection(self.decoder_norm(decoded_BSD))
        forecast_BS: Tensor = (seasonal_BS1 + trend_BS1 + added_trend_BS1).squeeze(-1)
        return forecast_BS[:, -self._horizon :]


class EncoderLayer(nn.Module):
    """A Fourier block and two linear maps, each followed by a decomposition."""

    def __init__(self, width: int, inner: int, heads: int, steps: int) -> None:
        super().__init__()
        self.block = FourierBlock(width, heads, steps)
        self.inner = _make_inner(width, inner)
        self.decomposition = SeriesDecomposition()

    def forward(self, steps_BLD: Tensor) -> Tensor:
        """Return the season (B, L, D)."""
        steps_BLD, _ = self.decomposition(steps_BLD + self.block(steps_BLD))
        steps_BLD, _ = self.decomposition(steps_BLD + self.inner(steps_BLD))
        return steps_BLD


class DecoderLayer(nn.Module):
    """A Fourier block, attention to the encoder in the frequency domain, and two linear maps."""

    def __init__(self, width: int, inner: int, heads: int, memory_steps: int, steps: int) -> None:
        super().__init__()
        self.block = FourierBlock(width, heads, steps)
        self.attention = FourierCrossAttention(width, heads, memory_steps, steps)
        self.inner = _make_inner(width, inner)
        self.decomposition = SeriesDecomposition()
        self.trend = nn.Conv1d(width, 1, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, steps_BSD: Tensor, memory_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the season (B, S, D) and what the layer adds to the trend (B, S, 1)."""
        steps_BSD, first = self.decomposition(steps_BSD + self.block(steps_BSD))
        steps_BSD, second = self.decomposition(steps_BSD + self.attention(steps_BSD, memory_BLD))
        steps_BSD, third = self.decomposition(steps_BSD + self.inner(steps_BSD))

        trend_BDS = (first + second + third).transpose(1, 2)
        return steps_BSD, self.trend(trend_BDS).transpose(1, 2)


class FourierBlock(nn.Module):
    """Mixes features at a few frequencies; all others are set to zero."""

    frequencies: Tensor

    def __init__(self, width: int, heads: int, steps: int) -> None:
        super().__init__()
        self.heads = heads
        self.register_buffer("frequencies", sample_frequencies(steps))
        self.query = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.mix = ComplexMix(width, heads, len(self.frequencies))

    def forward(self, steps_BLD: Tensor) -> Tensor:
        """Return mixed steps (B, L, D)."""
        spectrum_BHEK = _to_spectrum(self.query(steps_BLD), self.heads, self.frequencies)
        # As in the authors' code, the k-th sampled frequency is put at place k of the answer.
        mixed_BLD: Tensor = self.out(_to_steps(self.mix(spectrum_BHEK), steps_BLD.shape[1]))
        return mixed_BLD


class FourierCrossAttention(nn.Module):
    """Attention between the frequencies of two series."""

    query_frequencies: Tensor
    key_frequencies: Tensor

    def __init__(self, width: int, heads: int, memory_steps: int, steps: int) -> None:
        super().__init__()
        self.heads = heads
        self.register_buffer("query_frequencies", sample_frequencies(steps))
        self.register_buffer("key_frequencies", sample_frequencies(memory_steps))
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.mix = ComplexMix(width, heads, len(self.query_frequencies))
        self.scale = 1 / (width * width)

    def forward(self, steps_BSD: Tensor, memory_BLD: Tensor) -> Tensor:
        """Return what the decoder reads of the encoder (B, S, D)."""
        queries = _to_spectrum(self.query(steps_BSD), self.heads, self.query_frequencies)
        keys = _to_spectrum(self.key(memory_BLD), self.heads, self.key_frequencies)

        # tanh of real and imaginary part separately: the complex tanh has poles, and gave NaN in
        # the authors' code.
        scores = torch.einsum("bhex,bhey->bhxy", queries, keys)
        scores = torch.complex(scores.real.tanh(), scores.imag.tanh())
        attended_BHEK = torch.einsum("bhxy,bhey->bhex", scores, keys)

        mixed_BHEK = self.mix(attended_BHEK) * self.scale
        read_BSD = _to_steps(mixed_BHEK, steps_BSD.shape[1], self.query_frequencies)
        out_BSD: Tensor = self.out(read_BSD)
        return out_BSD


class ComplexMix(nn.Module):
    """A complex matrix (E, E) for every head and frequency."""

    def __init__(self, width: int, heads: int, frequencies: int) -> None:
        super().__init__()
        size = (heads, width // heads, width // heads, frequencies)
        scale = 1 / (width * width)
        self.real = nn.Parameter(scale * torch.rand(size))
        self.imaginary = nn.Parameter(scale * torch.rand(size))

    def forward(self, spectrum_BHEK: Tensor) -> Tensor:
        """Return the product at every frequency, (B, heads, E, K)."""
        weights = torch.complex(self.real, self.imaginary)
        return torch.einsum("bhek,hefk->bhfk", spectrum_BHEK, weights)


class SeasonalNorm(nn.Module):
    """Layer norm whose mean over steps is removed, so that a season has no level."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, steps_BLD: Tensor) -> Tensor:
        """Return normed steps (B, L, D) whose mean over L is zero."""
        normed_BLD: Tensor = self.norm(steps_BLD)
        return normed_BLD - normed_BLD.mean(dim=1, keepdim=True)


def sample_frequencies(steps: int) -> Tensor:
    """Return sorted random frequencies of a series of ``steps``, the same at every call."""
    generator = torch.Generator().manual_seed(_FREQUENCY_SEED)
    count = min(FREQUENCIES, steps // 2)
    return torch.randperm(steps // 2, generator=generator)[:count].sort().values


def _to_spectrum(steps_BLD: Tensor, heads: int, frequencies: Tensor) -> Tensor:
    """Return the chosen frequencies of every feature, (B, heads, E, K)."""
    batch, steps, _ = steps_BLD.shape
    steps_BHEL = steps_BLD.reshape(batch, steps, heads, -1).permute(0, 2, 3, 1)
    spectrum_BHEF: Tensor = torch.fft.rfft(steps_BHEL, dim=-1)
    return spectrum_BHEF[..., frequencies]


def _to_steps(spectrum_BHEK: Tensor, steps: int, frequencies: Tensor | None = None) -> Tensor:
    """Return the series (B, L, D) of a spectrum at some frequencies, by default the lowest."""
    full = spectrum_BHEK.new_zeros((*spectrum_BHEK.shape[:-1], steps // 2 + 1))
    places = torch.arange(spectrum_BHEK.shape[-1]) if frequencies is None else frequencies
    full[..., places] = spectrum_BHEK
    steps_BHEL: Tensor = torch.fft.irfft(full, n=steps)
    return steps_BHEL.permute(0, 3, 1, 2).flatten(2)


def _make_inner(width: int, inner: int) -> nn.Module:
    widen, narrow = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
    return nn.Sequential(widen, nn.GELU(), nn.Dropout(0.1), narrow, nn.Dropout(0.1))
