"""The table of methods that ``compevo paper benchmark`` and its assets run, and running one.

What belongs here: the inputs of a fit, what is known of a method before it, every method by its
name, and running one with one seed, from its learning rate to its rows. What does not: budgets
(``paper.declared``), a method's code. A module of methods has ``fit_method`` and, where rows name
settings, ``configure_method``. It is imported when one of them is called: the command line lists
methods without torch. If a fitted method has ``facts`` (``baselines.base``), its rows carry them;
if it has ``count_answers()``, they carry the share of answers that could not be read. A fit gets no
test window. Every seed of a method has the learning rate that seed 0 chose, wherever it runs.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from compevo_core.baselines import BASELINES, FitBaseline, fit_baseline, is_applicable
from compevo_core.baselines.base import ViewForecaster
from compevo_core.baselines.smoothing import Theta
from compevo_core.baselines.zero_shot import PREFIX, ZeroShot, is_zero_shot, short_name
from compevo_core.config.run import SYSTEM_SETTINGS, RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, NonFiniteLoss
from compevo_core.evaluation.baseline_scores import BaselineScores, Candidate, score_candidates
from compevo_core.evaluation.scopes import Scope
from compevo_core.paper.declared import Budget
from compevo_core.paper.paper_windows import LastWeek, TrainLookUp
from compevo_core.training.round_record import RoundRecord

log = logging.getLogger(__name__)
EXPERIMENT = "test"  # what rows say under ``experiment``, as in all tests on ordinary splits
ALL = "all"
# Named here as well, since torch takes seconds to import and the command line lists methods.
NETWORK_NAMES = (
    "dlinear",
    "itransformer",
    "film",
    "pyraformer",
    "fedformer",
    "gpt4ts",
    "gpt4ts-no-lm",
)

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


def _call(module: str, function: str, name: str, inputs: FitInputs) -> Any:  # noqa: ANN401
    return getattr(import_module(f"compevo_core.paper.{module}"), function)(name, inputs)


def _list_methods() -> Iterator[Method]:
    """Yield the numeric methods, the news-aware ones and all agents, in the order of tables.

    The paper's code runs with its own prompt, a mended one, or swapped news; the method at the
    code's size runs in full, without its four parts, or with swapped news.
    """
    numeric = partial(Method, family="numeric")
    for name, baseline in BASELINES.items():
        yield numeric(
            name=name,
            fit=partial(lambda name, it: fit_baseline(name, it.train, seed=it.seed), name),
            seeds=CHEAP_SEEDS if baseline.draws else 1,
            has_budget=False,
            is_applicable=partial(is_applicable, name),
        )

    # Not among the baselines that every evaluation fits: theta takes a tenth of a second per
    # window, and the others only describe the paper's test sets.
    for kind in (LastWeek, Theta, TrainLookUp):
        yield numeric(
            name=kind.name,
            fit=partial(lambda kind, inputs: kind.fit(inputs.train), kind),
            seeds=1,
            has_budget=False,
            is_applicable=getattr(kind, "is_applicable", lambda _: True),
        )

    for name in NETWORK_NAMES:
        yield numeric(
            name=name,
            fit=partial(_call, "text_networks", "fit_method", name),
            is_tuned=True,
            seeds=LANGUAGE_MODEL_SEEDS if name == "gpt4ts" else CHEAP_SEEDS,
        )

    def make(name: str, family: Any, module: str, **facts: Any) -> Method:  # noqa: ANN401
        return Method(
            name=name,
            family=family,
            fit=partial(_call, module, "fit_method", name),
            # Networks are tuned, and their fits have no run settings.
            configure=None
            if "is_tuned" in facts
            else partial(_call, module, "configure_method", name),
            **{"reads_news": True, "seeds": LANGUAGE_MODEL_SEEDS} | facts,
        )

    # Forecasts in text take some 17 seconds each on a processor core.
    yield make("news2forecast", "news-aware", "fine_tuned", known_windows=24)
    # The control reads only the times of the news, which are checked as for its twin.
    for name in ("gpt4mts", "gpt4mts-no-news"):
        yield make(name, "news-aware", "text_networks", is_tuned=True)
    yield make("ltp-llm", "news-aware", "text_networks", is_tuned=True, reads_news=False)

    for name in SYSTEM_SETTINGS:
        yield make(name, "agents", "agent_systems", leaves_run=True)
    # Half a second for each window.
    arm = partial(make, family="agents", module="fine_tuned", seeds=CHEAP_SEEDS, known_windows=24)
    for form in ("", "-mended", "-swapped"):
        yield arm(f"as-published{form}")
    for form in ("", "-plain", "-swapped"):
        yield arm(f"as-written{form}", leaves_run=True)


METHODS: dict[str, Method] = {method.name: method for method in _list_methods()}
"""Every method by its name, in the order of tables."""


def find_method(name: str) -> Method:
    """Return one of :data:`METHODS`, or of a pretrained model; ConfigError if it is unknown."""
    if is_zero_shot(name):
        return Method(
            # Rows are read on other machines, where the folders of this one mean nothing.
            name=f"zero-shot-{short_name(name.removeprefix(PREFIX))}",
            family="zero-shot",
            fit=lambda inputs: ZeroShot.fit(inputs.train, seed=inputs.seed, name=name),
            # Nothing is random, and nothing is fitted.
            seeds=1,
            has_budget=False,
        )
    if name not in METHODS:
        raise ConfigError(f"no method {name!r}; known: {', '.join(METHODS)}, {PREFIX}PATH")
    return METHODS[name]


def select_methods(names: Sequence[str]) -> list[Method]:
    """Return methods by name, each once; ``all`` or a family's name selects several."""
    families = {method.family for method in METHODS.values()}
    chosen: dict[str, Method] = {}
    for name in names:
        if name == ALL or name in families:
            chosen |= {m.name: m for m in METHODS.values() if name in (ALL, m.family)}
        else:
            method = find_method(name)
            chosen[method.name] = method

    if not chosen:
        raise ConfigError(f"no method is named; known: {', '.join(METHODS)}, or {ALL}")
    return list(chosen.values())


