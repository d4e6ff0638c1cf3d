"""Windows as rows of a table, and as bytes that their hash is taken over.

What belongs here: the columns, both directions, and which columns enter the hash. What does not:
files and manifests (``data.window``).
"""

import json
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl

from compevo_core.data.calendar import Calendar
from compevo_core.data.schemas import UTC_US
from compevo_core.data.view import Window, WindowView

_NUMBERS = pl.List(pl.Float64)
_NAMES = pl.List(pl.String)

# Every column enters the hash of a set: one that is new here belongs into _NEW_COLUMNS as well.
FRAME_SCHEMA: dict[str, pl.DataType] = {
    "window_id": pl.String(),
    "dataset": pl.String(),
    "series_id": pl.String(),
    "entity": pl.String(),
    "variable": pl.String(),
    "unit": pl.String(),
    "step_minutes": pl.Int64(),
    "origin_utc": UTC_US,
    "x": _NUMBERS,
    "calendar": pl.String(),  # JSON
    "covariates": pl.String(),  # JSON
    "published": _NUMBERS,
    "candidate_ids": _NAMES,
    "split": pl.String(),
    "fold": pl.Int64(),
    "subsets": _NAMES,
    "leaky": pl.Boolean(),
    "n_filled": pl.Int64(),
    "unknown_steps": pl.Int64(),
    "step_covariates": pl.String(),  # JSON, null where unknown
    "task": pl.String(),
    "y": _NUMBERS,
}

_NEW_COLUMNS: dict[str, Any] = {"unknown_steps": 0, "step_covariates": "{}", "task": ""}
"""Columns that windows written before them lack, and what they hold where a view has none.

Out of the hash with that value: windows that were published before keep their hash."""


_SERIALIZED: "WeakKeyDictionary[Window, bytes]" = WeakKeyDictionary()


def to_row(window: Window) -> dict[str, Any]:
    """Return the values of :data:`FRAME_SCHEMA`."""
    view = window.view

    # JSON for what Parquet has no stable column for: covariates differ from window to window.
    converted = {
        "x": view.x.tolist(),
        "calendar": json.dumps(view.calendar.as_dict(), sort_keys=True),
        "covariates": json.dumps(dict(view.covariates), sort_keys=True),
        "published": None if view.published is None else view.published.tolist(),
        "candidate_ids": list(view.candidate_ids),
        "subsets": list(view.subsets),
        "step_covariates": json.dumps(
            {
                name: [None if np.isnan(value) else value for value in values.tolist()]
                for name, values in view.step_covariates.items()
            }
        ),
        "y": window.y.tolist(),
    }
    return {
        name: converted[name] if name in converted else getattr(view, name) for name in FRAME_SCHEMA
    }


def from_row(row: dict[str, Any]) -> Window:
    """Return the window of a row; one of an earlier version lacks the newer columns."""
    row = _NEW_COLUMNS | row
    published = row["published"]
    by_step = json.loads(row["step_covariates"])
    fields = {name: value for name, value in row.items() if name != "y"}
    fields |= {
        "x": np.array(row["x"], dtype=np.float64),
        "calendar": Calendar.from_dict(json.loads(row["calendar"])),
        "covariates": json.loads(row["covariates"]),
        "published": None if published is None else np.array(published, dtype=np.float64),
        "candidate_ids": tuple(row["candidate_ids"]),
        "subsets": tuple(row["subsets"]),
        "step_covariates": {
            name: np.array(values, dtype=np.float64) for name, values in by_step.items()
        },
    }
    return Window(view=WindowView(**fields), y=np.array(row["y"], dtype=np.float64))


def serialize_for_hash(window: Window) -> bytes:
    """Return bytes that are equal for equal windows alone.

    They are kept as long as the window is, which never changes: sets of known windows grow day by
    day, and each of them is hashed.
    """
    if window not in _SERIALIZED:
        _SERIALIZED[window] = _serialize(window)
    return _SERIALIZED[window]


def _serialize(window: Window) -> bytes:
    row = to_row(window) | {"origin_utc": window.view.origin_utc.isoformat()}
    for name, empty in _NEW_COLUMNS.items():
        if row[name] == empty:
            del row[name]

    # Bytes, not decimal text: two values that print alike are different windows. NaN has many bit
    # patterns, so masked targets enter as their positions.
    row["x"] = window.view.x.tobytes().hex()
    row["y"] = np.nan_to_num(window.y, nan=-0.0).tobytes().hex()
    row["masked"] = np.flatnonzero(np.isnan(window.y)).tolist()

    return json.dumps(row, sort_keys=True, default=str).encode()
