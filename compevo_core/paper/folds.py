"""The five folds within train, and a configuration validated on each (decision 09-splits).

A fold's validation windows choose the round of its own training, as validation does in any run, and
the errors are on the same windows: they compare configurations and are not test errors.

Paper 5.1. Shapes: A agents, N windows, H horizon.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.splits import assign_split
from compevo_core.data.window import WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.metrics import score
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.paper.declared import read_columns
from compevo_core.runtime.files import write_atomically
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.trainer import train

FOLDS_FILE = "folds.csv"
POPULATION = "compevo"
PRIOR = "prior"  # method name of the best of the agents' bases, as in the validation of a round
MEAN, DEVIATION = "mean", "sd"
"""Names of the two rows over all folds; the deviation is a sample's, with n - 1."""

_ERRORS = ("mae", "rmse", "mae_scaled", "rmse_scaled")

FOLD_SCHEMA = read_columns("folds")


def build_folds(windows: WindowSet) -> list[tuple[WindowSet, WindowSet]]:
    """Return expanding (train, validation) pairs within the train split.

    One horizon of embargo separates the two. The windows of the second have split "val", as a
    trainer expects; the last pair has the latest windows on which train can be validated. DataError
    if the train split has no folds (it is empty or a single origin).
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

    With ``last_fold`` the latest fold of train validates, what is before it trains, and the
    validation split is unused; DataError if there is no fold. Else the splits are as they are.
    """
    if last_fold:
        return build_folds(windows)[-1]
    return windows.split("train"), windows.split("val")


def train_folds(
    config: RunConfig,
    windows: WindowSet,
    news: NewsPool,
    out: str | os.PathLike[str],
    *,
    resume: bool = True,
    on_round: Callable[[int, RoundRecord], None] | None = None,
    commit: str = "",
) -> pl.DataFrame:
    """Train a configuration on every fold of train and measure it, the earliest fold first.

    ``out`` gets a run folder ``fold_<k>`` for each fold, and ``folds.csv``; unfinished runs
    continue with ``resume``. Returns rows of ``FOLD_SCHEMA``: population and prior by fold, then
    their mean and deviation. DataError if the train split has no folds, or an entity is in no
    window before its fold; CheckpointMismatch if a fold's folder holds a run of other settings or
    data.
    """
    rows: list[dict[str, Any]] = []
    for number, (fold_train, validation) in enumerate(build_folds(windows)):
        folder = Path(out) / f"fold_{number}"
        summary = train(
            config,
            fold_train,
            validation,
            news,
            folder,
            resume=resume,
            on_round=partial(on_round, number) if on_round else None,
        )
        shared = {
            "fold": str(number),
            "chosen_round": summary["chosen_round"],
            "seed": config.run.seed,
            "config_hash": config.hash,
            "commit": commit,
        }
        rows += [row | shared for row in measure_fold(folder, fold_train, validation, news)]

    by_fold = pl.DataFrame(rows, schema=FOLD_SCHEMA)
    frame = pl.concat([by_fold, _summarize(by_fold)], how="diagonal")
    write_atomically(Path(out) / FOLDS_FILE, frame.write_csv)
    return frame


def measure_fold(
    folder: Path, fold_train: WindowSet, validation: WindowSet, news: NewsPool
) -> list[dict[str, Any]]:
    """Return the errors of a fold's trained population, and of its prior, as two rows."""
    forecaster = CompEvoForecaster.load(folder, news)
    prediction = forecaster.predict_by_agent(validation.views())

    # The best prior: a population that any of them beats has learnt nothing.
    scaler = Scaler.fit(fold_train)
    by_agent = [_measure_errors(base_NH, validation, scaler) for base_NH in prediction.bases]
    errors = {
        POPULATION: _measure_errors(prediction.aggregate, validation, scaler),
        PRIOR: min(by_agent, key=lambda error: error["mae_scaled"]),
    }

    days = [view.calendar.target_date for view in validation.views()]
    facts = {
        "dataset": validation.dataset,
        "n_train": len(fold_train),
        "n_validation": len(validation),
        "first_day": min(days),
        "last_day": max(days),
        "unit": validation[0].view.unit,
        "data_hash": validation.hash,
        "artifact_hash": forecaster.artifact_hash,
    }
    return [facts | {"method": method} | error for method, error in errors.items()]


def _measure_errors(
    forecast_NH: FloatArray, windows: WindowSet, scaler: Scaler
) -> dict[str, float]:
    truth_NH = windows.truth()
    physical = score(truth_NH, forecast_NH)

    # Divided by the deviation of its entity, errors of large and small series count alike.
    deviation_N1 = np.array([[scaler.std[view.entity]] for view in windows.views()])
    scaled = score(truth_NH / deviation_N1, forecast_NH / deviation_N1)
    return {
        "mae": physical.mae,
        "rmse": physical.rmse,
        "mae_scaled": scaled.mae,
        "rmse_scaled": scaled.rmse,
    }


def _summarize(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean and the deviation of every error over the folds, by method."""
    shared = pl.col("dataset", "unit", "seed", "config_hash", "commit").first()
    errors = pl.col(_ERRORS)
    by_method = rows.group_by("method", maintain_order=True)

    # One fold has no deviation; zero would say that folds agree.
    means, deviations = (
        by_method.agg(pl.lit(name).alias("fold"), shared, measure)
        for name, measure in ((MEAN, errors.mean()), (DEVIATION, errors.std()))
    )
    return pl.concat([means, deviations]).sort("method", "fold")
