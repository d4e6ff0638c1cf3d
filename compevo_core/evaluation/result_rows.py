"""Scores any forecaster and makes result rows that identify themselves (design 3; style, rules 1, 2, 7, 8 and 9).

What belongs here: forecasts in batches, one row an entity and one pooled. What does not: metrics (``metrics``),
significance (``significance``), tables and plots (``report``). Scores are in physical units on the original truth.
"""

import calendar as month_calendar
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from compevo_core.baselines.base import Forecaster
from compevo_core.data.arrays import FloatArray
from compevo_core.data.datasets import DATASETS
from compevo_core.data.window import HORIZON, WindowSet
from compevo_core.errors import DataError
from compevo_core.evaluation.metrics import naive_error, score, window_errors
from compevo_core.evaluation.significance import PairedTest, bootstrap_interval, paired_test

__all__ = ["POOLED", "RESULT_COLUMNS", "RESULT_SCHEMA", "Identity", "PairedTest", "bootstrap_interval", "evaluate",
           "forecast", "paired_test", "window_errors", "write_rows"]  # fmt: skip

POOLED = "pooled"
BATCH_SIZE = 64
_CUTOFF = re.compile(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?(?!\d)")
RESULT_SCHEMA: dict[str, pl.DataType] = {
    **{
        name: pl.String()
        for name in ("experiment", "method", "dataset", "split", "subset", "entity")
    },
    **{name: pl.Int64() for name in ("n_windows", "n_points", "n_masked", "seed")},
    **{
        name: pl.String()
        for name in ("config_hash", "data_hash", "artifact_hash", "commit", "device")
    },
    "seconds": pl.Float64(),
    **{name: pl.String() for name in ("backbone", "knowledge_cutoff")},
    **{name: pl.Boolean() for name in ("possibly_memorised", "leaky", "synthetic")},
    "parse_failure_rate": pl.Float64(),
    "mape_skipped": pl.Int64(),
    **{
        name: pl.Float64()
        for name in ("mape_threshold", "mae", "mse", "rmse", "mape_pct", "wape_pct", "mase")
    },
    "unit": pl.String(),
}
RESULT_COLUMNS: tuple[str, ...] = tuple(RESULT_SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a row says of the run that made it; the windows say the rest.

    ``method`` "" takes the forecaster's name. ``knowledge_cutoff`` starts with ``YYYY``, ``YYYY-MM`` or ``YYYY-MM-DD``,
    is "none ..." for random weights and "" for methods without a backbone; any other text counts as unknown.
    ``seconds`` is measured if None. ``parse_failure_rate`` is a share of answers.
    """

    experiment: str
    method: str = ""
    subset: str = ""
    seed: int = 0
    config_hash: str = ""
    artifact_hash: str = ""
    commit: str = ""
    device: str = "cpu"
    seconds: float | None = None
    backbone: str = ""
    knowledge_cutoff: str = ""
    parse_failure_rate: float | None = None


def forecast(
    forecaster: Forecaster, windows: WindowSet, batch_size: int = BATCH_SIZE
) -> FloatArray:
    """Forecasts (N, 48) of every window, in order; the last batch may be short and is not dropped.

    Raises:
        DataError: the forecaster answers with another shape.
    """
    if batch_size < 1:
        raise DataError(f"batch_size is {batch_size}; it must be at least 1")
    views, parts = windows.views(), []
    for start in range(0, len(views), batch_size):
        batch = views[start : start + batch_size]
        answer = np.asarray(forecaster.predict(batch), dtype=np.float64)
        if answer.shape != (len(batch), HORIZON):
            raise DataError(
                f"{forecaster.name} answered {answer.shape} to {len(batch)} views; it owes (N, {HORIZON})"
            )
        parts.append(answer)
    return np.concatenate(parts) if parts else np.empty((0, HORIZON))


def evaluate(
    forecaster: Forecaster | FloatArray,
    windows: WindowSet,
    identity: Identity,
    *,
    train: WindowSet | None = None,
    batch_size: int = BATCH_SIZE,
    clock: Callable[[], float] = time.perf_counter,
) -> pl.DataFrame:
    """Rows of RESULT_COLUMNS: one for every entity, then one pooled over all windows.

    ``forecaster`` may be an array (N, 48) in physical units, in the order of ``windows``. With ``train`` windows the
    rows hold MASE. All windows must be of one split; name a subset in ``identity``.

    Raises:
        DataError: no window, more than one split or unit, a method without a name, or forecasts of a wrong shape.
    """
    split, unit = _only(windows, "split"), _only(windows, "unit")
    started = clock()
    forecasts = (
        forecaster
        if isinstance(forecaster, np.ndarray)
        else forecast(forecaster, windows, batch_size)
    )
    seconds = clock() - started if identity.seconds is None else identity.seconds
    method = identity.method or ("" if isinstance(forecaster, np.ndarray) else forecaster.name)
    if not method:
        raise DataError("the forecasts have no method name; set Identity.method")
    if forecasts.shape != (len(windows), HORIZON):
        raise DataError(
            f"{method}: {forecasts.shape} forecasts for {len(windows)} windows; forecast every window once"
        )
    shared = asdict(identity) | {
        "method": method,
        "dataset": windows.dataset,
        "split": split,
        "data_hash": windows.hash,
        "seconds": seconds,
        "synthetic": bool(windows.manifest.get("synthetic", False)),
        "unit": unit,
    }
    scale = naive_error(train) if train is not None else {}
    groups = [*windows.entities, POOLED]
    rows = [_row(windows, forecasts, entity, shared, scale) for entity in groups]
    return pl.DataFrame(rows, schema=RESULT_SCHEMA, orient="row")


def _only(windows: WindowSet, field: str) -> str:
    values = sorted({str(getattr(view, field)) for view in windows.views()})
    if len(values) != 1:
        raise DataError(
            f"rows need windows of one {field}, got {values or 'no windows'}; select with WindowSet.split"
        )
    return values[0]


def _row(
    windows: WindowSet,
    forecasts: FloatArray,
    entity: str,
    shared: dict[str, Any],
    scale: dict[str, float],
) -> dict[str, Any]:
    keep = [i for i, view in enumerate(windows.views()) if entity in (POOLED, view.entity)]
    views = [windows[i].view for i in keep]
    scale_N = np.array([scale.get(view.entity, np.nan) for view in views])
    threshold = DATASETS[windows.dataset].mape_threshold if windows.dataset in DATASETS else 0.0
    scores = score(
        windows.truth()[keep], forecasts[keep], mape_threshold=threshold, mase_scale_N=scale_N
    )
    facts = {
        "entity": entity,
        "possibly_memorised": _possibly_memorised(
            shared["knowledge_cutoff"], min(v.origin_utc for v in views)
        ),
        "leaky": any(view.leaky for view in views),
    }
    return {
        name: value
        for name, value in (shared | facts | asdict(scores)).items()
        if name in RESULT_SCHEMA
    }


def _possibly_memorised(knowledge_cutoff: str, first_origin: datetime) -> bool:
    """Whether any window starts before the last day the backbone may have read of; unknown counts as yes."""
    if not knowledge_cutoff or knowledge_cutoff.startswith("none"):
        return False
    found = _CUTOFF.match(knowledge_cutoff)
    if found is None:
        return True
    year, month = int(found[1]), int(found[2] or 12)
    day = int(found[3] or month_calendar.monthrange(year, month)[1])
    return first_origin < datetime(year, month, day, tzinfo=UTC) + timedelta(days=1)


def write_rows(path: Path, rows: pl.DataFrame) -> None:
    """Write rows as CSV in the order of RESULT_COLUMNS, through a temporary file.

    Raises:
        DataError: the frame lacks a column or a value breaks its type.
    """
    if rows.schema != RESULT_SCHEMA:
        raise DataError(
            f"{path.name}: rows have schema {dict(rows.schema)}; make them with evaluate()"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    rows.write_csv(partial)
    partial.replace(path)
