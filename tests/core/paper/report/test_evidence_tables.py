"""The control as a sentence, a table and a picture."""

import math
from dataclasses import replace
from datetime import datetime, timedelta

import polars as pl
import pytest

from compevo_core.paper.planted_news import CONTROL_SCHEMA, SPECIALISTS_SCHEMA
from compevo_core.paper.report import figures
from compevo_core.paper.report.evidence_tables import (
    NO_ROWS,
    Gain,
    control_table,
    format_control,
    format_specialists,
    format_text,
    judge_control,
    judge_question,
    judge_text,
    list_specialist_tables,
    list_texts,
    search_table,
    show_control,
    summarize_evidence,
    text_table,
)
from compevo_core.paper.report.figures import THIRD, Line, get_figure, plot_lines
from compevo_core.paper.report.mechanism import (
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
from compevo_core.paper.report.paper_tables import show_curves
from compevo_core.paper.report.plots import show_panel
from compevo_core.paper.report.rows import collect_scores
from compevo_core.paper.run_traces import TRACE_SCHEMA
from compevo_core.report.charts import MOST_STEPS, TimeLine, draw_chart
from compevo_core.report.forecast_page import render_chart
from tests.support.report_samples import (
    HOSTILE,
    make_frame,
    make_inputs,
    make_panel,
    make_rounds,
    make_row,
    make_run,
    render_undrawn,
)
from tests.support.traced_samples import make_traced_inputs


def _make_rows():
    slopes = {"seed-logics": 0.1, "evolved": 0.5, "oracle-logics": 0.6, "swapped-news": 0.0}
    rows = []
    for effect in (0.0, 2.0):
        for seed in (0, 1):
            for arm, slope in {"prior": 0.0, **slopes}.items():
                found = {
                    "recovered": slope + 0.1,
                    "recovered_low": slope,
                    "recovered_high": slope + 0.2,
                    "slope": slope + 0.2 * seed,
                }
                rows.append(
                    dict.fromkeys(CONTROL_SCHEMA)
                    | {"dataset": "electricity", "world": "plain", "effect": effect}
                    | {"seed": seed, "arm": arm}
                    | {"mae": 100.0 - 10 * seed, "unit": "MW", "precision": 0.75, "recall": 0.5}
                    | (found if effect else {})
                )
    return rows


ROUNDS = [
    {"dataset": "electricity", "world": "plain", "effect": 2.0, "seed": seed}
    | {"arm": "evolved", "rewriting": number}
    | {"precision": number / 2, "recall": number / 4, "news_gain": None}
    for seed in (0, 1)
    for number in (0, 1, 2)
]


def test_the_verdict_compares_means_over_seeds_with_the_right_logics_and_the_seeds():
    assert judge_control(_make_rows()) == (
        "At effect 2 the evolved logics hold 0.60 of it, where logics that name the acting topics "
        "hold 0.70 and seed logics 0.20; 75.0 % of the topics that they name act."
    )


def test_the_table_has_a_line_for_each_effect_and_arm_and_no_share_of_nothing():
    table = control_table(_make_rows())
    cells = {(row[0], row[1]): row for row in table.rows}
    assert len(cells) == 2 * 5
    line = cells["2", "evolved logics"]
    shares = ["60.0 % (50.0 % to 70.0 %)", "0.60 ± 0.14", "75.0 %", "50.0 %"]
    assert list(line[2:6]) + list(line[7:]) == ["2", "95.00", *shares]
    assert list(cells["0", "evolved logics"][4:7]) == ["n/a"] * 3
    assert list(cells["2", "calendar ridge alone"][4:]) == ["n/a"] * 5


def test_the_picture_has_a_line_for_each_arm_with_rows_and_each_share():
    dose, named = show_control(_make_rows(), ROUNDS).plots
    lines = {line.get_label(): list(line.get_ydata()) for line in dose.draw().lines}
    assert lines["evolved logics"] == [0.6]
    assert "all articles, no choice" not in lines
    shares = {line.get_label(): list(line.get_ydata()) for line in named.draw().lines}
    assert shares == {"precision, effect 2": [0.0, 0.5, 1.0], "recall, effect 2": [0.0, 0.25, 0.5]}


def test_ways_to_write_logics_are_compared_by_seed_with_flat_draws_and_parts_with_the_whole():
    slopes = {("flat", 0): 0.2, ("flat", 1): 0.4, ("policy", 0): 0.3, ("policy", 1): 0.7}
    slopes |= {("no-grpo", 0): 0.2, ("no-grpo", 1): 0.6, ("crossed", 0): 0.5, ("crossed", 1): 0.7}
    found = {"effect": 2.0, "mae": 100.0, "unit": "MW", "precision": 0.5, "recall": 0.5}
    rows = [
        dict.fromkeys(CONTROL_SCHEMA)
        | {"dataset": "electricity", "world": "many-topics", "seed": seed, "arm": arm}
        | {**found, "slope": slope}
        for (arm, seed), slope in slopes.items()
    ]
    flat, crossed, policy, no_grpo = search_table(rows).rows
    assert tuple(flat[5:8]) == ("0.30 ± 0.14", "n/a", "n/a")
    assert tuple(policy[5:8]) == ("0.50 ± 0.28", "+0.20 ± 1.27", "n/a")
    assert tuple(crossed[6:8]) == ("+0.30 ± 0.00", "n/a")
    assert tuple(no_grpo[6:8]) == ("+0.10 ± 1.27", "-0.10 ± 0.00")


def _make_specialists(world, effect, seeds, **of_arms):
    return [
        dict.fromkeys(SPECIALISTS_SCHEMA)
        | {"dataset": "electricity", "world": world, "effect": effect, "agents": 5, "seed": seed}
        | {"arm": arm.replace("_", "-"), "unit": "MW", "mae": 100.0 + value + 0.1 * seed}
        | ({"effect_r2": value + 0.01 * seed, "recovered": value} if effect else {})
        for seed in range(seeds)
        for arm, value in of_arms.items()
    ]


def test_questions_are_answered_by_differences_that_are_paired_by_seed():
    wide = {"evolved": 0.7, "independent": 0.3, "one_agent": 0.2, "generalist": 0.8}
    rows = _make_specialists("niches-wide", 2.0, 3, **wide, swapped_news=-0.5)
    answers, arms = list_specialist_tables(rows)
    first = dict(zip(answers.header, answers.rows[0], strict=True))
    assert first["World"] == "eight of a hundred topics" and first["Seeds"] == "3"
    assert first["specialists less independent agents"] == "+0.40 ± 0.00"
    assert first["specialists less generalist"] == "-0.10 ± 0.00" and len(answers.header) == 7
    assert "independent search? Yes: +0.40 ± 0.00 of effect_r2, 3 seeds." in answers.verdict
    assert "reads everything? No, less: -0.10 ± 0.00 of effect_r2" in answers.verdict
    assert [row[0] for row in arms.rows][-1] == "specialists, news of another day"
    assert "0.71 ± 0.01" in [row[1] for row in arms.rows if row[0].startswith("specialists: ")]
    assert arms.header == ["Arm", "niches-wide, 5 agents, effect 2"]
    assert arms.verdict == "With news of another day their effect_r2 is -0.49 on average."


def test_worlds_of_several_kinds_are_counted_by_the_side_of_their_interval():
    wide, plain = {"evolved": 0.7, "independent": 0.3}, {"evolved": 0.9, "independent": 0.91}
    rows = _make_specialists("niches-wide", 2.0, 3, **wide)
    rows += [
        row | {"effect_r2": row["effect_r2"] + 0.3 * (row["seed"] == place)}
        for place, arm in enumerate(plain)
        for row in _make_specialists("plain", 2.0, 3, **{arm: plain[arm]})
    ]
    rows += _make_specialists("plain", 0.0, 2, evolved=1.0, prior=0.5)
    answers, arms = list_specialist_tables(rows)
    assert (
        "In some: of 2 worlds, more in 1 (+0.40 to +0.40) and not decided by so few seeds in 1 "
        "(-0.01 to -0.01) of effect_r2."
    ) in answers.verdict
    assert judge_question([Gain(0.1, 0.2, 5)]).startswith("No measurable difference")
    assert judge_question([Gain(0.1, 0.2, 2)] * 2).startswith("Not decided: of 2 worlds")
    assert "of the calendar ridge by +0.50 ± 0.00 MW (2 trainings)." in arms.verdict


def test_no_rows_of_specialists_name_the_command_and_one_arm_alone_answers_nothing():
    assert "compevo paper experiment specialists" in format_specialists([])
    rows = _make_specialists("plain", 2.0, 1, evolved=0.9, independent=0.8)
    page = render_undrawn(make_inputs(specialists=rows))
    assert "what agents that are read together add" in page and "No two seeds" in page
    text = format_specialists(rows)
    assert text.count("No two seeds of a world yet.") == 1 and "contribution | 0.90 |" in text


def test_documents_get_verdict_table_and_pictures_or_the_command():
    text = format_control(_make_rows(), ROUNDS)
    assert text.count("data:image/svg+xml") == 2 and "| evolved logics |" in text
    assert format_control([], []) == NO_ROWS


def _make_text_row(arm, mae, seed=None, **changes):
    low, high = mae - 2.2, mae - 1.8
    return {
        "dataset": "captions",
        "split": "test",
        "foresight": True,
        "seed": seed,
        "arm": arm,
        "n_windows": 364,
        "mae": mae,
        "difference": mae - 2.0,
        "interval_low": low,
        "interval_high": high,
        "unit": "°C",
    } | changes


TEXT_ROWS = [
    _make_text_row("prior", 2.0),
    _make_text_row("ridge", 1.6),
    _make_text_row("ridge-swapped", 2.2),
    *(
        _make_text_row(arm, mae + 0.1 * seed, seed)
        for seed in (0, 1)
        for arm, mae in (
            ("evolved", 1.7),
            ("swapped-news", 2.1),
            ("hand-temperature", 1.5),
            ("hand-sky", 1.9),
            ("seed-logics", 1.8),
        )
    ),
]


def test_a_line_an_arm_gives_means_over_seeds_and_shares_of_the_ridge():
    table = text_table(TEXT_ROWS)
    lines = {row[0]: row for row in table.rows}
    assert tuple(lines["evolved logics"][1:5]) == ("yes", "2", "1.75", "-12.5 % ± 3.5")
    assert lines["calendar ridge alone"][4] == "n/a"
    assert "-0.6 to -0.2" in lines["ridge by part of the day and number"][5]


def test_the_verdict_names_the_best_of_the_logics_by_hand():
    verdict = judge_text(TEXT_ROWS)
    for share in ("-20.0 %", "+10.0 %", "-12.5 %", "-22.5 %", "-7.5 %"):
        assert share in verdict
    assert "-22.5 %" not in judge_text(TEXT_ROWS[:3])


def test_the_section_is_found_in_two_sentences_however_many_tables_it_has():
    other = [row | {"world": "home"} for row in _make_rows() if row["arm"] != "oracle-logics"]
    chance = [row | {"interval_high": 0.1} for row in TEXT_ROWS]
    found = summarize_evidence([_make_rows(), other], [TEXT_ROWS, chance, TEXT_ROWS[:1]])
    assert "85.7 % to 85.7 % of what logics that name the planted effect" in found
    assert "in 1 world(s)" in found and "in 1 of 2 sets of worded data" in found
    assert summarize_evidence([], []) == "No world and no words have all arms yet."


def test_every_data_set_has_its_table_and_foresight_stands_above_it():
    other = [row | {"dataset": "other", "foresight": False} for row in TEXT_ROWS[:3]]
    assert [len(rows) for rows in list_texts([*TEXT_ROWS, *other])] == [len(TEXT_ROWS), 3]
    first, second = format_text([*TEXT_ROWS, *other]).split("**Other")
    assert "foresight:" in first and "foresight:" not in second
    assert "compevo paper experiment text" in format_text([])


SCOPE = ("electricity", "n2f-test-100")


def test_every_method_of_a_forecast_panel_stands_in_the_legend_within_the_figure():
    values = next(iter(make_panel().forecasts.values()))
    methods = ("persistence", "calendar-ridge", "gbm", "published-error-gbm", "blend", "compevo")
    panel = make_panel(forecasts=dict.fromkeys(methods, values))
    figure = get_figure(show_panel(panel).plots[0].draw())
    figure.draw_without_rendering()

    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()][-1] == "CompEvo"
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_a_page_makes_no_figure_of_a_plot_that_nobody_draws(monkeypatch):
    monkeypatch.delattr(figures, "Figure")
    assert "<img" in render_undrawn(make_inputs())
    with pytest.raises(NameError, match="Figure"):
        show_panel(make_panel()).plots[0].draw()


