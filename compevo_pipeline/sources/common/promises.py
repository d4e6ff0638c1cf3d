"""What a file's name promises of its content, and the comparison of the two.

What belongs here: :class:`Promise`, and the one function that holds rows against it. What does
not: which name promises what (each source's own ``promises``), reading files.

A publisher who puts another month, region or day under a name would change known values of a time
that the file has no business with, so such a file is refused as a whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import polars as pl

from compevo_core.data.schemas import UTC_US
from compevo_core.errors import SchemaDrift
from compevo_pipeline.sources.common.base import RawFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the rows of one file may be of."""

    first: datetime  # earliest time, in UTC
    end: datetime  # the time from which on rows are beyond it, in UTC
    entity: str = ""  # the one region, station or currency; empty for any
    column: str = "start_utc"  # the rows' time
    most_beyond: float = 0.0  # share of rows that may lie beyond


Promises = Callable[[RawFile], Sequence[Promise]]
"""Returns what a file's name promises, all of which must hold; none where it has none."""

_SCHEMA: dict[str, pl.DataType] = {
    "source": pl.String(),
    "first": UTC_US,
    "end": UTC_US,
    "entity": pl.String(),
    "column": pl.String(),
    "most_beyond": pl.Float64(),
}


def promise_month(year: int, month: int, zone: ZoneInfo, entity: str = "") -> Promise:
    """Return the promise of a month on a clock.

    Raises:
        ValueError: there is no such month.
    """
    first = datetime(year, month, 1, tzinfo=zone)
    following = (first + timedelta(days=32)).replace(day=1)
    return Promise(first=first.astimezone(UTC), end=following.astimezone(UTC), entity=entity)


def refuse_beyond(rows: pl.DataFrame, raws: Sequence[RawFile], promises: Promises) -> pl.DataFrame:
    """Return rows of files, all of which lie within what the names of their files promise.

    The ``source`` of ``rows`` is the label of their file.

    Raises:
        SchemaDrift: names the first file with rows beyond, one of them, and the remedy.
    """
    promised = pl.DataFrame(
        [{"source": raw.label} | asdict(promise) for raw in raws for promise in promises(raw)],
        schema=_SCHEMA,
    )
    by_column = promised.unique(maintain_order=True).partition_by("column", as_dict=True)
    for (column,), of_column in by_column.items():
        # A name promises when its forecasts were known; its series have no such time.
        if column in rows.columns:
            _refuse_rows(rows, of_column, str(column))
    return rows


def _refuse_rows(rows: pl.DataFrame, promised: pl.DataFrame, column: str) -> None:
    # "AEMO/TOTALDEMAND/NSW1" is NSW1's; an article is of no place.
    names = [name for name in ("entity", "series_id") if name in rows.columns][:1]
    held = rows.select(
        "source", pl.col(column).alias("at"), *(pl.col(n).alias("of") for n in names)
    )
    within = pl.col("at").is_between("first", "end", closed="left").fill_null(value=True)
    if names:
        is_of = pl.col("of").str.split("/").list.last() == pl.col("entity")
        within &= (pl.col("entity") == "") | is_of

    pairs = held.join(promised, on="source", how="inner", maintain_order="left")
    pairs = pairs.with_columns(pl.len().over("source").alias("rows"), (~within).alias("is_beyond"))
    beyond = pairs.filter("is_beyond").with_columns(pl.len().over("source").alias("beyond"))
    beyond = beyond.filter(pl.col("beyond") > pl.col("most_beyond") * pl.col("rows"))
    if not beyond.height:
        return

    first = beyond.row(0, named=True)
    promise = f"{first['entity']} from " if first["entity"] else "from "
    place = f"{first['of']} at " if names else ""
    raise SchemaDrift(
        f"{first['source']}: its name promises rows {promise}{first['first']:%Y-%m-%d %H:%M} to "
        f"{first['end']:%Y-%m-%d %H:%M} UTC, but {first['beyond']} of {first['rows']} rows are "
        f"not, the first {place}{first['at']:%Y-%m-%d %H:%M}; fetch it again, or look at what "
        "the publisher put under this name. Nothing was stored."
    )
