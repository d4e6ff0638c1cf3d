"""Score trained populations: forecasts, result rows, regret, panels and paired tests.

What belongs here: the scores of one training or of several seeds; the command line and the assets
call these functions, so that the same run always makes the same rows. What does not: baselines
(``evaluation.baseline_scores``), how a population forecasts (``forecast.forecaster``), the form of
its files (``evaluation.result_rows``, ``evaluation.scopes``), the rules of online weights
(``agents.online_selection``).

Shapes: A agents, D days, N windows of a scope, H horizon, h steps of a part of the day.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.agents.online_selection import count_alike, find_excess
from compevo_core.baselines.base import MethodFacts
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray, mean_known, split_evenly
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.baseline_scores import RECALIBRATED
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA, compare_methods
from compevo_core.evaluation.result_rows import Identity, evaluate, hash_without_seed
from compevo_core.evaluation.scopes import (
    ForecastPanel,
    Scope,
    SeedForecasts,
    build_panels,
    write_forecasts,
    write_panels,
)
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.forecast.prediction import Prediction
from compevo_core.runtime.usage import format_duration
from compevo_core.training.ensemble import read_config
from compevo_core.training.run_folder import RunFolder

COMPEVO = "compevo"
ISSUED = "-issued"
"""Ends the name of a method without agents that keeps learning, as it is issued."""

_WINDOWS_PER_BATCH = 10  # forecast at once, so that progress can be shown in between


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationForecast:
    """A population's forecasts of every window of a scope, and what they took."""

    prediction: Prediction
    n_answers: int  # forecasts that were asked for: one an agent and window
    seconds: float

    @property
    def chosen(self) -> list[tuple[str, ...]]:
        """For each window, the ids of the articles that any agent read, without repetition."""
        # A dict and not a set: panels must show the articles in the same order in every process.
        return [
            tuple(dict.fromkeys(article for agent in by_agent for article in agent))
            for by_agent in zip(*self.prediction.chosen_news, strict=True)
        ]


def forecast_scopes(
    forecaster: CompEvoForecaster, scopes: Sequence[Scope], log: logging.Logger
) -> list[PopulationForecast]:
    """Forecast every window of some scopes; progress lines say how long the rest will take.

    A population that learns from known errors forecasts the days of a scope in the order of time
    and observes each when it is over. Scopes of the same days share one such pass.
    """
    passes: dict[str, tuple[Prediction, float]] = {}
    forecasts = []
    for scope in scopes:
        days = (scope.days if forecaster.is_daily else None) or scope.windows
        if days.hash not in passes:
            passes[days.hash] = _forecast(forecaster, days, scope.subset, log)
        prediction, seconds = passes[days.hash]

        row_of = {view.window_id: row for row, view in enumerate(days.views())}
        rows = [row_of[view.window_id] for view in scope.windows.views()]
        # Unreadable answers are counted over the pass, and so are all others.
        forecast = PopulationForecast(
            prediction=prediction.take(rows),
            n_answers=prediction.agents.shape[0] * len(days),
            seconds=seconds * len(rows) / len(days),
        )
        forecasts.append(forecast)
    return forecasts


def _forecast(
    forecaster: CompEvoForecaster, windows: WindowSet, name: str, log: logging.Logger
) -> tuple[Prediction, float]:
    """Return the forecasts of windows, and the seconds that they took."""
    started = logged = time.monotonic()

    def report(n_done: int) -> None:
        nonlocal logged
        now = time.monotonic()
        if now - logged >= 5.0 or n_done == len(windows):  # Dagster stores each line
            logged = now
            left = (now - started) / n_done * (len(windows) - n_done)
            log.info(f"{name}: {n_done}/{len(windows)} windows, {format_duration(left)} left")

    if forecaster.is_daily:
        prediction = forecaster.follow(windows, report)
    else:
        views, parts = windows.views(), []
        for start in range(0, len(views), _WINDOWS_PER_BATCH):
            rows = range(start, min(start + _WINDOWS_PER_BATCH, len(views)))
            parts.append((rows, forecaster.predict_by_agent(views[rows.start : rows.stop])))
            report(rows.stop)
        prediction = Prediction.join(parts)
    return prediction, time.monotonic() - started


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationScores:
    """Scores of a trained population."""

    rows: pl.DataFrame  # result rows of every scope, by entity and pooled
    panels: list[ForecastPanel]  # a few windows of every scope as the report draws them
    predictions: list[tuple[Scope, SeedForecasts]]  # the forecasts of every scope
    regret: pl.DataFrame  # of online weights, by scope, series and part of the day


