"""Result rows: their columns, how they are read from CSV, and which of them a reader wants together.

What belongs here: the schema of a result row, reading a folder of CSV files, keeping one row for each identity.
What does not: scoring (``compevo_core.evaluation.result_rows``), wording and layout.
"""

import csv
from pathlib import Path

import polars as pl

from compevo_core.errors import DataError
from compevo_core.evaluation.result_rows import POOLED, RESULT_SCHEMA

__all__ = [
    "ABLATION",
    "IDENTITY",
    "POOLED",
    "RESULT_SCHEMA",
    "empty_rows",
    "header_of",
    "in_scope",
    "is_result_file",
    "is_synthetic",
    "latest",
    "over_seeds",
    "pooled",
    "read_result_file",
    "read_rows",
    "scopes",
]

ABLATION = "ablation"
IDENTITY = (
    "experiment",
    "method",
    "dataset",
    "split",
    "subset",
    "entity",
    "seed",
    "config_hash",
    "data_hash",
)


def empty_rows() -> pl.DataFrame:
    """A frame of result rows with no row in it."""
    return pl.DataFrame(schema=RESULT_SCHEMA)


def header_of(path: Path) -> list[str]:
    """Column names of a CSV file; an empty list for an empty file."""
    with path.open(encoding="utf-8", newline="") as handle:
        return next(csv.reader(handle), [])


def is_result_file(header: list[str]) -> bool:
    """Whether a CSV means to hold result rows: it opens as they do."""
    return header[:2] == list(RESULT_SCHEMA)[:2]


def read_result_file(path: Path) -> pl.DataFrame:
    """Result rows of one CSV file; ``DataError`` names missing columns and values of the wrong type."""
    missing = [name for name in RESULT_SCHEMA if name not in header_of(path)]
    if missing:
        raise DataError(
            f"{path}: columns {', '.join(missing)} are missing; evaluate again with this version"
        )
    try:
        return pl.read_csv(
            path, schema_overrides=RESULT_SCHEMA, columns=list(RESULT_SCHEMA), null_values=[""]
        )
    except pl.exceptions.ComputeError as error:
        raise DataError(
            f"{path}: a value does not fit its column ({error}); evaluate again"
        ) from error


def read_rows(folder: Path) -> pl.DataFrame:
    """All result rows under ``folder`` (``*.csv``, by name), one for each identity, the last written kept."""
    frames = [
        read_result_file(path)
        for path in sorted(folder.glob("*.csv"))
        if is_result_file(header_of(path))
    ]
    return latest(pl.concat(frames)) if frames else empty_rows()


def latest(rows: pl.DataFrame) -> pl.DataFrame:
    """One row for each identity, the last written kept; a row without a subset is of its whole split."""
    whole = pl.col("subset").fill_null("") == ""
    named = rows.with_columns(
        pl.when(whole).then(pl.col("split")).otherwise(pl.col("subset")).alias("subset")
    )
    return named.unique(subset=list(IDENTITY), keep="last", maintain_order=True)


def pooled(rows: pl.DataFrame, *, ablation: bool = False) -> pl.DataFrame:
    """Rows over all entities, either the ablation's or everything but the ablation's."""
    is_ablation = pl.col("experiment") == ABLATION
    return rows.filter((pl.col("entity") == POOLED) & (is_ablation if ablation else ~is_ablation))


def over_seeds(rows: pl.DataFrame) -> pl.DataFrame:
    """Mean of each metric over seeds, with how many seeds and the range of the MAE; one seed stays as it is."""
    keys = [name for name in IDENTITY if name != "seed"]
    metrics = ("mae", "rmse", "mape_pct", "wape_pct", "mase", "parse_failure_rate", "seconds")
    firsts = (
        "n_windows",
        "n_points",
        "n_masked",
        "mape_skipped",
        "mape_threshold",
        "unit",
        "leaky",
        "synthetic",
        "possibly_memorised",
        "knowledge_cutoff",
        "artifact_hash",
        "commit",
        "device",
        "backbone",
    )
    return rows.group_by(keys, maintain_order=True).agg(
        *(pl.col(name).mean() for name in metrics),
        *(pl.col(name).first() for name in firsts),
        pl.col("mae").min().alias("mae_low"),
        pl.col("mae").max().alias("mae_high"),
        pl.len().alias("seeds"),
    )


def scopes(rows: pl.DataFrame) -> list[tuple[str, str]]:
    """Each (dataset, subset) with rows, in the order of first appearance."""
    return [
        (str(a), str(b))
        for a, b in rows.select("dataset", "subset").unique(maintain_order=True).iter_rows()
    ]


def is_synthetic(rows: pl.DataFrame) -> bool:
    """Whether any of the rows was scored on made-up data."""
    return bool(rows.get_column("synthetic").any())


def in_scope(rows: pl.DataFrame, dataset: str, subset: str) -> pl.DataFrame:
    """Rows of one data set and subset."""
    return rows.filter((pl.col("dataset") == dataset) & (pl.col("subset") == subset))
