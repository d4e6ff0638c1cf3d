"""What a report reads, whole or refused by name, and what it shows as evidence."""

import math
import re
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

import numpy as np
import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_core.evaluation.scopes import ForecastPanel, Scope, build_panels, write_panels
from compevo_core.paper.planted_news import CONTROL_SCHEMA, SPECIALISTS_SCHEMA
from compevo_core.paper.report import evidence_tables, figures, run_sections
from compevo_core.paper.report.figures import THIRD, Line, get_figure, plot_lines
from compevo_core.paper.report.inputs import collect_scores, read_inputs, read_panels
from compevo_core.paper.report.paper_tables import show_curves
from compevo_core.paper.report.result_tables import show_panel
from compevo_core.paper.run_traces import TRACE_SCHEMA
from compevo_core.report.charts import MOST_STEPS, TimeLine, draw_chart
from tests.support import population as small
from tests.support.report_samples import (
    HOSTILE,
    NOW,
    make_check,
    make_frame,
    make_inputs,
    make_panel,
    make_rounds,
    make_row,
    make_rows,
    make_run,
    render_undrawn,
    write_run,
)
from tests.support.traced_samples import make_traced_inputs

SLOPES = {"prior": 0.0, "seed-logics": 0.1, "evolved": 0.5, "oracle-logics": 0.6}
SLOPES |= {"swapped-news": 0.0}


def _fill(schema, **values):
    return dict.fromkeys(schema) | {"dataset": "electricity", "unit": "MW"} | values


def _make_rows():
    rows = []
    for effect, seed, (arm, slope) in product((0.0, 2.0), (0, 1), SLOPES.items()):
        row = {"world": "plain", "effect": effect, "seed": seed, "arm": arm}
        row |= {"mae": 100.0 - 10 * seed, "precision": 0.75, "recall": 0.5}
        share = {"recovered": slope + 0.1, "recovered_low": slope, "recovered_high": slope + 0.2}
        row |= share | {"slope": slope + 0.2 * seed} if effect else {}
        rows.append(_fill(CONTROL_SCHEMA, **row))
    return rows


ROUNDS = [
    {"dataset": "electricity", "world": "plain", "effect": 2.0, "seed": seed}
    | {"arm": "evolved", "rewriting": number}
    | {"precision": number / 2, "recall": number / 4, "news_gain": None}
    for seed, number in product((0, 1), (0, 1, 2))
]


def test_the_table_has_effects_arms_and_shares():
    table = evidence_tables.control_table(_make_rows())
    verdict = evidence_tables.judge_control(_make_rows())
    cells = {(row[0], row[1]): row for row in table.rows}

    assert len(cells) == 2 * 5
    line = cells["2", "evolved logics"]
    shares = ["60.0 % (50.0 % to 70.0 %)", "0.60 ± 0.14", "75.0 %", "50.0 %"]
    assert list(line[2:6]) + list(line[7:]) == ["2", "95.00", *shares]
    assert list(cells["0", "evolved logics"][4:7]) == ["n/a"] * 3
    assert list(cells["2", "calendar ridge"][4:]) == ["n/a"] * 5
    assert re.findall(r"[\d.]*\d", verdict) == ["2", "0.60", "0.70", "0.20", "75.0"]


def test_the_picture_has_arms_and_shares():
    dose, named = evidence_tables.show_control(_make_rows(), ROUNDS).plots
    lines = {line.get_label(): list(line.get_ydata()) for line in dose.draw().lines}

    assert lines["evolved logics"] == [0.6]
    assert "all articles, no choice" not in lines
    shares = {line.get_label(): list(line.get_ydata()) for line in named.draw().lines}
    assert shares == {"precision, effect 2": [0.0, 0.5, 1.0], "recall, effect 2": [0.0, 0.25, 0.5]}


