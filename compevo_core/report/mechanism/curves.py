"""Values by round as a curve of a method: means over agents, seeds and neighbouring rounds.

What belongs here: from rows of ``mechanism.traces`` to points. What does not: drawing
(``report.mechanism.plots``).
"""

from typing import NamedTuple

import polars as pl

GROUPS = 20
"""Most points of a curve: single rounds, of a few windows each, are mostly noise."""

#: The paper's systems in the order of legends and tables; others follow by name.
_ORDER = ("sa", "mael", "mae-gpt", "mad-rl", "compevo")


class Curve(NamedTuple):
    """Points of a curve, and the lowest and highest seed at each.

    Attributes:
        rounds: mean round of each group of rounds.
        mean: over seeds.
        low: lowest seed.
        high: highest seed.
        seeds: number of seeds.
    """

    rounds: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    seeds: int


def list_methods(rows: pl.DataFrame) -> list[str]:
    """Return the methods of rows, the paper's first and in its order."""
    found = set(rows["method"].to_list())
    return [name for name in _ORDER if name in found] + sorted(found - set(_ORDER))


def list_still(traces: pl.DataFrame) -> list[str]:
    """Return the methods whose agents keep the logics that they start with."""
    moving = set(traces.drop_nulls("logic_shift")["method"].to_list())
    return [name for name in list_methods(traces) if name not in moving]


def make_curve(rows: pl.DataFrame, column: str) -> Curve | None:
    """Return the curve of a column over the rounds that have it; None where none has.

    Rounds with a value are put into at most ``GROUPS`` groups of equal size, in their order.

    Args:
        rows: of one method, or of one agent of it.
        column: what is drawn.
    """
    known = rows.drop_nulls(column)
    if known.is_empty():
        return None

    rounds = known.select("round").unique().sort("round").with_row_index("place")
    count = min(GROUPS, rounds.height)
    groups = rounds.with_columns((pl.col("place") * count // rounds.height).alias("group"))
    # A seed counts once in each group, however many agents and rounds it has there.
    by_seed = (
        known.join(groups, on="round")
        .group_by("group", "seed")
        .agg(pl.col(column).mean(), pl.col("round").mean())
    )
    points = (
        by_seed.group_by("group")
        .agg(
            pl.col("round").mean(),
            pl.col(column).mean().alias("mean"),
            pl.col(column).min().alias("low"),
            pl.col(column).max().alias("high"),
        )
        .sort("group")
    )
    return Curve(
        rounds=points["round"].to_list(),
        mean=points["mean"].to_list(),
        low=points["low"].to_list(),
        high=points["high"].to_list(),
        seeds=known["seed"].n_unique(),
    )


def rank_news(rows: pl.DataFrame, last_rounds: int) -> list[float]:
    """Return the unique news a round of the agent of each rank, most first; mean over seeds.

    Args:
        rows: of one method.
        last_rounds: rounds at the end of each run that count.
    """
    known = rows.drop_nulls("unique_news")
    newest = known.filter(pl.col("round") > pl.col("round").max().over("seed") - last_rounds)
    ranked = (
        newest.group_by("seed", "agent")
        .agg(pl.col("unique_news").mean())
        .sort("unique_news", descending=True)
        # Ranks within a seed: agent 2 of one seed has nothing in common with that of another.
        .with_columns(pl.int_range(pl.len()).over("seed").alias("rank"))
    )
    means = ranked.group_by("rank").agg(pl.col("unique_news").mean()).sort("rank")
    return means["unique_news"].to_list()
