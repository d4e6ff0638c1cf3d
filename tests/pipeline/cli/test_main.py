"""The command line: thin, and its errors are one line with a remedy."""

from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from compevo_core.agents.logics import SLOT_SEED_LOGICS
from compevo_core.errors import ConfigError, StorageError
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.paper.report.figures import Plot
from compevo_pipeline import definitions
from compevo_pipeline.cli import refresh
from compevo_pipeline.cli.arguments import parse_changes, show_progress
from compevo_pipeline.cli.main import app, main
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs import jobs
from compevo_pipeline.paper import demo
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.work import deployment
from tests.support.commands import invoke
from tests.support.issued_samples import make_issued
from tests.support.report_samples import make_rows, make_wins, write_run

PLACES = ["--windows", "{home}", "--news", "{home}"]


def test_every_option_says_what_it_is():
    group = get_command(app)
    paper = group.commands["paper"]
    commands = {**group.commands, **paper.commands, **paper.commands["experiment"].commands}
    for name, command in commands.items():
        assert [one.name for one in command.params if not one.help] == [], name
    helps = [command.help for command in commands.values()]
    assert not any("\n" in text for shown in helps for text in shown.split("\n\n"))


def test_the_help_fits_on_a_screen():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).output.rstrip("\n")
    assert shown.count("\n") < 40
    assert max(map(len, shown.splitlines())) <= 80
    assert "compevo paper" not in shown and " paper " in shown


def test_settings_are_read_as_values_or_text():
    changes = {
        "population.agents=3": 3,
        "selection.uniform=true": True,
        "forecast.prior=gbm": "gbm",
        "optim.forecast_lr=1e-3": 0.001,
        'population.members=[{entities = ["NSW1"]}, {}]': [{"entities": ["NSW1"]}, {}],
    }

    assert list(parse_changes(list(changes)).values()) == list(changes.values())


def test_a_broken_setting_is_refused_with_an_example():
    for change in ("agents", "=3"):
        with pytest.raises(ConfigError, match=r"population\.agents=3"):
            parse_changes([change])
    with pytest.raises(ConfigError) as caught:
        parse_changes(["population.members=[{prior = gbm}]"])
    example = str(caught.value).rpartition(": '")[2].rstrip("'")
    assert parse_changes([example]) == {"population.members": [{"prior": "gbm"}, {}]}


