"""A fitted network as a baseline: the table of networks, the one loop that fits them, predict.

What belongs here: names, normalising windows, the loss, early stopping. What does not: the
networks (``networks.architectures``), choosing a learning rate and scoring
(``paper.method_table``).

Every window is centred on the mean of its input and divided by its deviation, and the forecast is
scaled back, for all networks, even if their authors did otherwise. The loss is Huber's on scaled
values, as for the agents. The weights of the pass with the least validation loss are kept.

Shapes: N windows, H horizon.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from compevo_core.baselines.base import MethodFacts, raise_if_held_out
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import WindowView, stack_rows
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError, NonFiniteLoss
from compevo_core.lm import backbone
from compevo_core.paper.declared import STANDARD, Budget
from compevo_core.paper.networks.architectures import (
    GPT4TS,
    DLinear,
    FEDformer,
    FiLM,
    ITransformer,
    Network,
    NetworkInputs,
    PatchNetwork,
    Pyraformer,
    count_trainable,
)
from compevo_core.runtime.seeding import use_seed

log = logging.getLogger(__name__)

Encode = Callable[[Sequence[WindowView], Scaler], NetworkInputs]
"""From views and the scales of the train split to what a network is given."""

BATCH_SIZE = 32
LARGEST_GRADIENT = 1.0  # norm to which gradients are cut
_FORECAST_BATCH = 256
_LEAST_VARIANCE = 1e-5  # of an input that never changes, in scaled units


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkKind:
    """One network of the comparison.

    ``make`` takes look-back and horizon, and samples the weights from torch's generator.
    """

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


class NetworkBaseline:
    """A fitted network with the scales of its train split; use :meth:`fit`."""

    def __init__(
        self, name: str, network: Network, scaler: Scaler, report: FitReport, kind: NetworkKind
    ) -> None:
        self.name = name  # of the method in result rows
        self._kind = kind
        self._network = network.eval()
        self._scaler = scaler
        self.report = report

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        pretrained = self._kind.backbone
        return MethodFacts(
            trainable_parameters=count_trainable(self._network),
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

        ``name`` is one of :data:`NETWORKS`, or the name of a ``kind`` that is not in the table,
        such as one that reads news. The seed covers weights, order of windows and dropout.
        LeakageError if a window belongs to the test or inference split; NonFiniteLoss if the fit
        diverged.
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

        inputs = self._kind.encode(views, self._scaler)
        batches = torch.split(torch.arange(len(views)), _FORECAST_BATCH)
        scaled = [forecast_scaled(self._network, inputs.select(batch)) for batch in batches]
        rows = [row.double().numpy() for batch in scaled for row in batch]

        return stack_rows(
            [self._scaler.unscale(row, view.entity) for row, view in zip(rows, views, strict=True)]
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

    best = FitReport(passes=0, best_pass=0, validation_loss=math.inf, learning_rate=learning_rate)
    best_weights: dict[str, Tensor] = {}
    # Dropout draws from torch's own generator: the caller's stays as it was.
    with use_seed(seed):
        for number in range(1, budget.passes + 1):
            _train_one_pass(network, train, optimizer, budget.pass_windows)
            loss = _measure_loss(network, val)
            log.debug("pass %d: validation loss %.5f", number, loss)

            best = replace(best, passes=number)
            if loss < best.validation_loss:
                best = replace(best, best_pass=number, validation_loss=loss)
                best_weights = {name: value.clone() for name, value in network.state_dict().items()}
            # A validation that stopped getting better some passes ago rarely does again.
            if number - best.best_pass >= budget.patience:
                break

    network.load_state_dict(best_weights)
    network.eval()
    return best


def _train_one_pass(
    network: Network,
    train: tuple[NetworkInputs, Tensor],
    optimizer: torch.optim.Optimizer,
    most_windows: int | None,
) -> None:
    inputs, target_NH = train
    network.train()
    # Other windows in each pass, where a pass does not take all of them.
    sampled = torch.randperm(len(inputs))[:most_windows]
    for positions in torch.split(sampled, BATCH_SIZE):
        loss = _compute_loss(network, inputs.select(positions), target_NH[positions])
        if not torch.isfinite(loss):
            raise NonFiniteLoss(
                f"the loss of {type(network).__name__} is not finite; give a lower learning rate"
            )

        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call] # torch's own
        torch.nn.utils.clip_grad_norm_(network.parameters(), LARGEST_GRADIENT)
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
