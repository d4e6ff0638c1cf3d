"""Curves of methods: means over agents, seeds and neighbouring rounds."""

import polars as pl

from compevo_core.mechanism.traces import TRACE_SCHEMA
from compevo_core.report.mechanism.curves import GROUPS, list_methods, make_curve, rank_news


def rows_of(*rows):
    """Rows of (seed, round, agent, unique_news)."""
    names = ("seed", "round", "agent", "unique_news")
    made = [dict(zip(names, row, strict=True)) | {"method": "sa"} for row in rows]
    return pl.DataFrame(made, schema=TRACE_SCHEMA)


def test_a_point_is_the_mean_over_seeds_of_the_mean_over_agents_by_hand():
    # Seed 1 has three agents and must not count three times.
    rows = rows_of((0, 4, 0, 2), (1, 4, 0, 6), (1, 4, 1, 6), (1, 4, 2, 9))
    curve = make_curve(rows, "unique_news")
    assert curve == ([4.0], [4.5], [2.0], [7.0], 2)
    assert make_curve(rows, "reward") is None


def test_neighbouring_rounds_share_a_point_and_rounds_without_a_value_none():
    rows = rows_of(*((0, number, 0, number) for number in range(2 * GROUPS)))
    every_other = rows.with_columns(
        pl.when(pl.col("round") % 2 == 0).then("unique_news").alias("unique_news")
    )
    assert make_curve(rows, "unique_news").mean == [number + 0.5 for number in range(0, 40, 2)]
    assert make_curve(every_other, "unique_news").rounds == list(range(0, 40, 2))


def test_ranks_are_of_the_agents_of_one_seed_over_its_last_rounds():
    # Agent 1 leads in seed 0 and agent 0 in seed 1; round 0 does not count.
    rows = rows_of(
        *((0, 0, agent, 99) for agent in (0, 1)),
        *((0, number, agent, 2 + 4 * agent) for number in (1, 2) for agent in (0, 1)),
        *((1, number, agent, 8 - 4 * agent) for number in (1, 2) for agent in (0, 1)),
    )
    assert rank_news(rows, 2) == [7.0, 3.0]


def test_methods_stand_in_the_papers_order_and_others_behind():
    rows = pl.DataFrame({"method": ["no-diversity", "compevo", "sa", "mad-rl"]})
    assert list_methods(rows) == ["sa", "mad-rl", "compevo", "no-diversity"]
