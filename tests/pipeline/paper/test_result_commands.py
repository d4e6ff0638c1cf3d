"""Commands that make rows and show them: benchmark, context, tables, audit-news."""

import re

import polars as pl
import pytest

from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.result_rows import read_typed, write_rows
from compevo_core.paper.changes import find_variant
from compevo_core.paper.news_audit import AUDIT_SCHEMA
from compevo_core.paper.planted_news import PlantedNews, plant_news
from compevo_core.paper.run_traces import TRACE_SCHEMA
from compevo_core.runtime.files import write_json
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.cli.results import ERRORS, render_scores
from tests.support.commands import invoke
from tests.support.context_tasks import write_task
from tests.support.deployment import open_home
from tests.support.planted import sentence_encoder
from tests.support.population import windows as make_windows
from tests.support.report_samples import make_rows
from tests.support.round_records import round_record
from tests.support.window_samples import make_set, make_window


def test_tables_of_paper_and_methods_are_printed(tmp_path):
    write_rows(tmp_path / "main.csv", make_rows())
    paper = invoke("paper", "table", "main", "--results", tmp_path)
    # Rows of other windows are not next to the paper's figures.
    assert "| no row | **220.15 ± 2.40** |" in paper and "| CompEvo | 198.4 |" in paper
    assert invoke("paper", "table", "--results", tmp_path) != paper


@pytest.mark.parametrize("command", ["table main --results", "table --results", "report"])
def test_an_absent_folder_of_rows_is_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=str(tmp_path / "none")):
        invoke("paper", *command.split(), tmp_path / "none")
    # No product that looks finished.
    assert not any(tmp_path.iterdir())


def test_a_trace_has_system_and_seed(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.model.mkdir(parents=True)
    config = find_variant("mael").configure(RunConfig.preset("tiny"))
    write_json(run.model_config_file, config.with_overrides({"run.seed": 5}).to_dict())
    run.append_round(round_record(0))

    out = tmp_path / "results"
    paths = invoke("paper", "trace", run.path, "electricity", "--results", out).split()
    assert paths == [str(out / f"{name}-electricity.csv") for name in ("traces", "logics")]
    rows = read_typed(out / "traces-electricity.csv", TRACE_SCHEMA)
    assert rows.select("method", "budget", "seed").unique().rows() == [("mael", "", 5)]


@pytest.mark.slow
def test_a_probe_tells_region_effect_and_power(tmp_path):
    days = make_set([*make_windows("train", 200), *make_windows("val", 15, first_day=210)])
    planted = PlantedNews(effect=3.0, is_regional=True, share=0.1)
    world = plant_news(days, planted, sentence_encoder())
    world.windows.write(tmp_path / "windows")
    world.news.write(tmp_path / "news")

    paths = ("--windows", tmp_path / "windows", "--news", tmp_path / "news")
    words = ("electricity", "--probe", *paths, "--results", tmp_path / "out")
    printed = invoke("paper", "audit-news", *words)

    rows = pl.read_csv(tmp_path / "out" / "news-audit-electricity.csv", schema=AUDIT_SCHEMA)
    groups = {("all", "all"), *(("series", name) for name in world.windows.entities)}
    assert set(rows.select("group_kind", "group").iter_rows()) == groups
    overall = {row["news"]: row for row in rows.filter(group_kind="all").to_dicts()}
    own = overall["own"]
    assert own["mae"] < min(overall["none"]["mae"], overall["swapped"]["mae"])
    assert overall["none"]["difference"] == own["mae"] - overall["none"]["mae"]
    assert own["p_two_sided"] <= 0.05 and own["seen_from_sd"] <= 2
    assert own["verdict"].startswith("Yes") and own["verdict"] in printed

    with pytest.raises(ConfigError, match="all days"):
        invoke("paper", "audit-news", *words, "--every", 5)


def test_each_test_set_has_a_table():
    subsets = ("operational-2026-200", "operational-2026-200-known-1700")
    facts = {"dataset": "electricity-operational", "split": "test", "entity": "pooled"}
    rows = [
        {name: error for name, _ in ERRORS}
        | facts
        | {"method": "gbm", "subset": subset, "unit": "MW", "n_windows": 200}
        for error, subset in zip((1.5, 2.5), subsets, strict=True)
    ]
    shown = render_scores(pl.DataFrame(rows))
    assert re.findall(r"^Elec.*?gbm +(\S+)", shown, re.M | re.S) == ["1.5", "2.5"]


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COMPEVO_MODE", "sample")
    layout = open_home(tmp_path / "home").layout

    def write(dataset, windows):
        WindowSet(windows, dataset=dataset).write(layout.windows(dataset))
        return layout

    return write


def test_every_method_has_rows_with_cost(tmp_path, store):
    names = ["train"] * 24 + ["val"] * 6 + ["test"] * 4
    store("traffic", [make_window(i, split=n, dataset="traffic") for i, n in enumerate(names)])
    words = ("traffic", "--methods", "dlinear,gpt4ts-no-lm", "--seeds", 2)
    shown = invoke("paper", "benchmark", *words, "--results", tmp_path / "rows")
    assert f"compevo paper table main --results {tmp_path / 'rows'}\n" in shown

    first = pl.read_csv(tmp_path / "rows" / "benchmark-traffic.csv").filter(entity="pooled")
    assert first["method"].to_list() == ["dlinear"] * 2 + ["gpt4ts-no-lm"] * 2
    assert first["seed"].to_list() == [0, 1, 0, 1]
    assert first["n_windows"].unique().to_list() == [4]
    assert set(first["trainable_parameters"]) == {4_704, 175_728}
    for column in ("train_seconds", "seconds_per_window", "peak_memory_gb"):
        assert (first[column] > 0).all()
    assert set(first["budget"]) == {"standard"}
    assert set(first["learning_rate"]) == {0.001}


def test_the_first_test_sets_can_be_scored(tmp_path, store):
    windows = [make_window(i) for i in range(4)] + [
        make_window(10 + i, split="test", subsets=(subset,))
        for i, subset in enumerate(["n2f-test-100", "aemo-2021"])
    ]
    layout = store("electricity", windows)

    stored, both = [], ["aemo-2021", "n2f-test-100"]
    for options, expected in (([], both), (["--scopes", "1"], both[1:])):
        benchmark_results = tmp_path / f"results-{len(expected)}"
        words = ("electricity", "--methods", "persistence", *options)
        invoke("paper", "benchmark", *words, "--results", benchmark_results)
        rows = pl.read_csv(benchmark_results / "benchmark-electricity.csv")
        assert sorted(rows["subset"].unique()) == expected

        # A set scored by itself takes nothing from the others, whose forecasts are paired.
        (kept,) = layout.forecasts.rglob("persistence-seed0.parquet")
        stored.append(sorted(pl.read_parquet(kept)["subset"]))
    assert stored == [both, both]


@pytest.fixture
def archive(tmp_path, monkeypatch):
    write_task(tmp_path / "archive")
    monkeypatch.setenv("COMPEVO_ARCHIVE", str(tmp_path / "archive"))
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))


def test_rows_are_shown_among_published_ones(archive, tmp_path):
    shown = invoke("paper", "experiment", "context", "--results", tmp_path)
    assert "| 0.750" in shown and "Chronos Large | 0.326" in shown
    rows = pl.read_csv(tmp_path / "context-is-key.csv")
    assert rows["score"].to_list() == [0.75, 0.75] and rows["samples"].to_list() == [25, 25]
