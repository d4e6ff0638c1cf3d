"""The asset graph: assets, dependencies, pools, blocking checks, and a light import."""

import subprocess
import sys

import dagster as dg
import pytest

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs.asset_keys import target_days
from compevo_pipeline.defs.jobs import job_name, run_config
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.storage.runs import set_current_run

DATASETS = ("electricity", "electricity-operational", "exchange", "bitcoin", "traffic")

USERS_OF_THE_GPU = (
    *("models/compevo", "evaluation/test", "evaluation/lud", "ablation/variants"),
    "benchmark/methods",
)

# Traffic has windows of hours that start within a day.
FORECAST = ("electricity", "exchange", "bitcoin")
FORECASTS = {
    f"forecast/{name}{dataset}"
    for name in ("next_day", "scored")
    for dataset in ("", *(f"/{d}" for d in FORECAST))
}


@pytest.mark.parametrize(
    ("mode", "meaning"),
    [(Mode.SAMPLE, "synthetic data"), (Mode.ARCHIVE, "files"), (Mode.LIVE, "endpoints")],
)
def test_every_asset_and_the_launchpad_say_the_mode_before_anything_runs(tmp_path, mode, meaning):
    settings = Settings(home=tmp_path, mode=mode, archive=tmp_path)
    defs = build_defs(settings)
    graph = defs.resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        shown = graph.get(key).description
        assert shown.startswith(f"[{mode}: ") and meaning in shown.split("]")[0]
        assert mode in graph.get(key).kinds
    assert meaning in defs.metadata["mode"].value

    # What the launchpad fills in.
    resolved = dg.validate_run_config(defs.resolve_job_def("full"), {})
    assert resolved["resources"]["workspace"]["config"]["mode"] == mode


def test_every_asset_has_an_owner_a_description_a_kind_and_a_group(graph):
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert node.owners and node.description and node.kinds, key
        assert node.group_name == key.path[0]


def test_writers_of_the_news_file_and_users_of_the_gpu_share_pools(graph):
    pools = {key.to_user_string(): graph.get(key).pools for key in graph.get_all_asset_keys()}
    assert {name for name, pool in pools.items() if pool == {"duckdb"}} == {"news/articles"}
    assert {name for name, pool in pools.items() if pool == {"gpu"}} == {
        *(f"{name}/{d}" for name in USERS_OF_THE_GPU for d in DATASETS),
        *(name for name in FORECASTS if "next_day" in name),
        *("leakage/inference_2026", "evidence/control", "evidence/text"),
    }


def test_checks_that_find_leaks_or_broken_data_block_what_is_downstream(graph):
    blocking = {
        (k.asset_key.to_user_string(), k.name)
        for k in graph.asset_check_keys
        if graph.get_check_spec(k).blocking
    }
    for name in (
        "artifact_unchanged",
        "available_before_origin",
        "nothing_of_2026_in_training",
        "every_window_scored",
    ):
        assert ("leakage/inference_2026", name) in blocking
    for dataset in DATASETS:
        assert ("windows/" + dataset, "splits_disjoint") in blocking
        assert {
            ("series/" + dataset, n) for n in ("schema", "grid", "units", "duplicates", "ranges")
        } < blocking
        assert ("series/" + dataset, "gaps") not in blocking


def made_by(defs, job):
    keys = defs.resolve_job_def(job).asset_layer.executable_asset_keys
    return {key.to_user_string() for key in keys}


@pytest.mark.parametrize("dataset", DATASETS)
def test_demo_and_full_run_everything_of_one_data_set(defs, graph, dataset):
    everything = {key.to_user_string() for key in graph.get_all_asset_keys()}
    trained_and_scored = {name for name in everything if name.count("/") == 2}
    of_others = {name for name in trained_and_scored if not name.endswith(f"/{dataset}")}
    # A job has no partitions, and the methods of the benchmark are partitions.
    on_demand = {name for name in everything if name.startswith(("benchmark/", "evidence/"))}
    expected = everything - of_others - FORECASTS - on_demand - {"sources/coverage"}
    if dataset != "electricity":
        # Nothing of other data sets is read either.
        others = set(DATASETS) - {dataset}
        expected -= {f"{layer}/{other}" for layer in ("series", "windows") for other in others}
        expected -= {"leakage/inference_2026"}
    for name in ("demo", "full"):
        assert made_by(defs, job_name(name, dataset)) == expected


NEWS_AND_REPORT = {"news/articles", "news/embeddings", "report/site", "report/cleaned"}


@pytest.mark.parametrize("trained", [False, True])
def test_refresh_trains_nothing_and_checks_the_2026_inference_of_a_population_that_exists(
    tmp_path, trained
):
    settings = Settings(home=tmp_path)
    if trained:
        set_current_run(settings.layout(Mode.SAMPLE), "electricity", "one")
    defs = build_defs(settings)
    read = ("electricity-operational", *(["electricity"] if trained else []))
    assert made_by(defs, "refresh") == NEWS_AND_REPORT | {
        *(f"{layer}/{dataset}" for layer in ("series", "windows") for dataset in read),
        *("forecast/next_day", "forecast/scored"),
        *(["leakage/inference_2026"] if trained else []),
    }
    assert defs.resolve_job_def("refresh").partitions_def == target_days


@pytest.mark.parametrize("dataset", ["electricity", "exchange", "bitcoin", "traffic"])
def test_each_other_data_set_has_a_refresh_of_its_own_with_days_where_its_windows_have(
    defs, dataset
):
    days = () if dataset == "traffic" else ("forecast/next_day", "forecast/scored")
    job = job_name("refresh", dataset)
    assert made_by(defs, job) == NEWS_AND_REPORT | {
        f"{layer}/{dataset}" for layer in ("series", "windows", *days)
    }
    assert (defs.resolve_job_def(job).partitions_def is None) is (dataset == "traffic")


def test_every_job_shows_that_its_runs_live(defs):
    for job in defs.resolve_all_job_defs():
        # A run that does not would count as started for days when its machine dies.
        assert "watch_dead_runs" in job.executor_def.executor_creation_fn.__qualname__, job.name


def test_the_demo_runs_on_sample_data_whatever_the_deployment_does(tmp_path):
    archive = Settings(home=tmp_path, mode=Mode.ARCHIVE, archive=tmp_path)
    job = build_defs(archive).resolve_job_def("demo")
    config = job.run_config
    assert config == run_config("demo")
    assert config["resources"]["workspace"]["config"] == {"mode": "sample"}


def test_loading_the_definitions_imports_no_heavy_library():
    heavy = (
        *("torch", "transformers", "peft", "sentence_transformers"),
        *("great_expectations", "matplotlib", "plotly", "dagster_k8s"),
        *("lightgbm", "sklearn", "scipy", "pandas", "holidays"),
    )
    code = (
        f"import sys, compevo_pipeline.definitions; print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
