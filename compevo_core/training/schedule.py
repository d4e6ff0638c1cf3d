"""The learning-rate schedule: linear warm-up, then cosine decay to zero (paper D.2).

What belongs here: the share of the base rate in a round, setting it. What does not: the base rates
(``optim.forecast_lr``, ``optim.policy_lr``).

transformers' ``get_cosine_schedule_with_warmup`` starts the warm-up at zero, so the first round
would play and score logics, and learn nothing from them; here round 0 has 1 / warm-up of the rate.
The rate is a function of the round alone: nothing has to be kept in a checkpoint.
"""

import numpy as np
from torch.optim import Optimizer

from compevo_core.config import OptimConfig


def learning_rate_factor(round_number: int, total_rounds: int, warmup_ratio: float) -> float:
    """Return the share of the base learning rate in a round.

    Args:
        round_number: from 0.
        total_rounds: rounds of the whole run.
        warmup_ratio: share of the rounds in which the rate rises; at least one round.
    """
    warmup_rounds = max(1, round(warmup_ratio * total_rounds))
    if round_number < warmup_rounds:
        return (round_number + 1) / warmup_rounds

    # Clamped: a run that goes on past its planned rounds stays at rate zero.
    progress = (round_number - warmup_rounds) / max(1, total_rounds - warmup_rounds)
    return 0.5 * (1.0 + float(np.cos(np.pi * min(progress, 1.0))))


def set_learning_rates(
    optimizer: Optimizer, optim: OptimConfig, round_number: int, total_rounds: int
) -> None:
    """Set the rates of a round: those of the forecasting group, then of the policy group."""
    factor = learning_rate_factor(round_number, total_rounds, optim.warmup_ratio)
    base_rates = (optim.forecast_lr, optim.policy_lr)
    for group, base_rate in zip(optimizer.param_groups, base_rates, strict=True):
        group["lr"] = base_rate * factor