REFUSED = [
    (["train", *PLACES, "--out", "{home}", "--preset", "tiny", "--variant=no-new"], "'no-new'"),
    (["report", "{home}", "{home}"], "{home}: no rounds.jsonl"),
    (["lud", "{home}/none"], "{home}/none"),
    (["trace", "{home}/none", "x"], "{home}/none"),
    (["evaluate", "{home}/none", *PLACES], "{home}/none"),
    (["audit-news", "{home}"], "--windows and --news"),
    (["audit-news", "exchange"], "compevo refresh exchange"),
    (["table", "{home}"], "{home}"),
    (["experiment", "control", "electricity", "--effects", "big"], "--effects big"),
    (["experiment", "text", "poems"], "'poems'"),
    (["experiment", "text", "weather"], "COMPEVO_ARCHIVE"),
    (["experiment", "context"], "COMPEVO_ARCHIVE"),
    (["experiment", "context", "--reader", "gpt"], "'gpt'"),
]
NO_FOLDER = "DAGSTER_HOME is '{home}/none', and there is no folder"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((["paper", *words], said) for words, said in REFUSED),
        *(([command], NO_FOLDER) for command in ("demo", "refresh", "clean")),
    ],
)
def test_what_is_wrong_ends_as_one_line(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("COMPEVO_ARCHIVE", raising=False)
    with pytest.raises(SystemExit) as stop:
        main([word.format(home=tmp_path) for word in words])
    assert stop.value.code == 1
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("compevo: ") and said.format(home=tmp_path) in told[-1]
    assert words[0] == "paper" or len(told) == 1
    assert not (tmp_path / "none").exists()


def test_the_report_is_written_where_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(Plot, "source", "data:,")  # to draw them is nearly all of the work
    (tmp_path / "results").mkdir()
    make_rows().write_csv(tmp_path / "results" / "main.csv")
    target = tmp_path / "pages"
    target.mkdir()
    (target / "forecast.html").write_text("old")
    run = write_run(tmp_path / "electricity")
    invoke("paper", "report", tmp_path / "results", run, "--out", target, "--mode", "archive")
    pages = {path.name: path.read_text(encoding="utf-8") for path in target.iterdir()}

    assert set(pages) == {"forecast.html", "research.html"}
    assert pages["forecast.html"] != "old"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_one_line_of_a_terminal(is_terminal, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    for text in ("round 1", "round 2", ""):
        show_progress(text)
    shown = capsys.readouterr().out
    erase = "\r\x1b[2K"
    wanted = f"{erase}round 1{erase}round 2{erase}" if is_terminal else "round 1\nround 2\n"
    assert shown == wanted


@pytest.mark.parametrize(
    ("words", "day", "is_shown"),
    [
        # Half past four in the afternoon in UTC is the next day in Brisbane.
        (["--day", "today"], "2026-03-31", True),
        (["--day", "2026-03-30"], "2026-03-30", True),
        ([], "2026-04-01", True),
        # Its windows begin at any hour: new data and no forecast.
        (["traffic"], "", False),
    ],
)
def test_a_refresh_takes_a_forecasts_days(monkeypatch, tmp_path, words, day, is_shown):
    monkeypatch.setattr(deployment, "utc_now", lambda: datetime(2026, 3, 30, 16, 30, tzinfo=UTC))
    ran, shown = [], []
    settings = Settings(home=tmp_path)
    monkeypatch.setattr(refresh, "run", lambda *given: ran.append(given) or settings)
    monkeypatch.setattr(refresh, "show_forecast", lambda *given: shown.append(given))
    invoke("refresh", *words, home=tmp_path)
    assert [given[2] for given in ran] == [day]
    assert [str(given[2]) for given in shown] == ([day] if is_shown else [])


def test_the_demo_ends_with_its_worth(tmp_path):
    layout, wins = Settings(home=tmp_path).layout(Mode.SAMPLE), make_wins()
    issued = make_issued()
    seed = next(logic for logic in SLOT_SEED_LOGICS if "power outages" in logic)

    def describe(*logics):
        facts = issued.facts | {"logics": list(logics)}
        shown = demo.describe_findings(layout, "electricity", replace(issued, facts=facts))
        assert all(len(line) <= 80 for line in shown)
        return " ".join(shown)

    assert describe(seed, seed) == ""  # nothing was scored
    write_rows(layout.results / "rows.csv", wins.rows)
    pl.DataFrame(wins.paired).write_csv(layout.results / "paired.csv")
    told = describe(seed, "Read all news.")
    facts = ("0: power outages", "1: Read all", "120.0 MW", "150 windows", "130.0 MW", "47 windows")
    assert [fact for fact in facts if fact not in told] == []
    other = seed.replace("power outages", "industrial production")
    assert "all of it" in describe(seed, other)


def test_an_unrecorded_refresh_is_told(monkeypatch, tmp_path, capsys):
    def fill(*_):
        raise StorageError("Dagster's records in /d cannot be written")

    told = tmp_path / "told.txt"
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\ncat >> {told}\n")
    pager.chmod(0o755)
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path))
    monkeypatch.setenv("COMPEVO_ALERTS", f"command:{pager}")
    monkeypatch.setattr(jobs, "run_job", fill)
    monkeypatch.setattr(definitions, "build_defs", lambda _: None)
    for _ in range(2):
        with pytest.raises(SystemExit):
            main(["refresh"])
    sentence = "Dagster's records in /d cannot be written"
    assert told.read_text() == sentence
    assert capsys.readouterr().err == f"compevo: {sentence}\n" * 2
