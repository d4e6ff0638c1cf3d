"""The shift test and the poison test: whether code reaches data that it must not know.

They change data that must not matter and compare what the code makes of it. What they find is a
property of the code, not of a window set, and they cut windows, forecast or train twice: so they
belong to the test suite and not to the checks of a deployment.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import LeakageError
from compevo_core.evaluation.leakage import Violation

Predict = Callable[[Sequence[WindowView]], FloatArray]


def find_lookahead(
    build: Callable[[pl.DataFrame], WindowSet],
    series: pl.DataFrame,
    predict: Predict,
    origin_utc: datetime,
    rng: np.random.Generator,
) -> list[Violation]:
    """Change every value from ``origin_utc`` on; earlier forecasts must stay bit-identical.

    ``build`` cuts windows from a series frame. Windows whose origin lies at or before
    ``origin_utc`` are compared; LeakageError is raised if there is none.
    """
    is_later = (pl.col("start_utc") >= origin_utc) & pl.col("value").is_not_null()
    noise = pl.Series("noise", rng.normal(1.5, 0.5, series.height))
    shifted = series.with_columns(
        pl.when(is_later)
        .then(pl.col("value") * noise + 1)
        .otherwise(pl.col("value"))
        .alias("value")
    )

    before = [v for v in build(series).views() if v.origin_utc <= origin_utc]
    after = {v.window_id: v for v in build(shifted).views()}
    if not before:
        raise LeakageError(
            f"no window has its origin by {origin_utc}; choose an origin inside the series"
        )

    detail = "the window exists only with the true future"
    violations = [
        Violation(kind="shift", where=v.window_id, detail=detail)
        for v in before
        if v.window_id not in after
    ]

    common = [v for v in before if v.window_id in after]
    forecasts = predict(common)
    shifted_forecasts = predict([after[v.window_id] for v in common])
    for view, forecast, other in zip(common, forecasts, shifted_forecasts, strict=True):
        if forecast.tobytes() != other.tobytes():
            largest = float(np.abs(forecast - other).max())
            detail = f"the forecast moved by up to {largest} when values after {origin_utc} changed"
            violations.append(Violation(kind="shift", where=view.window_id, detail=detail))
    return violations


def find_training_on_test(
    train_and_hash: Callable[[WindowSet], str], windows: WindowSet, rng: np.random.Generator
) -> list[Violation]:
    """Replace test and inference truths by noise; the trained model's hash must not change."""
    truth = windows.truth()
    is_held_out = np.array([w.view.split in ("test", "inference") for w in windows], dtype=bool)
    if not is_held_out.any():
        raise LeakageError(
            "there is no test or inference window to poison; give the whole window set"
        )

    noise = rng.normal(0.0, 1e6, truth.shape)
    poisoned = np.where(is_held_out[:, None], noise, truth)

    first = train_and_hash(windows)
    second = train_and_hash(windows.with_truth(poisoned))
    if first == second:
        return []
    detail = f"hash {first} became {second}"
    return [Violation(kind="poison", where="trained artifact", detail=detail)]
