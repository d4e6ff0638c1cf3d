"""The networks of the comparison, and a fitted network as a baseline.

What belongs here: turning views into arrays, the base class, each network as published except for
the differences that it lists; the one loop that fits them (normalising windows, loss, early
stopping), predict. What does not: networks that read text (``paper.text_networks``), choosing a
learning rate and scoring (``paper.method_table``). A library (neuralforecast) provides DLinear,
iTransformer and FEDformer as well; none at hand provides the others, or FiLM faithfully.

Values are in units of the entity's train deviation. Every window is centred on the mean of its
input and divided by its deviation, and the forecast is scaled back, for all networks, even if their
authors did otherwise. Time features follow the authors: hour of the day, day of the week, of the
month and of the year, each in [-0.5, 0.5], in local time. The loss is Huber's on scaled values, as
for the agents. The weights of the pass with the least validation loss are kept.

Shapes: N or B windows, L lookback or steps, H horizon, T steps of the states, S steps of the
decoder (half of L, then H), M time features, N coefficients, K frequencies, P patches or nodes of a
pyramid, D width, E width of a head.
"""

import copy
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import accumulate
from operator import floordiv
from typing import Any, Self
from zoneinfo import ZoneInfo

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from compevo_core.baselines.base import MethodFacts, raise_if_held_out
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.steps import shift
from compevo_core.data.view import DEFAULT_STEPS, WindowView, find_horizon, find_shared, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, NonFiniteLoss
from compevo_core.lm import backbone
from compevo_core.lora.backbone import frozen_linear
from compevo_core.paper.declared import STANDARD, Budget
from compevo_core.runtime.seeding import use_seed

log = logging.getLogger(__name__)
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
        """Encode views, and what is added; DataError if an entity was not in the train split."""
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


def decompose(values_BLC: Tensor) -> tuple[Tensor, Tensor]:
    """Return remainder and moving average, (B, L, C) each; ends are repeated: no step is lost."""
    half = (TREND_STEPS - 1) // 2
    padded_BCL = functional.pad(values_BLC.transpose(1, 2), (half, half), mode="replicate")
    trend_BLC = functional.avg_pool1d(padded_BCL, TREND_STEPS, stride=1).transpose(1, 2)
    return values_BLC - trend_BLC, trend_BLC


