"""Score a trained population.

What belongs here: from a population and scopes to result rows and forecast panels; whoever scores
(an asset, the command line) calls these functions, so that the same run always makes the same rows.
What does not: baselines (``evaluation.baseline_scores``), which windows form a scope
(``evaluation.scopes``), metrics (``evaluation.metrics``), paired tests of what was scored
(``evaluation.seeds``), files (``evaluation.score_files``).

Paper 5.1 to 5.3. Shapes: N windows of a scope, H horizon (48).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.configs import hash_without_seed
from compevo_core.evaluation.panels import ForecastPanel, build_panels
from compevo_core.evaluation.population_forecast import PopulationForecast, forecast_scopes
from compevo_core.evaluation.recalibration import RECALIBRATED
from compevo_core.evaluation.regret_rows import REGRET_SCHEMA, tabulate_regret
from compevo_core.evaluation.result_rows import Identity, evaluate
from compevo_core.evaluation.scopes import Scope, SeedForecasts

if TYPE_CHECKING:
    from compevo_core.forecaster import CompEvoForecaster

COMPEVO = "compevo"
PANELS_PER_SCOPE = 4

ScopeForecasts = tuple[Scope, Mapping[str, FloatArray]]
"""A scope, and forecasts (N, H) of its windows by method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationScores:
    """Scores of a trained population.

    Attributes:
        rows: result rows of every scope, by entity and pooled.
        panels: a few windows of every scope as the report draws them.
        predictions: the forecasts of every scope.
        regret: of weights that go on after training, by scope, series and part of the day.
    """

    rows: pl.DataFrame
    panels: list[ForecastPanel]
    predictions: list[ScopeForecasts]
    regret: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=REGRET_SCHEMA))


def load_population(
    run: Path, news: NewsPool, *, fit: FitBaseline = fit_baseline
) -> "CompEvoForecaster":
    """Load the sealed population of a run folder.

    Args:
        run: the run folder.
        news: articles that its windows name.
        fit: fits priors anew where the run's settings say so.

    Raises:
        CheckpointMismatch: the model is unfinished or was altered.
    """
    # torch takes seconds to import; whoever scores baselines alone does not wait for it.
    from compevo_core.forecaster import CompEvoForecaster

    return CompEvoForecaster.load(run, news, fit=fit)


def score_population(
    forecaster: "CompEvoForecaster",
    scopes: Sequence[Scope],
    *,
    train: WindowSet,
    experiment: str,
    commit: str,
    log: logging.Logger,
    method: str = COMPEVO,
    baseline_forecasts: Sequence[SeedForecasts] = (),
    news: NewsPool | None = None,
    panels_per_scope: int = PANELS_PER_SCOPE,
    parts: bool = True,
) -> PopulationScores:
    """Score a trained population on every scope.

    Args:
        forecaster: the population; nothing of it is updated.
        scopes: the windows to forecast, by subset.
        train: train windows, for the scale of MASE.
        experiment: name of the experiment in the rows.
        commit: commit of the code, for the rows.
        log: gets a progress line with the time left after every few windows.
        method: name of the population in the rows.
        baseline_forecasts: for each scope, forecasts (N, H) of every seed by baseline; the panels
            show the first; empty: they show the population alone.
        news: the articles whose titles the panels show; None: no panels are made.
        panels_per_scope: number of windows of each scope that become panels.
        parts: whether the plain mean of the agents, each agent and the prior get rows of their own.

    Raises:
        DataError: ``baseline_forecasts`` is not one mapping a scope.
    """
    rows: list[pl.DataFrame] = []
    panels: list[ForecastPanel] = []
    predictions: list[ScopeForecasts] = []
    regret = [pl.DataFrame(schema=REGRET_SCHEMA)]

    by_scope = _pair_with_scopes(baseline_forecasts, scopes)
    forecasts = forecast_scopes(forecaster, scopes, log)
    selection = forecaster.config.selection
    for scope, baselines, forecast in zip(scopes, by_scope, forecasts, strict=True):
        identity = identify_population(
            forecaster,
            forecast,
            experiment=experiment,
            method=method,
            subset=scope.subset,
            commit=commit,
        )
        # The values, not the forecaster: panels below and later tests must show what was scored.
        by_method = {method: forecast.values_NH}
        if parts:
            by_method |= forecast.name_parts(method)
        for name, values_NH in by_method.items():
            # Past errors are kept of the whole; its parts are point forecasts.
            quantiles_NQH = forecast.quantiles_NQH if name == method else None
            named = _identify_part(identity, name)
            rows.append(
                evaluate(values_NH, scope.windows, named, quantiles_NQH=quantiles_NQH, train=train)
            )
        predictions.append((scope, by_method))
        if selection.online:
            regret.append(
                tabulate_regret(scope, forecast.values_NH, forecast.agents_ANH, selection, identity)
            )
        if news is not None:
            # A baseline and its recalibrated twin are nearly the same line.
            shown = {k: v[0] for k, v in baselines.items() if not k.endswith(RECALIBRATED)}
            drawn = {method: forecast.values_NH, **shown}
            panels += build_panels(scope, drawn, forecast.chosen, news, panels_per_scope)

    return PopulationScores(
        rows=pl.concat(rows),
        panels=panels,
        predictions=predictions,
        regret=pl.concat(regret),
    )


def _pair_with_scopes(
    forecasts: Sequence[SeedForecasts], scopes: Sequence[Scope]
) -> Sequence[SeedForecasts]:
    """Return one mapping of forecasts for each scope, empty ones where none is given at all."""
    if forecasts and len(forecasts) != len(scopes):
        raise DataError(
            f"forecasts of baselines for {len(forecasts)} of {len(scopes)} scopes; "
            "give one mapping for each, or none at all"
        )
    return forecasts or [{} for _ in scopes]


def identify_population(
    forecaster: "CompEvoForecaster",
    forecast: PopulationForecast,
    *,
    experiment: str,
    method: str,
    subset: str,
    commit: str,
) -> Identity:
    """Return what the rows of a population say about the run that made them."""
    config = forecaster.config

    # Hashes of configuration and sealed model: with them a row can be traced to its run folder.
    return Identity(
        experiment=experiment,
        method=method,
        subset=subset,
        seed=config.run.seed,
        config_hash=config.hash,
        seedless_hash=hash_without_seed(config),
        artifact_hash=forecaster.artifact_hash,
        commit=commit,
        device=str(forecaster.manifest.get("device", "cpu")),
        seconds=forecast.seconds,
        backbone=config.backbone.name_or_path,
        knowledge_cutoff=forecaster.knowledge_cutoff,
        parse_failure_rate=forecast.parse_failure_rate,
        refit=config.run.refit,
        news_top_k=config.news.top_k,
    )


def _identify_part(identity: Identity, name: str) -> Identity:
    named = replace(identity, method=name)
    if name != f"{identity.method}-prior":
        return named
    # A prior is a part of the model that no language model had a hand in.
    return replace(
        named, backbone="", knowledge_cutoff="", parse_failure_rate=None, news_top_k=None
    )
