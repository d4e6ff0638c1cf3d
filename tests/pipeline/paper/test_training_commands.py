"""Commands that train and predict: the right windows, processes that share the work."""

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import compevo_core.paper.trials as cross_validation
import compevo_core.training.trainer as trainer
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError, SourceAbsent
from compevo_core.paper.changes import FOLDS, find_variant
from compevo_core.paper.trials import build_folds
from compevo_core.runtime.files import write_json
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.cli import training
from compevo_pipeline.config import endpoints
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.launchers.worker import TrainJob, run_jobs
from compevo_pipeline.storage.news_store import NewsStore
from tests.support import operational
from tests.support.commands import invoke
from tests.support.deployment import deploy
from tests.support.population import join_windows, news_pool, windows
from tests.support.report_samples import make_frame, make_row
from tests.support.window_samples import place_in_folds


@pytest.fixture
def stored(tmp_path):
    placed = place_in_folds(join_windows(("train", 18, 0), ("val", 3, 40)))
    placed.write(tmp_path / "windows")
    news_pool().write(tmp_path / "news")
    return placed


def run(command, folder, *options):
    given = ("--windows", folder / "windows", "--news", folder / "news", "--out", folder / "run")
    return invoke("paper", command, *given, "--preset", "tiny", *options)


@pytest.mark.parametrize("options", [(), ("--validation", "split"), ("--validation", "last-fold")])
def test_the_chosen_validation_windows_reach_the_trainer(tmp_path, stored, monkeypatch, options):
    given = []

    def record(config, train, val, *_, **__):
        given.extend((train.hash, val.hash))
        return {}

    monkeypatch.setattr(trainer, "train", record)
    run("train", tmp_path, *options)
    pair = (stored.split("train"), stored.split("val"))
    if "last-fold" in options:
        pair = build_folds(stored)[-1]
    assert given == [part.hash for part in pair]


def test_command_and_worker_pass_the_endpoint(tmp_path, stored, monkeypatch):
    given = []
    monkeypatch.setattr(trainer, "train", lambda *_, selector, **__: given.append(selector) or {})
    monkeypatch.setattr(endpoints, "read_selector", lambda config: config.evolution.selector)
    changes = {"evolution.selector": "endpoint:m", "evolution.form": "free"}
    options = [f"--set={name}={value}" for name, value in changes.items()]
    run("train", tmp_path, "--variant=mae-gpt", *options)

    config = find_variant("mae-gpt").configure(RunConfig.preset("tiny")).with_overrides(changes)
    places = {name: str(tmp_path / name) for name in ("windows", "news", "out")}
    run_jobs([TrainJob(config=config.to_dict(), **places)], logging.getLogger())
    assert given == ["endpoint:m", "endpoint:m"]


def test_folds_prints_a_table(tmp_path, stored, monkeypatch):
    given = []

    def record(config, windows, *folders, **__):
        given.append((config.population.agents, windows.hash, *folders[1:]))
        folds = [make_row("compevo", 200.0 + k, subset=f"fold-{k}") for k in (0, 2)]
        return make_frame(*(row | {"experiment": FOLDS} for row in folds))

    monkeypatch.setattr(cross_validation, "train_folds", record)
    options = ("--set", "population.agents=2", "--results", tmp_path / "rows")
    printed = run("folds", tmp_path, *options)
    assert given == [(2, stored.hash, tmp_path / "run", tmp_path / "rows")]
    assert "| electricity: CompEvo, fold-2 | 202.0 |" in printed
    assert "| electricity: CompEvo, mean of folds | 201.0 ± 1.4 |" in printed


