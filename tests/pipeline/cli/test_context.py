"""``compevo experiment context``: from an archive's tasks to rows beside the published scores."""

import gzip
import json

import polars as pl
import pytest
from typer.testing import CliRunner

from compevo_core.paper.context_is_key import FILE
from compevo_core.paper.lud_judges import EndpointJudge
from compevo_pipeline.cli.main import app
from compevo_pipeline.config import endpoints


@pytest.fixture
def archive(tmp_path, monkeypatch):
    entry = {
        "name": "heat",
        "seed": 1,
        "weight": "1",
        "context_sources": ["c_f"],
        "background": "Load.",
        "scenario": "A heat wave comes.",
        "constraints": None,
        "seasonal_period": -1,
        "past_time": json.dumps({"load": {"t0": 3, "t1": 3}}),
        "future_time": json.dumps({"load": {"t2": 4, "t3": 5}}),
        "metric_scaling": 0.5,
        "region_of_interest": [],
        "constraint_min": None,
        "constraint_max": None,
        "constraint_variable_max_index": [],
        "constraint_variable_max_values": [],
    }
    path = tmp_path / "archive" / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(json.dumps(entry).encode()))
    monkeypatch.setenv("COMPEVO_ARCHIVE", str(tmp_path / "archive"))
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))


def run(*options):
    result = CliRunner().invoke(app, ["experiment", "context", *options])
    return f"{result.output}{result.exception or ''}"


def test_rows_are_written_and_shown_among_the_published_ones(archive, tmp_path):
    shown = run("--results", str(tmp_path))
    assert "**ours, numbers alone** | 0.750" in shown and "Chronos Large | 0.326" in shown
    rows = pl.read_csv(tmp_path / "context-is-key.csv")
    assert rows["score"].to_list() == [0.75, 0.75] and rows["samples"].to_list() == [25, 25]


def test_an_endpoint_reads_and_its_answers_are_kept(archive, tmp_path, monkeypatch):
    asked = []

    def transport(body):
        asked.append(body)
        return {"choices": [{"message": {"content": "4, 5"}}]}

    judge = EndpointJudge(model="m-1", transport=transport)
    monkeypatch.setattr(endpoints, "read_endpoint_judge", lambda: judge)
    for _ in range(2):
        shown = run("--reader", "endpoint", "--samples", "2", "--results", str(tmp_path))
        assert "**ours, written by endpoint:m-1** | 0.000" in shown
    assert len(asked) == 2


def test_what_is_missing_is_named(archive, monkeypatch):
    assert "'gpt' is not one of none, local, endpoint" in run("--reader", "gpt")
    monkeypatch.delenv("COMPEVO_ARCHIVE")
    assert "set COMPEVO_ARCHIVE" in run()
