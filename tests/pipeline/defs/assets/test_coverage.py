"""``sources/coverage`` and ``compevo sources``: what is missing is seen, text from data is text."""

from datetime import UTC, datetime

import dagster as dg
import pytest

from compevo_pipeline.defs.assets.sources import check_coverage, coverage
from tests.support.commands import invoke
from tests.support.deployment import QUIET, open_home

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
NOTE = "SourceTransient: ![x](http://h/p.png)\x1b[31m"


@pytest.fixture
def workspace(tmp_path):
    workspace = open_home(tmp_path, "live", now=NOW)
    ledger = workspace.ledger()
    ledger.record_fetched("aemo", "a_20260301.zip", url="u", sha256="0", now=NOW)
    ledger.confirm()
    ledger.mark_absent("aemo", "a_20260302.zip", "u", NOW)
    return workspace


def fail(workspace):
    workspace.ledger().record_failure("aemo", "a_20260303.zip", url="u", note=NOTE, now=NOW)


def materialize(workspace):
    options = {"resources": {"workspace": workspace}, "run_config": {"loggers": QUIET}}
    result = dg.materialize([coverage, check_coverage], **options)
    (event,) = result.asset_materializations_for_node("sources__coverage")
    (check,) = result.get_asset_check_evaluations()
    return event.metadata, check


def test_a_failed_file_warns(workspace):
    metadata, check = materialize(workspace)
    assert check.passed and check.metadata["absent"].value == 1
    assert metadata["months"].records[0].data["2026-03"].startswith("50 %, 1")

    fail(workspace)
    metadata, check = materialize(workspace)
    assert not check.passed and check.severity is dg.AssetCheckSeverity.WARN
    reasons = {row.data["state"]: row.data["why"] for row in metadata["missing_files"].records}
    assert reasons["absent"] == "" and reasons["failed"].startswith("SourceTransient: ")
    # Reasons are cells of tables, which load nothing.
    assert not any(isinstance(value, dg.MarkdownMetadataValue) for value in metadata.values())


def test_an_empty_home_has_an_empty_table(tmp_path):
    metadata, check = materialize(open_home(tmp_path, "live"))
    assert check.passed and metadata["dagster/row_count"].value == 0


def test_the_terminal_shows_no_control_characters(workspace):
    fail(workspace)
    live = {"home": workspace.settings.home, "mode": "live"}
    shown = invoke("sources", "--dataset", "aemo", **live)
    assert "33 %" in shown and "1 failed" in shown and "2026-03-10 12:15" in shown
    assert "SourceTransient" in shown and "\x1b" not in shown

    assert "nobody" in invoke("sources", "--dataset", "nobody", **live)
