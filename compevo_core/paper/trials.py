"""Trials of an experiment: score runs under its changes, train on folds, pair stored forecasts.

What belongs here: scoring variants, their tests with the reference, tests of methods whose
forecasts are stored, and the five folds within train (paper 5.1, decision 09-splits). What does
not: the statistics (``evaluation.comparison``).

A fold's validation windows choose the round of its training, as in any run, and the errors are on
the same windows: they compare configurations and are not test errors.
"""

import gc
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from compevo_core.agents.logics import TOPICS
from compevo_core.baselines import FitBaseline, fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.splits import assign_split
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.comparison import (
    PAIRED_TEST_SCHEMA,
    compare_methods,
)
from compevo_core.evaluation.result_rows import write_config, write_rows, write_tables
from compevo_core.evaluation.scopes import Scope, SeedForecasts, read_forecasts, select_scopes
from compevo_core.evaluation.scoring import COMPEVO, collect_seeds, score_population
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.changes import CHANGES, FOLDS, OWN, Experiment, NamedChange, Relevance
from compevo_core.paper.declared import BUDGETS, rank_budget
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.trainer import train

log = logging.getLogger(__name__)

# The name of a pretrained model may end like a budget (chronos-bolt-small), and it spends none.
_FILE = re.compile(
    r"^(?P<method>zero-shot-.+|.+?)"
    rf"(?:-(?P<budget>{'|'.join(BUDGETS)}))?-seed\d+$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change under one seed."""

    change: str  # its name
    config: RunConfig  # its settings, with the seed
    windows: WindowSet  # what it was trained on and is scored on
    run: Path  # its run folder; a run of the full method where the experiment trains nothing


def _select_scopes(
    experiment: Experiment, windows: WindowSet, every: int, count: int | None
) -> list[Scope]:
    """Return what is scored: scopes in order and, if asked for, as many of later days."""
    chosen = select_scopes(windows, split=experiment.split, every=every)[:count]
    if not experiment.scores_later or not windows.manifest["n_by_split"].get("inference"):
        return chosen
    later = select_scopes(windows, split="inference", every=every)[:count]
    # One pass over all days: a population in daily use reaches the later days after the others.
    days = windows.with_windows([*windows.split("test"), *windows.split("inference")])
    return [replace(scope, days=days) for scope in (*chosen, *later)]


def list_trials_of_runs(
    changes: Sequence[NamedChange],
    runs: Sequence[tuple[Path, RunConfig]],
    windows: WindowSet,
    news: NewsPool | None,
) -> list[Trial]:
    """Return the trials of an experiment that trains nothing: every run under every change."""
    relevance = None
    # Embedding the topics takes a moment, and only changed news needs it.
    if news is not None and any(change.news != OWN for change in changes):
        relevance = Relevance(news, load_encoder(news.encoder_name).encode(TOPICS))
    return [
        Trial(
            change=change.name,
            config=change.configure(config),
            windows=change.change_windows(windows, relevance),
            run=run,
        )
        for change in changes
        for run, config in runs
    ]


def score_experiment(
    experiment: Experiment,
    trials: Sequence[Trial],
    news: NewsPool | None,
    results: Path,
    *,
    commit: str,
    log: logging.Logger,
    every: int = 1,
    scopes: int | None = None,
    budget: str = "",
    fit: FitBaseline = fit_baseline,
) -> tuple[Path, pl.DataFrame, pl.DataFrame]:
    """Score finished trials of a data set; write rows, paired tests and configurations.

    Every ``every``-th origin of the first ``scopes`` scopes of its split (None: all) is scored.
    ``budget`` is named in the rows, empty for the preset's own; ``fit`` refits priors, and may
    share fits. Returns the file of rows, the rows, and the paired tests with the reference.
    """
    # One population in memory at a time.
    scores = []
    for trial in trials:
        log.info(f"scoring {trial.change}, seed {trial.config.run.seed}")
        forecaster = CompEvoForecaster.load(trial.run, news, fit=fit)
        # A trained change is in the run and changed news in the windows; other weights are not.
        if not experiment.trains and CHANGES[trial.change].kind == "sweep":
            forecaster.reweigh(trial.config)
        scored = score_population(
            forecaster,
            _select_scopes(experiment, trial.windows, every, scopes),
            train=trial.windows.split("train"),
            experiment=experiment.rows_name,
            commit=commit,
            log=log,
            method=trial.change,
            # The scores of single members, and of equal weights, need no other training.
            parts=not forecaster.logics and trial.change == experiment.reference,
        )
        # A row of a short training must not pass for one of a full one.
        if budget:
            scored = replace(scored, rows=scored.rows.with_columns(budget=pl.lit(budget)))
        scores.append(scored)
        del forecaster
        gc.collect()  # the next backbone is loaded into the memory of this one

    # Changed news does not change ids and truths, so windows pair. Written even without a pair:
    # otherwise the tests of an earlier run would stay with new rows.
    seeds: dict[str, list[int]] = {}
    for trial, scored in zip(trials, scores, strict=True):
        # Parts of a change, such as its members, have its seed.
        for method in scored.predictions[0][1]:
            seeds.setdefault(method, []).append(trial.config.run.seed)
    tests = [
        test
        for scope, forecasts in collect_seeds(scores)
        for test in compare_with_reference(scope, forecasts, experiment.reference, seeds)
    ]
    paired = pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")
    rows = pl.concat([scored.rows for scored in scores])
    name = f"{experiment.rows_name}-{trials[0].windows.dataset}"
    configs = [trial.config for trial in trials]
    return write_tables(rows, paired, configs, results, name, f"paired-{name}"), rows, paired


def compare_with_reference(
    scope: Scope, forecasts: SeedForecasts, reference: str, seeds: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """Test each variant against a reference, if there is one, with their sides exchanged.

    ``seeds`` names the seed of every forecast. DataError if a variant has other seeds than the
    reference: means over different trainings differ without any change.
    """
    if reference not in forecasts:
        return []
    expected = sorted(seeds[reference])
    for name in forecasts:
        if sorted(seeds[name]) != expected:
            raise DataError(
                f"{scope.subset}: {name} has the seeds {sorted(seeds[name])} and {reference} has "
                f"{expected}: train and score both under the same seeds"
            )

    pairs = [(name, reference) for name in forecasts if name != reference]
    names = {"seeds": " ".join(map(str, expected))}
    return [record | names for record in compare_methods(scope, forecasts, reference, pairs)]


def pair_stored(
    scopes: Sequence[Scope], runs: Sequence[Path], stored: Path, method: str
) -> pl.DataFrame:
    """Return the paired tests of a method with every other that has stored forecasts.

    ``runs`` are files of forecasts of the method, one a seed; ``stored`` is the folder of the
    others, named by method, budget and seed. A file counts for the scopes that it holds. Of every
    other method the largest budget is paired. If the method itself is stored under a budget, it is
    also paired under this budget, with methods that had the same or spend nothing; without runs,
    this is the only pairing.
    """
    # Files of every seed, by method and budget.
    files: dict[str, dict[str | None, list[Path]]] = {}
    for path in sorted(stored.glob("*.parquet")):
        if match := _FILE.match(path.stem):
            by_budget = files.setdefault(match["method"], {})
            by_budget.setdefault(match["budget"], []).append(path)
    if not files:
        raise DataError(f"no forecasts in {stored}: run `compevo paper benchmark` on the data set")
    if not runs and method not in files:
        raise DataError(
            f"no run of {method}, and no forecasts of it in {stored}: train it, or run "
            f"`compevo paper benchmark --methods {method}`"
        )

    tests = []
    largest = [
        path
        for name, by_budget in files.items()
        if name != method
        for path in by_budget[min(by_budget, key=rank_budget)]
    ]
    for scope in scopes if runs else ():
        of_runs = _read(runs, scope).get(method, [])
        if len(of_runs) != len(runs):
            raise DataError(
                f"{len(of_runs)} of {len(runs)} runs have forecasts of {method} for "
                f"{scope.subset}: `compevo evaluate` them first"
            )
        others = _read(largest, scope)
        tests += compare_methods(scope, {method: of_runs, **others}, method)

    # Trainings without a budget are the runs themselves, and were paired above.
    for budget in filter(None, files.get(method, {})):
        # A method that spends nothing had no less than the others.
        equal = [path for of in files.values() for path in of.get(budget, of.get(None, ()))]
        for scope in scopes:
            forecasts = _read(equal, scope)
            if method in forecasts:
                records = compare_methods(scope, forecasts, method)
                tests += [{**record, "budget": budget} for record in records]
    return pl.DataFrame(tests, schema=PAIRED_TEST_SCHEMA, orient="row")


def _read(paths: Iterable[Path], scope: Scope) -> Mapping[str, list[FloatArray]]:
    """Return the forecasts (N, H) of every seed by method, from files that hold the scope."""
    forecasts: dict[str, list[FloatArray]] = {}
    for path in paths:
        # A method that cannot answer every window of a scope has no forecasts of it.
        subsets = pl.scan_parquet(path).select(pl.col("subset").unique()).collect()["subset"]
        if scope.subset not in subsets.to_list():
            continue
        for name, of_seeds in read_forecasts(path, scope).items():
            forecasts.setdefault(name, []).extend(of_seeds)
    return forecasts


def build_folds(windows: WindowSet) -> list[tuple[WindowSet, WindowSet]]:
    """Return expanding (train, validation) pairs within the train split, a horizon apart.

    Validation windows have the split "val", as a trainer expects. DataError without folds.
    """
    train = windows.split("train")
    numbers = sorted({window.view.fold for window in train} - {-1})
    if not numbers:
        raise DataError(
            f"{windows.dataset} has no folds: its train split holds {len(train)} window(s), too "
            "few for five; give more rows"
        )

    pairs = []
    for number in numbers:
        held_out = [window for window in train if window.view.fold == number]
        start = min(window.view.origin_utc for window in held_out)
        earlier = [w for w in train if w.view.end_utc + w.view.horizon * w.view.step <= start]

        validation = WindowSet(held_out, dataset=windows.dataset)
        pairs.append((WindowSet(earlier, dataset=windows.dataset), assign_split(validation, "val")))
    return pairs


def train_folds(
    config: RunConfig,
    windows: WindowSet,
    news: NewsPool,
    out: str | os.PathLike[str],
    results: Path,
    *,
    resume: bool = True,
    on_round: Callable[[int, RoundRecord], None] | None = None,
    commit: str = "",
) -> pl.DataFrame:
    """Train a configuration on every fold of train and score it, the earliest fold first.

    ``out`` gets a run folder ``fold_<k>`` for each fold. Rows of population and prior, a subset for
    each fold, go to ``folds-<dataset>.csv`` and are returned; ``resume`` continues unfinished runs.
    DataError if train has no folds, or an entity is in no window before its fold;
    CheckpointMismatch for runs of other settings or data.
    """
    rows: list[pl.DataFrame] = []
    for number, (fold_train, validation) in enumerate(build_folds(windows)):
        folder = Path(out) / f"fold_{number}"
        train(
            config,
            fold_train,
            validation,
            news,
            folder,
            resume=resume,
            on_round=partial(on_round, number) if on_round else None,
        )
        scored = score_population(
            CompEvoForecaster.load(folder, news),
            [Scope(subset=f"fold-{number}", windows=validation)],
            train=fold_train,
            experiment=FOLDS,
            commit=commit,
            log=log,
        )
        rows.append(scored.rows.filter(pl.col("method").is_in([COMPEVO, f"{COMPEVO}-prior"])))

    every = pl.concat(rows)
    write_rows(results / f"folds-{windows.dataset}.csv", every)
    write_config(results, config)
    return every