@pytest.mark.slow
def test_an_experiment_trains_each_change(tmp_path, monkeypatch):
    deployment = deploy(tmp_path / "home")
    cut = join_windows(("train", 6, 0), ("val", 2, 40), ("test", 2, 60))
    cut.write(deployment.layout.windows("electricity"))
    NewsStore(deployment.layout.news_database).upsert_articles(news_pool().articles)
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))

    for words, said in (
        (["agents", "electricity", "--only", "agents=99"], "agents=99"),
        (["contrl"], "control"),
        (["epochs", "electricity", "--budget", "small"], "budget"),
    ):
        with pytest.raises(ConfigError, match=said):
            invoke("paper", "experiment", *words)
    assert not deployment.layout.results.exists()

    given = ["--preset", "tiny", "--budget", "quick", "--set", "run.rounds=1"]
    names = "instruction=original,instruction=paraphrased"
    shown = invoke("paper", "experiment", "instruction", "electricity", "--only", names, *given)
    results = deployment.layout.results
    assert shown.endswith(f"compevo paper table sensitivity --results {results}\n")
    rows = pl.read_csv(deployment.layout.results / "experiment-instruction-electricity.csv")
    assert set(rows["method"]) == set(names.split(","))
    assert set(rows["budget"]) == {"quick"}
    paired = deployment.layout.results / "paired-experiment-instruction-electricity.csv"
    assert pl.read_csv(paired)["method_b"].unique().to_list() == ["instruction=original"]

    # They differ only after the supervised stage, which is trained once: equal to the second.
    def list_runs():
        runs = deployment.layout.run("any").parent.glob("experiment-electricity-*")
        return sorted(run for run in runs if run.is_dir())

    records = [RunFolder(run).read_rounds() for run in list_runs()]
    assert len(records) == 2
    first, second = ([(r.stage, r.seconds) for r in run] for run in records)
    assert first[:3] == second[:3] and first[3:] != second[3:]
    assert [stage for stage, _ in first] == ["supervised"] * 3 + ["evolution"]
    assert not any(deployment.layout.stages.iterdir())

    # What another experiment compares with is the same training: it is not made again.
    kept = list_runs()
    weight = RunConfig.preset("tiny").objective.lambda_pg
    only = f"lambda-pg={weight:g}"
    invoke("paper", "experiment", "lambda-pg", "electricity", "--only", only, *given)
    assert list_runs() == kept


def test_a_run_of_another_system_is_refused(tmp_path, monkeypatch):
    layout = deploy(tmp_path).layout
    join_windows(("test", 2, 0)).write(layout.windows("electricity"))
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path))
    run = layout.run("other")
    config = find_variant("mael").configure(RunConfig.preset("tiny"))
    write_json(RunFolder(run).model_config_file, config.to_dict())

    for name, said in (("news", "run of mael.* of compevo"), ("news-mad-rl", "mael.* of mad-rl")):
        with pytest.raises(ConfigError, match=said):
            invoke("paper", "experiment", name, "electricity", "--run", run)


def test_a_numeric_method_needs_no_news(tmp_path, monkeypatch):
    layout = Layout(root=tmp_path / "sample")
    operational.store_until(layout, operational.NOW)
    deployment = operational.open_workspace(layout)

    def ingest_series_alone(deployment, dataset, **_):
        if dataset == "news":
            raise SourceAbsent("no file of news")
        return {}

    monkeypatch.setattr("compevo_pipeline.work.ingest.ingest_dataset", ingest_series_alone)
    with pytest.raises(SourceAbsent):
        training._prepare_windows(deployment, operational.DATASET, "hashing")
    assert len(training._prepare_windows(deployment, operational.DATASET, ""))


@pytest.fixture
def places(tmp_path, tiny_run):
    """Copy a small run; return the options that name it and what to forecast."""
    windows("inference", 2, first_day=40).write(tmp_path / "windows")
    news_pool().write(tmp_path / "news")
    shutil.copytree(tiny_run, tmp_path / "run")
    given = (tmp_path / "run", "--windows", tmp_path / "windows", "--news", tmp_path / "news")
    return list(map(str, given))


@pytest.mark.slow
def test_a_shared_backbone_forecasts_alike(places, tmp_path):
    alone, together = tmp_path / "alone.parquet", tmp_path / "together.parquet"
    invoke("paper", "predict", *places, "--out", alone)

    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["compevo_pipeline.cli.main", "paper", "predict", *places, "--out", str(together)]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", *command, "--shard-backbone"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("windows, ") == 1
    forecast, expected = pl.read_parquet(together), pl.read_parquet(alone)
    assert forecast["value"].is_not_null().all()
    assert_frame_equal(forecast, expected, rel_tol=1e-5, abs_tol=1e-4)


def test_one_process_cannot_share_a_backbone(places, tmp_path):
    out = tmp_path / "forecast.parquet"
    with pytest.raises(ConfigError, match="several"):
        invoke("paper", "predict", *places, "--out", out, "--shard-backbone")
    assert not out.exists()