class StepEmbedding(nn.Module):
    """Embeds every step: a circular convolution of three values, plus its time features."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Conv1d(1, WIDTH, 3, padding=1, padding_mode="circular", bias=False)
        nn.init.kaiming_normal_(self.values.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.marks = nn.Linear(TIME_FEATURES, WIDTH, bias=False)

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


class DLinear(Network):
    """Two linear maps of input to target steps that begin as the mean of the input.

    Source: Zeng et al., "Are Transformers Effective for Time Series Forecasting?", AAAI 2023.
    """

    def __init__(self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS) -> None:
        super().__init__()
        self.remainder = nn.Linear(lookback, horizon)
        self.trend = nn.Linear(lookback, horizon)
        for linear in (self.remainder, self.trend):
            nn.init.constant_(linear.weight, 1 / lookback)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        remainder_BL1, trend_BL1 = decompose(inputs.values_NL.unsqueeze(-1))
        forecast: Tensor = self.remainder(remainder_BL1.squeeze(-1)) + self.trend(
            trend_BL1.squeeze(-1)
        )
        return forecast


class ITransformer(Network):
    """A transformer encoder over variates.

    Source: Liu et al., "iTransformer: Inverted Transformers Are Effective for Time Series
    Forecasting", ICLR 2024. Differs: a view holds one series, so the variates are that series and
    the time features of its input steps, as in the authors' code when time features are given.
    """

    def __init__(self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS) -> None:
        super().__init__()
        self.embedding = nn.Linear(lookback, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, 2, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.projection = nn.Linear(WIDTH, horizon)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        variates = [inputs.values_NL.unsqueeze(1), inputs.past_NLM.transpose(1, 2)]
        embedded_BVD = self.embedding(torch.cat(variates, dim=1))
        forecast_BVH: Tensor = self.projection(self.encoder(embedded_BVD))
        return forecast_BVH[:, 0]


SCALES = (1, 2, 4)  # lengths of the memories, in horizons
MOST_FREQUENCIES = 32  # that a memory is filtered by
FREQUENCIES = 32  # that attention works on


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
        self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS, *, coefficients: int = 64
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
        self.encoder_embedding = StepEmbedding()
        self.decoder_embedding = StepEmbedding()
        self.encoder = nn.ModuleList(EncoderLayer(lookback) for _ in range(2))
        self.encoder_norm = SeasonalNorm(WIDTH)
        self.decoder = DecoderLayer(lookback, decoded)
        self.decoder_norm = SeasonalNorm(WIDTH)
        self.projection = nn.Linear(WIDTH, 1)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        values_BL1 = inputs.values_NL.unsqueeze(-1)
        seasonal_BL1, trend_BL1 = decompose(values_BL1)

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

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.block = FourierBlock(steps)
        self.inner = _make_inner()

    def forward(self, steps_BLD: Tensor) -> Tensor:
        """Return the season (B, L, D)."""
        steps_BLD, _ = decompose(steps_BLD + self.block(steps_BLD))
        steps_BLD, _ = decompose(steps_BLD + self.inner(steps_BLD))
        return steps_BLD


class DecoderLayer(nn.Module):
    """A Fourier block, attention to the encoder in the frequency domain, and two linear maps."""

    def __init__(self, memory_steps: int, steps: int) -> None:
        super().__init__()
        self.block = FourierBlock(steps)
        self.attention = FourierCrossAttention(memory_steps, steps)
        self.inner = _make_inner()
        self.trend = nn.Conv1d(WIDTH, 1, 3, padding=1, padding_mode="circular", bias=False)

    def forward(self, steps_BSD: Tensor, memory_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the season (B, S, D) and what the layer adds to the trend (B, S, 1)."""
        steps_BSD, first = decompose(steps_BSD + self.block(steps_BSD))
        steps_BSD, second = decompose(steps_BSD + self.attention(steps_BSD, memory_BLD))
        steps_BSD, third = decompose(steps_BSD + self.inner(steps_BSD))

        trend_BDS = (first + second + third).transpose(1, 2)
        return steps_BSD, self.trend(trend_BDS).transpose(1, 2)


class FourierBlock(nn.Module):
    """Mixes features at a few frequencies; all others are set to zero."""

    frequencies: Tensor

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.register_buffer("frequencies", sample_frequencies(steps))
        self.query = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mix = ComplexMix(len(self.frequencies))

    def forward(self, steps_BLD: Tensor) -> Tensor:
        """Return mixed steps (B, L, D)."""
        spectrum_BHEK = _to_spectrum(self.query(steps_BLD), self.frequencies)
        # As in the authors' code, the k-th sampled frequency is put at place k of the answer.
        mixed_BLD: Tensor = self.out(_to_steps(self.mix(spectrum_BHEK), steps_BLD.shape[1]))
        return mixed_BLD


