"""Asset checks on stored sample data: together, in part and alone."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import polars as pl
import pytest

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs import asset_checks
from compevo_pipeline.defs.asset_checks import judge_data_age, judge_series_age
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.work.deployment import Deployment

NOW = datetime(2026, 4, 1, tzinfo=UTC)


def run_checks(deployment, *names):
    """Run checks by ``asset/key:check`` without the assets; return the keys that were evaluated."""
    pairs = [name.split(":") for name in names]
    keys = [dg.AssetCheckKey(dg.AssetKey(asset.split("/")), check) for asset, check in pairs]
    selection = dg.AssetSelection.checks(*keys)
    job = dg.define_asset_job("checks", selection, executor_def=dg.in_process_executor)
    defs = dg.Definitions.merge(deployment.defs, dg.Definitions(jobs=[job]))
    result = defs.resolve_job_def("checks").execute_in_process(instance=deployment.instance)
    assert result.get_asset_materialization_events() == []
    passed = [check for check in result.get_asset_check_evaluations() if check.passed]
    return {f"{check.asset_key.to_user_string()}:{check.check_name}" for check in passed}


@pytest.mark.parametrize(
    "name",
    [
        "series/traffic:gaps",
        "series/traffic:data_age",
        "news/articles:has_title",
        "windows/traffic:splits_disjoint",
    ],
)
def test_a_check_runs_alone(sample_home, name):
    assert run_checks(sample_home, name) == {name}


def test_an_unselected_check_is_not_computed(sample_home, monkeypatch):
    def fail(*_):
        raise AssertionError("computed")

    monkeypatch.setattr(asset_checks, "find_availability_violations", fail)
    monkeypatch.setattr(asset_checks, "run_suites", fail)
    names = {"windows/traffic:no_shared_windows", "series/traffic:data_age"}
    assert run_checks(sample_home, *names) == names


@pytest.mark.parametrize(
    ("mode", "age", "passed"),
    [
        (Mode.LIVE, timedelta(days=4), True),
        (Mode.LIVE, timedelta(days=6), False),
        (Mode.LIVE, None, False),
        (Mode.ARCHIVE, timedelta(days=900), True),
    ],
)
def test_data_age_by_source_and_files_never(tmp_path, mode, age, passed):
    workspace = Deployment(settings=Settings(home=tmp_path, mode=mode))
    newest = None if age is None else NOW - age
    result = judge_data_age(newest, timedelta(days=5), workspace, NOW)
    assert (result.name, result.passed) == ("data_age", passed)
    assert result.numbers["limit_hours"] == 120


@pytest.mark.parametrize(
    ("days", "source", "silent"),
    [(1, "live:ecb/x", 0), (6, "live:ecb/x", 1), (6, "archive:ecb/x", 0), (40, "live:ecb/x", 0)],
)
def test_a_silent_series_is_seen(tmp_path, days, source, silent):
    workspace = Deployment(settings=Settings(home=tmp_path, mode=Mode.LIVE))
    frame = pl.DataFrame(
        {
            "series_id": ["ECB/EUR", "ECB/GBP", "ECB/GBP"],
            "variable": "rate",
            "start_utc": [NOW, NOW - timedelta(days=days), NOW],
            "value": [1.0, 1.0, None],
            "source": ["live:ecb/x", source, source],
        }
    )
    result = judge_series_age(frame, timedelta(days=5), workspace, NOW)

    assert (result.passed, result.numbers.get("silent", 0)) == (not silent, silent)
    assert ("ECB/GBP" in result.text) is bool(silent) and "ECB/EUR" not in result.text


@pytest.mark.parametrize("mode", [Mode.SAMPLE, Mode.ARCHIVE])
def test_other_data_clear_no_warning(tmp_path, mode):
    settings = Settings(home=tmp_path, mode=Mode.LIVE, archive=tmp_path)
    workspace = Deployment(settings=settings, mode=mode.value)
    assert not judge_data_age(NOW, timedelta(days=5), workspace, NOW).passed