def name_rows(forecaster: CompEvoForecaster) -> str:
    """Return the method name for the rows of a population; without agents, its method.

    It is the method as issued, which keeps learning: tables have another row as fitted.
    """
    return COMPEVO if forecaster.logics else f"{forecaster.name}{ISSUED}"


def score_population(
    forecaster: CompEvoForecaster,
    scopes: Sequence[Scope],
    *,
    train: WindowSet,
    experiment: str,
    commit: str,
    log: logging.Logger,
    method: str = COMPEVO,
    baseline_forecasts: Sequence[SeedForecasts] = (),
    news: NewsPool | None = None,
    panels_per_scope: int = 4,
    parts: bool = True,
) -> PopulationScores:
    """Score a trained population on every scope, without any update.

    The population and its ``parts`` (its mean, its agents, its prior) get rows, under the name
    ``method``; ``train`` gives the scale of MASE. With ``news``, some windows of each scope become
    panels, with the ``baseline_forecasts`` of the scope.
    """
    if baseline_forecasts and len(baseline_forecasts) != len(scopes):
        raise DataError(
            f"forecasts of baselines for {len(baseline_forecasts)} of {len(scopes)} scopes; "
            "give one mapping for each, or none at all"
        )
    rows: list[pl.DataFrame] = []
    panels: list[ForecastPanel] = []
    predictions: list[tuple[Scope, SeedForecasts]] = []
    regret = [pl.DataFrame(schema=REGRET_SCHEMA)]

    config = forecaster.config
    forecasts = forecast_scopes(forecaster, scopes, log)
    by_scope = baseline_forecasts or [{} for _ in scopes]
    for scope, baselines, forecast in zip(scopes, by_scope, forecasts, strict=True):
        # Each answer that could not be parsed was scored by the fallback.
        unread = forecast.prediction.n_unparsed / forecast.n_answers
        identity = Identity(
            **asdict(describe_population(forecaster)),
            experiment=experiment,
            method=method,
            subset=scope.subset,
            seed=config.run.seed,
            commit=commit,
            seconds=forecast.seconds,
            parse_failure_rate=unread if forecaster.logics else None,
            refit=config.run.refit,
        )
        # The values, not the forecaster: panels below and later tests must show what was scored. No
        # second inference is needed, since an agent's forecast does not depend on the others.
        whole_NH, agents_ANH = forecast.prediction.aggregate, forecast.prediction.agents
        by_method = {method: whole_NH}
        # One agent and its mean are the population; jointly fitted agents forecast nothing singly.
        if parts and len(agents_ANH) > 1 and config.news.fit != "joint":
            by_method[f"{method}-equal"] = forecast.prediction.equal
            by_method |= {f"{method}-agent-{i}": own_NH for i, own_NH in enumerate(agents_ANH)}
        if parts and forecast.prediction.prior is not None:
            by_method[f"{method}-prior"] = forecast.prediction.prior
        for name, values_NH in by_method.items():
            # Only the whole has past errors; its parts are point forecasts.
            quantiles_NQH = forecast.prediction.quantiles if name == method else None
            named = replace(identity, method=name)
            if name == f"{method}-prior":
                # A part of the model without a language model.
                named = replace(named, backbone="", knowledge_cutoff="", news_top_k=None)
                named = replace(named, parse_failure_rate=None, chosen_round=None, blend=None)
            rows.append(
                evaluate(values_NH, scope.windows, named, quantiles_NQH=quantiles_NQH, train=train)
            )
        predictions.append((scope, {name: [values] for name, values in by_method.items()}))
        if config.selection.online:
            regret.append(tabulate_regret(scope, forecast.prediction, config, identity))
        if news is not None:
            # A baseline and its recalibrated twin are nearly the same line.
            others = {k: v[0] for k, v in baselines.items() if not k.endswith(RECALIBRATED)}
            lines = {method: whole_NH} | others
            panels += build_panels(scope, lines, forecast.chosen, news, panels_per_scope)

    return PopulationScores(
        rows=pl.concat(rows), panels=panels, predictions=predictions, regret=pl.concat(regret)
    )


