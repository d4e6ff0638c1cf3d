"""What new data marks as stale: what was made of it, and nothing of other data sets."""

import time

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from compevo_pipeline.partitions import DATASETS
from tests.support.deployment import deploy


@pytest.fixture
def deployment(tmp_path):
    made = deploy(tmp_path)
    for key in ("news/articles", "news/embeddings"):
        report(made, key)
    for layer in ("series", "windows", "models/compevo", "evaluation/baselines"):
        for dataset in DATASETS:
            report(made, f"{layer}/{dataset}")
    return made


def report(deployment, key):
    """Store a materialization as a run would."""
    time.sleep(0.002)  # Dagster compares the times of such events
    event = dg.AssetMaterialization(dg.AssetKey(key.split("/")))
    deployment.instance.report_runless_asset_event(event)


def stale(deployment):
    graph = deployment.defs.resolve_asset_graph()
    context = LoadingContextForTest(deployment.instance)
    resolver = CachingStaleStatusResolver(deployment.instance, graph, context)
    return {
        key.to_user_string()
        for key in graph.get_all_asset_keys()
        if resolver.get_status(key) == StaleStatus.STALE
    }


def test_new_windows_of_traffic_mark_what_was_made_of_traffic_and_nothing_else(deployment):
    assert stale(deployment) == set()
    report(deployment, "windows/traffic")
    assert stale(deployment) == {"models/compevo/traffic", "evaluation/baselines/traffic"}


def test_new_windows_of_electricity_mark_its_model(deployment):
    report(deployment, "windows/electricity")
    assert "models/compevo/electricity" in stale(deployment)


@pytest.mark.parametrize("dataset", DATASETS)
def test_what_a_model_is_made_of_is_its_own_data_set_and_the_news(deployment, dataset):
    graph = deployment.defs.resolve_asset_graph()
    upstream = dg.AssetSelection.assets(f"models/compevo/{dataset}").upstream().resolve(graph)
    assert {key.to_user_string() for key in upstream} == {
        *(f"{layer}/{dataset}" for layer in ("series", "windows", "models/compevo")),
        *("news/articles", "news/embeddings"),
    }