def prepare_inputs(
    method: Method,
    train: WindowSet,
    val: WindowSet,
    budget: Budget,
    *,
    news: NewsPool | None = None,
) -> FitInputs:
    """Return the inputs of every fit of a method; validation chooses its learning rate here."""
    inputs = FitInputs(
        train=train,
        val=val,
        seed=0,
        budget=budget,
        learning_rate=budget.learning_rates[0],
        news=news,
    )
    # A single rate leaves nothing to choose, and trying it would only cost time.
    if not method.is_tuned or len(budget.learning_rates) == 1:
        return inputs
    return replace(inputs, learning_rate=choose_learning_rate(method, inputs))


def choose_learning_rate(method: Method, inputs: FitInputs) -> float:
    """Return the rate of least validation loss in short fits; NonFiniteLoss if all diverge."""
    rates = inputs.budget.learning_rates
    short = replace(inputs, budget=replace(inputs.budget, passes=inputs.budget.tuning_passes))
    losses: dict[float, float] = {}
    for rate in rates:
        try:
            fitted: Any = method.fit(replace(short, learning_rate=rate))
        except NonFiniteLoss:
            # A rate that diverges is not chosen.
            losses[rate] = math.inf
        else:
            losses[rate] = fitted.report.validation_loss
        log.info("%s, learning rate %g: validation loss %.5f", method.name, rate, losses[rate])

    best = min(losses, key=losses.__getitem__)
    if not math.isfinite(losses[best]):
        raise NonFiniteLoss(
            f"{method.name} diverges with every learning rate of {rates}; give lower ones"
        )
    return best


def score_seed(
    method: Method,
    inputs: FitInputs,
    scopes: Sequence[Scope],
    *,
    commit: str,
    on_fitted: Callable[[str, int, float], None] | None = None,
) -> BaselineScores:
    """Fit a method with the seed of its inputs and score it on scopes that it can forecast.

    ``on_fitted`` gets name, seed and seconds of the fit.
    """
    candidate = Candidate(
        name=method.name,
        seeds=[inputs.seed],
        fit=lambda seed: method.fit(replace(inputs, seed=seed)),
        is_applicable=method.is_applicable,
        # Rows of a method that spends no budget must not differ by a budget's name.
        budget=inputs.budget.name if method.has_budget else "",
        is_measured=True,
        known_windows=method.known_windows,
    )

    return score_candidates(
        [candidate],
        inputs.train,
        scopes,
        experiment=EXPERIMENT,
        commit=commit,
        val=inputs.val,
        on_fitted=on_fitted,
    )
