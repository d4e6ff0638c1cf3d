"""The environment, folders, run names."""

from pathlib import Path

import pytest

from compevo_core.config.run import RunConfig
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError
from compevo_pipeline.config import settings as environment
from compevo_pipeline.config.settings import REPOSITORY, Layout, Settings
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.storage import runs
from tests.support.window_samples import make_window, make_window_set


def test_the_defaults_are_sample_mode_below_the_repository():
    settings = Settings.from_environment({})
    assert settings == Settings(home=REPOSITORY / ".compevo", mode=Mode.SAMPLE)
    assert settings.preset_for(Mode.SAMPLE, "electricity-operational") == "demo"
    assert settings.preset_for(Mode.ARCHIVE, "electricity") == "default"
    assert settings.preset_for(Mode.ARCHIVE, "electricity-operational") == "operational"
    named = settings.model_copy(update={"preset": "paper"})
    assert named.preset_for(Mode.ARCHIVE, "electricity-operational") == "paper"


@pytest.mark.parametrize(
    ("variables", "setting", "value"),
    [
        ({"CONTACT": "me@x.org"}, "user_agent", "compevo/0.3.0 (me@x.org)"),
        ({"REPORT_URL": "http://127.0.0.1:3001"}, "report_url", "http://127.0.0.1:3001"),
        ({"PEMS_STATIONS": " 400001,400017, "}, "pems_stations", ("400001", "400017")),
        ({}, "pems_stations", ()),
        ({}, "open_meteo", None),
    ],
)
def test_a_setting_is_read_from_its_variable(variables, setting, value):
    given = {f"COMPEVO_{name}": text for name, text in variables.items()}
    assert getattr(Settings.from_environment(given), setting) == value


ACCOUNT = {"PEMS_USER": "canary", "PEMS_PASSWORD": "canary"}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"MODE": "archive"}, "COMPEVO_ARCHIVE"),
        ({"MODE": "archive", "ARCHIVE": "/no"}, "COMPEVO_ARCHIVE"),
        ({"MODE": "demo"}, "COMPEVO_MODE"),
        ({"JUDGE_URL": "x"}, "COMPEVO_JUDGE_MODEL"),
        ({"JUDGE_MODEL": "x"}, "COMPEVO_JUDGE_URL"),
        ({"PEMS_USER": "canary"}, "COMPEVO_PEMS_PASSWORD"),
        ({"PEMS_PASSWORD": "canary"}, "COMPEVO_PEMS_USER"),
        (ACCOUNT | {"PEMS_DISTRICT": "13"}, "COMPEVO_PEMS_DISTRICT"),
        (ACCOUNT | {"PEMS_FILES": "station_hour,station_raw"}, "COMPEVO_PEMS_FILES"),
        ({"PEMS_STATIONS": "400001,S-101"}, "COMPEVO_PEMS_STATIONS.*'S-101'"),
        ({"OPEN_METEO_KEY": "canary&latitude=1"}, "COMPEVO_OPEN_METEO_KEY"),
        ({"SCHEDULES": "on, exchange"}, "COMPEVO_SCHEDULES"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(variables, said):
    with pytest.raises(ConfigError, match=said) as caught:
        Settings.from_environment({f"COMPEVO_{name}": text for name, text in variables.items()})
    assert "canary" not in str(caught.value)


def test_a_home_of_dagster_is_a_folder_that_exists(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for home in (tmp_path / "none", tmp_path / "file", "dagster_home"):
        monkeypatch.setattr("os.environ", {"DAGSTER_HOME": str(home)})
        with pytest.raises(ConfigError, match=rf"'{home}'.*dagster\.yaml, or unset DAGSTER_HOME"):
            environment.ensure_dagster_home()
    monkeypatch.setattr("os.environ", {})
    assert environment.ensure_dagster_home() == REPOSITORY / "dagster_home"


def test_synthetic_and_real_data_never_share_a_folder(tmp_path):
    settings = Settings(home=tmp_path, mode=Mode.SAMPLE)
    assert settings.layout(Mode.SAMPLE).root == tmp_path / "sample"
    for mode in (Mode.ARCHIVE, Mode.LIVE):
        assert settings.layout(mode) == Layout(root=tmp_path / "real")


def test_the_rank_is_read_from_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert environment.process_rank() == (3, 4, 1)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name)
    assert environment.process_rank() == (0, 1, 0)


def test_a_run_is_named_by_configuration_and_data():
    one, other = RunConfig.preset("tiny"), RunConfig.preset("tiny").with_overrides({"run.seed": 1})
    before, more = (make_window_set(count) for count in (2, 3))
    names = {
        runs.make_run_name("x", config, data) for config in (one, other) for data in (before, more)
    }
    assert len(names) == 4 and all(name.startswith("x-") for name in names)

    # Windows that no training sees are no part of the name.
    for split, is_trained in (("test", 0), ("inference", 0), ("train", 1), ("val", 1)):
        grown = WindowSet([*before, make_window(9, split=split)], dataset=before.dataset)
        assert grown.hash != before.hash
        is_other = runs.make_run_name("x", one, grown) != runs.make_run_name("x", one, before)
        assert is_other == is_trained


def test_the_current_run_is_the_last_finished_one(tmp_path):
    layout = Layout(root=tmp_path)
    assert not runs.has_current_run(layout, "traffic")
    with pytest.raises(DataError, match="models/compevo"):
        runs.find_current_run(layout, "traffic")
    runs.set_current_run(layout, "traffic", "one")
    runs.set_current_run(layout, "traffic", "two")
    assert runs.find_current_run(layout, "traffic") == Path(tmp_path / "runs" / "two")