def test_writers_are_compared_with_flat_draws_by_seed():
    slopes = {("flat", 0): 0.2, ("flat", 1): 0.4, ("policy", 0): 0.3, ("policy", 1): 0.7}
    slopes |= {("no-grpo", 0): 0.2, ("no-grpo", 1): 0.6, ("crossed", 0): 0.5, ("crossed", 1): 0.7}
    found = {"effect": 2.0, "mae": 100.0, "precision": 0.5, "recall": 0.5}
    rows = [
        _fill(CONTROL_SCHEMA, world="many-topics", seed=seed, arm=arm, slope=slope, **found)
        for (arm, seed), slope in slopes.items()
    ]

    flat, crossed, policy, no_grpo = evidence_tables.search_table(rows).rows
    assert tuple(flat[5:8]) == ("0.30 ± 0.14", "n/a", "n/a")
    assert tuple(policy[5:8]) == ("0.50 ± 0.28", "+0.20 ± 1.27", "n/a")
    assert tuple(crossed[6:8]) == ("+0.30 ± 0.00", "n/a")
    assert tuple(no_grpo[6:8]) == ("+0.10 ± 1.27", "-0.10 ± 0.00")


def _make_specialists(world, effect, seeds, **of_arms):
    rows = []
    for seed, (arm, value) in product(range(seeds), of_arms.items()):
        row = {"world": world, "effect": effect, "agents": 5, "seed": seed}
        row |= {"arm": arm.replace("_", "-"), "mae": 100.0 + value + 0.1 * seed}
        row |= {"effect_r2": value + 0.01 * seed, "recovered": value} if effect else {}
        rows.append(_fill(SPECIALISTS_SCHEMA, **row))
    return rows


def test_questions_are_answered_by_paired_differences():
    wide = {"evolved": 0.7, "independent": 0.3, "one_agent": 0.2, "generalist": 0.8}
    rows = _make_specialists("niches-wide", 2.0, 3, **wide, swapped_news=-0.5)
    answers, arms = evidence_tables.list_evidence("specialists", rows)

    first = dict(zip(answers.header, answers.rows[0], strict=True))
    assert first["World"] == "eight of a hundred topics" and first["Seeds"] == "3"
    assert first["specialists less independent agents"] == "+0.40 ± 0.00"
    assert first["specialists less generalist"] == "-0.10 ± 0.00" and len(answers.header) == 7
    assert "Yes: +0.40" in answers.verdict and "No, less: -0.10" in answers.verdict

    assert [row[0] for row in arms.rows][-1] == "specialists, news of another day"
    assert "0.71 ± 0.01" in [row[1] for row in arms.rows if row[0].startswith("specialists: ")]
    assert arms.header == ["Arm", "niches-wide, 5 agents, effect 2"]
    assert "-0.49" in arms.verdict


def test_several_worlds_are_counted_by_interval_side():
    wide, plain = {"evolved": 0.7, "independent": 0.3}, {"evolved": 0.9, "independent": 0.91}
    rows = _make_specialists("niches-wide", 2.0, 3, **wide)
    rows += [
        row | {"effect_r2": row["effect_r2"] + 0.3 * (row["seed"] == place)}
        for place, arm in enumerate(plain)
        for row in _make_specialists("plain", 2.0, 3, **{arm: plain[arm]})
    ]
    rows += _make_specialists("plain", 0.0, 2, evolved=1.0, prior=0.5)
    answers, arms = evidence_tables.list_evidence("specialists", rows)

    assert re.findall(r"more in \d|seeds in \d", answers.verdict) == ["more in 1", "seeds in 1"]
    assert "(+0.40 to +0.40)" in answers.verdict and "(-0.01 to -0.01)" in answers.verdict
    one, two = [evidence_tables.Gain(0.1, 0.2, 5)], [evidence_tables.Gain(0.1, 0.2, 2)] * 2
    assert evidence_tables.judge_question(one).startswith("No measurable difference")
    assert evidence_tables.judge_question(two).startswith("Not decided: of 2 worlds")
    assert "+0.50 ± 0.00" in arms.verdict and "2 trainings" in arms.verdict


def test_missing_rows_or_rivals_answer_nothing():
    assert "compevo paper experiment" in evidence_tables.format_evidence("specialists", [])
    rows = _make_specialists("plain", 2.0, 1, evolved=0.9, independent=0.8)
    assert "No world has two seeds" in render_undrawn(make_inputs(specialists=rows))
    text = evidence_tables.format_evidence("specialists", rows)
    assert text.count("No world has two seeds") == 1 and "contribution | 0.90" in text


