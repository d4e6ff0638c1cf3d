"""The section on mechanism: curves of methods, what is plotted of which rows, and its tables."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace

import polars as pl
import pytest

from compevo_core.paper.run_traces import TRACE_SCHEMA
from compevo_core.report.figures import THIRD, Line, plot_lines
from compevo_core.report.mechanism import (
    GROUPS,
    find_limits,
    list_groups,
    make_curve,
    plot_rewards,
    rank_news,
    run_plateau_table,
    shift_table,
    topics_table,
)
from compevo_core.report.rows import empty_rows
from tests.support.report_samples import HOSTILE, make_inputs, make_rounds, make_run, render_undrawn
from tests.support.traced_samples import make_traced_inputs

PICTURES = ("dynamics", "rewards", "news", "shifts")


def rows_of(*rows):
    """Rows of (seed, round, agent, unique_news)."""
    names = ("seed", "round", "agent", "unique_news")
    made = [dict(zip(names, row, strict=True)) | {"method": "sa"} for row in rows]
    return pl.DataFrame(made, schema=TRACE_SCHEMA)


def test_a_point_is_the_mean_over_seeds_of_the_mean_over_agents_by_hand():
    # Seed 1 has three agents and must not count three times.
    rows = rows_of((0, 4, 0, 2), (1, 4, 0, 6), (1, 4, 1, 6), (1, 4, 2, 9))
    assert make_curve(rows, "unique_news", {}) == Line([4.0], [4.5], {}, ([2.0], [7.0]))
    assert make_curve(rows, "reward", {}) == Line([], [])


def test_neighbouring_rounds_share_a_point_and_rounds_without_a_value_none():
    rows = rows_of(*((0, number, 0, number) for number in range(2 * GROUPS)))
    every_other = rows.with_columns(
        pl.when(pl.col("round") % 2 == 0).then("unique_news").alias("unique_news")
    )
    assert make_curve(rows, "unique_news", {}).y == [number + 0.5 for number in range(0, 40, 2)]
    assert make_curve(every_other, "unique_news", {}).x == list(range(0, 40, 2))


def test_ranks_are_of_the_agents_of_one_seed_over_its_last_rounds():
    # Agent 1 leads in seed 0 and agent 0 in seed 1; round 0 does not count.
    rows = rows_of(
        *((0, 0, agent, 99) for agent in (0, 1)),
        *((0, number, agent, 2 + 4 * agent) for number in (1, 2) for agent in (0, 1)),
        *((1, number, agent, 8 - 4 * agent) for number in (1, 2) for agent in (0, 1)),
    )
    assert rank_news(rows, 2) == [7.0, 3.0]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_traced_inputs(tmp_path_factory.mktemp("traced"))


def test_a_group_names_its_budget_and_the_seeds_of_each_method(inputs):
    (group,) = list_groups(inputs)
    assert group["title"] == "Electricity, budget small"
    assert [len(group["curves"][name].plots) for name in PICTURES] == [2, 2, 2, 1]
    assert group["curves"]["seeds"] == group["space"]["seeds"] == "MAD-RL 1 and CompEvo 2"
    last = inputs.traces.filter(round=35)
    for name, method in (("MAD-RL", "mad-rl"), ("CompEvo", "compevo")):
        error = last.filter(method=method)["val_error"].mean()
        assert f"{name} {error:.4f}" in group["curves"]["end"]


def test_rewards_of_all_methods_are_on_the_scale_of_the_widest(inputs):
    plots = plot_rewards(inputs.traces)
    (scale,) = {plot.draw().get_ylim() for plot in plots}
    values = [y for plot in plots for line in plot.draw().lines for y in line.get_ydata()]
    assert len(plots) == 2 and scale[0] < min(values) and scale[1] > max(values)


@pytest.mark.parametrize(
    "line",
    [
        Line([0, 1], [0.3, 0.3]),
        Line([0, 1], [-0.4, -0.1], {"color": "red"}, ([-0.6, -0.2], [-0.3, 0.1])),
    ],
)
def test_the_limits_of_an_axis_are_known_before_it_is_drawn(line):
    drawn = plot_lines([line], "", size=THIRD).draw()
    assert find_limits([line]) == pytest.approx(drawn.get_ylim(), rel=1e-12)


def test_nothing_is_drawn_of_what_has_no_rows(inputs):
    assert list_groups(make_inputs()) == []
    assert 'id="mechanism"' not in render_undrawn(make_inputs())
    still = replace(inputs, traces=inputs.traces.filter(inputs.traces["method"] == "mad-rl"))
    (group,) = list_groups(replace(still, logics=inputs.logics.clear()))
    assert [group["curves"][name] is None for name in PICTURES] == [False] * 3 + [True]
    assert [group[name] for name in ("plateau", "topics", "shifts", "space")] == [None] * 4


def test_updates_stand_by_epoch_and_who_rewrites_none_is_named(inputs):
    table = shift_table(inputs.traces)
    assert table.header[1:] == ["Epoch 1", "updates", "Epoch 2", "updates", *table.header[5:]]
    (row,) = table.rows
    # Two seeds, three agents; the first of twelve rounds follows no rewriting.
    assert (row[0], row[2], row[4]) == ("CompEvo", "66", "72")
    (group,) = list_groups(inputs)
    assert group["still"] == "MAD-RL"


def test_a_run_has_the_test_of_its_own_agents_if_it_is_long_enough():
    assert run_plateau_table(make_run()) is None
    run = replace(make_run(), rounds=make_rounds(60))
    table = run_plateau_table(run)
    assert [row[0] for row in table.rows] == ["agent 0", "agent 1", "agent 2"]
    rising = [
        record.model_copy(update={"rewards": [0.01 * record.round] * 3})
        for record in make_rounds(60)
    ]
    (first, *_) = run_plateau_table(replace(run, rounds=rising)).rows
    assert first[2:] == [
        "+1.0000",
        "+1.0000 to +1.0000",
        "still rising over the last 30 rounds: no plateau",
    ]


def test_topics_count_agents_and_alike_logics_are_seen(inputs):
    topics = ["fuel prices; public holidays", "fuel prices", *[""] * 7]
    frame = inputs.logics.sort("method").with_columns(
        pl.Series("topics", topics), pl.lit("one").alias("logic")
    )
    debate, own = topics_table(frame).rows
    assert own[:5] == ["CompEvo", "6", "1 of 6", "2", "fuel prices (2), public holidays (1)"]
    assert debate[:5] == ["MAD-RL", "3", "1 of 3", "0", "n/a"]
    distances = inputs.logics.filter(pl.col("method") == "mad-rl")["distance_to_others"]
    assert debate[5] == f"{distances.mean():.4f}"


def test_the_logics_are_a_figure_to_turn_with_escaped_texts_and_a_still_picture(inputs):
    page = render_undrawn(inputs)
    text = re.search(
        r'<script type="application/json" id="space-0">(.*?)</script>', page, re.DOTALL
    )
    figure = json.loads(text[1])
    assert [trace["name"] for trace in figure["data"]] == ["MAD-RL", "CompEvo"]
    assert {trace["type"] for trace in figure["data"]} == {"scatter3d"}
    hover = " ".join(text for trace in figure["data"] for text in trace["text"])
    assert "&lt;script&gt;" in hover and "<script>" not in hover
    assert HOSTILE not in page
    assert len({trace["marker"]["symbol"] for trace in figure["data"]}) == 2
    # The script of the charts comes with it, and is allowed by its hash alone.
    assert "Plotly" in page and "script-src" in page
    assert "script-src" not in render_undrawn(make_inputs(rows=empty_rows()))


def test_the_scripts_that_may_run_are_those_in_the_page_to_the_letter(inputs):
    page = render_undrawn(inputs)
    bodies = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(bodies) == 2
    allowed = [
        f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
        for body in bodies
    ]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert html.unescape(policy[1]).rpartition("script-src ")[2].split() == allowed
