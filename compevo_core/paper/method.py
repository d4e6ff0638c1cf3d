"""The contract of a method of the comparison.

What belongs here: the inputs of a fit, what is known of a method before it. What does not: which
methods there are (``paper.method_table``), budgets (``paper.declared``). If a fitted method has
``facts`` (``baselines.base``), its rows carry them; if it has ``count_answers()``, they carry the
share of answers that could not be read. A fit gets no test window.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compevo_core.baselines import FitBaseline, fit_baseline
from compevo_core.baselines.base import ViewForecaster
from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.paper.declared import Budget
from compevo_core.training.round_record import RoundRecord

Family = Literal["numeric", "zero-shot", "news-aware", "agents"]

CHEAP_SEEDS = 5
LANGUAGE_MODEL_SEEDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How to run the training of a method that leaves a run folder."""

    folder: Path  # the run folder; an interrupted training is resumed, a finished one is loaded
    # Fits numeric priors; if shared, it reuses the fits of the previous system
    fit: FitBaseline = fit_baseline
    on_round: Callable[[RoundRecord], None] | None = None  # called with the record of every update


@dataclass(frozen=True, slots=True, kw_only=True)
class FitInputs:
    """What a method is fitted with."""

    train: WindowSet  # windows of the train split
    val: WindowSet  # windows of the validation split, for every choice
    seed: int  # seed of every draw
    budget: Budget  # what the fit may spend
    # The learning rate of the budget that validation chose
    learning_rate: float = 1e-3
    # Articles that windows of all splits name, each known before the window that names it; None for
    # methods that read none
    news: NewsPool | None = None
    # For methods with :attr:`Method.leaves_run`; None: a folder that is removed afterwards
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
    # Number of the latest validation windows whose errors make its quantiles; None: all. For a
    # method that takes seconds per window
    known_windows: int | None = None