def test_documents_get_the_evidence_or_the_command():
    text = evidence_tables.format_control(_make_rows(), ROUNDS)
    assert text.count("data:image/svg+xml") == 2 and "| evolved logics |" in text
    assert "experiment control" in evidence_tables.format_control([], [])


def _make_text_row(arm, mae, seed=None, **changes):
    row = {"dataset": "captions", "split": "test", "foresight": True, "seed": seed, "arm": arm}
    row |= {"n_windows": 364, "mae": mae, "difference": mae - 2.0, "unit": "°C"}
    return row | {"interval_low": mae - 2.2, "interval_high": mae - 1.8} | changes


SEEDED = {"evolved": 1.7, "swapped-news": 2.1, "hand-temperature": 1.5, "hand-sky": 1.9}
SEEDED |= {"seed-logics": 1.8}
TEXT_ROWS = [
    _make_text_row("prior", 2.0),
    _make_text_row("ridge", 1.6),
    _make_text_row("ridge-swapped", 2.2),
    *(
        _make_text_row(arm, mae + 0.1 * seed, seed)
        for seed, (arm, mae) in product((0, 1), SEEDED.items())
    ),
]


def test_an_arm_gives_means_and_ridge_shares():
    lines = {row[0]: row for row in evidence_tables.text_table(TEXT_ROWS).rows}
    assert tuple(lines["evolved logics"][1:5]) == ("yes", "2", "1.75", "-12.5 % ± 3.5")
    assert lines["calendar ridge"][4] == "n/a"
    assert "-0.6 to -0.2" in lines["ridge by part of the day and number"][5]

    # The verdict names the best of the logics that were written by hand.
    shares = ("-20.0 %", "+10.0 %", "-12.5 %", "-22.5 %", "-7.5 %")
    assert all(share in evidence_tables.judge_text(TEXT_ROWS) for share in shares)
    assert "-22.5 %" not in evidence_tables.judge_text(TEXT_ROWS[:3])


def test_many_tables_make_a_two_sentence_finding():
    other = [row | {"world": "home"} for row in _make_rows() if row["arm"] != "oracle-logics"]
    chance = [row | {"dataset": "other", "interval_high": 0.1} for row in TEXT_ROWS]

    found = evidence_tables.summarize_evidence([*_make_rows(), *other], [*TEXT_ROWS, *chance])

    assert "85.7 % to 85.7" in found and "1 world(s)" in found and "1 of 2" in found
    assert evidence_tables.summarize_evidence([], []).startswith("No world")


def test_every_data_set_has_its_own_table():
    other = [row | {"dataset": "other", "foresight": False} for row in TEXT_ROWS[:3]]
    rows = [*TEXT_ROWS, *other]
    first, second = evidence_tables.format_evidence("text", rows).split("**Other")

    assert [len(table.rows) for table in evidence_tables.list_evidence("text", rows)] == [8, 3]
    assert "foresight:" in first and "foresight:" not in second
    assert "compevo paper experiment" in evidence_tables.format_evidence("text", [])


def test_every_panel_method_fits_the_legend():
    values = next(iter(make_panel().forecasts.values()))
    methods = ("persistence", "calendar-ridge", "gbm", "published-error-gbm", "blend", "compevo")
    panel = make_panel(forecasts=dict.fromkeys(methods, values))
    figure = get_figure(show_panel(panel).plots[0].draw())
    figure.draw_without_rendering()

    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()][-1] == "CompEvo"
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_undrawn_plots_make_no_figure(monkeypatch):
    monkeypatch.delattr(figures, "Figure")
    page = render_undrawn(make_inputs())
    assert "<img" in page and 'id="mechanism"' not in page  # nothing was traced
    with pytest.raises(NameError, match="Figure"):
        show_panel(make_panel()).plots[0].draw()


