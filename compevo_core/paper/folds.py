"""The five folds within train, and a configuration validated on each (decision 09-splits).

A fold's validation windows choose the round of its training, as in any run, and the errors are on
the same windows: they compare configurations and are not test errors.

Paper 5.1.
"""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl

from compevo_core.config.run import RunConfig
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.splits import assign_split
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.result_rows import write_config, write_rows
from compevo_core.evaluation.scopes import Scope
from compevo_core.evaluation.scoring import COMPEVO, score_population
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.paper.changes import FOLDS
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.trainer import train

log = logging.getLogger(__name__)


def build_folds(windows: WindowSet) -> list[tuple[WindowSet, WindowSet]]:
    """Return expanding (train, validation) pairs within the train split.

    One horizon of embargo separates the two. Validation windows have the split "val", as a trainer
    expects; the last pair has the latest windows of train that can validate. DataError if the train
    split has no folds (it is empty or a single origin).
    """
    train = windows.split("train")
    numbers = sorted({window.view.fold for window in train} - {-1})
    if not numbers:
        raise DataError(
            f"{windows.dataset} has no folds; its train split holds {len(train)} window(s)"
        )

    pairs = []
    for number in numbers:
        held_out = [window for window in train if window.view.fold == number]
        start = min(window.view.origin_utc for window in held_out)
        earlier = [w for w in train if w.view.end_utc + w.view.horizon * w.view.step <= start]

        validation = WindowSet(held_out, dataset=windows.dataset)
        pairs.append((WindowSet(earlier, dataset=windows.dataset), assign_split(validation, "val")))
    return pairs


def choose_validation(windows: WindowSet, *, last_fold: bool) -> tuple[WindowSet, WindowSet]:
    """Return the train and validation windows of a training.

    With ``last_fold`` the latest fold of train validates, the windows before it train, and the
    validation split is unused; DataError if there is no fold. Otherwise the splits are as they are.
    """
    if last_fold:
        return build_folds(windows)[-1]
    return windows.split("train"), windows.split("val")


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

    ``out`` gets a run folder ``fold_<k>`` for each fold; unfinished runs continue with ``resume``.
    Result rows of population and prior, a subset for each fold, go to ``folds-<dataset>.csv`` in
    ``results`` and are returned. DataError if the train split has no folds, or an entity is in no
    window before its fold; CheckpointMismatch if a fold's folder holds a run of other settings or
    data.
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