def sweep_rows(name="tau", values=("0.1", "0.5", "1")):
    return make_frame(
        *(
            make_row(
                f"{name}={value}",
                200.0 + seed + place,
                seed=seed,
                experiment=f"experiment-{name}",
                config_hash=f"{value}",
            )
            for place, value in enumerate(values)
            for seed in (0, 1)
        ),
        make_row("compevo", 200.0),
    )


def test_a_curve_holds_own_errors_with_their_spread_and_the_papers():
    scores = collect_scores(sweep_rows().filter(pl.col("method") != "compevo"), *SCOPE)
    (picture,) = show_curves(make_inputs(rows=sweep_rows()))
    axis = picture.plots[0].draw()
    means = [score.mean["rmse"] for _, score in sorted(scores.items())]
    assert list(axis.containers[0].lines[0].get_ydata()) == means
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.1", "0.5", "1"]
    paper = axis.get_lines()[-1]
    assert list(paper.get_ydata()) == [378.5, 354.18, 372.0]


def test_an_experiment_with_one_change_has_no_curve_and_others_stand_on_the_page():
    assert show_curves(make_inputs(rows=sweep_rows(values=("0.1",)))) == []
    (picture,) = show_curves(make_inputs(rows=sweep_rows("agents", ("1", "2"))))
    assert "number of agents" in picture.caption


