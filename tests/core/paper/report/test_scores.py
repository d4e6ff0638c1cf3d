"""Result rows: reading and selecting them, scores over seeds, win rates and averages."""

import math
from dataclasses import replace
from functools import partial

import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_core.evaluation.scoring import COMPEVO
from compevo_core.paper.declared import BUDGETS, rank_budget
from compevo_core.paper.report import paper_tables
from compevo_core.paper.report.inputs import (
    average_over_seeds,
    collect_scores,
    keep_latest,
    list_test_scopes,
    read_inputs,
    select_pooled,
    share_budget,
)
from tests.support.report_samples import NOW, make_frame, make_inputs, make_row, make_rows

SCOPE = ("electricity", "n2f-test-100")


@pytest.mark.parametrize(("metric", "reduction"), [("rmse", 0.298), ("mape_pct", 0.303)])
def test_the_macro_average_reproduces_the_papers_figures(metric, reduction):
    pairs = [
        tuple(
            paper_tables.find_published(paper_tables.AGENTS, name, method, metric).value
            for method in (COMPEVO, "mad-rl")
        )
        for name in paper_tables.DATASETS
    ]
    assert paper_tables.macro_reduction(pairs) == pytest.approx(reduction, abs=5e-4)


def test_a_tie_is_half_a_win():
    tasks = {"a": {"x": 1.0, "y": 1.0, "z": 2.0}, "b": {"x": 1.0, "y": 3.0}}
    assert paper_tables.win_rate("x", tasks) == pytest.approx((0.5 + 1 + 1) / 3)
    assert paper_tables.win_rate("z", {"a": {"z": 1.0}}) is None


def test_skill_bounds_what_one_task_can_do():
    tasks = {"a": {"x": 1.0, "persistence": 2.0}, "b": {"x": 1.0, "persistence": 8.0}}
    assert paper_tables.skill_score("x", tasks) == pytest.approx(1 - math.sqrt(1 / 2 * 1 / 8))
    tasks["b"] = {"x": 1.0, "persistence": 1e9}
    assert paper_tables.skill_score("x", tasks) == pytest.approx(1 - math.sqrt(1 / 2 * 0.01))
    assert paper_tables.skill_score("x", {"a": {"x": 1.0}}) is None


def test_seeds_of_one_configuration_give_mean_and_spread():
    many = {"seedless_hash": "many"}
    rows = make_frame(
        *(make_row("compevo", mae, seed=seed, **many) for seed, mae in enumerate((10.0, 14.0))),
        make_row("compevo", 1.0, seedless_hash="one"),
        make_row("compevo", 2.0, refit=True, seed=7, **many),
    )
    score = collect_scores(rows, *SCOPE)["compevo"]

    # The configuration with most seeds, for any error; a refitted model is another one.
    assert (score["mae"], score["seeds"]) == (12.0, 2)
    assert score["mae_sd"] == pytest.approx(math.sqrt(8))


def test_the_largest_budget_stands_for_a_method():
    rows = make_frame(
        make_row("film", 1.0, budget="quick"),
        make_row("film", 2.0, budget="small"),
        make_row("film", 3.0, budget="standard"),
        make_row("film", 5.0, budget="tuned"),
        make_row("dlinear", 2.0, budget="quick"),
    )
    scores = collect_scores(rows, *SCOPE)

    assert (scores["film"]["mae"], scores["film"]["budget"]) == (5.0, "tuned")
    assert scores["dlinear"]["budget"] == "quick"
    texts = paper_tables.error_table(
        [paper_tables.TableLine(m, score, {}) for m, score in scores.items()], ""
    ).rows
    assert {row[-1] for row in texts} == {"1, tuned budget", "1, quick budget"}

    # Every budget of the benchmark has its place.
    passes = [budget.passes for budget in BUDGETS.values()]
    assert passes == sorted(passes, reverse=True)
    assert rank_budget(None) == rank_budget("") == rank_budget("standard")


