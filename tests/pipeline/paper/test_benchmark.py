"""The benchmark's assets: one method and seed per partition, and rows that do not race."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta

import dagster as dg
import polars as pl
import pytest

from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import SourceAbsent
from compevo_core.evaluation.result_rows import POOLED, read_typed, write_rows
from compevo_core.paper.declared import find_budget
from compevo_core.paper.method_table import Method, find_method
from compevo_core.paper.report.inputs import read_configs, read_result_file
from compevo_core.paper.run_traces import TRACE_SCHEMA
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.paper import runs
from compevo_pipeline.paper.runs import BenchmarkData, replace_rows
from tests.support.commands import invoke
from tests.support.deployment import deploy, open_home
from tests.support.nemweb import price_file
from tests.support.round_records import round_record
from tests.support.tiny_time_series_models import save_timesfm
from tests.support.window_samples import make_window

ASSET = "research/benchmark/electricity"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    deployment = deploy(tmp_path_factory.mktemp("home"))
    names = ["train"] * 12 + ["val"] * 4 + ["test"] * 4
    subsets = {"test": ("n2f-test-100", "aemo-2021")}
    windows = [
        make_window(i, split=name, subsets=subsets.get(name, ())) for i, name in enumerate(names)
    ]
    WindowSet(windows, dataset="electricity").write(deployment.layout.windows("electricity"))
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

    for name, value in {"HOME": home, "MODE": "archive", "ARCHIVE": paper_archive}.items():
        monkeypatch.setenv(f"COMPEVO_{name}", str(value))
    for method in ("persistence", "calendar-ridge", "persistence"):
        invoke("paper", "pair", "paper-original", "--method", method)
    pairs = pl.read_csv(workspace.layout.results / "paired-benchmark-paper-original.csv")
    assert set(pairs["method_a"]) == {"persistence", "calendar-ridge"}
    of_naive = pairs.filter(method_a="persistence", subset="paper-original")
    assert {"calendar-ridge", "train-look-up"} <= set(of_naive["method_b"])
    assert of_naive["method_b"].is_unique().all() and pairs["budget"].null_count() == len(pairs)

    thinned = BenchmarkData.read(workspace, "paper-original", every=2)
    for method in map(find_method, ("persistence", "calendar-ridge")):
        thinned.run(method, thinned.prepare(workspace, method, find_budget("quick")), 0)
    invoke("paper", "pair", "paper-original", "--method", "persistence", "--every", "2")
    both = pl.read_csv(workspace.layout.results / "paired-benchmark-paper-original.csv")
    assert "paper-original-every-2" in set(both["subset"]) and len(both) > len(pairs)

    (paper_archive / "compevo_paper" / "paper_original_split.csv").unlink()
    with pytest.raises(SourceAbsent, match=r"paper_original_split\.csv"):
        BenchmarkData.read(workspace, "paper-original")