def sweep_rows(name="tau", values=("0.1", "0.5", "1")):
    rows = [
        make_row(f"{name}={value}", 200.0 + seed + place, seed=seed, config_hash=value)
        | {"experiment": f"experiment-{name}"}
        for (place, value), seed in product(enumerate(values), (0, 1))
    ]
    return make_frame(*rows, make_row("compevo", 200.0))


def test_a_curve_holds_own_and_published_errors():
    rows = sweep_rows().filter(pl.col("method") != "compevo")
    scores = collect_scores(rows, "electricity", "n2f-test-100")
    means = [score["rmse"] for _, score in sorted(scores.items())]

    (picture,) = show_curves(make_inputs(rows=sweep_rows()))
    axis = picture.plots[0].draw()
    (agents,) = show_curves(make_inputs(rows=sweep_rows("agents", ("1", "2"))))

    assert list(axis.containers[0].lines[0].get_ydata()) == means
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.1", "0.5", "1"]
    assert list(axis.get_lines()[-1].get_ydata()) == [378.5, 354.18, 372.0]
    assert "number of agents" in agents.caption
    assert show_curves(make_inputs(rows=sweep_rows(values=("0.1",)))) == []


FIRST = datetime(2026, 3, 30)  # noqa: DTZ001 - the reader's clock
HOUR = timedelta(hours=1)


def draw(values, unit="x", step=HOUR, decimals=0, **style):
    times = [FIRST + i * step for i in range(len(values))]
    line = TimeLine(name="x", times=times, values=values, colour="#0b5cad", **style)
    return draw_chart([line], unit, step=step, decimals=decimals)


def test_a_gap_breaks_a_line():
    chart = draw([1.0, math.nan, 3.0, 4.0])
    assert chart.lines[0]["d"].count("M") == 2
    texts = [step["texts"][0] for step in chart.steps]
    assert texts == ["Mon 00:00 x 1", "Mon 02:00 x 3", "Mon 03:00 x 4"]


def test_a_band_follows_upper_then_lower_bounds():
    chart = draw([20.0, 20.0], decimals=1, low=[10.0, 10.0])

    upper, lower = chart.y_ticks[-1][0], chart.y_ticks[0][0]
    points = chart.lines[0]["d"].removeprefix("M").removesuffix("Z").split("L")
    heights = [float(point.split(",")[1]) for point in points]
    assert heights == [upper, upper, lower, lower]
    assert chart.steps[0]["texts"] == ["Mon 00:00 x 10.0 to 20.0"]


@pytest.mark.parametrize(
    ("count", "step"),
    [(1, 31 * 24 * HOUR), (12, 30 * 24 * HOUR), (2000, HOUR / 12), (48, HOUR / 2)],
)
def test_any_grid_has_few_ticks_inside(count, step):
    chart = draw([float(i % 7) for i in range(count)], step=step)
    left, top, right, bottom = chart.box

    assert 1 <= len(chart.x_ticks) <= 10 and len(chart.steps) <= MOST_STEPS
    assert all(left <= x <= right for x, _ in chart.x_ticks)
    assert all(top <= y <= bottom for y, _ in chart.y_ticks)
    assert left <= chart.steps[0]["x"] <= chart.steps[-1]["x"] < right


PICTURES = ("dynamics", "rewards", "news", "shifts")


def rows_of(*rows):
    """Rows of (seed, round, agent, unique_news)."""
    names = ("seed", "round", "agent", "unique_news")
    made = [dict(zip(names, row, strict=True)) | {"method": "sa"} for row in rows]
    return pl.DataFrame(made, schema=TRACE_SCHEMA)


def test_a_point_averages_agents_seeds_and_rounds():
    # Seed 1 has three agents and must not count three times.
    rows = rows_of((0, 4, 0, 2), (1, 4, 0, 6), (1, 4, 1, 6), (1, 4, 2, 9))
    point = Line([4.0], [4.5], {}, ([2.0], [7.0]))
    assert run_sections.make_curve(rows, "unique_news", {}) == point
    assert run_sections.make_curve(rows, "reward", {}) == Line([], [])

    # Neighbouring rounds share a point, if both have a value.
    rows = rows_of(*((0, number, 0, number) for number in range(2 * run_sections.GROUPS)))
    is_even = pl.col("round") % 2 == 0
    every_other = rows.with_columns(pl.when(is_even).then("unique_news").alias("unique_news"))
    even = list(range(0, 40, 2))
    assert run_sections.make_curve(rows, "unique_news", {}).y == [number + 0.5 for number in even]
    assert run_sections.make_curve(every_other, "unique_news", {}).x == even


