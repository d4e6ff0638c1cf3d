"""Assets and commands that train: variants under every seed, the control, folds, one run."""

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import compevo_core.paper.trials as cross_validation
import compevo_core.training.trainer as trainer
from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, SourceAbsent
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA
from compevo_core.evaluation.result_rows import RESULT_SCHEMA
from compevo_core.paper import control
from compevo_core.paper.changes import FOLDS, find_variant, list_changes
from compevo_core.paper.control import ControlPlan, list_cells
from compevo_core.paper.planted_news import CONTROL_SCHEMA, SPECIALISTS_SCHEMA
from compevo_core.paper.report.inputs import read_configs
from compevo_core.paper.trials import build_folds
from compevo_core.runtime.files import write_json
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.cli import training
from compevo_pipeline.config import endpoints
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.launchers.worker import TrainJob, run_jobs
from compevo_pipeline.paper.assets import AblationConfig
from compevo_pipeline.paper.runs import run_control_on, run_specialists_on
from compevo_pipeline.storage.news_store import NewsStore
from tests.support import operational
from tests.support import population as small
from tests.support.commands import invoke
from tests.support.deployment import deploy, open_home
from tests.support.live import LOG
from tests.support.planted import base_windows, search
from tests.support.population import join_windows, news_pool, windows
from tests.support.report_samples import make_frame, make_row
from tests.support.window_samples import place_in_folds

VARIANTS = ["compevo", "no-grpo", "swapped-news"]
SEEDS = [0, 1]
SETTINGS = {"population": {"agents": 2}, "run": {"rounds": 1, "validate_every": 0}}


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    """A deployment without sources, in which two seeds of three variants were trained."""
    deployment = deploy(tmp_path_factory.mktemp("home"))
    days = small.join_windows(("train", 6, 0), ("val", 2, 40), ("test", 2, 60), ("test", 2, 100))
    # Other news every day: this shows which day lends its news.
    ids = tuple(small.article_ids())
    varied = [one.change_view(candidate_ids=ids[day % len(ids) :]) for day, one in enumerate(days)]
    days.with_windows(varied).write(deployment.layout.windows("electricity"))
    NewsStore(deployment.layout.news_database).upsert_articles(small.news_pool().articles)

    config = {"variants": VARIANTS, "seeds": SEEDS, "settings": SETTINGS}
    asset = "research/ablation"
    deployment.materialize(asset, dataset="electricity", config={asset: config})
    return deployment.layout


@pytest.fixture(scope="module")
def pooled(layout):
    path = layout.results / "ablation-electricity.csv"
    rows = pl.read_csv(path, schema_overrides=RESULT_SCHEMA)
    return rows.filter(pl.col("entity") == "pooled")


@pytest.mark.slow
def test_variants_are_scored_under_every_seed(layout, pooled):
    assert pooled.select("method", "seed").rows() == [(v, s) for v in VARIANTS for s in SEEDS]
    trained = [
        json.loads(path.read_text())["run"]["seed"]
        for path in (layout.root / "runs").glob("experiment-electricity-*/config.json")
    ]
    assert sorted(trained) == sorted(SEEDS * len(VARIANTS))
    assert pooled["artifact_hash"].n_unique() == len(pooled)
    assert set(read_configs(layout.results)) == set(pooled["config_hash"])


@pytest.mark.slow
def test_variants_are_paired_with_the_full_method(layout, pooled):
    paired = pl.read_csv(layout.results / "paired-ablation-electricity.csv")
    assert paired.columns == list(PAIRED_TEST_SCHEMA)
    pairs = [("no-grpo", "compevo", 8), ("swapped-news", "compevo", 8)]
    assert paired.select("method_a", "method_b", "n").rows() == pairs

    # All truths are observed: the mean over windows is that over points.
    mae = dict(pooled.group_by("method").agg(pl.col("mae").mean()).iter_rows())
    expected = [mae[variant] - mae["compevo"] for variant in VARIANTS[1:]]
    assert paired["mean_difference"].to_list() == pytest.approx(expected, abs=1e-6)
    assert (paired["interval_low"] <= paired["interval_high"]).all()


