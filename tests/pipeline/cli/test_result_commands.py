"""``compevo table`` and ``audit-news``: what a user types and reads."""

import re

import polars as pl
import pytest
from typer.testing import CliRunner

from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError, DataError
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.paper import news_audit
from compevo_core.paper.changes import find_variant
from compevo_core.paper.run_traces import TRACE_SCHEMA, read_typed
from compevo_core.runtime.files import write_json
from compevo_core.training.run_folder import RunFolder
from compevo_pipeline.cli.main import app, main
from compevo_pipeline.cli.results import ERRORS, render_scores
from tests.support.commands import invoke
from tests.support.planted import planted_world
from tests.support.report_samples import make_rows
from tests.support.round_records import round_record


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    write_rows(folder / "main.csv", make_rows())
    return folder


def test_a_table_of_the_paper_and_that_of_all_methods_are_printed(results):
    paper = invoke("table", "main", "--results", results)
    assert "| CompEvo | 198.4 | **220.15 ± 2.40** |" in paper
    assert "pooled errors" in invoke("table", "--results", results)
    with pytest.raises(ConfigError):  # a folder is not a name of a table
        invoke("table", results)


@pytest.mark.parametrize(
    "command", [["table", "main", "--results"], ["table", "--results"], ["report"]]
)
def test_rows_of_a_folder_that_is_not_there_are_refused(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=str(tmp_path / "none")):
        invoke(*command, tmp_path / "none")
    # No product that looks finished.
    assert not any(tmp_path.iterdir())


def test_a_run_that_is_not_there_is_said_to_be_none(tmp_path, capsys):
    run = str(tmp_path / "none")
    places = ["--windows", str(tmp_path), "--news", str(tmp_path)]
    for words in (["lud", run], ["trace", run, "x"], ["evaluate", run, *places]):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 1
        told = capsys.readouterr().err
        assert run in told and "name one that is there" in told
        assert "stored is whole" not in told


def test_a_count_of_nothing_is_an_error_of_usage():
    for option in ("--rank", "--agents"):
        assert CliRunner().invoke(app, ["params", option, "0"]).exit_code == 2


def test_a_run_is_traced_under_the_name_of_its_system_and_its_own_seed(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.model.mkdir(parents=True)
    config = find_variant("mael").configure(RunConfig.preset("tiny"))
    write_json(run.model_config_file, config.with_overrides({"run.seed": 5}).to_dict())
    run.append_round(round_record(0))

    out = tmp_path / "results"
    paths = invoke("trace", run.path, "electricity", "--results", out).split()
    assert paths == [str(out / f"{name}-electricity.csv") for name in ("traces", "logics")]
    rows = read_typed(out / "traces-electricity.csv", TRACE_SCHEMA)
    assert rows.select("method", "budget", "seed").unique().rows() == [("mael", "", 5)]


@pytest.mark.slow
def test_the_audit_of_a_probe_measures_every_split_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(news_audit, "DRAWS", 1)
    monkeypatch.setattr(news_audit, "EFFECTS", (4.0,))
    world = planted_world(3.0, is_regional=True, share=0.1)
    world.windows.write(tmp_path / "windows")
    world.news.write(tmp_path / "news")

    paths = ("--windows", tmp_path / "windows", "--news", tmp_path / "news")
    printed = invoke("audit-news", "electricity", "--probe", *paths, "--results", tmp_path / "out")
    assert printed.count("does news help a linear probe?") == 3

    rows = pl.read_csv(tmp_path / "out" / "news-audit-electricity.csv")
    assert rows["split"].unique(maintain_order=True).to_list() == ["train", "val", "test"]
    assert rows["seen_from_sd"].drop_nulls().unique().to_list() == [4.0]


def test_a_folder_without_its_windows_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--windows and --news"):
        invoke("audit-news", tmp_path)


def test_scores_of_each_test_set_stand_in_a_table_of_their_own():
    subsets = ("operational-2026-200", "operational-2026-200-known-1700")
    facts = {"dataset": "electricity-operational", "split": "test", "entity": "pooled"}
    rows = [
        {name: error for name, _ in ERRORS}
        | facts
        | {"method": "gbm", "subset": subset, "unit": "MW", "n_windows": 200}
        for error, subset in zip((1.5, 2.5), subsets, strict=True)
    ]
    first, second = re.findall(
        r"^Elec.*?gbm +(\S+)", render_scores(pl.DataFrame(rows)), re.M | re.S
    )
    assert (first, second) == ("1.5", "2.5")


def test_a_data_set_without_windows_says_how_to_cut_them(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path))
    with pytest.raises(DataError, match=r"no windows of exchange: .*`compevo refresh exchange`"):
        invoke("audit-news", "exchange")
