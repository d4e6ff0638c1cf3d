"""Run one method under one seed: choose its learning rate, fit it, score it.

What belongs here: from a method of the table to its rows and forecasts. What does not: which
methods there are (``table``), scoring (``evaluation``), files.

Every seed of a method has the learning rate that seed 0 chose, whichever seed runs first and
wherever it runs: seeds can be spread over machines.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from compevo_core.benchmark.budgets import Budget
from compevo_core.benchmark.methods import FitInputs, Method
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.baseline_scores import BaselineScores, Candidate, score_candidates
from compevo_core.evaluation.scopes import Scope

EXPERIMENT = "test"
"""Name of the experiment in the rows, that of all tests on ordinary splits."""


def prepare_inputs(
    method: Method,
    train: WindowSet,
    val: WindowSet,
    budget: Budget,
    *,
    news: NewsPool | None = None,
) -> FitInputs:
    """Return what every fit of a method starts from; its learning rate is chosen here.

    Args:
        method: the method.
        train: windows of the train split.
        val: windows of the validation split, which choose the rate.
        budget: what a fit may spend.
        news: articles that windows name, for a method that reads them.
    """
    inputs = FitInputs(
        train=train,
        val=val,
        seed=0,
        budget=budget,
        learning_rate=budget.learning_rates[0],
        news=news,
    )
    # One rate leaves nothing to choose, and a try of it would only cost time.
    if method.tune is None or len(budget.learning_rates) == 1:
        return inputs
    return replace(inputs, learning_rate=method.tune(inputs))


def score_seed(
    method: Method,
    inputs: FitInputs,
    seed: int,
    scopes: Sequence[Scope],
    *,
    commit: str,
    on_fitted: Callable[[str, int, float], None] | None = None,
) -> BaselineScores:
    """Fit a method with one seed and score it on the scopes that it can forecast.

    Args:
        method: the method.
        inputs: what :func:`prepare_inputs` returned.
        seed: of the fit.
        scopes: the windows to forecast, by subset.
        commit: commit of the code, for the rows.
        on_fitted: told name, seed and seconds of the fit.

    Returns:
        Rows and forecasts.
    """
    candidate = Candidate(
        name=method.name,
        seeds=[seed],
        fit=lambda one: method.fit(replace(inputs, seed=one)),
        is_applicable=method.is_applicable,
        # Rows of a method that spends no budget must not differ by the name of one.
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
