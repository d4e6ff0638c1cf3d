"""Configurations kept next to result rows."""

import csv
from pathlib import Path

import pytest

from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.result_rows import hash_without_seed
from compevo_core.evaluation.score_files import read_configs, write_config

REPO = Path(__file__).resolve().parents[3]


def test_a_configuration_is_found_by_the_hash_that_rows_carry(tmp_path):
    config = RunConfig.preset("tiny")
    path = write_config(tmp_path / "results", config)
    assert path == tmp_path / "results" / "configs" / f"{config.hash}.json"
    assert read_configs(tmp_path / "results") == {config.hash: config.to_dict()}
    assert read_configs(tmp_path) == {}


def test_seeds_of_one_configuration_share_a_hash_and_other_settings_do_not():
    config = RunConfig.preset("tiny")
    seeds = [config.with_overrides({"run.seed": seed}) for seed in (0, 3, 8)]
    assert len({hash_without_seed(each) for each in seeds}) == 1
    other = config.with_overrides({"run.rounds": config.run.rounds + 1})
    assert hash_without_seed(other) != hash_without_seed(config)


def test_the_committed_configurations_are_those_of_the_committed_rows():
    named = set()
    for path in (REPO / "results").glob("*.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            named |= {row.get("config_hash") for row in csv.DictReader(file)}
    assert set(read_configs(REPO / "results")) == named - {None, ""}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{", DataError, "not readable as JSON"),
        ("[1]", DataError, "holds a list"),
        ('{"run": {"speed": 1}}', ConfigError, "speed"),
    ],
)
def test_a_torn_or_unknown_configuration_is_refused(tmp_path, text, error, message):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a.json").write_text(text)
    with pytest.raises(error, match=message):
        read_configs(tmp_path)
