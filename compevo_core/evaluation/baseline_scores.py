"""Fit methods and score them on the same windows, with quantiles and recalibrated forms.

What belongs here: the seeds of a fit, the past errors that make a baseline's quantiles, its rows.
What does not: populations (``evaluation.scoring``), the table of methods (``paper.method_table``).
A population may beat a baseline as fitted only by its bias correction: the same baseline with such
a correction is the fair opponent (decision 08-calibration).

Shapes: N windows of a scope, Q levels, E series, H horizon.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Self

import numpy as np
import polars as pl

from compevo_core.baselines import (
    BASELINES,
    FitBaseline,
    ViewForecaster,
    find_cost,
    fit_baseline,
    is_applicable,
)
from compevo_core.baselines.base import MethodFacts, count_answers
from compevo_core.baselines.known_errors import ErrorLevels, fit_known_errors, follow_levels
from compevo_core.baselines.naive import PublishedForecast
from compevo_core.data.arrays import FloatArray
from compevo_core.data.quantiles import (
    PastErrors,
    drop_crossing,
    estimate_quantiles,
    stack_published_quantiles,
)
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.result_rows import Identity, evaluate, forecast_windows
from compevo_core.evaluation.scopes import Scope
from compevo_core.runtime.usage import OnStep, Steps, peak_memory_gigabytes, reset_peak_memory

RECALIBRATED_BASELINES = ("calendar-ridge", "gbm", "blend")
"""Baselines that are scored a second time with their known errors."""
RECALIBRATED = "-recalibrated"  # ends the name of a baseline with its known errors added


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationForecasts:
    """Validation forecasts of a fitted baseline, and the level of its errors there.

    A method's past is its errors there, and on scored windows as they end; its model stays.
    """

    # The validation windows; none if the baseline cannot forecast all of them
    windows: WindowSet
    # (N, H) by method: the baseline, and its recalibrated form if there is one
    by_method: Mapping[str, FloatArray] = field(default_factory=dict)
    levels: ErrorLevels | None = None  # what recalibration adds later on; None without it

    @classmethod
    def make(cls, name: str, fitted: ViewForecaster, val: WindowSet, scaler: Scaler) -> Self:
        """Forecast validation with a baseline that was fitted on train."""
        if not len(val) or not is_applicable(name, val):
            return cls(windows=val[:0])

        forecast_NH = forecast_windows(fitted, val)
        if name not in RECALIBRATED_BASELINES:
            return cls(windows=val, by_method={name: forecast_NH})

        levels = fit_known_errors(val, forecast_NH, scaler)
        # The final level has seen the window, so that its errors would be too small.
        followed_NPH = follow_levels(levels.rule, scaler, val, forecast_NH[:, None])
        by_method = {name: forecast_NH, f"{name}{RECALIBRATED}": followed_NPH[:, 0]}
        return cls(windows=val, by_method=by_method, levels=levels)

    def follow(self, method: str, windows: WindowSet, forecast_NH: FloatArray) -> FloatArray:
        """Return the quantiles (N, Q, H) of a method, from the errors known at each origin.

        A published forecast has its publisher's quantiles; none in a window in which they cross.
        """
        views = windows.views()
        if method == PublishedForecast.name:
            return drop_crossing(stack_published_quantiles(views))

        known, known_NH = list(windows), forecast_NH
        if method in self.by_method:
            # Validation itself may be scored: an error counts once.
            scored = {view.window_id for view in views}
            earlier = [i for i, v in enumerate(self.windows.views()) if v.window_id not in scored]
            known = [*(self.windows[i] for i in earlier), *known]
            known_NH = np.concatenate([self.by_method[method][earlier], known_NH])
        return estimate_quantiles(PastErrors.from_windows(known, known_NH), views, forecast_NH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A method that is fitted and scored."""

    name: str  # its name in rows
    seeds: Sequence[int]  # the seeds that it is fitted with
    fit: Callable[..., ViewForecaster]  # fits it with a ``seed``
    is_applicable: Callable[[WindowSet], bool]  # whether it can forecast all of some windows
    budget: str = ""  # name of what a fit may spend; empty if that changes nothing
    is_measured: bool = False  # whether rows say how long a fit took and what memory it needed
    # How many of the last validation windows make its quantiles; None: all
    known_windows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScores:
    """Scores of methods."""

    rows: pl.DataFrame  # result rows of every method, seed and scope
    # For each scope, forecasts (N, H) of every seed by method
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
    on_step: OnStep = lambda _: None,
) -> BaselineScores:
    """Fit every baseline on train and score it on the scopes that it can forecast completely.

    A baseline without random numbers is fitted once, the others with the seeds 0 to ``seeds - 1``.
    ``fit`` fits a baseline by name, as ``SharedFits`` does; see also :func:`score_candidates`.
    """
    candidates = [
        Candidate(
            name=name,
            seeds=range(seeds if baseline.draws else 1),
            fit=partial(fit, name, train),
            is_applicable=partial(is_applicable, name, train=train),
        )
        for name, baseline in BASELINES.items()
    ]

    return score_candidates(
        candidates, train, scopes, experiment=experiment, commit=commit, val=val, on_step=on_step
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
    on_step: OnStep = lambda _: None,
) -> BaselineScores:
    """Fit methods and score them on the scopes that they can forecast completely.

    Some methods have a second row, ``<name>-recalibrated``, with a bias correction from errors of
    validation. Quantiles come from these errors and from scored windows that have ended; without
    validation, only from scored windows. ``on_fitted`` gets name, seed and seconds of every fit,
    ``on_step`` a line before it.
    """
    rows: list[pl.DataFrame] = []
    forecasts: list[dict[str, list[FloatArray]]] = [{} for _ in scopes]
    scaler = Scaler.fit(train)

    # All windows or none: no table has a method that leaves out its hard days.
    able = [
        (candidate, answerable)
        for candidate in candidates
        if (answerable := [i for i, s in enumerate(scopes) if candidate.is_applicable(s.windows)])
    ]
    steps = Steps([find_cost(rated.name) for rated, _ in able for _ in rated.seeds], on_step)
    for candidate, answerable in able:
        name = candidate.name
        for seed in candidate.seeds:
            steps.begin(f"fitting and scoring {name}, seed {seed}")
            # Fitted once for all scopes: they share the train split.
            if candidate.is_measured:
                reset_peak_memory()
            started = time.monotonic()
            fitted = candidate.fit(seed=seed)
            fit_seconds = time.monotonic() - started
            if on_fitted is not None:
                on_fitted(name, seed, fit_seconds)

            chosen = train[:0]
            if val is not None and candidate.is_applicable(val):
                # The last ones: quantiles are made of the latest errors first.
                chosen = val[-(candidate.known_windows or len(val)) :]
            known = ValidationForecasts.make(name, fitted, chosen, scaler)
            facts: MethodFacts = getattr(fitted, "facts", MethodFacts())
            # A method that can be resumed knows the total time of all its starts.
            measured = {
                "train_seconds": facts.train_seconds or fit_seconds,
                "peak_memory_gb": facts.peak_memory_gb or 0.0,
            }
            noted = measured if candidate.is_measured else dict.fromkeys(measured)
            identity = Identity(
                experiment=experiment,
                method=name,
                seed=seed,
                commit=commit,
                budget=candidate.budget,
                **asdict(facts) | noted,
            )

            for i in answerable:
                scored, by_method = _score_scope(scopes[i], fitted, known, identity, train)
                rows.append(scored)
                for method, forecast_NH in by_method.items():
                    forecasts[i].setdefault(method, []).append(forecast_NH)

    return BaselineScores(rows=pl.concat(rows), forecasts=forecasts)


