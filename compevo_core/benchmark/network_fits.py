"""Networks under a budget of the benchmark: fitting one, and choosing its learning rate.

What belongs here: what a budget means to a network, for numeric and for news-aware ones alike. What
does not: the networks and the loop that fits them (``networks``, ``news_aware``).

Libraries are imported in the functions: torch takes seconds, and the command line lists methods
without it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from compevo_core.baselines import Forecaster
from compevo_core.benchmark.budgets import Budget
from compevo_core.benchmark.methods import FitInputs

if TYPE_CHECKING:
    from compevo_core.networks.fitting import FitBudget
    from compevo_core.networks.forecaster import NetworkKind

Describe = Callable[[FitInputs], "NetworkKind"]
"""Makes a network and its inputs for the windows of a fit."""


def fit_network(name: str, describe: Describe | None, inputs: FitInputs) -> Forecaster:
    """Fit a network; that of the table of networks where nothing describes another."""
    from compevo_core.networks.forecaster import NetworkBaseline

    return NetworkBaseline.fit(
        name,
        inputs.train,
        inputs.val,
        seed=inputs.seed,
        learning_rate=inputs.learning_rate,
        budget=_make_fit_budget(inputs.budget, inputs.budget.passes),
        kind=describe(inputs) if describe else None,
    )


def tune_network(name: str, describe: Describe | None, inputs: FitInputs) -> float:
    """Return the learning rate of the budget's that validates best."""
    from compevo_core.networks.tuning import choose_learning_rate

    return choose_learning_rate(
        name,
        inputs.train,
        inputs.val,
        rates=inputs.budget.learning_rates,
        budget=_make_fit_budget(inputs.budget, inputs.budget.tuning_passes),
        kind=describe(inputs) if describe else None,
    )


def _make_fit_budget(budget: Budget, passes: int) -> "FitBudget":
    """Return what a network may spend under a budget, with at most so many passes."""
    from compevo_core.networks.fitting import FitBudget

    return FitBudget(
        passes=passes,
        patience=budget.patience,
        pass_windows=budget.pass_windows,
        val_windows=budget.val_windows,
    )
