"""Changes of known values: which are applied, which wait for a second fetch, and their record.

What belongs here: the limits, the record of each change, and telling a revision from a file that
is cut or wrong. What does not: merging rows and files (``storage.series_store``).

A publisher revises a few values, and some days whole months. A file that is cut, doubled or of
another unit looks the same. So a file that takes away more than a few known rows, or changes most
of the values that it repeats, waits: what is known stays until a fetch half a day later wants the
same, or a person accepts it. What was before is recorded with every change.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import polars as pl

from compevo_core.data.content import find_move
from compevo_core.data.news import OWN_PUBLISHER
from compevo_core.data.schemas import UTC_US

FEW = 3  # known rows of a series that one file may take away or change without a second fetch
MOST_CHANGED = 0.5  # share of the known values in one file above which more than `FEW` changes wait
FAR = 0.02  # relative difference from which on a change counts towards `MOST_CHANGED`
CONFIRMED_AFTER = timedelta(hours=12)  # a file that is wrong is so for an evening
KEY = ["series_id", "variable", "start_utc"]
FILE = ["series_id", "source"]  # by which the rows of one series from one file are judged together
CHANGE_SCHEMA: dict[str, pl.DataType] = {
    "series_id": pl.String(),
    "variable": pl.String(),
    "start_utc": UTC_US,
    "before": pl.Float64(),
    "after": pl.Float64(),  # null: the row is gone
    "source": pl.String(),
    "fetched_at": UTC_US,  # of what waits: when it was wanted first
    "kind": pl.String(),
}

ACCEPTED_AT = datetime(1970, 1, 1, tzinfo=UTC)  # of what a person accepted: any fetch confirms it


class ChangeKind(StrEnum):
    """What became of a change."""

    CHANGED = "changed"
    REMOVED = "removed"
    WAITING = "waiting"  # it is not applied: what is known stays


def list_changes(pairs: pl.DataFrame, kind: ChangeKind) -> pl.DataFrame:
    """Return the record of given rows paired with the stored rows of their keys.

    A row of ``pairs`` without a ``value_stored`` changes none.
    """
    rows = pairs.filter(pl.col("value_stored").is_not_null())
    record = rows.with_columns(before="value_stored", after="value", kind=pl.lit(kind.value))
    return record.select(pl.col(name).cast(dtype) for name, dtype in CHANGE_SCHEMA.items())


def list_removals(gone: pl.DataFrame, kind: ChangeKind) -> pl.DataFrame:
    """Return the record of stored rows that a new version of their file lacks."""
    pairs = gone.rename({"value": "value_stored"}).with_columns(value=pl.lit(None, pl.Float64))
    return list_changes(pairs, kind)


def list_frame_changes(
    before: pl.DataFrame, after: pl.DataFrame, keys: Sequence[str]
) -> pl.DataFrame:
    """Return the record of values of one key that differ, of a frame that has values by step.

    ``fetched_at`` is when the forecast was issued: frames do not say when they were fetched.
    """
    if not {"start_utc", "value"} <= {*after.columns}:
        return empty_changes()
    stored = before.select(*keys, pl.col("value").alias("value_stored"))
    pairs = stored.join(after, on=list(keys), how="inner", maintain_order="left")
    name = pl.col("name") if "name" in keys else pl.format("forecast q{}", "quantile")
    return list_changes(
        pairs.filter(pl.col("value").ne_missing(pl.col("value_stored"))).with_columns(
            series_id="entity", variable=name, fetched_at="available_at"
        ),
        ChangeKind.CHANGED,
    )


def find_far(pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the record of changes of files that change most of the values that they repeat.

    A change is one by far, or by the factor or lag of the whole file, however small that is.
    ``pairs`` are given rows with the stored ones and ``_outcome``.
    """
    known = pairs.filter(pl.col("value_stored").is_not_null())
    if known.is_empty():
        return empty_changes()
    size = pl.max_horizontal(pl.col("value").abs(), pl.col("value_stored").abs())
    difference = (pl.col("value") - pl.col("value_stored")).abs()
    # A value that is nulled for a reason is as far as can be.
    is_far = (difference > FAR * size).fill_null(value=True)
    known = known.with_columns(is_far=(pl.col("_outcome") == "changed") & is_far)
    is_changed = (pl.col("_outcome") == "changed") & pl.col("value").is_not_null()
    # By one factor, or some rows late.
    moves = pl.coalesce(find_move(pl.col("value_stored"), pl.col("value"))).is_not_null()
    known = known.sort("start_utc").with_columns(is_moved=moves.over(FILE) & is_changed)
    counts = size != 0  # of zeros neither a factor nor a lag is seen
    kinds = [
        pl.col(kind) & (pl.col(kind).sum().over(FILE) > MOST_CHANGED * counts.sum().over(FILE))
        for kind in ("is_far", "is_moved")
    ]
    return list_changes(known.filter(pl.any_horizontal(kinds)), ChangeKind.WAITING)