FIRST = datetime(2026, 3, 30)  # noqa: DTZ001 - the reader's clock


def line(values, step, **style):
    times = [FIRST + i * step for i in range(len(values))]
    return TimeLine(name="x", times=times, values=values, colour="#0b5cad", **style)


def test_a_gap_breaks_a_line_and_has_no_text():
    hour = timedelta(hours=1)
    chart = draw_chart([line([1.0, math.nan, 3.0, 4.0], hour)], "x", step=hour, decimals=0)
    assert chart.lines[0]["d"].count("M") == 2
    assert [step["texts"][0] for step in chart.steps] == [
        *("Mon 00:00 x 1", "Mon 02:00 x 3", "Mon 03:00 x 4")
    ]


def test_a_band_goes_along_its_upper_bound_and_back_along_the_lower_one():
    hour = timedelta(hours=1)
    band = line([20.0, 20.0], hour, low=[10.0, 10.0])
    chart = draw_chart([band], "x", step=hour, decimals=1)
    upper, lower = chart.y_ticks[-1][0], chart.y_ticks[0][0]
    points = chart.lines[0]["d"].removeprefix("M").removesuffix("Z").split("L")
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == [upper, upper, lower, lower]
    assert chart.steps[0]["texts"] == ["Mon 00:00 x 10.0 to 20.0"]