class FourierCrossAttention(nn.Module):
    """Attention between the frequencies of two series."""

    query_frequencies: Tensor
    key_frequencies: Tensor

    def __init__(self, memory_steps: int, steps: int) -> None:
        super().__init__()
        self.register_buffer("query_frequencies", sample_frequencies(steps))
        self.register_buffer("key_frequencies", sample_frequencies(memory_steps))
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mix = ComplexMix(len(self.query_frequencies))

    def forward(self, steps_BSD: Tensor, memory_BLD: Tensor) -> Tensor:
        """Return what the decoder reads of the encoder (B, S, D)."""
        queries = _to_spectrum(self.query(steps_BSD), self.query_frequencies)
        keys = _to_spectrum(self.key(memory_BLD), self.key_frequencies)

        # tanh of real and imaginary part separately: the complex tanh has poles, and gave NaN in
        # the authors' code.
        scores = torch.einsum("bhex,bhey->bhxy", queries, keys)
        scores = torch.complex(scores.real.tanh(), scores.imag.tanh())
        attended_BHEK = torch.einsum("bhxy,bhey->bhex", scores, keys)

        mixed_BHEK = self.mix(attended_BHEK) / WIDTH**2
        read_BSD = _to_steps(mixed_BHEK, steps_BSD.shape[1], self.query_frequencies)
        out_BSD: Tensor = self.out(read_BSD)
        return out_BSD


