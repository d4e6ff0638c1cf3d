"""The graph end to end on synthetic electricity with a tiny random backbone, in this process."""

from datetime import timedelta

import polars as pl
import pytest

from compevo_core.agents.logics import list_regions
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.result_rows import RESULT_COLUMNS
from compevo_core.evaluation.scopes import ALL_DAYS, EVENT_DAYS
from compevo_core.paper.planted_news import HEADLINES
from compevo_pipeline.checks.content import find_availability_violations
from compevo_pipeline.sources.common.base import read_planted
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.runs import find_current_run
from tests.support.deployment import deploy, open_home, read_materialization

DATA = ("series/electricity", "news/articles", "news/embeddings", "windows/electricity")
pytestmark = pytest.mark.slow

ONE_ROUND = {"settings": {"run": {"rounds": 1, "validate_every": 0, "checkpoint_every": 1}}}


def metadata(result, key):
    return read_materialization(result, key).metadata


def checks(result):
    found = result.get_asset_check_evaluations()
    return {(check.asset_key.to_user_string(), check.check_name): check for check in found}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    return deploy(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def data(deployment):
    return deployment.materialize(*DATA)


@pytest.fixture(scope="module")
def trained(deployment, data):
    config = {
        "models/compevo": ONE_ROUND,
        "evaluation/baselines": {"seeds": 1},
        "evaluation/test": {"scopes": 1},
    }
    return deployment.materialize(*config, dataset="electricity", config=config)


@pytest.fixture(scope="module")
def leakage(deployment, trained):
    key = "research/inference_2026"
    return deployment.materialize(key, config={key: {"every": 5, "seeds": 1}})


def test_data_assets_report_rows_previews_and_plots(data):
    shown = metadata(data, "series/electricity")
    assert shown["dagster/row_count"].value == shown["synthetic_rows"].value > 10_000
    assert "data:image/svg+xml;base64," in shown["newest"].value
    preview = shown["preview"].value
    assert list(preview.records[0].data) == ["column", "row 1", "row 2", "row 3"]
    assert metadata(data, "windows/electricity")["hash"].value

    evaluated = checks(data)
    assert len(evaluated) == 10 + 6 + 3
    assert all(check.passed for check in evaluated.values())


def test_days_with_an_event_are_announced(deployment, data):
    windows = WindowSet.read(deployment.layout.windows("electricity"))
    days = windows.subset(ALL_DAYS)
    store = NewsStore(deployment.layout.news_database)
    articles = store.read_named({name for view in days.views() for name in view.candidate_ids})
    titles = dict(articles.select("article_id", "title").iter_rows())
    planted = {topic for _, _, topic in read_planted()}
    announced = [
        view.window_id
        for view in days.views()
        for place in list_regions([view.entity])[:1]
        if any(
            titles[name].startswith(text.format(place=place))
            for name in view.candidate_ids
            for topic in planted
            for text in HEADLINES[topic]
        )
    ]
    marked = [view.window_id for view in windows.subset(EVENT_DAYS).views()]

    assert marked == announced and 0 < len(marked) < len(days)


def test_training_leaves_a_sealed_run_and_shows_it(deployment, trained):
    shown = metadata(trained, "models/compevo/electricity")
    assert shown["rounds"].value == len(trained.get_asset_observation_events()) == 1
    assert shown["artifact_hash"].value
    assert shown["logics"].value.startswith("0. ")
    for layer in ("models/compevo", "evaluation/baselines", "evaluation/test"):
        assert metadata(trained, f"{layer}/electricity")["mode"].value == "sample"

    windows = WindowSet.read(deployment.layout.windows("electricity"))
    # The windows after the test split are no part of a training.
    views = [view for view in windows.views() if view.split != "inference"]
    named = {name for view in views for name in view.candidate_ids}
    pool = NewsPool.read(deployment.layout.news_pool("electricity"))
    assert set(pool.articles["article_id"]) == named


def test_rows_are_of_the_same_windows(deployment, trained):
    population = pl.read_csv(deployment.layout.results / "compevo-electricity.csv")
    baselines = pl.read_csv(deployment.layout.results / "baselines-electricity.csv")
    assert population.columns == list(RESULT_COLUMNS)
    assert population["n_windows"].to_list()[-1] == 13
    assert set(population["subset"]) == {"n2f-test-100"}
    same = baselines.filter(subset="n2f-test-100", entity="pooled")
    assert set(same["n_windows"]) == {13}
    assert set(same["data_hash"]) == set(population["data_hash"])
    assert {"persistence", "calendar-ridge", "gbm"} <= set(same["method"])
    assert population["synthetic"].all()

    paired = pl.read_csv(deployment.layout.results / "paired-electricity.csv")
    assert {"persistence", "calendar-ridge", "gbm"} <= set(paired["method_b"])
    assert set(paired["n"]) == {13} and paired["p_value"].is_between(0, 1).all()


def test_skipped_origins_are_scored_by_neither(deployment, trained):
    asked = {"dataset": "electricity", "config": {"evaluation/test": {"every": 2}}}
    result = deployment.materialize("evaluation/test", **asked, raise_on_error=False)
    assert not result.success
    assert "settings" in str(result.failure_data_for_node("evaluation__test__electricity"))


def test_inference_passes_its_blocking_checks(deployment, leakage):
    evaluated = {name: check for (key, name), check in checks(leakage).items()}

    assert set(evaluated) == {
        "artifact_unchanged",
        "available_before_origin",
        "nothing_of_2026_in_training",
        "every_window_scored",
    }
    assert all(check.passed and check.blocking for check in evaluated.values())
    rows = pl.read_csv(deployment.layout.results / "leakage-2026.csv").filter(entity="pooled")
    by_subset = dict(rows.group_by("subset").agg(pl.col("n_windows").unique()).iter_rows())
    # Four of 20 origins by five regions; of the months, every fifth day.
    assert by_subset == {
        "inference-2026-100-every-5": [20],
        "inference-2026-02-every-5": [10],
        "inference-2026-03-every-5": [30],
    }
    assert "published" in set(rows["method"])


def test_an_altered_model_is_refused(deployment, leakage):
    logics = find_current_run(deployment.layout, "electricity") / "model" / "logics.json"
    before = logics.read_text()
    logics.write_text(before + " ")
    try:
        result = deployment.materialize("research/inference_2026", raise_on_error=False)
    finally:
        logics.write_text(before)
    assert not result.success


def test_a_late_article_fails_the_check(deployment, data, monkeypatch):
    read = NewsStore.read_named

    def shifted(self, ids):
        return read(self, ids).with_columns(pl.col("available_at") + timedelta(days=9))

    workspace = open_home(deployment.home, preset="tiny")
    views = WindowSet.read(deployment.layout.windows("electricity")).views()[:50]
    assert find_availability_violations(workspace, "electricity", views) == []
    monkeypatch.setattr(NewsStore, "read_named", shifted)
    violations = find_availability_violations(workspace, "electricity", views)
    assert {violation.kind for violation in violations} == {"late article"}


def test_the_report_says_it_is_synthetic(deployment, trained):
    result = deployment.materialize("report/site")
    assert "Sample data" in (deployment.layout.report / "research.html").read_text()
    shown = metadata(result, "report/site")
    assert shown["result_rows"].value > 20 and shown["mode"].value == "sample"

    # A path is not a link; where something serves the report, there is one.
    assert "page" not in shown
    served = deploy(deployment.home, settings={"report_url": "http://127.0.0.1:3001"})
    shown = metadata(served.materialize("report/site"), "report/site")
    assert shown["page"].value == "http://127.0.0.1:3001/forecast.html"