@pytest.mark.parametrize(
    ("count", "step"),
    [
        (1, timedelta(days=31)),
        (12, timedelta(days=30)),
        (2000, timedelta(minutes=5)),
        (48, timedelta(minutes=30)),
    ],
)
def test_any_grid_is_drawn_with_a_few_ticks_inside_the_plot(count, step):
    values = [float(i % 7) for i in range(count)]
    chart = draw_chart([line(values, step)], "x", step=step, decimals=0)
    left, top, right, bottom = chart.box
    assert 1 <= len(chart.x_ticks) <= 10 and len(chart.steps) <= MOST_STEPS
    assert all(left <= x <= right for x, _ in chart.x_ticks)
    assert all(top <= y <= bottom for y, _ in chart.y_ticks)
    assert left <= chart.steps[0]["x"] <= chart.steps[-1]["x"] < right


def test_text_from_data_is_escaped_in_a_drawing():
    hour = timedelta(hours=1)
    svg = render_chart(draw_chart([line([1.0], hour)], "<b>&", step=hour, decimals=0))
    assert "<b>" not in svg and "&lt;b&gt;&amp;" in svg


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


def test_the_logics_are_a_picture_and_the_page_runs_no_script(inputs):
    page = render_undrawn(inputs)
    assert "Logics in space" in page and HOSTILE not in page
    assert "<script" not in page and "script-src" not in page

    (group,) = list_groups(inputs)
    axis = group["space"]["picture"].plots[0].draw()
    names = [text.get_text() for text in get_figure(axis).legends[0].get_texts()]
    assert names == ["MAD-RL", "CompEvo"]
    assert len(axis.collections) == 2
