"""``compevo benchmark``: rows of methods, seed by seed."""

import polars as pl
import pytest

from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.work.deployment import Deployment
from tests.support.commands import invoke
from tests.support.window_samples import make_window

SPLITS = {"train": 24, "val": 6, "test": 4}


@pytest.fixture
def store(tmp_path, monkeypatch):
    """Store windows of a data set in a deployment; return its layout."""
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COMPEVO_MODE", "sample")

    def write(dataset, windows):
        layout = Deployment(settings=Settings.from_environment()).layout
        WindowSet(windows, dataset=dataset).write(layout.windows(dataset))
        return layout

    return write


@pytest.fixture
def results(tmp_path, store):
    """The folder for the rows of a deployment with windows of traffic."""
    names = [split for split, count in SPLITS.items() for _ in range(count)]
    store("traffic", [make_window(i, split=n, dataset="traffic") for i, n in enumerate(names)])
    return tmp_path / "results"


def run(results, methods, seeds):
    words = ("traffic", "--methods", methods, "--seeds", seeds)
    shown = invoke("benchmark", *words, "--results", results)
    assert f"compevo table main --results {results}\n" in shown
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


def test_the_first_test_sets_alone_can_be_scored(tmp_path, store):
    windows = [make_window(i) for i in range(4)] + [
        make_window(10 + i, split="test", subsets=(subset,))
        for i, subset in enumerate(["n2f-test-100", "aemo-2021"])
    ]
    layout = store("electricity", windows)

    stored = []
    for options, expected in (
        ([], ["aemo-2021", "n2f-test-100"]),
        (["--scopes", "1"], ["n2f-test-100"]),
    ):
        results = tmp_path / f"results-{len(expected)}"
        words = ("electricity", "--methods", "persistence", *options)
        invoke("benchmark", *words, "--results", results)
        rows = pl.read_csv(results / "benchmark-electricity.csv")
        assert sorted(rows["subset"].unique()) == expected

        # A set that is scored alone takes nothing from the others, whose forecasts are paired.
        (kept,) = layout.forecasts.rglob("persistence-seed0.parquet")
        stored.append(sorted(pl.read_parquet(kept)["subset"]))
    assert stored == [["aemo-2021", "n2f-test-100"]] * 2