@pytest.mark.slow
def test_the_command_finds_what_the_asset_trained(layout, pooled, tmp_path):
    def read_trained():
        return {path: path.read_bytes() for path in layout.root.glob("runs/*/rounds.jsonl")}

    # The full method of the first seed is, as it happens, the model of the data set.
    full = pooled.filter(method="compevo", seed=SEEDS[0])["config_hash"][0][:8]
    data = WindowSet.read(layout.windows("electricity")).training_hash[:8]
    (trial,) = layout.root.glob(f"runs/experiment-electricity-*-{full}-{data}")
    trial.rename(layout.run(f"compevo-electricity-{full}-{data}"))
    before = read_trained()
    changes = [
        f"--set={section}.{name}={value}"
        for section, settings in SETTINGS.items()
        for name, value in settings.items()
    ]
    names = ",".join(VARIANTS)
    main = ["paper", "experiment", "ablation", "electricity", "--only", names, "--preset", "tiny"]
    invoke(*main, "--seeds", len(SEEDS), *changes, "--results", tmp_path, home=layout.root.parent)

    # A training that is made again writes other seconds into its records.
    assert len(before) == len(VARIANTS) * len(SEEDS) and read_trained() == before
    rows = pl.read_csv(tmp_path / "ablation-electricity.csv", schema_overrides=RESULT_SCHEMA)
    assert rows.filter(pl.col("entity") == "pooled")["mae"].to_list() == pooled["mae"].to_list()


def test_seeds_are_named_or_the_runs():
    def select(**fields):
        config = AblationConfig(**fields)
        return config.select_seeds(config.resolve("tiny"))

    assert select(seeds=[5, 2, 5]) == [5, 2]
    assert select(seeds=[5, 2], settings={"run": {"seed": 7}}) == [5, 2]
    assert select(settings={"run": {"seed": 7}}) == [7]
    assert select() == [AblationConfig().resolve("tiny").run.seed]


def test_an_experiment_has_its_own_changes():
    def list_names(config):
        return [change.name for change in config.select_variants()]

    assert list_names(AblationConfig()) == list_changes("variant")
    assert list_names(AblationConfig(experiment="agents"))[:2] == ["agents=1", "agents=2"]
    with pytest.raises(ConfigError, match="no-grpo"):
        AblationConfig(experiment="agents", variants=["no-grpo"]).select_variants()
    with pytest.raises(Exception, match="tau"):
        AblationConfig(experiment="tau")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    deployment = deploy(tmp_path_factory.mktemp("home"))
    base_windows().write(deployment.layout.windows("electricity"))
    return deployment


@pytest.mark.slow
def test_asset_and_command_write_equal_rows(deployment, tmp_path):
    tree = search(run__rounds=2, grpo__group_size=2).to_dict()
    lines = [
        f"{section}.{name} = {json.dumps(value)}"
        for section, values in tree.items()
        for name, value in values.items()
        if value is not None and value != ()
    ]
    preset = str(tmp_path / "short.toml")
    Path(preset).write_text("\n".join(lines))
    choice = {"preset": preset, "effects": [2.0], "seeds": 1, "series": ["NSW1"]}
    deployment.materialize("research/control", config={"research/control": choice})

    layout = deployment.layout
    rows = pl.read_csv(layout.results / "control-electricity.csv", schema_overrides=CONTROL_SCHEMA)
    arms = {"seed-logics", "all-articles", "all-articles-mean", "evolved", "oracle-logics"}
    assert set(rows["arm"]) == arms | {"prior", "no-news", "swapped-news", "best-agent"}
    assert set(rows["n_windows"]) == {30}

    def list_trained():
        manifests = layout.control("electricity").rglob("manifest.json")
        return {path: path.stat().st_mtime_ns for path in manifests}

    trained = list_trained()
    assert len(trained) > len(arms)

    command = ["paper", "experiment", "control", "electricity", "--preset", preset]
    command += ["--effects", "2", "--series", "NSW1", "--results", tmp_path]
    assert "evolved logics" in invoke(*command, home=layout.root.parent)
    again = pl.read_csv(tmp_path / "control-electricity.csv", schema_overrides=CONTROL_SCHEMA)
    assert again.equals(rows)
    assert list_trained() == trained


