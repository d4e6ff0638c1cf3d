"""The evaluation assets and ``compevo evaluate`` on one trained run."""

import dagster as dg
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from compevo_core.data.window import WindowSet
from compevo_core.errors import CompEvoError
from compevo_core.evaluation.result_rows import RESULT_SCHEMA
from compevo_core.paper.report.inputs import read_configs, read_panels
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.storage.code_versions import read_commit
from compevo_pipeline.storage.news_store import NewsStore
from compevo_pipeline.storage.runs import set_current_run
from tests.support import population as small
from tests.support.commands import invoke
from tests.support.deployment import deploy

pytestmark = pytest.mark.slow

RUN = "electricity-run"
SEEDS = 2
EVERY = 2


def read_rows(*paths):
    rows = [pl.read_csv(path, schema_overrides=RESULT_SCHEMA) for path in paths]
    # The one cell that two measurements never share.
    return pl.concat(rows).drop("seconds", "seconds_per_window")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """A deployment whose windows, news and one trained run are made without its sources."""
    deployment = deploy(tmp_path_factory.mktemp("home"))
    layout = deployment.layout

    splits = (("train", 6, 0), ("val", 2, 40), ("test", 4, 60))
    windows = [one for name, n, day in splits for one in small.windows(name, n, first_day=day)]
    WindowSet(windows, dataset="electricity").write(layout.windows("electricity"))
    NewsStore(layout.news_database).upsert_articles(small.news_pool().articles)
    small.news_pool().write(layout.news_pool("electricity"))

    given = ("--windows", layout.windows("electricity"), "--news", layout.news_pool("electricity"))
    settings = ("--preset", "tiny", "--set", "run.rounds=1", "--set", "population.agents=2")
    invoke("paper", "train", *given, "--out", layout.run(RUN), *settings)
    set_current_run(layout, "electricity", RUN)
    return deployment


@pytest.fixture(scope="module")
def by_asset(deployment):
    """Results folder and run folder as the assets leave them."""
    every = {"every": EVERY}
    settings = {"evaluation/baselines": every | {"seeds": SEEDS}, "evaluation/test": every}
    deployment.materialize(*settings, dataset="electricity", config=settings)
    run = RunFolder(deployment.layout.run(RUN))
    return deployment.layout.results, run.panels_file.read_text(), run.predictions_file.read_bytes()


@pytest.fixture(scope="module")
def by_command(deployment, by_asset, tmp_path_factory):
    """Results folder and run folder as the command leaves them, once the assets' files are gone."""
    layout = deployment.layout
    run = RunFolder(layout.run(RUN))
    run.panels_file.unlink()
    run.predictions_file.unlink()

    results = tmp_path_factory.mktemp("results")
    given = ("--windows", layout.windows("electricity"), "--news", layout.news_pool("electricity"))
    words = ("--results", results, "--experiment", "test", "--every", EVERY, "--seeds", SEEDS)
    invoke("paper", "evaluate", run.path, *given, *words)
    return results, run


def test_command_and_assets_make_equal_rows(by_asset, by_command):
    names = ("compevo-electricity.csv", "baselines-electricity.csv")
    from_asset = read_rows(*(by_asset[0] / name for name in names))
    from_command = read_rows(by_command[0] / "test.csv")

    assert_frame_equal(from_command, from_asset, check_exact=True)
    assert from_command.filter(method="gbm")["seed"].unique().to_list() == [0, 1]
    of_compevo = from_command.filter(method="compevo")
    assert of_compevo["parse_failure_rate"].to_list() == [0.0] * 3
    assert set(from_command["subset"]) == {"test-every-2"}
    assert set(from_command["commit"]) == {read_commit()}


def test_command_and_assets_leave_equal_files(by_asset, by_command):
    results, run = by_command
    paired = [pl.read_csv(by_asset[0] / "paired-electricity.csv")]
    paired.append(pl.read_csv(results / "paired-test.csv"))
    assert_frame_equal(*paired, check_exact=True)
    fitted = {"calendar-ridge", "gbm", "blend"}
    assert set(paired[0]["method_b"]) == {
        *("compevo-equal", "compevo-prior", "persistence"),
        *fitted,
        *(f"{name}-recalibrated" for name in fitted),
    }

    assert read_configs(results) == read_configs(by_asset[0])
    assert run.panels_file.read_text() == by_asset[1]
    assert len(read_panels(run.panels_file)) == 4
    assert pl.read_parquet(run.predictions_file).equals(pl.read_parquet(by_asset[2]))


def test_a_split_without_windows_is_refused(deployment, tmp_path):
    layout = deployment.layout
    given = ("--windows", layout.windows("electricity"), "--news", layout.news_pool("electricity"))
    words = ("--results", tmp_path / "none", "--split", "inference")
    with pytest.raises(CompEvoError, match="inference"):
        invoke("paper", "evaluate", layout.run(RUN), *given, *words)
    assert not (tmp_path / "none").exists()


def test_an_audit_of_few_news_is_refused(deployment, by_command):
    asked = {"evaluation/test": {"every": EVERY, "audits_news": True}}
    with pytest.raises(dg.Failure, match="audit"):
        deployment.materialize("evaluation/test", dataset="electricity", config=asked)
