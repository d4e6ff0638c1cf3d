"""What definitions say of an asset beyond its graph: freshness, code version, secrets, siblings."""

import ast
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
import yaml

from compevo_core.data.calendar import HOLIDAYS_VERSION
from compevo_pipeline.config.settings import REPOSITORY, Settings
from compevo_pipeline.definitions import build_defs
from compevo_pipeline.defs.asset_keys import DATASETS, NEM_ZONE
from compevo_pipeline.defs.assets import windows
from compevo_pipeline.defs.jobs import run_config
from compevo_pipeline.defs.resources import JudgeEndpoint
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.storage import code_versions
from compevo_pipeline.storage.code_versions import code_version
from tests.pipeline.sources.test_registry import SOUND, declare

ASSETS = REPOSITORY / "compevo_pipeline" / "defs" / "assets"
SHARED = {"training"}
"""Modules that another asset takes its run configuration from."""
REFRESHED_DAILY = ("series/", "news/", "windows/", "forecast/next_day")


def test_asset_modules_import_only_what_is_there_to_be_shared():
    for path in ASSETS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = node.module.split(".")
                names = {alias.name for alias in node.names} if len(parts) == 3 else {parts[-1]}
                if parts[:3] == ["compevo_pipeline", "defs", "assets"]:
                    assert names <= SHARED, f"{path.name} imports {names}"


def list_due(graph):
    return {
        key.to_user_string()
        for key in graph.get_all_asset_keys()
        if graph.get(key).freshness_policy is not None
    }


@pytest.mark.parametrize("mode", [Mode.SAMPLE, Mode.ARCHIVE])
def test_files_need_no_daily_refresh(tmp_path, mode):
    defs = build_defs(Settings(home=tmp_path, mode=mode, archive=tmp_path))
    assert list_due(defs.resolve_asset_graph()) == set()


def test_what_publishers_bring_every_day_must_be_refreshed_daily_and_no_file_of_a_user(tmp_path):
    (tmp_path / "datasets").mkdir()
    declare(tmp_path / "datasets", SOUND)
    graph = build_defs(Settings(home=tmp_path, mode=Mode.LIVE)).resolve_asset_graph()
    names = {key.to_user_string() for key in graph.get_all_asset_keys()}
    assert {"series/demand", "windows/demand"} < names
    assert list_due(graph) == {
        name for name in names if name.startswith(REFRESHED_DAILY) and not name.endswith("/demand")
    }
    for key in graph.get_all_asset_keys():
        policy = graph.get(key).freshness_policy
        if key == dg.AssetKey(["forecast", "next_day"]):
            assert (policy.deadline_cron, policy.timezone) == ("45 18 * * *", NEM_ZONE)
        elif policy is not None:
            # One refresh may take its time; a second missed one is a failure.
            assert timedelta(days=1) < policy.warn_window.to_timedelta() < timedelta(days=2)
            assert policy.fail_window.to_timedelta() > timedelta(days=2)


def test_every_asset_has_a_code_version_and_equal_code_has_an_equal_one(graph):
    versions = {
        key.to_user_string(): graph.get(key).code_version for key in graph.get_all_asset_keys()
    }
    assert all(len(version) == 12 for version in versions.values())
    assert len({versions[f"series/{dataset}"] for dataset in DATASETS}) == 1
    assert versions["series/traffic"] != versions["windows/traffic"]
    # Windows hold public holidays, which another release of their library may name otherwise.
    assert versions["windows/traffic"] == code_version(
        *windows.CUTTING_CODE, data_release=HOLIDAYS_VERSION
    )
    assert versions["windows/traffic"] != code_version(*windows.CUTTING_CODE, data_release="0.1")


@pytest.mark.parametrize(
    ("text", "is_equal"),
    [
        (
            '"""Another text."""\n\n\ndef f():\n    """Return it."""\n    # why\n    return 1\n',
            True,
        ),
        ('"""A text."""\n\n\ndef f():\n    return 2\n', False),
    ],
)
def test_a_code_version_follows_statements_and_not_their_comments(
    tmp_path, monkeypatch, text, is_equal
):
    monkeypatch.setattr(code_versions, "REPOSITORY", tmp_path)
    code_versions.code_version.cache_clear()
    (tmp_path / "a.py").write_text('"""A text."""\n\n\ndef f():\n    return 1\n')
    before = code_version("a.py")
    (tmp_path / "a.py").write_text(text)
    code_versions.code_version.cache_clear()
    assert (code_version("a.py") == before) is is_equal


def test_a_module_is_parsed_once_however_many_processes_ask_for_its_version(tmp_path, monkeypatch):
    monkeypatch.setattr(code_versions, "REPOSITORY", tmp_path)
    (tmp_path / "once.py").write_text("x = 1\n")
    before = code_version("once.py")
    for cached in (code_versions.code_version, code_versions._read_kept):
        cached.cache_clear()
    monkeypatch.setattr(code_versions, "_dump_statements", lambda text: pytest.fail("parsed again"))
    assert code_version("once.py") == before


def test_a_code_version_of_a_module_that_was_moved_is_refused():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        code_version("compevo_core/nowhere")


def test_the_judges_key_is_a_variables_name_until_a_step_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPEVO_JUDGE_KEY", "s3cret")
    judge = {"judge_url": "https://judge.example/v1", "judge_model": "m", "judge_key": "s3cret"}
    settings = Settings(home=tmp_path, **judge)

    resource = JudgeEndpoint.from_settings(settings)
    assert isinstance(resource.key, dg.EnvVar) and "s3cret" not in repr(resource)
    repository = build_defs(settings).get_repository_def()
    assert "s3cret" not in str(repository.get_top_level_resources())
    # What a step gets is the key itself, and its repr still is not.
    resolved = resource.process_config_and_initialize()
    assert resolved.key == "s3cret" and "s3cret" not in repr(resolved)


def test_the_configuration_that_a_launch_from_the_shell_is_given_is_the_demos():
    text = Path(REPOSITORY / "dagster_home" / "demo.yaml").read_text()
    assert yaml.safe_load(text) == run_config("demo")