@pytest.mark.slow
def test_every_arm_of_specialists_is_trained_once(deployment, tmp_path, monkeypatch):
    short = {"run.rounds": 1, "grpo.group_size": 2, "grpo.reward_windows": 40}
    config = RunConfig.preset("specialists").with_overrides(short)
    (cell,) = list_cells(config, worlds=["niches-regional"], effects=[2.0], seeds=1)
    cells = [replace(cell, series=())]
    path = run_specialists_on(deployment, "electricity", cells, log=LOG, results=tmp_path)

    rows = pl.read_csv(path, schema_overrides=SPECIALISTS_SCHEMA)
    after = {"prior", "no-news", "swapped-news"}  # an agent that is read with others has no error
    assert set(rows["arm"]) == after | set(cell.configure_arms(0))
    assert rows["effect_r2"].null_count() == 0 and set(rows["agents"]) == {5}
    share = dict(rows.select("arm", "effect_r2").iter_rows())
    assert share["oracle-joint"] > 0.3 > abs(share["no-news"])

    monkeypatch.setattr(control, "run_control", None)
    run_specialists_on(deployment, "electricity", cells, log=LOG, results=tmp_path)


def test_unknown_series_are_named(tmp_path):
    workspace = open_home(tmp_path)
    join_windows(("train", 2, 0), ("test", 1, 10)).write(workspace.layout.windows("electricity"))
    plan = ControlPlan(config=search(news__encoder="hashing"), series=["XYZ"])

    with pytest.raises(ConfigError, match=r"'XYZ'.*NSW1, SA1"):
        run_control_on(workspace, "electricity", plan, log=LOG)


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
def test_an_experiment_trains_each_change(tmp_path):
    deployment = deploy(tmp_path / "home")
    cut = join_windows(("train", 6, 0), ("val", 2, 40), ("test", 2, 60))
    cut.write(deployment.layout.windows("electricity"))
    NewsStore(deployment.layout.news_database).upsert_articles(news_pool().articles)
    experiment = partial(invoke, "paper", "experiment", home=tmp_path / "home")

    for words, said in (
        (["agents", "electricity", "--only", "agents=99"], "agents=99"),
        (["contrl"], "control"),
        (["epochs", "electricity", "--budget", "small"], "budget"),
    ):
        with pytest.raises(ConfigError, match=said):
            experiment(*words)
    assert not deployment.layout.results.exists()

    given = ["--preset", "tiny", "--budget", "quick", "--set", "run.rounds=1"]
    names = "instruction=original,instruction=paraphrased"
    shown = experiment("instruction", "electricity", "--only", names, *given)
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
    experiment("lambda-pg", "electricity", "--only", f"lambda-pg={weight:g}", *given)
    assert list_runs() == kept


def test_a_run_of_another_system_is_refused(tmp_path):
    layout = deploy(tmp_path).layout
    join_windows(("test", 2, 0)).write(layout.windows("electricity"))
    run = layout.run("other")
    config = find_variant("mael").configure(RunConfig.preset("tiny"))
    write_json(RunFolder(run).model_config_file, config.to_dict())

    for name, said in (("news", "run of mael.* of compevo"), ("news-mad-rl", "mael.* of mad-rl")):
        with pytest.raises(ConfigError, match=said):
            invoke("paper", "experiment", name, "electricity", "--run", run, home=tmp_path)


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
