"""A user's own data sets in the graph: the same assets; a broken declaration hurts no one."""

import dagster as dg
import pytest
from dagster._core.execution.api import create_execution_plan

from compevo_core.data.window import WindowSet
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.series_store import SeriesStore
from tests.pipeline.sources.test_registry import SOUND, declare
from tests.support.deployment import deploy
from tests.support.own_tables import declare_demand, write_demand
from tests.support.population import news_pool


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    folder = home / "datasets"
    declare_demand(folder, SOUND, days=60, article_day="2024-01-10")
    declare(folder, SOUND.replace("stamp", "![x](http://host/y)").replace("[grid]", ""), "broken")
    return deploy(home)


def test_own_data_have_all_assets(deployment):
    graph = deployment.defs.resolve_asset_graph()
    graphs = (graph, deployment.research.resolve_asset_graph())
    names = {key.to_user_string() for one in graphs for key in one.executable_asset_keys}
    of_bitcoin = {name.replace("bitcoin", "demand") for name in names if "bitcoin" in name}
    assert len(of_bitcoin) == 10 and of_bitcoin <= names

    embeddings = graph.get(dg.AssetKey(["news", "embeddings"]))
    assert dg.AssetKey(["series", "demand"]) in embeddings.parent_keys


@pytest.mark.parametrize("name", ["full_demand", "refresh_demand"])
def test_its_steps_come_in_order(deployment, name):
    plan = create_execution_plan(deployment.defs.resolve_job_def(name))
    steps = [step.key for step in plan.get_all_steps_in_topo_order()]
    assert steps.index("series__demand") < steps.index("news__embeddings")
    assert steps[-2:] == ["report__site", "report__cleaned"]


def test_no_other_job_reads_users_files(deployment):
    own = {dg.AssetKey(["series", "demand"]), dg.AssetKey(["windows", "demand"])}
    for name in ("demo", "full", "refresh", "full_traffic", "refresh_exchange"):
        job = deployment.defs.resolve_job_def(name)
        assert not own & set(job.asset_layer.executable_asset_keys), name
    for name in ("full_demand", "refresh_demand"):
        job = deployment.defs.resolve_job_def(name)
        assert own <= set(job.asset_layer.executable_asset_keys)


def test_a_broken_declaration_is_a_failing_asset(deployment):
    node = deployment.defs.resolve_asset_graph().get(dg.AssetKey(["broken", "broken"]))
    assert "grid is missing" in (node.description or "")

    result = deployment.materialize("broken/broken", raise_on_error=False)
    assert not result.success
    assert "broken.toml" in str(result.failure_data_for_node("broken__broken"))


def test_its_windows_hold_its_own_articles(deployment):
    NewsStore(deployment.layout.news_database).upsert_articles(news_pool().articles)
    deployment.materialize("series/demand", "windows/demand")
    windows = WindowSet.read(deployment.layout.windows("demand"))

    assert not windows.manifest["synthetic"]
    assert set(windows.manifest["n_by_split"]) == {"train", "val", "test"}
    views = windows.views()
    assert {view.task for view in views} == {"Predict the next 48 values of {entity}, 30min each"}
    seen = [view for view in views if view.candidate_ids]
    # 08:00 in Paris on the 10th: from the midnight of the 11th on, for a week.
    midnights = {f"01-{day}T23" for day in range(10, 17)}
    assert {f"{view.origin_utc:%m-%dT%H}" for view in seen} == midnights
    assert all(len(view.candidate_ids) == 1 for view in seen)


def test_a_removed_row_leaves_the_store(deployment):
    folder = deployment.home / "datasets"
    write_demand(folder / "demand.csv", days=50)
    deployment.materialize("series/demand")
    assert SeriesStore(deployment.layout.root).read("demand").height == 50 * 48