def find_waiting(wanted: pl.DataFrame, waiting: pl.DataFrame) -> pl.DataFrame:
    """Return the unconfirmed changes of files that want too many.

    ``waiting`` are changes that earlier fetches wanted; each keeps the time at which it was first.
    """
    if wanted.is_empty():
        return wanted
    pairs = _join_first(wanted, waiting)
    is_confirmed = pl.col("fetched_at") - pl.col("_first") >= CONFIRMED_AFTER
    unconfirmed = (~is_confirmed.fill_null(value=False)).sum().over(FILE)
    return keep_first(pairs.filter(unconfirmed > FEW), waiting)


def keep_first(wanted: pl.DataFrame, waiting: pl.DataFrame) -> pl.DataFrame:
    """Return changes as waiting ones, each with the time at which it was wanted first."""
    at = pl.col("_first").fill_null(pl.col("fetched_at"))
    return (
        _join_first(wanted.select(list(CHANGE_SCHEMA)), waiting)
        .with_columns(fetched_at=at, kind=pl.lit(ChangeKind.WAITING.value))
        .select(list(CHANGE_SCHEMA))
    )


def _join_first(wanted: pl.DataFrame, waiting: pl.DataFrame) -> pl.DataFrame:
    """Return changes with ``_first``: when an earlier fetch wanted the same."""
    first = waiting.select(*KEY, "after", pl.col("fetched_at").alias("_first"))
    # A null means that the row is gone, and equals a null.
    return wanted.join(
        first.unique([*KEY, "after"]), on=[*KEY, "after"], how="left", nulls_equal=True
    )


def describe_waiting(waiting: pl.DataFrame, dataset: str) -> str:
    """Return one sentence about what waits, with the first change of it."""
    first = waiting.sort(*KEY).row(0, named=True)
    removals = waiting["after"].null_count()
    after = "nothing" if first["after"] is None else f"{first['after']:g}"
    is_own = f":{OWN_PUBLISHER}" in first["source"]
    until = "" if is_own else "a fetch half a day later confirms it, or "
    return (
        f"{waiting.height} known value(s) would change ({waiting.height - removals}) or go "
        f"({removals}), the first {first['series_id']} at {first['start_utc']:%Y-%m-%d %H:%M} from "
        f"{first['before']:g} to {after}; "
        f"they stay until {until}you accept it with `compevo accept {dataset}`"
    )


def empty_changes() -> pl.DataFrame:
    """Return a record without a change."""
    return pl.DataFrame(schema=CHANGE_SCHEMA)


def join_changes(
    known: pl.DataFrame, changes: Sequence[pl.DataFrame], given: pl.DataFrame
) -> pl.DataFrame:
    """Return the record with new changes; what waited of the given files or rows is replaced."""
    is_waiting = pl.col("kind") == ChangeKind.WAITING.value
    others = known.filter(is_waiting)
    for keys in (FILE, KEY):
        others = others.join(given, on=keys, how="anti")
    return pl.concat([known.filter(~is_waiting), others, *changes]).unique(maintain_order=True)
