"""``compevo benchmark``: rows of methods, seed by seed."""

import polars as pl
import pytest
from typer.testing import CliRunner

from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_pipeline.cli.main import app
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.work.deployment import Deployment
from tests.support.window_samples import make_window

RUNNER = CliRunner()
SPLITS = {"train": 24, "val": 6, "test": 4}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A deployment with windows of one data set; returns the folder for its rows."""
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COMPEVO_MODE", "sample")
    names = [split for split, count in SPLITS.items() for _ in range(count)]
    windows = [make_window(i, split=name, dataset="traffic") for i, name in enumerate(names)]
    layout = Deployment(settings=Settings.from_environment()).layout
    WindowSet(windows, dataset="traffic").write(layout.windows("traffic"))
    return tmp_path / "results"


def run(results, methods: str, seeds: int) -> pl.DataFrame:
    arguments = ["benchmark", "traffic", "--methods", methods, "--seeds", str(seeds)]
    done = RUNNER.invoke(app, [*arguments, "--results", str(results)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert f"compevo table main --results {results}\n" in done.output
    return pl.read_csv(results / "benchmark-traffic.csv")


def test_every_method_and_seed_has_rows_with_its_cost(results):
    first = run(results, "dlinear,gpt4ts-no-lm", 2).filter(pl.col("entity") == "pooled")
    assert first["method"].to_list() == ["dlinear"] * 2 + ["gpt4ts-no-lm"] * 2
    assert first["seed"].to_list() == [0, 1, 0, 1]
    assert first["n_windows"].unique().to_list() == [SPLITS["test"]]
    assert set(first["trainable_parameters"]) == {4_704, 175_728}
    for column in ("train_seconds", "seconds_per_window", "peak_memory_gb"):
        assert (first[column] > 0).all()
    assert set(first["budget"]) == {"standard"}
    assert set(first["learning_rate"]) == {0.001}


def test_an_unknown_network_is_refused_before_any_is_fitted(results):
    with pytest.raises(ConfigError, match="no method 'lstm'"):
        run(results, "dlinear,lstm", 1)
    assert not results.exists()


def test_the_first_test_sets_alone_can_be_scored(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COMPEVO_MODE", "sample")
    windows = [make_window(i) for i in range(4)] + [
        make_window(10 + i, split="test", subsets=(subset,))
        for i, subset in enumerate(["n2f-test-100", "aemo-2021"])
    ]
    layout = Deployment(settings=Settings.from_environment()).layout
    WindowSet(windows, dataset="electricity").write(layout.windows("electricity"))

    stored = []
    for options, expected in (
        ([], ["aemo-2021", "n2f-test-100"]),
        (["--scopes", "1"], ["n2f-test-100"]),
    ):
        arguments = ["benchmark", "electricity", "--methods", "persistence"]
        results = tmp_path / f"results-{len(expected)}"
        done = RUNNER.invoke(
            app, [*arguments, *options, "--results", str(results)], catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        rows = pl.read_csv(results / "benchmark-electricity.csv")
        assert sorted(rows["subset"].unique()) == expected

        # A set that is scored alone takes nothing from the others, whose forecasts are paired.
        (kept,) = layout.forecasts.rglob("persistence-seed0.parquet")
        stored.append(sorted(pl.read_parquet(kept)["subset"]))
    assert stored == [["aemo-2021", "n2f-test-100"]] * 2