def test_methods_share_their_largest_common_budget():
    rows = make_frame(
        make_row("compevo", 1.0),
        make_row("compevo", 4.0, budget="small"),
        make_row("compevo", 9.0, budget="quick"),
        make_row("mael", 2.0, budget="standard"),
        make_row("mael", 5.0, budget="small"),
        make_row("film", 3.0, budget="tuned"),
    )
    shared, budget = share_budget(rows, *SCOPE, ["compevo", "mael", "sa"])
    scores = collect_scores(shared, *SCOPE)
    found = {name: score["mae"] for name, score in scores.items()}
    assert (budget, found) == ("small", {"film": 3.0, "compevo": 4.0, "mael": 5.0})

    # No method to share with: the full training counts.
    rows = rows.filter(pl.col("method") != "mael")
    shared, budget = share_budget(rows, *SCOPE, ["compevo", "mael", "sa"])
    assert (budget, collect_scores(shared, *SCOPE)["compevo"]["mae"]) == ("", 1.0)


def test_scores_of_a_scope_are_computed_once():
    inputs = make_inputs()
    scores, _ = inputs.find_scores(*SCOPE)
    assert inputs.find_scores(*SCOPE)[0] is scores
    sharing = ["compevo", "mael"]
    rows = make_frame(*(make_row(name, 9.0, budget="quick") for name in sharing))
    other = replace(inputs, rows=rows)
    assert list(other.find_scores(*SCOPE)[0]) == sharing
    assert [other.find_scores(*SCOPE, sharing=s)[1] for s in (sharing, [])] == ["quick", ""]


def test_tasks_are_series_where_there_are_several():
    scores = collect_scores(make_rows(), *SCOPE)
    tasks = paper_tables.list_tasks(scores)
    alone = {"x": scores["gbm"] | {"by_entity": {"AUD": 1.0}}}

    assert len(tasks) == 5 and set(tasks["NSW1"]) == set(scores)
    assert list(paper_tables.list_tasks(alone)) == ["pooled"]


def test_whole_and_published_test_sets_come_first():
    rows = make_frame(
        make_row("compevo", 1.0, subset="aemo-2021"),
        make_row("compevo", 1.0, subset="n2f-test-100-every-5"),
        make_row("compevo", 1.0),
        make_row("compevo", 1.0, subset="inference-2026-100", split="inference"),
        make_row("tau=0.5", 1.0, subset="other", experiment="experiment-tau"),
    )
    assert list_test_scopes(rows, "electricity") == ["n2f-test-100", "aemo-2021"]


def test_a_printed_mse_that_contradicts_is_named():
    assert paper_tables.list_contradictions(paper_tables.MAIN, "exchange") == [
        "exchange, dlinear: the printed MSE is 0.1 times the square of the printed RMSE."
    ]


def test_rows_survive_files_unless_these_are_broken(tmp_path):
    make_rows().write_csv(tmp_path / "main.csv")
    read = partial(read_inputs, tmp_path, [], mode="archive", generated_at=NOW)
    assert read().rows.equals(make_rows())

    whole = make_frame(make_row("gbm", 1.0))
    for text, named in (
        (whole.drop("mase").write_csv(), r"main\.csv.*mase"),
        (whole.write_csv().replace("12.5", "soon"), r"main\.csv"),
    ):
        (tmp_path / "main.csv").write_text(text)
        with pytest.raises(DataError, match=named):
            read()


def test_the_last_row_of_one_identity_is_kept():
    rows = make_frame(
        make_row("gbm", 1.0),
        make_row("gbm", 2.0),
        make_row("gbm", 3.0, seed=1),
        # Without a subset it covers its split.
        make_row("gbm", 4.0, subset=""),
        make_row("gbm", 5.0, subset=None, split="val"),
    )
    kept = keep_latest(rows)
    assert kept["mae"].to_list() == [2.0, 3.0, 4.0, 5.0]
    assert kept["subset"].to_list()[2:] == ["test", "val"]


def test_seeds_of_one_configuration_become_one_row():
    hashes = {"b": "s", "a": "s", "c": "t", "d": None, "e": None, "f": "", "g": ""}
    rows = make_frame(
        *(
            make_row("compevo", 180.0 + 2 * number, seed=number, config_hash=own, seedless_hash=one)
            for number, (own, one) in enumerate(hashes.items())
        )
    )
    found = average_over_seeds(rows).select("config_hash", "mae", "seeds").rows()

    # Rows that do not name their configuration are not averaged.
    others = [(own, 180.0 + 2 * number, 1) for number, own in enumerate("cdefg", 2)]
    assert found == [("b", 181.0, 2), *others]


def test_pooled_and_ablation_rows_do_not_mix():
    assert "no-grpo" not in select_pooled(make_rows()).get_column("method").to_list()
    ablation = select_pooled(make_rows(), ablation=True)
    assert set(ablation.get_column("experiment")) == {"ablation"}
