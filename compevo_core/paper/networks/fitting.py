"""The one loop that fits every network, with one loss, one normalisation and one budget.

What belongs here: normalising windows, the loss, early stopping. What does not: networks, files
(``networks.forecaster``).

Every window is centred on the mean of its input and divided by its spread, and the forecast is put
back; all networks get this, whatever their authors did. The loss is Huber's on scaled values, as
for the agents. The weights of the pass with the least validation loss are kept.

Shapes: N windows, H horizon.
"""

import logging
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from compevo_core.errors import NonFiniteLoss
from compevo_core.paper.method import Budget
from compevo_core.paper.networks.layers import Network, NetworkInputs
from compevo_core.runtime.seeding import use_seed

log = logging.getLogger(__name__)

BATCH_SIZE = 32
LARGEST_GRADIENT = 1.0  # norm to which gradients are cut

_LEAST_VARIANCE = 1e-5  # of an input that never changes, in scaled units


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """How a fit went, in passes, and what AdamW used."""

    passes: int
    best_pass: int  # whose weights were kept, from 1
    validation_loss: float  # Huber's, of those weights
    learning_rate: float


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