def test_ranks_cover_last_rounds_within_each_seed():
    # Agent 1 leads in seed 0 and agent 0 in seed 1; round 0 does not count.
    rows = rows_of(
        *((0, 0, agent, 99) for agent in (0, 1)),
        *((0, number, agent, 2 + 4 * agent) for number in (1, 2) for agent in (0, 1)),
        *((1, number, agent, 8 - 4 * agent) for number in (1, 2) for agent in (0, 1)),
    )
    assert run_sections.rank_news(rows, 2) == [7.0, 3.0]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_traced_inputs(tmp_path_factory.mktemp("traced"))


def test_a_group_names_budget_seeds_and_updates(inputs):
    (group,) = run_sections.list_groups(inputs)
    assert group["title"] == "Electricity, budget small"
    assert [len(group["curves"][name].plots) for name in PICTURES] == [2, 2, 2, 1]
    assert group["curves"]["seeds"] == group["space"]["seeds"] == "MAD-RL 1 and CompEvo 2"
    last = inputs.traces.filter(round=35)
    for name, method in (("MAD-RL", "mad-rl"), ("CompEvo", "compevo")):
        error = last.filter(method=method)["val_error"].mean()
        assert f"{name} {error:.4f}" in group["curves"]["end"]

    table = run_sections.shift_table(inputs.traces)
    assert table.header[1:] == ["Epoch 1", "updates", "Epoch 2", "updates", *table.header[5:]]
    (row,) = table.rows
    # Two seeds, three agents; the first of twelve rounds follows no rewriting.
    assert (row[0], row[2], row[4]) == ("CompEvo", "66", "72")
    assert group["still"] == "MAD-RL"


def test_all_methods_rewards_share_one_scale(inputs):
    plots = run_sections.plot_rewards(inputs.traces)
    values = [y for plot in plots for line in plot.draw().lines for y in line.get_ydata()]

    (scale,) = {plot.draw().get_ylim() for plot in plots}
    assert len(plots) == 2 and scale[0] < min(values) and scale[1] > max(values)


@pytest.mark.parametrize(
    "line",
    [
        Line([0, 1], [0.3, 0.3]),
        Line([0, 1], [-0.4, -0.1], {"color": "red"}, ([-0.6, -0.2], [-0.3, 0.1])),
    ],
)
def test_axis_limits_are_known_before_drawing(line):
    drawn = plot_lines([line], "", size=THIRD).draw()
    assert run_sections.find_limits([line]) == pytest.approx(drawn.get_ylim(), rel=1e-12)


def test_nothing_is_drawn_of_what_has_no_rows(inputs):
    assert run_sections.list_groups(make_inputs()) == []
    still = replace(inputs, traces=inputs.traces.filter(inputs.traces["method"] == "mad-rl"))
    (group,) = run_sections.list_groups(replace(still, logics=inputs.logics.clear()))
    assert [group["curves"][name] is None for name in PICTURES] == [False] * 3 + [True]
    assert [group[name] for name in ("plateau", "topics", "shifts", "space")] == [None] * 4


def test_a_long_run_tests_its_own_agents():
    assert run_sections.run_plateau_table(make_run()) is None
    run = replace(make_run(), rounds=make_rounds(60))
    rising = [one.model_copy(update={"rewards": [0.01 * one.round] * 3}) for one in run.rounds]

    table = run_sections.run_plateau_table(run)
    (first, *_) = run_sections.run_plateau_table(replace(run, rounds=rising)).rows

    assert [row[0] for row in table.rows] == ["agent 0", "agent 1", "agent 2"]
    assert first[2:4] == ["+1.0000", "+1.0000 to +1.0000"]
    assert "still rising" in first[4] and "30 rounds" in first[4]


