"""The contract of a method: what it is given, and what is known of it before it is fitted.

What belongs here: these two objects. What does not: which methods there are (``table``), running
them (``running``).

A fit returns a :class:`compevo_core.baselines.Forecaster`. If that has ``facts``
(``baselines.facts``), its rows carry them; if it has ``count_answers()``, they carry the share of
answers that could not be read. It is given no test window: it has no path to one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.base import Forecaster
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.benchmark.budgets import Budget
from compevo_core.config import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.training.round_record import RoundRecord

Family = Literal["numeric", "zero-shot", "news-aware", "agents"]

CHEAP_SEEDS = 5
LANGUAGE_MODEL_SEEDS = 3
DEFAULT_LEARNING_RATE = 1e-3


def _say_nothing(_: RoundRecord) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How the training of a method that leaves a run folder is run.

    Attributes:
        folder: the run folder: a training that was stopped goes on there, a finished one is taken.
        fit: fits numeric priors; a shared one finds those of the system before.
        on_round: told of every update.
    """

    folder: Path
    fit: FitBaseline = fit_baseline
    on_round: Callable[[RoundRecord], None] = _say_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class FitInputs:
    """What a method is fitted with.

    Attributes:
        train: windows of the train split.
        val: windows of the validation split, for every choice.
        seed: of everything that is drawn.
        budget: what the fit may spend.
        learning_rate: what :attr:`Method.tune` chose of the budget's rates.
        news: articles that windows of all splits name, each known before the window that names it;
            None for methods that read none.
        training: for methods with :attr:`Method.leaves_run`; None: in a folder that is removed.
    """

    train: WindowSet
    val: WindowSet
    seed: int
    budget: Budget
    learning_rate: float = DEFAULT_LEARNING_RATE
    news: NewsPool | None = None
    training: TrainingPlan | None = None

    def require_news(self, method: str) -> NewsPool:
        """Return the articles that a method reads.

        Raises:
            ConfigError: the fit was given none.
        """
        if self.news is None:
            raise ConfigError(f"{method} reads news, and none was given: pass FitInputs.news")
        return self.news


def can_forecast_all(_: WindowSet) -> bool:
    """Return that a method can forecast any windows."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of the comparison.

    Attributes:
        name: its name in rows and on the command line.
        family: the part of the paper's table that it stands in.
        fit: fits it; heavy libraries are imported in there.
        tune: chooses one of the budget's learning rates on validation; None for methods without.
        seeds: how many seeds its rows have; 1 where nothing is drawn.
        has_budget: whether what it may spend changes its rows.
        reads_news: whether a fit needs ``FitInputs.news``.
        configure: settings of a fit, for a method whose rows name them by hash, else None.
        leaves_run: whether its fit is a training in a run folder; ``configure`` tells which.
        is_applicable: whether it can forecast all of some windows; a table leaves it out otherwise.
        known_windows: how many validation windows, the last ones, make its quantiles by their
            errors; None: all. For a method that takes seconds for each.
    """

    name: str
    family: Family
    fit: Callable[[FitInputs], Forecaster]
    tune: Callable[[FitInputs], float] | None = None
    seeds: int = CHEAP_SEEDS
    has_budget: bool = True
    reads_news: bool = False
    configure: Callable[[FitInputs], RunConfig] | None = None
    leaves_run: bool = False
    is_applicable: Callable[[WindowSet], bool] = can_forecast_all
    known_windows: int | None = None
