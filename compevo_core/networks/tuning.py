"""Which learning rate a network gets: the same few are tried for each, for the same few passes.

What belongs here: this choice, on validation. What does not: the fit itself (``fitting``), which
rates are tried and for how long (``benchmark.budgets``).
"""

import logging
import math
from collections.abc import Sequence

from compevo_core.baselines.base import refuse_held_out_splits
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.errors import NonFiniteLoss
from compevo_core.networks.fitting import FitBudget, fit_network
from compevo_core.networks.forecaster import (
    NetworkKind,
    draw_network,
    find_network,
    prepare_windows,
)

log = logging.getLogger(__name__)


def choose_learning_rate(
    name: str,
    train: WindowSet,
    val: WindowSet,
    *,
    rates: Sequence[float],
    budget: FitBudget,
    seed: int = 0,
    kind: NetworkKind | None = None,
) -> float:
    """Return the learning rate with the least validation loss after the same short fit.

    Args:
        name: one of :data:`NETWORKS`, or that of ``kind``.
        train: windows of the train split.
        val: windows of the validation split, which choose.
        rates: the rates that are tried.
        budget: what each of them is tried for.
        seed: of weights, order of windows and dropout; the same for all rates.
        kind: a network that is not in the table.

    Raises:
        ConfigError: the name is unknown.
        LeakageError: a window is of the test or inference split.
        DataError: one of the splits has no window.
        NonFiniteLoss: a fit diverged with every rate.
    """
    kind = kind or find_network(name)
    refuse_held_out_splits(train, name)
    refuse_held_out_splits(val, name)
    scaler = Scaler.fit(train)
    prepared = (
        prepare_windows(train, scaler, kind.encode),
        prepare_windows(val, scaler, kind.encode),
    )

    losses: dict[float, float] = {}
    for rate in rates:
        network = draw_network(kind, seed)
        try:
            report = fit_network(network, *prepared, learning_rate=rate, seed=seed, budget=budget)
        except NonFiniteLoss:
            # A rate that diverges is a rate that is not chosen.
            losses[rate] = math.inf
        else:
            losses[rate] = report.validation_loss
        log.info("%s, learning rate %g: validation loss %.5f", name, rate, losses[rate])

    best = min(losses, key=losses.__getitem__)
    if not math.isfinite(losses[best]):
        raise NonFiniteLoss(f"{name} diverges with every learning rate of {rates}; give lower ones")
    return best
