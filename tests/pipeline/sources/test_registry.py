"""The data sets of a deployment: built-in ones and those of TOML files; broken ones."""

import os

import pytest

from compevo_core.data.datasets import DATASETS
from compevo_core.errors import ConfigError, SourceRejected
from compevo_pipeline.sources.feeds import MOST_BYTES, read_own_file
from compevo_pipeline.sources.registry import load_registry

SOUND = """
name = "demand"
[series]
file = "demand.csv"
time = "stamp"
values = ["load_mw"]
unit = "MW"
time_zone = "Europe/Paris"
[grid]
step = "30min"
lookback = 48
[splits]
validation_from = 2024-02-01
test_from = 2024-02-10
[place]
time_zone = "Europe/Paris"
country = "FR"
"""


def declare(folder, text, name="demand"):
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_declared_data_join_the_built_in(tmp_path):
    declare(tmp_path, SOUND)
    registry = load_registry(tmp_path)
    assert list(registry) == [*DATASETS, "demand"]

    spec = registry["demand"].spec
    assert (spec.stride_steps, spec.align_to_market_day) == (48, True)
    assert spec.market_offset.total_seconds() == 3600  # Paris without daylight saving
    assert [span.split for span in spec.spans] == ["train", "val", "test"]
    assert spec.find_place("load_mw").country == "FR"
    assert [feed.name for feed in registry["demand"].feeds] == ["own-demand"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('unit = "MW"\n', "", "series.unit"),
        ('time = "stamp"', 'tiem = "stamp"', "series.tiem"),
        ('unit = "MW"', 'unit = "=cmd|x"', "series.unit"),
        ('"30min"', '"7min"', "7min"),
        ('"30min"', '"99999999999d"', "99999999999d"),
        ("2024-02-10", "2024-01-10", "validation_from 2024-02-01"),
        ("[splits]", "[schedule]\ndays_ahead = 1\n[splits]", "schedule"),
        ('country = "FR"', 'country = "XX"', "place"),
        ('time_zone = "Europe/Paris"\n[grid]', 'time_zone = "Paris"\n[grid]', "Paris"),
        *(('name = "demand"', f'name = "{to}"', "built in") for to in ("exchange", "news", "on")),
        ('name = "demand"', 'name = "My Demand"', "My Demand"),
        ('name = "demand"', 'name = "other"', "other.toml"),
        ("[series]", "[series", "TOML"),
    ],
)
def test_a_broken_declaration_names_its_key(tmp_path, old, new, said):
    assert old in SOUND
    path = declare(tmp_path, SOUND.replace(old, new))
    registry = load_registry(tmp_path)

    assert list(registry) == list(DATASETS)
    assert str(path) in registry.broken["demand"] and said in registry.broken["demand"]
    with pytest.raises(ConfigError, match=r"demand\.toml"):
        registry["demand"]


def test_pipes_and_huge_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with (tmp_path / "large.csv").open("wb") as stream:
        stream.truncate(MOST_BYTES + 1)
    for name in ("pipe.csv", "large.csv"):
        with pytest.raises(SourceRejected, match="1 GiB"):
            read_own_file(tmp_path / name, "own-x", lambda: None)


def test_an_unknown_name_shows_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"'demand'.*electricity.*init"):
        load_registry(tmp_path)["demand"]