def describe_population(forecaster: CompEvoForecaster) -> MethodFacts:
    """Return what rows state about a trained population: its hashes lead to its run folder."""
    config, has_agents = forecaster.config, bool(forecaster.logics)
    return MethodFacts(
        backbone=config.backbone.name_or_path if has_agents else "",
        knowledge_cutoff=forecaster.knowledge_cutoff,
        device=str(forecaster.manifest.get("device", "cpu")),
        config_hash=config.hash,
        seedless_hash=hash_without_seed(config),
        artifact_hash=forecaster.artifact_hash,
        news_top_k=config.news.top_k if has_agents else None,
        chosen_round=forecaster.manifest.get("chosen_round"),
        blend=forecaster.blend,
    )


def read_seeds(runs: Sequence[Path]) -> list[RunConfig]:
    """Return the configurations of runs that differ only by seed, else ConfigError."""
    configs = [read_config(run) for run in runs]
    require_seeds_of_one_method(configs)
    return configs


def require_seeds_of_one_method(configs: Sequence[RunConfig]) -> None:
    """Raise ConfigError if two runs have other settings, or the same seed."""
    if len({hash_without_seed(config) for config in configs}) > 1:
        raise ConfigError(
            "the runs were trained with different settings, so their rows are not seeds of one "
            "method: score each under an experiment or variant of its own"
        )
    seeds = [config.run.seed for config in configs]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"two runs have the same seed ({sorted(seeds)}): name each run once")


def collect_seeds(
    scores: Sequence[PopulationScores],
) -> list[tuple[Scope, dict[str, list[FloatArray]]]]:
    """Return, for each scope, the forecasts (N, H) of every training by method."""
    collected = []
    for place, (scope, _) in enumerate(scores[0].predictions):
        by_method: dict[str, list[FloatArray]] = {}
        for scored in scores:
            for name, of_seeds in scored.predictions[place][1].items():
                by_method.setdefault(name, []).extend(of_seeds)
        collected.append((scope, by_method))
    return collected


def compare_seeds(
    scores: Sequence[PopulationScores], baseline_forecasts: Sequence[SeedForecasts], method: str
) -> pl.DataFrame:
    """Return the paired tests of a method with its parts and every baseline, of each scope.

    Its parts are its agents' mean and prior, not each agent. Rows follow ``PAIRED_TEST_SCHEMA``.
    """
    tests = []
    compared = (method, f"{method}-equal", f"{method}-prior")
    collected = collect_seeds(scores)
    for (scope, by_method), baselines in zip(collected, baseline_forecasts, strict=True):
        forecasts = {name: by_method[name] for name in compared if name in by_method}
        tests += compare_methods(scope, {**forecasts, **baselines}, method)
    return pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")


def write_run_forecasts(scores: PopulationScores, run: RunFolder) -> None:
    """Write forecasts and panels of one model into its run folder."""
    write_forecasts(run.predictions_file, scores.predictions)
    write_panels(run.panels_file, scores.panels)


