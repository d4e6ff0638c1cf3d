import shutil
import sqlite3
from datetime import UTC, datetime

import dagster as dg
import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError

from compevo_core import errors
from compevo_core.runtime.files import StoreBusy
from compevo_pipeline import errors as failures
from compevo_pipeline.config.settings import REPOSITORY
from compevo_pipeline.defs.assets.report import clean_dagster
from compevo_pipeline.defs.definition import to_dagster, translate_errors
from compevo_pipeline.defs.jobs import run_job, translate_record_errors
from compevo_pipeline.defs.loggers import progress_logger


def test_every_source_error_has_a_policy():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    family = [kind for kind in kinds if issubclass(kind, errors.CompEvoError)]
    assert len(family) > 8
    assert all(failures.get_policy(kind("x")).decision in failures.RetryDecision for kind in family)


def test_waits_double_unless_a_publisher_asks():
    tries = [to_dagster(errors.SourceTransient("x"), attempt=attempt) for attempt in range(3)]
    assert [one.seconds_to_wait for one in tries] == [60, 120, 240]
    assert to_dagster(failures.Throttled("slow down", 900)).seconds_to_wait == 900
    assert to_dagster(failures.Throttled("slow down", 1)).seconds_to_wait == 60
    longest = to_dagster(failures.Throttled("next year", 10**7)).seconds_to_wait
    assert longest == failures.MAX_RETRY_AFTER_S


@pytest.mark.parametrize(
    ("error", "attempt", "wait_s"),
    [
        (errors.SourceTransient("x"), 0, 2.0),
        (errors.SourceTransient("x"), 1, 8.0),
        (errors.SourceTransient("x"), 2, None),  # then it is Dagster's
        (failures.Throttled("x", 20.0), 0, 20.0),
        (failures.Throttled("x", 31.0), 0, None),  # too long to hold a worker
        (errors.SchemaDrift("x"), 0, None),
    ],
)
def test_a_step_waits_shortly(error, attempt, wait_s):
    assert failures.plan_short_wait(error, attempt, 0.0) == wait_s
    # Waits are spread over half their length.
    assert not wait_s or failures.plan_short_wait(error, attempt, 1.0) == 1.5 * wait_s


def test_a_transient_error_without_tries_is_final():
    assert isinstance(to_dagster(errors.SourceTransient("torn on disk"), retry=False), dg.Failure)
    # A file stays torn, but another run frees what it holds.
    assert isinstance(to_dagster(StoreBusy("held"), retry=False), dg.RetryRequested)
    failure = to_dagster(errors.SourceTransient("timeout at x"), attempt=3)
    assert isinstance(failure, dg.Failure)
    assert failure.allow_retries is False
    assert "timeout at x" in failure.description and "3" in failure.description


@pytest.mark.parametrize(
    "kind", [errors.SourceAbsent, errors.SourceRejected, errors.SourceBlocked, errors.SchemaDrift]
)
def test_a_permanent_error_stops_with_a_remedy(kind):
    with pytest.raises(dg.Failure) as caught, translate_errors():
        raise kind("x.csv, line 3")
    assert caught.value.allow_retries is False
    assert "x.csv, line 3" in caught.value.description
    assert caught.value.metadata["remedy"].value
    assert isinstance(caught.value.__cause__, kind)


@pytest.fixture
def full_disk():
    """Returns a function from whose call on no database of Dagster can grow."""

    def stop_growth(connection, _):
        connection.execute("PRAGMA max_page_count = 1")

    yield lambda: event.listen(Engine, "connect", stop_growth)
    if event.contains(Engine, "connect", stop_growth):
        event.remove(Engine, "connect", stop_growth)


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("database disk image is malformed", "backup"),
        ("file is not a database", "backup"),
        ("database is locked", "program"),
        ("attempt to write a readonly database", "owner"),
    ],
)
def test_each_fault_of_records_has_a_remedy(message, remedy):
    with pytest.raises(errors.StorageError, match=remedy), translate_record_errors():
        raise OperationalError("INSERT", {}, sqlite3.OperationalError(message))


def test_settings_of_dagster_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text("a: [")
    with pytest.raises(errors.ConfigError, match=r"dagster\.yaml.*ParserError.*correct it"):
        clean_dagster(datetime.now(UTC))


@pytest.mark.parametrize("is_full_at_once", [True, False])
def test_a_full_disk_of_records_ends_a_run(tmp_path, monkeypatch, full_disk, is_full_at_once):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", tmp_path)

    @dg.asset
    def talkative(context: dg.AssetExecutionContext) -> None:
        full_disk()
        for number in range(100):
            context.log.info(f"{number:0200}")

    full = dg.define_asset_job("full", executor_def=dg.in_process_executor)
    defs = dg.Definitions(assets=[talkative], jobs=[full], loggers={"progress": progress_logger})
    if is_full_at_once:
        full_disk()
    with pytest.raises(errors.StorageError, match=f"{tmp_path}.*free space"):
        run_job(defs, "full", "electricity")
