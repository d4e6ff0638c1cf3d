"""``compevo train`` and ``compevo folds`` hand the right windows to the trainer."""

import io
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

import compevo_core.experiments.folds as cross_validation
import compevo_core.training.trainer as trainer
from compevo_core.config import RunConfig
from compevo_core.data.splits import build_folds
from compevo_core.data.window import WindowSet
from compevo_pipeline.cli.main import app
from tests.support.population import news_pool, windows
from tests.support.window_samples import place_in_folds

RUNNER = CliRunner()


@pytest.fixture
def stored(tmp_path: Path) -> WindowSet:
    cut = [*windows("train", 18), *windows("val", 3, first_day=40)]
    placed = place_in_folds(WindowSet(cut, dataset="electricity"))
    placed.write(tmp_path / "windows")
    news_pool().write(tmp_path / "news")
    return placed


def invoke(command: str, folder: Path, *options: str) -> str:
    paths = {"--windows": "windows", "--news": "news", "--out": "run"}
    given = [part for name, path in paths.items() for part in (name, str(folder / path))]
    result = RUNNER.invoke(app, [command, *given, "--preset", "tiny", *options])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("options", [(), ("--validation", "split"), ("--validation", "last-fold")])
def test_the_chosen_validation_windows_reach_the_trainer(
    tmp_path: Path, stored: WindowSet, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    given: list[str] = []

    def record(config: RunConfig, train: WindowSet, val: WindowSet, *_: object, **__: object):
        given.extend((train.hash, val.hash))
        return {}

    monkeypatch.setattr(trainer, "train", record)
    invoke("train", tmp_path, *options)
    pair = (stored.split("train"), stored.split("val"))
    if "last-fold" in options:
        pair = build_folds(stored)[-1]
    assert given == [part.hash for part in pair]


def test_folds_prints_the_table_of_the_configuration_as_csv(
    tmp_path: Path, stored: WindowSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(config: RunConfig, windows: WindowSet, *_: object, **__: object) -> pl.DataFrame:
        return pl.DataFrame({"agents": [config.population.agents], "hash": [windows.hash]})

    monkeypatch.setattr(cross_validation, "train_folds", record)
    printed = invoke("folds", tmp_path, "--set", "population.agents=2")
    assert pl.read_csv(io.StringIO(printed)).rows() == [(2, stored.hash)]
