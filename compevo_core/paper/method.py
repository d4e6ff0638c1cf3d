"""The contract of a method of the comparison, and the named budgets that a fit may spend.

What belongs here: what a fit is given, what is known of a method before it is fitted, the budgets.
What does not: which methods there are (``paper.method_table``). If a fitted method has ``facts``
(``baselines.base``), its rows carry them; if it has ``count_answers()``, they carry the share of
answers that could not be read. It is given no test window.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from compevo_core.baselines import FitBaseline, fit_baseline
from compevo_core.baselines.base import ViewForecaster
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.training.round_record import RoundRecord

Family = Literal["numeric", "zero-shot", "news-aware", "agents"]

CHEAP_SEEDS = 5
LANGUAGE_MODEL_SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a fit may spend."""

    name: str  # what rows say
    meaning: str  # the same in words, for tables
    passes: int  # most passes over the train windows
    patience: int  # passes without a better validation loss after which a fit ends
    pass_windows: int | None  # most train windows of a pass, sampled anew for each; None: all
    # Rates of which validation chooses one; a single one is used as it is
    learning_rates: tuple[float, ...]
    tuning_passes: int  # passes that each rate is tried for, with seed 0
    rounds: int  # updates of a language model with adapters
    round_windows: int  # train windows of such an update
    val_windows: int | None = None  # most validation windows that a pass is measured on; None: all
    most_seeds: int | None = None  # seeds of a method that has more; None: its own number

    def choose_seeds(self, seeds: int) -> range:
        """Return the seeds of a method that has ``seeds`` of them in a full table."""
        return range(min(seeds, self.most_seeds or seeds))


STANDARD = Budget(
    name="standard",
    meaning=(
        "networks: learning rate 0.001, at most 40 passes over all train windows; "
        "language models: 316 updates of 8 windows"
    ),
    passes=40,
    patience=6,
    pass_windows=None,
    learning_rates=(1e-3,),
    tuning_passes=0,
    rounds=316,
    round_windows=8,
)
_QUICK = replace(
    STANDARD,
    name="quick",
    meaning=(
        "one seed; networks: learning rate 0.001, 2 passes of at most 256 windows; "
        "language models: 4 updates of 4 windows"
    ),
    passes=2,
    patience=2,
    pass_windows=256,
    val_windows=256,
    rounds=4,
    round_windows=4,
    most_seeds=1,
)
_TUNED = replace(
    STANDARD,
    name="tuned",
    meaning=(
        "networks: learning rate 0.0003, 0.001 or 0.003, by the loss on validation after "
        "4 passes with seed 0; at most 80 passes of at most 256 windows, ended by the loss "
        "on at most 256 validation windows; language models: 316 updates of 8 windows"
    ),
    passes=80,
    patience=10,
    pass_windows=256,
    val_windows=256,
    learning_rates=(3e-4, 1e-3, 3e-3),
    tuning_passes=4,
)
_SMALL = replace(
    STANDARD,
    name="small",
    meaning=(
        "networks: learning rate 0.001, at most 10 passes of at most 1024 windows; "
        "language models: 40 updates of 8 windows"
    ),
    passes=10,
    patience=3,
    pass_windows=1024,
    rounds=40,
)
_SHORT = replace(
    _SMALL,
    name="short",
    meaning=(
        "networks: learning rate 0.001, at most 4 passes of at most 1024 windows; "
        "language models: 16 updates of 8 windows"
    ),
    passes=4,
    rounds=16,
)
BUDGETS: dict[str, Budget] = {
    budget.name: budget for budget in (_TUNED, STANDARD, _SMALL, _SHORT, _QUICK)
}
"""Every budget by its name, the largest first."""


def find_budget(name: str) -> Budget:
    """Return a budget; ConfigError if the name is unknown."""
    if name not in BUDGETS:
        raise ConfigError(f"no budget {name!r}; known: {', '.join(BUDGETS)}")
    return BUDGETS[name]


def rank_budget(name: str | None) -> int:
    """Return the place of a budget, 0 for the largest; rows without a name count as ``standard``.

    The largest budget represents a method, never the one with less error.
    """
    # A choice by error would be one on the test split; this one is known before any is measured.
    return list(BUDGETS).index(name or STANDARD.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How to run the training of a method that leaves a run folder."""

    folder: Path  # the run folder; an interrupted training is resumed, a finished one is loaded
    # Fits numeric priors; a shared one reuses the fits of the system before
    fit: FitBaseline = fit_baseline
    on_round: Callable[[RoundRecord], None] | None = None  # called with the record of every update


@dataclass(frozen=True, slots=True, kw_only=True)
class FitInputs:
    """What a method is fitted with."""

    train: WindowSet  # windows of the train split
    val: WindowSet  # windows of the validation split, for every choice
    seed: int  # seed of every draw
    budget: Budget  # what the fit may spend
    # What validation chose of the budget's rates
    learning_rate: float = 1e-3
    # Articles that windows of all splits name, each known before the window that names it; None for
    # methods that read none
    news: NewsPool | None = None
    # For methods with :attr:`Method.leaves_run`; None: in a folder that is removed
    training: TrainingPlan | None = None

    def require_news(self, method: str) -> NewsPool:
        """Return the articles that a method reads; ConfigError if the fit was given none."""
        if self.news is None:
            raise ConfigError(f"{method} reads news, and none was given: pass FitInputs.news")
        return self.news


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of the comparison."""

    name: str  # its name in rows and on the command line
    family: Family  # the part of the paper's table that it belongs to
    fit: Callable[[FitInputs], ViewForecaster]  # fits it; heavy libraries are imported in there
    # Whether validation chooses one of the budget's learning rates; what is fitted has a ``report``
    is_tuned: bool = False
    seeds: int = CHEAP_SEEDS  # how many seeds its rows have; 1 where nothing is random
    has_budget: bool = True  # whether the budget changes its rows
    reads_news: bool = False  # whether a fit needs ``FitInputs.news``
    # Settings of a fit, for a method whose rows name them by hash
    configure: Callable[[FitInputs], RunConfig] | None = None
    # Whether its fit is a training in a run folder, by the settings of ``configure``
    leaves_run: bool = False
    # Whether it can forecast all of some windows; a table leaves it out otherwise
    is_applicable: Callable[[WindowSet], bool] = lambda _: True
    # How many validation windows, the last ones, make its quantiles by their errors; None: all. For
    # a method that takes seconds for each
    known_windows: int | None = None