REGRET_FOLDER = "regret"  # folder below the results, of rows with other columns
REGRET_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(("experiment", "method", "dataset", "subset", "entity", "rule"), pl.String()),
    **dict.fromkeys(("part", "parts", "days"), pl.Int64()),  # a part of the day counts from 0
    # Sums over days, in ``unit``; the bound, over the best mixture, is null without a promise
    **dict.fromkeys(("loss", "best_expert", "best_mixture", "bound"), pl.Float64()),
    "unit": pl.String(),
    "seed": pl.Int64(),
    **dict.fromkeys(("config_hash", "artifact_hash", "commit"), pl.String()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What a mixture lost in D days; errors are mean absolute errors of a day, summed over days.

    What a rule promises holds for errors that are known before the next forecast; with AEMO's clock
    they are known one or two days later, and more regret than promised is possible.
    """

    days: int  # days with a known truth
    loss: float  # of the mixture
    best_expert: float  # of the expert that was best overall
    best_mixture: float  # of the best fixed mixture, by linear programming
    # What the rule promises at most over the best fixed mixture, with the largest excess loss that
    # came out; None for a rule that promises nothing
    bound: float | None


def tabulate_regret(
    scope: Scope, prediction: Prediction, config: RunConfig, identity: Identity
) -> pl.DataFrame:
    """Return the regret of a population on a scope, in rows of ``REGRET_SCHEMA``.

    All windows of the scope know equally much about the day before.
    """
    selection, first_A = config.selection, config.population.first_weights
    truth_NH = scope.windows.truth()
    entity_N = np.array([view.entity for view in scope.windows.views()])
    shared = asdict(identity) | {
        "dataset": scope.windows.dataset,
        "subset": scope.subset,
        "rule": selection.rule,
        "parts": selection.parts,
        "unit": scope.windows[0].view.unit,
    }

    rows = []
    for entity in scope.windows.entities:
        rows_of = np.flatnonzero(entity_N == entity)
        for part, span in enumerate(split_evenly(scope.windows.horizon, selection.parts)):
            regret = measure_regret(
                selection.rule,
                prediction.agents[:, rows_of, span].swapaxes(0, 1),
                prediction.aggregate[rows_of, span],
                truth_NH[rows_of, span],
                first_A,
            )
            rows.append(shared | {"entity": entity, "part": part} | asdict(regret))
    return pl.DataFrame(rows, schema=REGRET_SCHEMA, orient="row")


def measure_regret(
    rule: str,
    experts_DAh: FloatArray,
    mixture_Dh: FloatArray,
    truth_Dh: FloatArray,
    first_A: Sequence[float],
) -> Regret:
    """Return the regret of one set of weights under a rule that began with the first weights.

    An unknown truth is NaN; days without any known truth do not count.
    """
    is_known_D = np.isfinite(truth_Dh).any(axis=1)
    experts_DAh, mixture_Dh, truth_Dh = (
        values[is_known_D] for values in (experts_DAh, mixture_Dh, truth_Dh)
    )
    excess = [
        find_excess(experts_Ah[:, steps], mixture_h[steps], truth_h[steps])
        for experts_Ah, mixture_h, truth_h in zip(experts_DAh, mixture_Dh, truth_Dh, strict=True)
        for steps in [np.isfinite(truth_h)]
    ]
    return Regret(
        days=len(truth_Dh),
        loss=float(sum(mean_known(np.abs(mixture_Dh - truth_Dh), axis=1))),
        best_expert=float(np.min(sum(mean_known(np.abs(experts_DAh - truth_Dh[:, None]), axis=2)))),
        best_mixture=_find_best_mixture(experts_DAh, truth_Dh),
        bound=find_bound(rule, np.array(excess), count_alike(first_A)),
    )


def find_bound(rule: str, excess_DA: FloatArray, experts: float) -> float | None:
    """Return what a rule promises at most, over the expert for which it promises least.

    Gaillard, Stoltz and van Erven (2014), "A second-order bound with excess losses", with losses
    scaled to the largest excess: for ``boa`` their bound of ML-Prod. Its proof rests on
    1 + x >= exp(x - x^2), the step that turns ML-Prod into this rule. The others promise nothing
    with these settings. ``experts`` counts one with a larger first weight as several equal ones.
    """
    days = len(excess_DA)
    largest = float(np.abs(excess_DA).max(initial=0.0))
    if rule != "boa" or largest == 0.0:
        return None

    squares = float((excess_DA**2).sum(axis=0).max()) / largest**2
    log_experts = math.log(max(2.0, experts))
    doublings = math.log(1 + experts / (2 * math.e) * (1 + math.log(1 + days)))
    price = 3 * log_experts + doublings
    return largest * (price / math.sqrt(log_experts) * math.sqrt(1 + squares) + 2 * price)


def _find_best_mixture(experts_DAh: FloatArray, truth_Dh: FloatArray) -> float:
    """Return the smallest sum over days of mean absolute errors that fixed weights could reach."""
    from scipy import sparse
    from scipy.optimize import linprog

    is_known_Dh = np.isfinite(truth_Dh)
    truth_N = truth_Dh[is_known_Dh]
    forecast_NA = experts_DAh.swapaxes(1, 2)[is_known_Dh]
    # A day's error is a mean over its known steps.
    weight_N = np.repeat(1.0 / is_known_Dh.sum(axis=1), is_known_Dh.sum(axis=1))

    # Minimise the weighted slack s >= |F w - y|, w on the simplex. Sparse: a slack has two rows.
    n, experts = forecast_NA.shape
    slack = sparse.eye_array(n)
    above = sparse.hstack([sparse.csr_array(forecast_NA), -slack])
    below = sparse.hstack([sparse.csr_array(-forecast_NA), -slack])
    solution = linprog(
        np.concatenate([np.zeros(experts), weight_N]),
        A_ub=sparse.vstack([above, below]).tocsr(),
        b_ub=np.concatenate([truth_N, -truth_N]),
        A_eq=np.concatenate([np.ones(experts), np.zeros(n)])[None],
        b_eq=[1.0],
    )
    return float(solution.fun)