def _score_scope(
    scope: Scope,
    fitted: ViewForecaster,
    known: ValidationForecasts,
    identity: Identity,
    train: WindowSet,
) -> tuple[pl.DataFrame, dict[str, FloatArray]]:
    """Return rows and forecasts (N, H) of a fitted method, and of its recalibrated form."""
    # Only forecasting is timed: the fit is done once and is not a cost of a forecast.
    unreadable_before, answers_before = count_answers(fitted)
    started = time.monotonic()
    values_NH = forecast_windows(fitted, scope.windows)
    seconds = time.monotonic() - started

    unreadable, answers = count_answers(fitted)
    asked = answers - answers_before
    rate = (unreadable - unreadable_before) / asked if asked else None
    identity = replace(identity, subset=scope.subset, seconds=seconds, parse_failure_rate=rate)
    if identity.peak_memory_gb is not None:
        # Of the fit and of the forecasts so far.
        memory = max(identity.peak_memory_gb, peak_memory_gigabytes())
        identity = replace(identity, peak_memory_gb=memory)

    by_method = {identity.method: values_NH}
    if known.levels is not None:
        recalibrated_NPH = known.levels.apply(scope.windows.views(), values_NH[:, None])
        by_method[f"{identity.method}{RECALIBRATED}"] = recalibrated_NPH[:, 0]

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
