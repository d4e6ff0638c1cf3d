"""Result rows: the scores of one method on one set of windows, with what identifies them.

What belongs here: the columns of a row, scoring a forecaster into one row per entity and a pooled
row, writing rows and the configurations that they name by hash. What does not: metrics
(``evaluation.metrics``), paired tests (``evaluation.comparison``). Scores are in physical units on
the original truth (paper 5.1).

Shapes: N windows, Q levels of quantiles, H horizon.
"""

import calendar as month_calendar
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from compevo_core.baselines.base import MethodFacts, ViewForecaster
from compevo_core.config.run import RunConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.data.datasets import DATASETS
from compevo_core.data.view import keep_bounds, stack_rows
from compevo_core.data.window import WindowSet, share_with_choice
from compevo_core.errors import DataError
from compevo_core.evaluation import metrics
from compevo_core.runtime.files import file_lock, write_atomically, write_text

POOLED = "pooled"  # entity of the row over all windows

BATCH_SIZE = 64  # windows; the scores do not depend on it
_CUTOFF = re.compile(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?(?!\d)")

# CSV files in results folders have this order: append, never reorder.
RESULT_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(("experiment", "method", "dataset", "split", "subset", "entity"), pl.String()),
    **dict.fromkeys(("n_windows", "n_points", "n_masked", "seed"), pl.Int64()),
    **dict.fromkeys(("config_hash", "data_hash", "artifact_hash", "commit", "device"), pl.String()),
    "seconds": pl.Float64(),
    **dict.fromkeys(("backbone", "knowledge_cutoff"), pl.String()),
    **dict.fromkeys(("possibly_memorised", "leaky", "synthetic"), pl.Boolean()),
    "parse_failure_rate": pl.Float64(),
    "mape_skipped": pl.Int64(),
    **dict.fromkeys(("mape_threshold", "mae", "mse", "rmse"), pl.Float64()),
    **dict.fromkeys(("mape_pct", "wape_pct", "mase"), pl.Float64()),
    "unit": pl.String(),
    "news_choice_share": pl.Float64(),
    "refit": pl.Boolean(),
    "seedless_hash": pl.String(),
    **dict.fromkeys(metrics.QUANTILE_COLUMNS, pl.Float64()),
    "train_seconds": pl.Float64(),
    "trainable_parameters": pl.Int64(),
    "budget": pl.String(),
    **dict.fromkeys(("learning_rate", "seconds_per_window", "peak_memory_gb"), pl.Float64()),
    "chosen_round": pl.Int64(),
    "blend": pl.Float64(),
}
RESULT_COLUMNS: tuple[str, ...] = tuple(RESULT_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(MethodFacts):
    """What a row states about the run that made it; the windows give the rest.

    ``baselines.base.MethodFacts`` describes the facts of the fitted method.
    """

    experiment: str
    method: str = ""  # empty: the forecaster's name
    subset: str = ""  # name of the scope that was scored
    seed: int = 0  # of the fit or training
    commit: str = ""
    seconds: float | None = None  # that forecasting took; measured if None
    parse_failure_rate: float | None = None  # share of unreadable answers; None: none is parsed
    # Whether the model was trained again on train and validation; None without a configuration
    refit: bool | None = None
    budget: str = ""  # name of what the fit could spend; empty where that changes nothing


def hash_without_seed(config: RunConfig) -> str:
    """Return the hash of a configuration without its seed, which all its seeds share."""
    return config.with_overrides({"run.seed": 0}).hash


def forecast_windows(
    forecaster: ViewForecaster, windows: WindowSet, batch_size: int = BATCH_SIZE
) -> FloatArray:
    """Return forecasts (N, H) of every window, in order.

    The last batch may be short: dropping it would change the scores with the batch size.
    """
    if batch_size < 1:
        raise DataError(f"batch_size is {batch_size}; it must be at least 1")

    views, horizon = windows.views(), windows.horizon
    parts = []
    for start in range(0, len(views), batch_size):
        batch = views[start : start + batch_size]
        # The shape is checked batch by batch, so that the message names what was asked for.
        values_NH = np.asarray(forecaster.predict(batch), dtype=np.float64)
        if values_NH.shape != (len(batch), horizon):
            raise DataError(
                f"{forecaster.name} returned shape {values_NH.shape} for {len(batch)} windows; "
                f"expected ({len(batch)}, {horizon})"
            )
        parts.append(keep_bounds(batch, values_NH))
    return np.concatenate(parts) if parts else stack_rows([])


def evaluate(
    forecaster: ViewForecaster | FloatArray,
    windows: WindowSet,
    identity: Identity,
    *,
    quantiles_NQH: FloatArray | None = None,
    train: WindowSet | None = None,
    batch_size: int = BATCH_SIZE,
    clock: Callable[[], float] = time.perf_counter,
) -> pl.DataFrame:
    """Score forecasts and return rows of ``RESULT_SCHEMA``: one per entity, then one pooled.

    ``forecaster`` may be forecasts (N, H) in physical units; they and the quantiles at
    ``data.quantiles.LEVELS`` (NaN where there is none) are in the order of ``windows``. ``train``
    gives the scale of MASE; ``clock`` measures ``seconds`` unless the identity gives them.

    DataError if there is no window, more than one split or unit, a method without a name, or
    forecasts of a wrong shape.
    """
    # A row has one split and one unit; a mean over two would describe neither.
    labels = {}
    for field in ("split", "unit"):
        values = sorted({str(getattr(view, field)) for view in windows.views()})
        if len(values) != 1:
            raise DataError(
                f"rows need windows of one {field}, got {values or 'no windows'}; "
                "select with WindowSet.split"
            )
        labels[field] = values[0]

    started = clock()
    if isinstance(forecaster, np.ndarray):
        forecasts_NH, method = forecaster, identity.method
    else:
        forecasts_NH = forecast_windows(forecaster, windows, batch_size)
        method = identity.method or forecaster.name
    seconds = clock() - started if identity.seconds is None else identity.seconds

    if not method:
        raise DataError("the forecasts have no method name; set Identity.method")
    quantiles = np.empty((len(windows), 0)) if quantiles_NQH is None else quantiles_NQH
    if forecasts_NH.shape != (len(windows), windows.horizon) or len(quantiles) != len(windows):
        raise DataError(
            f"{method}: forecasts of shape {forecasts_NH.shape} and {len(quantiles)} quantiles for "
            f"{len(windows)} windows; forecast every window once"
        )

    views, truth_NH, top_k = windows.views(), windows.truth(), identity.news_top_k
    shared = asdict(identity) | {
        **labels,
        "method": method,
        "dataset": windows.dataset,
        "data_hash": windows.hash,
        "seconds": seconds,
        "seconds_per_window": seconds / len(windows),
        "synthetic": bool(windows.manifest.get("synthetic", False)),
    }
    known = DATASETS[windows.dataset].mape_threshold if windows.dataset in DATASETS else 0.0
    threshold = float(windows.manifest.get("spec", {}).get("mape_threshold", known))
    # The scale comes from train: one from test would let the test data set their own measure. An
    # entity without train windows has none, and NaN makes its MASE null instead of wrong.
    mase_scales = metrics.measure_naive_error(train) if train is not None else {}
    scale_N = np.array([mase_scales.get(view.entity, np.nan) for view in views])

    rows = []
    for entity in (*windows.entities, POOLED):
        selected = [i for i, view in enumerate(views) if entity in (POOLED, view.entity)]
        scores = metrics.score(
            truth_NH[selected],
            forecasts_NH[selected],
            mape_threshold=threshold,
            mase_scale_N=scale_N[selected],
        )
        by_quantile: dict[str, float | None] = {}
        if quantiles_NQH is not None:
            by_quantile = metrics.score_quantiles(truth_NH[selected], quantiles_NQH[selected])

        counts = [len(views[i].candidate_ids) for i in selected]
        # One window before the cutoff taints the mean over all of them.
        first_origin = min(views[i].origin_utc for i in selected)
        of_entity = {
            "entity": entity,
            "possibly_memorised": _is_possibly_memorised(identity.knowledge_cutoff, first_origin),
            "leaky": any(views[i].leaky for i in selected),
            "news_choice_share": share_with_choice(counts, top_k) if top_k else None,
        }
        rows.append(shared | asdict(scores) | by_quantile | of_entity)
    return pl.DataFrame(rows, schema=RESULT_SCHEMA, orient="row")


def _is_possibly_memorised(knowledge_cutoff: str, first_origin: datetime) -> bool:
    """Return whether a window starts before the last day the backbone may have read about."""
    if not knowledge_cutoff or knowledge_cutoff.startswith("none"):
        return False

    match = _CUTOFF.match(knowledge_cutoff)
    if match is None:
        return True  # unknown counts as yes: a score must not look cleaner than it is

    # A cutoff without a day or month means the last one: the backbone may have read all of it.
    year, month = int(match[1]), int(match[2] or 12)
    day = int(match[3] or month_calendar.monthrange(year, month)[1])
    return first_origin < datetime(year, month, day, tzinfo=UTC) + timedelta(days=1)


def write_rows(path: Path, rows: pl.DataFrame) -> None:
    """Write rows as CSV in the order of ``RESULT_COLUMNS``; DataError for another schema."""
    # Readers match columns by this schema; a file with other columns would be silently skipped.
    if rows.schema != RESULT_SCHEMA:
        raise DataError(f"{path.name} has schema {dict(rows.schema)}; make rows with evaluate()")
    write_atomically(path, rows.write_csv)


def write_tables(
    rows: pl.DataFrame,
    paired_tests: pl.DataFrame,
    configs: Iterable[RunConfig],
    results: Path,
    rows_name: str,
    paired_name: str,
) -> Path:
    """Write result rows, paired tests and the configurations; return the file of result rows."""
    rows_file = results / f"{rows_name}.csv"
    write_rows(rows_file, rows)
    write_atomically(results / f"{paired_name}.csv", paired_tests.write_csv)
    for config in configs:
        write_config(results, config)
    return rows_file


def read_typed(path: Path, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the columns of a CSV file, texts without nulls; DataError if one does not fit."""
    # The schema is forced, so that text in a column of numbers is an error and not a string column.
    try:
        rows = pl.read_csv(path, schema_overrides=schema, null_values=[""]).select(*schema)
    except pl.exceptions.PolarsError as error:
        message = str(error).partition("\n")[0]
        raise DataError(f"{path}: {message}; make its rows again with this version") from error
    return rows.with_columns(pl.col(pl.String).fill_null(""))


def replace_own_rows(
    path: Path,
    rows: pl.DataFrame,
    key: Sequence[str],
    *,
    arrange: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows,
) -> None:
    """Replace rows that agree with new ones in ``key``, in a file that many writers share.

    No key may be null. ``arrange`` sorts all rows, whoever wrote first. DataError if the file has
    other columns; StoreBusy if others write it for longer than a minute.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with file_lock(lock, exclusive=True):
        if path.exists():
            rows = pl.concat([read_typed(path, rows.schema).join(rows, on=key, how="anti"), rows])
        write_atomically(path, arrange(rows).write_csv)
        # Only rows stay in a folder that is committed.
        lock.unlink()


CONFIGS_FOLDER = "configs"


def write_config(results: Path, config: RunConfig) -> Path:
    """Write a configuration into a results folder, named by the hash that rows carry."""
    path = results / CONFIGS_FOLDER / f"{config.hash}.json"
    return write_text(path, json.dumps(config.to_dict(), indent=1, sort_keys=True) + "\n")
