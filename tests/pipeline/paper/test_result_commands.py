"""Assets and commands that make rows and show them: benchmark, context, tables, audit-news."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from functools import partial

import dagster as dg
import polars as pl
import pytest

from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, SourceAbsent
from compevo_core.evaluation.result_rows import POOLED, read_typed, write_rows
from compevo_core.paper.changes import find_variant
from compevo_core.paper.declared import find_budget
from compevo_core.paper.method_table import Method, find_method
from compevo_core.paper.news_audit import AUDIT_SCHEMA
from compevo_core.paper.planted_news import PlantedNews, plant_news
from compevo_core.paper.report.inputs import read_configs, read_result_file
from compevo_core.paper.run_traces import TRACE_SCHEMA
from compevo_core.runtime.files import write_json
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.cli.results import ERRORS, render_scores
from compevo_pipeline.paper import runs
from compevo_pipeline.paper.runs import BenchmarkData, replace_rows
from tests.support.commands import invoke
from tests.support.context_tasks import write_task
from tests.support.deployment import deploy, open_home
from tests.support.nemweb import price_file
from tests.support.planted import sentence_encoder
from tests.support.population import windows as make_windows
from tests.support.report_samples import make_rows
from tests.support.round_records import round_record
from tests.support.tiny_time_series_models import save_timesfm
from tests.support.window_samples import make_set, make_window

ASSET = "research/benchmark/electricity"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    deployment = deploy(tmp_path_factory.mktemp("home"))
    names = ["train"] * 12 + ["val"] * 4 + ["test"] * 4
    subsets = {"test": ("n2f-test-100", "aemo-2021")}
    windows = [make_window(i, split=n, subsets=subsets.get(n, ())) for i, n in enumerate(names)]
    make_set(windows).write(deployment.layout.windows("electricity"))
    return deployment


def run(deployment, partition, **config):
    settings = {"budget": "quick", **config}
    deployment.materialize(ASSET, partition=partition, config={ASSET: settings})
    return read_result_file(deployment.layout.results / "benchmark-electricity.csv").filter(
        pl.col("entity") == POOLED, pl.col("subset") == "n2f-test-100"
    )


def test_a_partition_replaces_its_own_rows(deployment):
    run(deployment, "dlinear-seed3")
    run(deployment, "persistence-seed0")
    rows = run(deployment, "dlinear-seed1")
    found = rows.select("method", "seed", "budget").rows()
    assert found == [("dlinear", 1, "quick"), ("dlinear", 3, "quick"), ("persistence", 0, None)]

    again = run(deployment, "dlinear-seed3")
    assert again.select("method", "seed", "budget").rows() == found
    assert (again["train_seconds"] != rows["train_seconds"]).to_list() == [False, True, False]
    assert again["mae"].to_list() == rows["mae"].to_list()

    files = deployment.layout.forecasts / "benchmark-electricity"
    names = ["dlinear-quick-seed1", "dlinear-quick-seed3", "persistence-seed0"]
    assert sorted(path.name for path in files.iterdir()) == [f"{name}.parquet" for name in names]


def test_agents_train_a_run_per_seed(deployment):
    given = []

    def fit(inputs):
        given.append(inputs.training)
        folder = RunFolder(inputs.training.folder)
        folder.path.mkdir(parents=True)
        for number in range(2):
            folder.append_round(round_record(number))
        return find_method("persistence").fit(inputs)

    def configure(inputs):
        return RunConfig.preset("tiny").with_overrides({"run.seed": inputs.seed})

    agents = Method(name="made-up", family="agents", fit=fit, configure=configure, leaves_run=True)
    workspace = open_home(deployment.home)
    data = BenchmarkData.read(workspace, "electricity")
    inputs = data.prepare(workspace, agents, find_budget("quick"))
    for seed in (0, 1):
        data.run(agents, inputs, seed)

    folders = [training.folder for training in given]
    seeded = [replace(inputs, seed=seed) for seed in (0, 1)]
    assert folders == [data.find_run(agents, one) for one in seeded]
    assert {folder.parent for folder in folders} == {deployment.layout.run("any").parent}
    for seed, folder in enumerate(folders):
        assert folder.name.startswith(f"benchmark-electricity-made-up-quick-seed{seed}-")
        assert configure(seeded[seed]).hash[:8] in folder.name
    # Rows name their settings only by the hash.
    assert set(read_configs(data.rows.parent)) == {configure(one).hash for one in seeded}
    # The data behind the figures of mechanism goes next to the rows.
    traces = read_typed(data.rows.with_name("traces-electricity.csv"), TRACE_SCHEMA)
    found = traces.select("method", "budget", "seed").unique().sort("seed").rows()
    assert found == [("made-up", "quick", 0), ("made-up", "quick", 1)]
    assert all(training.fit is data.fit for training in given)
    # Other methods leave no run, and get none.
    assert data.find_run(find_method("dlinear"), inputs) is None


@pytest.mark.parametrize("preset", ["tiny", "paper"])
def test_news_are_found_by_the_methods_encoder(deployment, monkeypatch, preset):
    # The text does not matter here: the name of the encoder represents it.
    monkeypatch.setattr(runs, "read_news", lambda _, encoder, views, *, log: encoder)
    workspace = open_home(deployment.home, preset=preset)
    data = BenchmarkData.read(workspace, "electricity")
    inputs = data.prepare(workspace, find_method("compevo"), find_budget("quick"))
    assert inputs.news == find_method("compevo").configure(inputs).news.encoder
    assert inputs.news != RunConfig.preset(preset).news.encoder


@pytest.mark.slow
def test_a_pretrained_model_is_named_by_the_launch(deployment, tmp_path):
    model = str(save_timesfm(tmp_path / "tiny-timesfm"))
    with pytest.raises(dg.Failure, match="zero_shot_model"):
        run(deployment, "zero-shot-seed0")

    rows = run(deployment, "zero-shot-seed0", zero_shot_model=model)
    (row,) = rows.filter(pl.col("method") == "zero-shot-tiny-timesfm").to_dicts()
    assert (row["possibly_memorised"], row["trainable_parameters"]) == (True, 0)


def test_parallel_writers_lose_no_row(deployment, tmp_path):
    rows = run(deployment, "dlinear-seed1").filter(
        pl.col("method").is_in(["dlinear", "persistence"]), pl.col("seed") < 2
    )
    rows = rows.with_columns(pl.col(pl.String).fill_null(""))
    parts = [rows.with_columns(pl.lit(seed, dtype=pl.Int64).alias("seed")) for seed in range(12)]
    path = tmp_path / "benchmark-electricity.csv"
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda part: replace_rows(path, part), reversed(parts)))

    write_rows(tmp_path / "at-once.csv", pl.concat(parts).sort("method", "seed"))
    assert path.read_bytes() == (tmp_path / "at-once.csv").read_bytes()
    assert {file.name for file in tmp_path.iterdir()} == {path.name, "at-once.csv"}


@pytest.fixture
def paper_archive(tmp_path):
    """An archive with 20 days of one region, and the split of 18 of them."""
    first = date(2020, 1, 1)
    name, content = price_file("NSW1", first, days=20, minutes=30)
    (tmp_path / "aemo_price_and_demand").mkdir()
    (tmp_path / "aemo_price_and_demand" / name).write_bytes(content)

    table = tmp_path / "compevo_paper" / "paper_original_split.csv"
    table.parent.mkdir()
    splits = ["test" if day % 6 == 0 else "val" if day % 6 == 1 else "train" for day in range(18)]
    days = [first + timedelta(days=2 + day) for day in range(18)]
    lines = [f"NSW1,{day},{split}" for day, split in zip(days, splits, strict=True)]
    table.write_text("region,target_day,split\n" + "\n".join(lines))
    return tmp_path


def test_windows_of_the_paper_are_scored(paper_archive, tmp_path, monkeypatch):
    home = tmp_path / "home"
    workspace = open_home(home, "archive", archive=paper_archive)
    data = BenchmarkData.read(workspace, "paper-original")
    for name in ("persistence", "last-week", "calendar-ridge", "train-look-up"):
        method = find_method(name)
        if data.can_run(method):
            data.run(method, data.prepare(workspace, method, find_budget("quick")), 0)

    rows = read_result_file(workspace.layout.results / "benchmark-paper-original.csv")
    pooled = rows.filter(pl.col("entity") == POOLED, pl.col("subset") == "paper-original")
    # The first days have no last week.
    assert set(pooled["method"]) >= {"persistence", "calendar-ridge", "train-look-up"}
    assert "last-week" not in set(pooled["method"])
    assert pooled["leaky"].all()
    assert set(pooled["n_windows"]) == {3}
    (row,) = pl.read_csv(workspace.layout.results / "paper-windows.csv").to_dicts()
    assert (row["train"], row["val"], row["test"]) == (12, 3, 3)

    monkeypatch.setenv("COMPEVO_ARCHIVE", str(paper_archive))
    pair = partial(invoke, "paper", "pair", "paper-original", home=home, mode="archive")
    for method in ("persistence", "calendar-ridge", "persistence"):
        pair("--method", method)
    pairs = pl.read_csv(workspace.layout.results / "paired-benchmark-paper-original.csv")
    assert set(pairs["method_a"]) == {"persistence", "calendar-ridge"}
    of_naive = pairs.filter(method_a="persistence", subset="paper-original")
    assert {"calendar-ridge", "train-look-up"} <= set(of_naive["method_b"])
    assert of_naive["method_b"].is_unique().all() and pairs["budget"].null_count() == len(pairs)

    thinned = BenchmarkData.read(workspace, "paper-original", every=2)
    for method in map(find_method, ("persistence", "calendar-ridge")):
        thinned.run(method, thinned.prepare(workspace, method, find_budget("quick")), 0)
    pair("--method", "persistence", "--every", "2")
    both = pl.read_csv(workspace.layout.results / "paired-benchmark-paper-original.csv")
    assert "paper-original-every-2" in set(both["subset"]) and len(both) > len(pairs)

    (paper_archive / "compevo_paper" / "paper_original_split.csv").unlink()
    with pytest.raises(SourceAbsent, match=r"paper_original_split\.csv"):
        BenchmarkData.read(workspace, "paper-original")


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


def test_every_method_has_rows_with_cost(tmp_path):
    names = ["train"] * 24 + ["val"] * 6 + ["test"] * 4
    windows = [make_window(i, split=n, dataset="traffic") for i, n in enumerate(names)]
    WindowSet(windows, dataset="traffic").write(open_home(tmp_path).layout.windows("traffic"))
    words = ("traffic", "--methods", "dlinear,gpt4ts-no-lm", "--seeds", 2)
    shown = invoke("paper", "benchmark", *words, "--results", tmp_path / "rows", home=tmp_path)
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


def test_the_first_test_sets_can_be_scored(tmp_path):
    windows = [make_window(i) for i in range(4)] + [
        make_window(10 + i, split="test", subsets=(subset,))
        for i, subset in enumerate(["n2f-test-100", "aemo-2021"])
    ]
    layout = open_home(tmp_path).layout
    make_set(windows).write(layout.windows("electricity"))

    stored, both = [], ["aemo-2021", "n2f-test-100"]
    for options, expected in (([], both), (["--scopes", "1"], both[1:])):
        benchmark_results = tmp_path / f"results-{len(expected)}"
        words = ("electricity", "--methods", "persistence", *options)
        invoke("paper", "benchmark", *words, "--results", benchmark_results, home=tmp_path)
        rows = pl.read_csv(benchmark_results / "benchmark-electricity.csv")
        assert sorted(rows["subset"].unique()) == expected

        # A set scored by itself takes nothing from the others, whose forecasts are paired.
        (kept,) = layout.forecasts.rglob("persistence-seed0.parquet")
        stored.append(sorted(pl.read_parquet(kept)["subset"]))
    assert stored == [both, both]


def test_rows_are_shown_among_published_ones(tmp_path, monkeypatch):
    write_task(tmp_path / "archive")
    monkeypatch.setenv("COMPEVO_ARCHIVE", str(tmp_path / "archive"))

    shown = invoke("paper", "experiment", "context", "--results", tmp_path, home=tmp_path)

    assert "| 0.750" in shown and "Chronos Large | 0.326" in shown
    rows = pl.read_csv(tmp_path / "context-is-key.csv")
    assert rows["score"].to_list() == [0.75, 0.75] and rows["samples"].to_list() == [25, 25]
