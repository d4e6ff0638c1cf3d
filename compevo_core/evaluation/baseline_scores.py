"""Fit methods, and score them on the same windows.

What belongs here: what is fitted under which seeds, and from fitted forecasters to result rows.
What does not: populations (``evaluation.scoring``), metrics (``evaluation.metrics``), files
(``evaluation.score_files``), the methods themselves (``baselines``, ``networks``), the table of
them (``benchmark``).

Paper 5.1 to 5.3. Shapes: N windows of a scope, H horizon (48).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from compevo_core.baselines import BASELINES, Forecaster, fit_baseline, is_applicable
from compevo_core.baselines.facts import count_answers, read_facts
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.data.arrays import FloatArray
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.recalibration import RECALIBRATED
from compevo_core.evaluation.result_rows import (
    Identity,
    evaluate,
    forecast_windows,
)
from compevo_core.evaluation.scopes import Scope
from compevo_core.evaluation.scored_quantiles import ValidationForecasts
from compevo_core.process_memory import peak_memory_gigabytes, reset_peak_memory

SEEDED_BASELINES = ("gbm", "blend", "published-error-gbm")
"""Baselines whose fit draws random numbers; the others give the same rows for every seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A method that is fitted and scored.

    Attributes:
        name: its name in rows.
        seeds: the seeds that it is fitted with.
        fit: fits it with a seed.
        is_applicable: whether it can forecast all of some windows.
        budget: name of what a fit may spend; empty where that changes nothing.
        is_measured: whether rows say how long a fit took and what memory it needed.
        known_windows: how many validation windows, the last ones, make its quantiles by their
            errors; None: all.
    """

    name: str
    seeds: Sequence[int]
    fit: Callable[[int], Forecaster]
    is_applicable: Callable[[WindowSet], bool]
    budget: str = ""
    is_measured: bool = False
    known_windows: int | None = None

    def choose_known(self, val: WindowSet) -> WindowSet:
        """Return the validation windows whose errors make quantiles."""
        if not self.is_applicable(val):
            return val[:0]
        # The last ones: quantiles are made of the latest errors first.
        return val if self.known_windows is None else val[-self.known_windows :]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScores:
    """Scores of methods.

    Attributes:
        rows: result rows of every method, seed and scope.
        forecasts: for each scope, forecasts (N, H) of every seed by method.
    """

    rows: pl.DataFrame
    forecasts: list[dict[str, list[FloatArray]]]


def score_baselines(
    train: WindowSet,
    scopes: Sequence[Scope],
    *,
    experiment: str,
    seeds: int,
    commit: str,
    val: WindowSet | None = None,
    fit: FitBaseline = fit_baseline,
) -> BaselineScores:
    """Fit every baseline on train and score it on the scopes all of whose windows it can answer.

    A baseline without random numbers is fitted once, the others with the seeds 0 to ``seeds - 1``.

    Args:
        train: what the baselines are fitted on.
        scopes: the windows to forecast, by subset.
        experiment: name of the experiment in the rows.
        seeds: number of seeds.
        commit: commit of the code, for the rows.
        val: validation windows; see :func:`score_candidates`.
        fit: fits a baseline by name; ``SharedFits`` finds what others have fitted.
    """
    candidates = [
        Candidate(
            name=name,
            seeds=range(seeds if name in SEEDED_BASELINES else 1),
            fit=partial(_fit_baseline, fit, name, train),
            is_applicable=partial(is_applicable, name, train=train),
        )
        for name in BASELINES
    ]
    return score_candidates(
        candidates, train, scopes, experiment=experiment, commit=commit, val=val
    )


def score_candidates(
    candidates: Sequence[Candidate],
    train: WindowSet,
    scopes: Sequence[Scope],
    *,
    experiment: str,
    commit: str,
    val: WindowSet | None = None,
    on_fitted: Callable[[str, int, float], None] | None = None,
) -> BaselineScores:
    """Fit methods and score them on the scopes all of whose windows they can answer.

    Args:
        candidates: the methods.
        train: train windows, for scales.
        scopes: the windows to forecast, by subset.
        experiment: name of the experiment in the rows.
        commit: commit of the code, for the rows.
        val: validation windows. Their known errors are added to some methods in rows of their own,
            ``<name>-recalibrated``, and make the quantiles of all, with those of the scored windows
            as they end. None or empty: no such rows, and quantiles from scored windows.
        on_fitted: told name, seed and seconds of every fit.
    """
    rows: list[pl.DataFrame] = []
    forecasts: list[dict[str, list[FloatArray]]] = [{} for _ in scopes]
    scaler = Scaler.fit(train)

    for candidate in candidates:
        name = candidate.name
        # All windows or none: a method that leaves out its hard days is in no table.
        answerable = [i for i, scope in enumerate(scopes) if candidate.is_applicable(scope.windows)]
        if not answerable:
            continue

        for seed in candidate.seeds:
            # Fitted once for all scopes: they share the train split.
            if candidate.is_measured:
                reset_peak_memory()
            started = time.monotonic()
            fitted = candidate.fit(seed)
            fit_seconds = time.monotonic() - started
            if on_fitted is not None:
                on_fitted(name, seed, fit_seconds)

            chosen = train[:0] if val is None else candidate.choose_known(val)
            known = ValidationForecasts.make(name, fitted, chosen, scaler)
            identity = _identify(candidate, seed, fitted, experiment=experiment, commit=commit)
            if candidate.is_measured:
                # A method that keeps its training knows what it took, all starts together.
                facts = read_facts(fitted)
                identity = replace(
                    identity,
                    train_seconds=facts.train_seconds or fit_seconds,
                    peak_memory_gb=facts.peak_memory_gb or 0.0,
                )

            for i in answerable:
                scored, by_method = _score_scope(scopes[i], fitted, known, identity, train)
                rows.append(scored)
                for method, forecast_NH in by_method.items():
                    forecasts[i].setdefault(method, []).append(forecast_NH)

    return BaselineScores(rows=pl.concat(rows), forecasts=forecasts)


def _fit_baseline(fit: FitBaseline, name: str, train: WindowSet, seed: int) -> Forecaster:
    return fit(name, train, seed=seed)


def _identify(
    candidate: Candidate, seed: int, fitted: Forecaster, *, experiment: str, commit: str
) -> Identity:
    """Return what rows say about a fitted method, without what is measured of it."""
    facts = read_facts(fitted)
    return Identity(
        experiment=experiment,
        method=candidate.name,
        seed=seed,
        commit=commit,
        budget=candidate.budget,
        trainable_parameters=facts.trainable_parameters,
        learning_rate=facts.learning_rate,
        backbone=facts.backbone,
        knowledge_cutoff=facts.knowledge_cutoff,
        device=facts.device,
        config_hash=facts.config_hash,
        seedless_hash=facts.seedless_hash,
        artifact_hash=facts.artifact_hash,
        news_top_k=facts.news_top_k,
    )


def _score_scope(
    scope: Scope,
    fitted: Forecaster,
    known: ValidationForecasts,
    identity: Identity,
    train: WindowSet,
) -> tuple[pl.DataFrame, dict[str, FloatArray]]:
    """Return rows and forecasts (N, H) of a fitted method, and of its recalibrated form."""
    # Forecasting alone is timed: the fit is done once and is no cost of a forecast.
    unreadable_before, answers_before = count_answers(fitted)
    started = time.monotonic()
    values_NH = forecast_windows(fitted, scope.windows)
    seconds = time.monotonic() - started

    unreadable, answers = count_answers(fitted)
    identity = replace(
        identity,
        subset=scope.subset,
        seconds=seconds,
        parse_failure_rate=(
            (unreadable - unreadable_before) / (answers - answers_before)
            if answers > answers_before
            else None
        ),
        # Memory of the fit and of the forecasts so far, where it is measured at all.
        peak_memory_gb=(
            None
            if identity.peak_memory_gb is None
            else max(identity.peak_memory_gb, peak_memory_gigabytes())
        ),
    )

    by_method = {identity.method: values_NH}
    if known.level is not None:
        recalibrated_NH = known.level.apply(scope.windows.views(), values_NH)
        by_method[f"{identity.method}{RECALIBRATED}"] = recalibrated_NH

    rows = [
        evaluate(
            forecast_NH,
            scope.windows,
            replace(identity, method=method),
            quantiles_NQH=known.follow(method, scope.windows, forecast_NH),
            train=train,
        )
        for method, forecast_NH in by_method.items()
    ]
    return pl.concat(rows), by_method
