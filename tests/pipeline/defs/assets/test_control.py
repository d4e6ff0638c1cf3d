"""The control as an asset, and as a command that finds what the asset trained."""

import json
import logging

import polars as pl
import pytest

from compevo_core.errors import CompEvoError, ConfigError
from compevo_core.paper.control import ControlPlan
from compevo_core.paper.planted_news import CONTROL_SCHEMA
from compevo_pipeline.work.experiments import run_control_on
from tests.support.commands import invoke
from tests.support.deployment import deploy
from tests.support.planted import base_windows, search

LOG = logging.getLogger(__name__)
ARMS = {"seed-logics", "all-articles", "evolved", "oracle-logics"}
AFTER = {"prior", "no-news", "swapped-news", "best-agent"}


def _write_preset(path):
    """Write the settings of a short search as TOML, and return the file's name."""
    tree = search(run__rounds=2, grpo__group_size=2).to_dict()
    lines = []
    for section, values in tree.items():
        known = {k: v for k, v in values.items() if v is not None and v != ()}
        lines += [f"[{section}]", *(f"{k} = {json.dumps(v)}" for k, v in known.items())]
    path.write_text("\n".join(lines))
    return str(path)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    deployment = deploy(tmp_path_factory.mktemp("home"))
    base_windows().write(deployment.layout.windows("electricity"))
    return deployment


@pytest.mark.slow
def test_asset_and_command_write_the_same_rows_and_train_once(deployment, tmp_path, monkeypatch):
    preset = _write_preset(tmp_path / "short.toml")
    choice = {"preset": preset, "effects": [2.0], "seeds": 1, "series": ["NSW1"]}
    deployment.materialize("evidence/control", config={"evidence/control": choice})

    layout = deployment.layout
    rows = pl.read_csv(layout.results / "control-electricity.csv", schema_overrides=CONTROL_SCHEMA)
    assert set(rows["arm"]) == ARMS | AFTER and set(rows["n_windows"]) == {30}
    trained = {
        p: p.stat().st_mtime_ns for p in layout.control("electricity").rglob("manifest.json")
    }
    assert len(trained) > len(ARMS)

    monkeypatch.setenv("COMPEVO_HOME", str(layout.root.parent))
    command = ["experiment", "control", "electricity", "--preset", preset, "--effects", "2"]
    command += ["--series", "NSW1", "--results", str(tmp_path)]
    assert "evolved logics" in invoke(*command)
    again = pl.read_csv(tmp_path / "control-electricity.csv", schema_overrides=CONTROL_SCHEMA)
    assert again.equals(rows)
    assert trained == {
        p: p.stat().st_mtime_ns for p in layout.control("electricity").rglob("manifest.json")
    }


def test_a_series_that_is_not_there_and_an_effect_that_is_no_number_are_named(deployment):
    with pytest.raises(ConfigError, match="no series 'XYZ'; known: NSW1, SA1"):
        run_control_on(
            deployment, "electricity", ControlPlan(config=search()), series=["XYZ"], log=LOG
        )
    with pytest.raises(ConfigError, match="--effects big is not a list of numbers"):
        invoke("experiment", "control", "electricity", "--effects", "big")


@pytest.mark.parametrize(
    ("name", "said"),
    [("poems", "no worded data 'poems'; known: weather, demand"), ("weather", "COMPEVO_ARCHIVE")],
)
def test_worded_data_that_are_unknown_or_without_an_archive_are_named(
    deployment, monkeypatch, name, said
):
    monkeypatch.setenv("COMPEVO_HOME", str(deployment.layout.root.parent))
    monkeypatch.delenv("COMPEVO_ARCHIVE", raising=False)
    with pytest.raises(CompEvoError, match=said):
        invoke("experiment", "text", name)
