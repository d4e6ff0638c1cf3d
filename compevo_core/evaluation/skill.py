"""Skill over the last days: how much smaller the error is than that of a reference.

What belongs here: skill by series and pooled over 7, 28 and 365 days. What does not: scores of a
day (``evaluation.issued_scores``), alarms (``evaluation.alarms``).

Skill is 1 - MAE / MAE of the reference, over the same days and series for both: a day that one of
them lacks counts for neither.
"""

from datetime import timedelta

import polars as pl

from compevo_core.evaluation.issued_scores import PERSISTENCE
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.issued import AGENT, METHOD, PUBLISHED

SPANS_DAYS = (7, 28, 365)
REFERENCES = (PERSISTENCE, PUBLISHED, f"{METHOD}-equal")
BEST_MEMBER = "best member"
"""The agent with the smallest error over the very days of the row, so known only afterwards."""

_GROUP = ["known_to", "span_days", "entity"]
SKILL_SCHEMA: dict[str, pl.DataType] = {
    "known_to": pl.String(),
    "span_days": pl.Int64(),
    "entity": pl.String(),  # a series, or all pooled
    "reference": pl.String(),
    "n_days": pl.Int64(),  # days behind the numbers; fewer than the span where days are missing
    "mae": pl.Float64(),
    "reference_mae": pl.Float64(),
    "skill": pl.Float64(),
    "last_day": pl.Date(),
}


def measure_skill(rows: pl.DataFrame, method: str = METHOD) -> pl.DataFrame:
    """Return the skill of a method over the last days, against each reference that was scored.

    Args:
        rows: of ``issued_scores.SCORED_SCHEMA``.
        method: whose skill.

    Returns:
        Rows of ``SKILL_SCHEMA``; a span ends with the last scored day of its ``known_to``.
    """
    agents = sorted(name for name in set(rows["method"]) if name.startswith(AGENT))
    parts = [_compare(rows, method, reference, reference) for reference in REFERENCES]
    members = [_compare(rows, method, agent, BEST_MEMBER) for agent in agents]
    if members:
        # An agent that lacks days is not compared with those that have them.
        ranked = pl.concat(members).sort(
            [*_GROUP, "n_days", "reference_mae"], descending=[*[False] * 3, True, False]
        )
        parts.append(ranked.unique(_GROUP, keep="first", maintain_order=True))
    return pl.concat(parts).sort("known_to", "span_days", "reference", "entity")


def pair_days(rows: pl.DataFrame, method: str, reference: str) -> pl.DataFrame:
    """Return the errors of a method beside a reference's, by day, series and ``known_to``."""
    keys = ["known_to", "day", "entity"]
    own = rows.filter(pl.col("method") == method).select(*keys, "n_points", "mae")
    other = rows.filter(pl.col("method") == reference).select(*keys, reference_mae="mae")
    return own.join(other, on=keys, how="inner").sort(keys)


def _compare(rows: pl.DataFrame, method: str, reference: str, name: str) -> pl.DataFrame:
    last_days = rows.filter(pl.col("method") == method).group_by("known_to")
    pairs = pair_days(rows, method, reference).join(
        last_days.agg(pl.col("day").max().alias("last_day")), on="known_to"
    )
    both = pl.concat([pairs, pairs.with_columns(pl.lit(POOLED).alias("entity"))])
    return pl.concat([_measure_span(both, days, name) for days in SPANS_DAYS])


def _measure_span(pairs: pl.DataFrame, days: int, reference: str) -> pl.DataFrame:
    recent = pairs.filter(pl.col("day") > pl.col("last_day") - timedelta(days=days))
    # By points: a day of which half is missing counts half.
    weight = pl.col("n_points")
    means = recent.group_by("known_to", "entity").agg(
        pl.col("day").n_unique().cast(pl.Int64).alias("n_days"),
        ((pl.col("mae") * weight).sum() / weight.sum()).alias("mae"),
        ((pl.col("reference_mae") * weight).sum() / weight.sum()).alias("reference_mae"),
        pl.col("last_day").first(),
    )
    return means.with_columns(
        pl.lit(days).cast(pl.Int64).alias("span_days"),
        pl.lit(reference).alias("reference"),
        (1 - pl.col("mae") / pl.col("reference_mae")).alias("skill"),
    ).select(pl.col(name).cast(kind) for name, kind in SKILL_SCHEMA.items())