class ComplexMix(nn.Module):
    """A complex matrix (E, E) for every head and frequency."""

    def __init__(self, frequencies: int) -> None:
        super().__init__()
        size = (HEADS, WIDTH // HEADS, WIDTH // HEADS, frequencies)
        self.real = nn.Parameter(torch.rand(size) / WIDTH**2)
        self.imaginary = nn.Parameter(torch.rand(size) / WIDTH**2)

    def forward(self, spectrum_BHEK: Tensor) -> Tensor:
        """Return the product at every frequency, (B, heads, E, K)."""
        weights = torch.complex(self.real, self.imaginary)
        return torch.einsum("bhek,hefk->bhfk", spectrum_BHEK, weights)


class SeasonalNorm(nn.LayerNorm):
    """Layer norm whose mean over steps is removed, so that a season has no level."""

    def forward(self, steps_BLD: Tensor) -> Tensor:
        """Return normed steps (B, L, D) whose mean over L is zero."""
        normed_BLD = super().forward(steps_BLD)
        return normed_BLD - normed_BLD.mean(dim=1, keepdim=True)


def sample_frequencies(steps: int) -> Tensor:
    """Return sorted random frequencies of a series of ``steps``, the same at every call."""
    generator = torch.Generator().manual_seed(2022)
    count = min(FREQUENCIES, steps // 2)
    return torch.randperm(steps // 2, generator=generator)[:count].sort().values


def _to_spectrum(steps_BLD: Tensor, frequencies: Tensor) -> Tensor:
    """Return the chosen frequencies of every feature, (B, heads, E, K)."""
    steps_BHEL = steps_BLD.reshape(*steps_BLD.shape[:2], HEADS, -1).permute(0, 2, 3, 1)
    spectrum_BHEF: Tensor = torch.fft.rfft(steps_BHEL, dim=-1)
    return spectrum_BHEF[..., frequencies]


def _to_steps(spectrum_BHEK: Tensor, steps: int, frequencies: Tensor | None = None) -> Tensor:
    """Return the series (B, L, D) of a spectrum at some frequencies, by default the lowest."""
    full = spectrum_BHEK.new_zeros((*spectrum_BHEK.shape[:-1], steps // 2 + 1))
    places = torch.arange(spectrum_BHEK.shape[-1]) if frequencies is None else frequencies
    full[..., places] = spectrum_BHEK
    steps_BHEL: Tensor = torch.fft.irfft(full, n=steps)
    return steps_BHEL.permute(0, 3, 1, 2).flatten(2)


def _make_inner() -> nn.Module:
    widen, narrow = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(INNER, WIDTH, bias=False)
    return nn.Sequential(widen, nn.GELU(), nn.Dropout(0.1), narrow, nn.Dropout(0.1))


CHILDREN = (4, 4)  # nodes of a scale that share a node of the next one
NEIGHBOURS = 2  # on either side, on the same scale, that a node attends to


class Pyraformer(Network):
    """An encoder over steps, 4-step and 16-step nodes, each tied to few others; the last forecasts.

    Source: Liu et al., "Pyraformer: Low-Complexity Pyramidal Attention for Long-Range Time Series
    Modeling and Forecasting", ICLR 2022. Differs: attention is dense with a mask, which gives the
    values of the authors' sparse kernel; at 63 nodes it costs less.
    """

    def __init__(self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS) -> None:
        super().__init__()
        # Nodes of every scale, finest first.
        self._sizes = list(accumulate(CHILDREN, floordiv, initial=lookback))
        self.embedding = StepEmbedding()
        self.register_buffer("positions_LD", encode_positions(lookback, WIDTH))
        self.pyramid = PyramidBuilder()
        self.register_buffer("is_hidden_PP", ~find_neighbours(self._sizes), persistent=False)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, INNER, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.projection = nn.Linear(len(self._sizes) * WIDTH, horizon)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        steps_BLD = self.embedding(inputs.values_NL, inputs.past_NLM) + self.positions_LD
        nodes_BPD = self.encoder(self.pyramid(steps_BLD), mask=self.is_hidden_PP)

        # The newest node of every scale is an ancestor of the last step.
        newest = torch.tensor(self._sizes).cumsum(0) - 1
        forecast_BH: Tensor = self.projection(nodes_BPD[:, newest].flatten(1))
        return forecast_BH


class PyramidBuilder(nn.Module):
    """Summarises steps into coarser nodes by strided convolutions of a narrow copy."""

    def __init__(self) -> None:
        super().__init__()
        narrow = WIDTH // 4
        self.down = nn.Linear(WIDTH, narrow)
        self.convolutions = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(narrow, narrow, children, stride=children),
                nn.BatchNorm1d(narrow),
                nn.ELU(),
            )
            for children in CHILDREN
        )
        self.up = nn.Linear(narrow, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, steps_BLD: Tensor) -> Tensor:
        """Return the nodes of all scales, finest first, (B, P, D)."""
        scale = self.down(steps_BLD).transpose(1, 2)
        coarser = []
        for convolution in self.convolutions:
            scale = convolution(scale)
            coarser.append(scale)

        added_BPD = self.up(torch.cat(coarser, dim=2).transpose(1, 2))
        normed: Tensor = self.norm(torch.cat([steps_BLD, added_BPD], dim=1))
        return normed


def find_neighbours(sizes: Sequence[int]) -> Tensor:
    """Return which node attends to which, (P, P): near ones of its scale, parent and children."""
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    attends = torch.zeros(sum(sizes), sum(sizes), dtype=torch.bool)

    for start, size in zip(starts, sizes, strict=True):
        places = torch.arange(size)
        near = (places[:, None] - places[None, :]).abs() <= NEIGHBOURS
        attends[start : start + size, start : start + size] = near

    for scale, children in enumerate(CHILDREN):
        for place in range(sizes[scale]):
            # The last parent takes the children that are left over.
            parent = min(place // children, sizes[scale + 1] - 1)
            child_node, parent_node = starts[scale] + place, starts[scale + 1] + parent
            attends[child_node, parent_node] = attends[parent_node, child_node] = True
    return attends


PATCH_STEPS = 16
PATCH_STRIDE = 8
LAYERS = 6


def count_patches(lookback: int) -> int:
    """Return how many patches an input has; the last value is repeated to fill the last one."""
    return (lookback + PATCH_STRIDE - PATCH_STEPS) // PATCH_STRIDE + 1


class PatchNetwork(Network):
    """Embeds patches and maps all of them to a forecast: the twin of GPT4TS, to show what it adds.

    It follows Tan et al., "Are Language Models Actually Useful for Time Series Forecasting?",
    NeurIPS 2024. Networks that also read text put its tokens in front of the patches.
    """

    def __init__(
        self, lookback: int = DEFAULT_STEPS, horizon: int = DEFAULT_STEPS, *, width: int = 576
    ) -> None:
        super().__init__()
        self.embedding = nn.Linear(PATCH_STEPS, width)
        self.projection = nn.Linear(count_patches(lookback) * width, horizon)

    def forward(self, inputs: NetworkInputs) -> Tensor:
        """Return forecasts (B, H)."""
        states_BPD = self.transform(self.embed_patches(inputs.values_NL))
        forecast_BH: Tensor = self.projection(states_BPD.flatten(1))
        return forecast_BH

    def embed_patches(self, values_BL: Tensor) -> Tensor:
        """Return one token per patch, (B, P, D); the last value is repeated to fill the last."""
        padded_BL = functional.pad(values_BL, (0, PATCH_STRIDE), mode="replicate")
        patches_BPD: Tensor = self.embedding(padded_BL.unfold(1, PATCH_STEPS, PATCH_STRIDE))
        return patches_BPD

    def transform(self, patches_BPD: Tensor) -> Tensor:
        """Return what is read of the patches."""
        return patches_BPD


class GPT4TS(PatchNetwork):
    """The same with the first layers of a frozen language model between the two maps.

    Source: Zhou et al., "One Fits All: Power General Time Series Analysis by Pretrained LM",
    NeurIPS 2023. Differs: the backbone is this project's, not GPT-2; it has no learned positions to
    train, so norms, patch embedding and output map are what is trained.
    """

    def __init__(
        self,
        decoder: Any,  # noqa: ANN401 - a transformers module
        lookback: int = DEFAULT_STEPS,
        horizon: int = DEFAULT_STEPS,
        *,
        layers: int = LAYERS,
        matmul_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(lookback, horizon, width=decoder.config.hidden_size)
        self.decoder = copy_first_layers(decoder, layers, matmul_dtype)
        for name, parameter in self.decoder.named_parameters():
            parameter.requires_grad_("norm" in name)

    def transform(self, patches_BPD: Tensor) -> Tensor:
        """Return the states of the last layer used, after the decoder's own norm."""
        states: Tensor = self.decoder(inputs_embeds=patches_BPD, use_cache=False).last_hidden_state
        return states


def copy_first_layers(
    decoder: Any,  # noqa: ANN401 - a transformers module
    layers: int,
    matmul_dtype: torch.dtype | None = None,
) -> Any:  # noqa: ANN401
    """Return a copy of a decoder's first layers and norm; products run in ``matmul_dtype``."""
    # Training changes the norms, and the model may be shared with others.
    original, decoder.layers = decoder.layers, decoder.layers[:layers]
    try:
        copied = copy.deepcopy(decoder)
    finally:
        decoder.layers = original

    # Patches take the place of embedded words.
    del copied.embed_tokens
    if matmul_dtype is not None:
        # Linear layers never learn; embeddings, norms and attention stay as they are. The copy's
        # layers keep their names, and so does what is saved of them.
        for layer in copied.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.requires_grad_(False).data = layer.weight.data.to(matmul_dtype)
                product = partial(frozen_linear, weight=layer.weight, bias=layer.bias)
                layer.forward = product  # type: ignore[method-assign] # of this one layer
    return copied


Encode = Callable[[Sequence[WindowView], Scaler], NetworkInputs]
"""From views and the scales of the train split to what a network is given."""

BATCH_SIZE = 32
LARGEST_GRADIENT = 1.0  # norm to which gradients are cut
_LEAST_VARIANCE = 1e-5  # of an input that never changes, in scaled units


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkKind:
    """One network; ``make`` takes look-back and horizon, and samples from torch's generator."""

    make: Callable[[int, int], Network]
    encode: Encode = NetworkInputs.encode  # networks that read text add theirs
    backbone: str = ""  # the pretrained model that it is made of


NETWORKS: dict[str, NetworkKind] = {
    "dlinear": NetworkKind(make=DLinear),
    "itransformer": NetworkKind(make=ITransformer),
    "film": NetworkKind(make=FiLM),
    "pyraformer": NetworkKind(make=Pyraformer),
    "fedformer": NetworkKind(make=FEDformer),
    "gpt4ts": NetworkKind(
        # It copies the layers whose norms it trains: other methods read the same backbone.
        make=lambda lookback, horizon: GPT4TS(backbone.load_packaged().decoder, lookback, horizon),
        backbone=backbone.PACKAGED,
    ),
    "gpt4ts-no-lm": NetworkKind(make=PatchNetwork),
}
"""Every network by the name that its result rows carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """How a fit went, in passes, and what AdamW used."""

    passes: int
    best_pass: int  # whose weights were kept, from 1
    validation_loss: float  # Huber's, of those weights
    learning_rate: float


@dataclass(frozen=True, slots=True)
class NetworkBaseline:
    """A fitted network with the scales of its train split; use :meth:`fit`."""

    name: str  # of the method in result rows
    network: Network
    scaler: Scaler
    report: FitReport
    kind: NetworkKind

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        pretrained = self.kind.backbone
        return MethodFacts(
            trainable_parameters=count_trainable(self.network),
            learning_rate=self.report.learning_rate,
            backbone=pretrained,
            knowledge_cutoff=backbone.KNOWLEDGE_CUTOFFS.get(pretrained, ""),
        )

    @classmethod
    def fit(
        cls,
        name: str,
        train: WindowSet,
        val: WindowSet,
        *,
        seed: int = 0,
        learning_rate: float = 1e-3,
        budget: Budget = STANDARD,
        kind: NetworkKind | None = None,
    ) -> Self:
        """Fit a network on train windows; validation decides when it ends.

        ``name`` is one of :data:`NETWORKS`, or of a ``kind`` that is not in the table. The seed
        covers weights, order of windows and dropout. LeakageError if a window is held out;
        NonFiniteLoss if the fit diverged.
        """
        kind = kind or NETWORKS[name]
        raise_if_held_out(train, name)
        raise_if_held_out(val, name)
        scaler = Scaler.fit(train)
        prepared = [_prepare_windows(split, scaler, kind.encode) for split in (train, val)]

        # The caller's generator stays as it was; equal seeds give equal weights.
        with use_seed(seed):
            network = kind.make(train.lookback, train.horizon)
        report = fit_network(
            network, *prepared, learning_rate=learning_rate, seed=seed, budget=budget
        )
        return cls(name, network, scaler, report, kind)

    @torch.no_grad()
    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, H) in each view's unit."""
        # torch splits nothing into one empty batch, which a Fourier transform rejects.
        if not views:
            return stack_rows([])

        inputs = self.kind.encode(views, self.scaler)
        batches = torch.split(torch.arange(len(views)), 256)
        scaled = [forecast_scaled(self.network, inputs.select(batch)) for batch in batches]
        rows = [row.double().numpy() for batch in scaled for row in batch]

        return stack_rows(
            [self.scaler.unscale(row, view.entity) for row, view in zip(rows, views, strict=True)]
        )


def _prepare_windows(
    windows: WindowSet, scaler: Scaler, encode: Encode
) -> tuple[NetworkInputs, Tensor]:
    """Return inputs and scaled targets (N, H), NaN where masked."""
    target_NH = np.stack([scaler.scale(window.y, window.view.entity) for window in windows])
    if not np.isfinite(target_NH).any():
        raise DataError(
            f"no target of {len(windows)} windows of {windows.dataset} is known; build them again"
        )
    return encode(windows.views(), scaler), torch.tensor(target_NH, dtype=torch.float32)


def forecast_scaled(network: Network, inputs: NetworkInputs) -> Tensor:
    """Return forecasts (N, H) in scaled units; every window is normalised by its own input."""
    mean_N1 = inputs.values_NL.mean(dim=1, keepdim=True)
    variance_N1 = inputs.values_NL.var(dim=1, keepdim=True, unbiased=False)
    spread_N1 = torch.sqrt(variance_N1 + _LEAST_VARIANCE)

    normalised = replace(inputs, values_NL=(inputs.values_NL - mean_N1) / spread_N1)
    forecast: Tensor = network(normalised)
    return forecast * spread_N1 + mean_N1


def fit_network(
    network: Network,
    train: tuple[NetworkInputs, Tensor],
    val: tuple[NetworkInputs, Tensor],
    *,
    learning_rate: float,
    seed: int,
    budget: Budget,
) -> FitReport:
    """Fit a network in place; it ends with the weights of its best pass, in evaluation mode.

    Targets (N, H) are scaled, NaN where masked. Validation decides when to stop and which weights
    to keep; the seed covers order of windows and dropout. NonFiniteLoss if a loss is not finite.
    """
    # Frozen layers of a language model are parameters, too.
    trainable = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=learning_rate)
    # Evenly spaced, so that every season stays.
    if budget.val_windows is not None and budget.val_windows < len(val[0]):
        positions = torch.arange(budget.val_windows) * len(val[0]) // budget.val_windows
        val = val[0].select(positions), val[1][positions]

    inputs, target_NH = train
    best = FitReport(passes=0, best_pass=0, validation_loss=math.inf, learning_rate=learning_rate)
    best_weights: dict[str, Tensor] = {}
    # Dropout draws from torch's own generator: the caller's stays as it was.
    with use_seed(seed):
        for number in range(1, budget.passes + 1):
            network.train()
            # Other windows in each pass, where a pass does not take all of them.
            sampled = torch.randperm(len(inputs))[: budget.pass_windows]
            for positions in torch.split(sampled, BATCH_SIZE):
                loss = _compute_loss(network, inputs.select(positions), target_NH[positions])
                take_step(optimizer, [loss], type(network).__name__, LARGEST_GRADIENT)
            val_loss = _measure_loss(network, val)
            log.debug("pass %d: validation loss %.5f", number, val_loss)

            best = replace(best, passes=number)
            if val_loss < best.validation_loss:
                best = replace(best, best_pass=number, validation_loss=val_loss)
                best_weights = {name: value.clone() for name, value in network.state_dict().items()}
            # A validation that stopped getting better some passes ago rarely does again.
            if number - best.best_pass >= budget.patience:
                break

    network.load_state_dict(best_weights)
    network.eval()
    return best


def take_step(
    optimizer: torch.optim.Optimizer, losses: Iterable[Tensor], name: str, largest_gradient: float
) -> None:
    """Update the optimizer's weights by the sum of the losses of a network called ``name``.

    Gradients are cut to a norm, unless it is 0. NonFiniteLoss if a loss is not finite.
    """
    optimizer.zero_grad()
    for loss in losses:
        if not torch.isfinite(loss):
            raise NonFiniteLoss(f"the loss of {name} is not finite; give a lower learning rate")
        loss.backward()  # type: ignore[no-untyped-call] # torch's own

    if largest_gradient:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, largest_gradient)
    optimizer.step()


@torch.no_grad()
def _measure_loss(network: Network, windows: tuple[NetworkInputs, Tensor]) -> float:
    inputs, target_NH = windows
    network.eval()
    total, count = 0.0, 0
    for positions in torch.split(torch.arange(len(inputs)), BATCH_SIZE):
        # Batches count by their known targets, so that the mean is over all targets.
        known = int(torch.isfinite(target_NH[positions]).sum())
        loss = _compute_loss(network, inputs.select(positions), target_NH[positions])
        total, count = total + float(loss) * known, count + known
    return total / count


def _compute_loss(network: Network, inputs: NetworkInputs, target_NH: Tensor) -> Tensor:
    """Return the mean Huber loss of the unmasked targets."""
    forecast_NH = forecast_scaled(network, inputs)
    # A masked target teaches nothing, and is not a zero.
    is_known = torch.isfinite(target_NH)
    return functional.huber_loss(forecast_NH[is_known], target_NH[is_known])