def test_topics_count_agents_and_alike_logics_are_seen(inputs):
    topics = ["fuel prices; public holidays", "fuel prices", *[""] * 7]
    texts = pl.Series("topics", topics)
    frame = inputs.logics.sort("method").with_columns(texts, pl.lit("one").alias("logic"))

    debate, own = run_sections.topics_table(frame).rows
    assert own[:5] == ["CompEvo", "6", "1 of 6", "2", "fuel prices (2), public holidays (1)"]
    assert debate[:5] == ["MAD-RL", "3", "1 of 3", "0", "n/a"]
    distances = inputs.logics.filter(pl.col("method") == "mad-rl")["distance_to_others"]
    assert debate[5] == f"{distances.mean():.4f}"


def test_the_logics_page_runs_no_script(inputs):
    page = render_undrawn(inputs)
    assert "Logics in space" in page and HOSTILE not in page
    assert "<script" not in page and "script-src" not in page

    (group,) = run_sections.list_groups(inputs)
    axis = group["space"]["picture"].plots[0].draw()
    names = [text.get_text() for text in get_figure(axis).legends[0].get_texts()]
    assert names == ["MAD-RL", "CompEvo"]
    assert len(axis.collections) == 2


def test_panels_survive_files_unless_they_are_broken(tmp_path):
    path = tmp_path / "panels.jsonl"
    odd = (("2019-01-01 00:00", "a\u2028b\x85c"),)  # to Unicode its parts are lines
    truth = [None if math.isnan(value) else value for value in make_panel().truth]
    panels = [make_panel(news=news, truth=truth) for news in (odd, (), make_panel().news)]
    write_panels(path, [*panels, make_panel()])

    assert read_panels(path) == (*panels, panels[-1])

    with pytest.raises(DataError, match="gbm has 2 values"):
        make_panel(forecasts={"gbm": [1.0, 2.0]})
    local = make_panel(origin_utc=datetime(2021, 1, 1))  # noqa: DTZ001 - the case tested
    write_panels(path, [local])
    with pytest.raises(DataError, match="line 1"):
        read_panels(path)
    write_panels(path, [make_panel()])
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(DataError, match="line 2"):
        read_panels(path)


def test_a_folder_of_rows_and_runs_is_read_whole(tmp_path):
    make_rows().write_csv(tmp_path / "main.csv")
    (test,) = make_inputs().paired
    pl.DataFrame([test | {"seeds": "0"}]).write_csv(tmp_path / "paired.csv")
    checks = "check,passed,detail\nhash unchanged,true,\nno 2026 in training,false,one window\n"
    (tmp_path / "checks.csv").write_text(checks)
    (tmp_path / "memory.csv").write_text("method,gib\ncompevo,3\n")
    run = write_run(tmp_path / "electricity")

    inputs = read_inputs(tmp_path, [run], mode="archive", generated_at=NOW)
    passed = make_check("hash unchanged", True, None)
    assert inputs.checks == [passed, make_check("no 2026 in training", False, "one window")]
    assert list(inputs.paired) == [test | {"seeds": "0"}]
    assert list(inputs.unread) == ["memory.csv"]

    (run,) = inputs.runs
    assert (run.name, run.agents, len(run.rounds)) == ("electricity", 3, 6)
    assert [type(panel) for panel in run.panels] == [ForecastPanel]
    assert run.setting("forecast", "prior") == "calendar-ridge"
    assert run.setting("forecast", "nothing") == ""


def test_a_panel_holds_methods_and_newest_news():
    scope = Scope(subset="test", windows=small.windows("test", 5, entities=("NSW1",)))
    forecasts = {"compevo": np.full((5, 48), 7.0), "persistence": np.zeros((5, 48))}
    ids = small.article_ids()
    (panel,) = build_panels(scope, forecasts, [(ids[0], ids[2])] * 5, small.news_pool(), 1)
    assert list(panel.forecasts) == ["compevo", "persistence"]
    assert panel.forecasts["compevo"] == [7.0] * 48
    assert [title for _, title in panel.news] == [small.TITLES[2], small.TITLES[0]]
    assert panel.truth == scope.windows[0].y.tolist()
