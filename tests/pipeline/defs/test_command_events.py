"""What commands make, as Dagster's UI shows it."""

from datetime import date, timedelta

import dagster as dg
import pytest

from compevo_pipeline.config.settings import Layout
from compevo_pipeline.defs.asset_keys import model_key, next_day_key, series_key, windows_key
from compevo_pipeline.defs.command_events import report_forecast
from compevo_pipeline.storage.runs import find_current_run, hash_model
from tests.support.commands import invoke


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home with a daily table that is fitted without any Dagster."""
    folder = tmp_path_factory.mktemp("home")
    rows = [f"{date(2025, 1, 1) + timedelta(days=n)},{n % 7}" for n in range(120)]
    (folder / "sold.csv").write_text("\n".join(["day,sold", *rows, ""]))
    with pytest.MonkeyPatch.context() as patch:
        set_homes(patch, folder)
        invoke("init", folder / "sold.csv", "--horizon", "7")
        invoke("fit", "sold", "--method", "persistence")
    return folder


def set_homes(patch, folder, dagster=None):
    patch.setenv("COMPEVO_HOME", str(folder / "home"))
    patch.setenv("COMPEVO_DATASETS", str(folder))
    patch.setenv("COMPEVO_MODE", "sample")
    if dagster is None:
        patch.delenv("DAGSTER_HOME", raising=False)
    else:
        dagster.mkdir(exist_ok=True)
        patch.setenv("DAGSTER_HOME", str(dagster))


def list_records(key):
    of_asset = dg.AssetRecordsFilter(asset_key=key)
    with dg.DagsterInstance.get() as instance:
        fetched = (instance.fetch_materializations, instance.fetch_observations)
        return [fetch(of_asset, limit=9).records for fetch in fetched]


def test_a_forecast_materializes_and_a_look_observes(home, tmp_path, monkeypatch):
    set_homes(monkeypatch, home)
    shown = invoke("forecast", "sold")  # issued where no Dagster is

    set_homes(monkeypatch, home, tmp_path / "dagster")
    assert invoke("forecast", "sold") == shown
    key = next_day_key("sold")
    (first,), seen = list_records(key)
    assert first.partition_key == "2025-05-01" and not seen
    made = first.asset_materialization
    assert {"forecast", "weights", "mode", "dagster/row_count"} <= set(made.metadata)

    invoke("forecast", "sold")
    (_,), (seen,) = list_records(key)
    assert seen.partition_key == "2025-05-01"
    assert seen.event_log_entry.tags == made.tags

    # A newer issue of the day is shown: a look at an older one is no other forecast.
    with dg.DagsterInstance.get() as instance:
        tags = {"dagster/data_version": "newer"}
        newer = dg.AssetMaterialization(key, partition="2025-05-01", tags=tags)
        instance.report_runless_asset_event(newer)
    invoke("forecast", "sold")
    assert len(list_records(key)[1]) == 2


def test_a_newer_issue_that_was_not_recorded_is_shown_by_the_next_look(home, tmp_path, monkeypatch):
    set_homes(monkeypatch, home, tmp_path / "dagster")
    invoke("forecast", "sold")
    set_homes(monkeypatch, home)
    invoke("fit", "sold", "--method", "seasonal-mean")
    invoke("forecast", "sold", "--supersede")

    set_homes(monkeypatch, home, tmp_path / "dagster")
    for _ in range(2):
        invoke("forecast", "sold")
    newest, first = list_records(next_day_key("sold"))[0]
    assert newest.timestamp > first.timestamp
    assert newest.asset_materialization.tags != first.asset_materialization.tags


def test_a_fit_shows_series_windows_and_model(home, tmp_path, monkeypatch):
    set_homes(monkeypatch, home, tmp_path / "dagster")
    for _ in range(2):  # the second one makes nothing again
        invoke("fit", "sold", "--method", "persistence")
    run = find_current_run(Layout(root=home / "home" / "sample"), "sold")

    for key in (series_key("sold"), windows_key("sold"), model_key("sold")):
        (record,), (_,) = list_records(key)
    assert record.asset_materialization.tags == {"dagster/data_version": hash_model(run)}
    assert record.asset_materialization.metadata["method"].value == "persistence"


@pytest.mark.parametrize("fault", ["a file for a folder", "a torn dagster.yaml", "no folder"])
def test_a_fault_of_dagster_fails_no_command(home, tmp_path, monkeypatch, caplog, fault):
    set_homes(monkeypatch, home)
    shown = invoke("forecast", "sold")
    set_homes(monkeypatch, home, tmp_path / "dagster")
    if fault == "no folder":
        (tmp_path / "dagster").rmdir()
    else:
        name = "history" if fault == "a file for a folder" else "dagster.yaml"
        (tmp_path / "dagster" / name).write_text("a: [")

    assert invoke("forecast", "sold") == shown
    (warning,) = (one for one in caplog.records if one.name.startswith("compevo"))
    assert warning.levelname == "WARNING" and "Dagster's UI" in warning.message


def test_a_mistake_of_ours_is_no_warning_about_dagster():
    with pytest.raises(AttributeError):
        report_forecast(None, "sold", found=None)
