"""Research as assets and commands: variants under every seed, and the control."""

import json
from dataclasses import replace

import polars as pl
import pytest

from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA
from compevo_core.evaluation.result_rows import RESULT_SCHEMA
from compevo_core.paper import control
from compevo_core.paper.changes import list_changes
from compevo_core.paper.control import ControlPlan, list_cells
from compevo_core.paper.planted_news import CONTROL_SCHEMA, SPECIALISTS_SCHEMA
from compevo_core.paper.report.inputs import read_configs
from compevo_pipeline.paper.assets import AblationConfig
from compevo_pipeline.paper.runs import run_control_on, run_specialists_on
from compevo_pipeline.storage.news_store import NewsStore
from tests.support import population as small
from tests.support.commands import invoke
from tests.support.deployment import deploy
from tests.support.live import LOG
from tests.support.planted import base_windows, search

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


def _write_preset(path):
    tree = search(run__rounds=2, grpo__group_size=2).to_dict()
    lines = []
    for section, values in tree.items():
        known = {k: v for k, v in values.items() if v is not None and v != ()}
        lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in known.items())]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    deployment = deploy(tmp_path_factory.mktemp("home"))
    base_windows().write(deployment.layout.windows("electricity"))
    return deployment


@pytest.mark.slow
def test_asset_and_command_write_equal_rows(deployment, tmp_path):
    preset = _write_preset(tmp_path / "short.toml")
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


def test_unknown_series_are_named(deployment):
    plan = ControlPlan(config=search(), series=["XYZ"])
    with pytest.raises(ConfigError, match=r"'XYZ'.*NSW1, SA1"):
        run_control_on(deployment, "electricity", plan, log=LOG)
