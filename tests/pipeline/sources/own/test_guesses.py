"""What ``compevo init`` guesses of a table, says, and warns of."""

from datetime import date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from compevo_core.errors import CompEvoError
from compevo_pipeline.sources.own.draft import Request, draft_declaration
from compevo_pipeline.sources.own.table import read_text_table
from compevo_pipeline.sources.registry import load_registry
from tests.support.own_tables import wrap, write_demand

FIRST = datetime(2024, 1, 1)  # noqa: DTZ001 - stamps of the table have no zone


def look(text, **said):
    keys = {"name": "demand", "file": Path("demand.csv"), "unit": "MW"}
    return draft_declaration(Request(**(keys | said)), wrap(text), {})


def write_hours(days=60, columns="temperature,load", **odd):
    rows = [f"{FIRST + timedelta(hours=i)},{i % 24},{200 + i % 24}" for i in range(24 * days)]
    for row, line in odd.items():
        rows[int(row[1:])] = line
    return f"when,{columns}\n" + "\n".join(rows) + "\n"


def test_stamps_and_values_are_guessed_and_said():
    draft = look(write_hours())
    assert 'time = "when"' in draft.text and 'values = ["load"]' in draft.text
    assert "the stamps are in 'when'; if not, give --time" in draft.guesses
    assert any(
        "'load', not in 'temperature'; to change that, give --value" in line
        for line in draft.guesses
    )


def test_all_values_are_series_of_their_own():
    draft = look(write_hours(), values=("all",))
    assert 'values = ["temperature", "load"]' in draft.text


def test_a_column_that_tells_repeated_stamps_apart_names_the_series():
    rows = [
        f"{FIRST + timedelta(days=day):%Y-%m-%d},{store},{day % 7 + store}"
        for store in (1, 2)
        for day in range(700)
    ]
    draft = look("date,store,sales\n" + "\n".join(rows) + "\n")
    assert 'id = "store"' in draft.text and 'values = ["sales"]' in draft.text
    assert "horizon = 48" in draft.text and "lookback = 77" in draft.text


@pytest.mark.parametrize(
    ("month", "message"),
    [(10, r"2024-10-27 02:00, a Sunday, comes twice"), (3, r"2024-03-31 03:00.*missing hour")],
)
def test_clocks_that_change_in_a_file_are_asked_for(month, message):
    zone = ZoneInfo("Europe/Paris")
    first = datetime(2024, month, 1, tzinfo=ZoneInfo("UTC"))
    stamps = [(first + timedelta(hours=i)).astimezone(zone) for i in range(24 * 60)]
    text = "when,load\n" + "".join(f"{at:%Y-%m-%d %H:%M},{at.hour}\n" for at in stamps)
    with pytest.raises(CompEvoError, match=rf"{message}.*--zone Europe/Paris"):
        look(text)
    assert 'time_zone = "Europe/Paris"' in look(text, zone="Europe/Paris").text


def test_values_far_from_all_others_and_constants_are_warned_of():
    draft = look(write_hours(n100=f"{FIRST + timedelta(hours=100)},1,9999999"))
    (warning,) = draft.warnings
    assert warning.startswith("OWN/load: 1 value(s) are far from the others, first 9,999,999 at ")
    assert f"# Warning: {warning}" in draft.text
    assert look(write_hours()).warnings == []

    constant = "when,load\n" + "".join(f"{FIRST + timedelta(days=i)},5\n" for i in range(700))
    (warning,) = look(constant).warnings
    assert "all values of OWN/load are equal" in warning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,4\n", "no column holds stamps"),
        ("when,name\n2024-01-01,x\n2024-01-02,y\n", "no column of numbers beside 'when'"),
        ("when,load\n" + "".join(f"{FIRST + timedelta(days=i)},{i}\n" for i in range(12)), "need "),
    ],
)
def test_what_no_guess_helps_is_refused_in_words(text, message):
    with pytest.raises(CompEvoError, match=message):
        look(text)


def test_months_and_short_files_are_guessed():
    months = [f"{2010 + i // 12}-{i % 12 + 1:02d}-01,{i % 12}" for i in range(120)]
    draft = look("when,load\n" + "\n".join(months) + "\n")
    assert 'step = "1mo"' in draft.text and "horizon = 12 " in draft.text
    assert "\nseason_steps" not in draft.text
    days = "when,load\n" + "".join(f"{FIRST + timedelta(days=i)},{i % 7}\n" for i in range(90))
    short = look(days)
    assert "horizon = 10 " in short.text
    assert any("forecasts have 10 steps in place of 48" in guess for guess in short.guesses)


def test_a_season_that_the_step_does_not_suggest_is_said():
    cycle = [5.0, 9, 2, 7, 1, 8, 3, 0, 4, 6]
    rows = [f"{FIRST + timedelta(hours=i)},{cycle[i % 10] + i % 3 / 9}" for i in range(2000)]
    draft = look("when,load\n" + "\n".join(rows) + "\n")
    assert "season_steps = 30 " in draft.text or "season_steps = 10 " in draft.text
    assert any("the values repeat after" in guess for guess in draft.guesses)


def test_a_sheet_of_excel_reads_as_the_same_table():
    pytest.importorskip("fastexcel")
    table = read_text_table(Path(__file__).with_name("sheet.xlsx").read_bytes(), "a.xlsx")
    assert table.row(0, named=True) == {"line": 1, "when": "2024-01-01 01:00", "load": "1.5"}


def test_a_broken_excel_file_is_named():
    pytest.importorskip("fastexcel")
    with pytest.raises(CompEvoError, match=r"demand\.xlsx is not an Excel file"):
        read_text_table(b"PK nothing", "demand.xlsx")


def look_at(text, **said):
    """Look at a table whose columns are named."""
    return look(text, **{"unit": "", "time": "stamp", "values": ("load_mw",)} | said)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "demand.csv"
    write_demand(path, days=60)
    return path.read_text(encoding="utf-8")


def test_what_is_written_is_a_declaration_that_is_read(table, tmp_path):
    draft = look_at(table, zone="Europe/Paris", country="FR")
    (tmp_path / "demand.toml").write_text(draft.text, encoding="utf-8")
    registry = load_registry(tmp_path)

    assert registry.broken == {}
    spec = registry["demand"].spec
    assert spec.step == timedelta(minutes=30)
    assert [span.split for span in spec.spans] == ["train", "val", "test"]
    assert any("2,880 steps of 30min" in line for line in draft.findings)
    assert any("'mw', from the column's name" in line for line in draft.guesses)


def test_what_is_assumed_for_want_of_a_name_or_a_clock_is_said_as_such():
    days = [f"{date(2024, 1, 1) + timedelta(days=n)}" for n in range(90)]
    rows = "".join(f"{day}T00:00+02:00,{n % 9}\n" for n, day in enumerate(days))
    guesses = look_at("stamp,sales\n" + rows, values=("sales",)).guesses
    assert "the unit is 'units', as nothing names one; if not, give --unit" in guesses
    assert "days and weekdays follow UTC; to follow a place, give --zone" in guesses
    headless = "".join(f"{day},{n % 9}\n" for n, day in enumerate(days))
    with pytest.raises(CompEvoError, match="row 1: '2024-01-01' is a stamp and not a name"):
        look_at(headless, time="", values=())


def test_finer_rows_and_business_days_are_seen_and_said():
    quarters = "stamp,load_mw\n" + "".join(
        f"2024-01-{day:02d} {hour:02d}:{minute:02d},{hour}\n"
        for day in range(1, 31)
        for hour in range(24)
        for minute in (0, 15, 30, 45)
    )
    draft = look_at(quarters, zone="UTC", unit="MW")
    assert 'step = "15min"' in draft.text
    assert "horizon = 96" in draft.text
    assert any("96 steps back" in line for line in draft.guesses)
    assert 'step = "1h"' in look_at(quarters, zone="UTC", unit="MW", step="1h", lookback=48).text

    minutes = "stamp,load_mw\n" + "".join(
        f"2024-01-{day:02d} {hour:02d}:{minute:02d},{hour}\n"
        for day in range(1, 31)
        for hour in range(24)
        for minute in range(60)
    )
    draft = look_at(minutes, zone="UTC", unit="MW")
    assert 'step = "30min"' in draft.text
    assert any("averaged to half-hours" in line for line in draft.guesses)


@pytest.mark.parametrize(
    ("old", "new", "said", "message"),
    [
        ("", "", {"zone": "Paris"}, "--zone: 'Paris' is not a time zone"),
        ("", "", {"country": "XX"}, "no public holidays are known"),
        ("2024-01-05 00:00:00", "5 January", {}, "'5 January' is not a stamp in a format"),
        ("", "", {"values": ("power",)}, "no column 'power'; the columns are 'stamp', 'load_mw'"),
    ],
)
def test_what_cannot_be_decided_is_refused_in_words(table, old, new, said, message):
    text = table.replace(old, new, 1) if old else table
    with pytest.raises(CompEvoError, match=message.replace("(", r"\(")):
        look_at(text, **said)


def test_days_and_months_are_told_apart_by_even_steps_or_asked_for():
    days = [f"{day:02d}/{month:02d}/2024" for month in range(1, 13) for day in range(1, 13)]
    text = "stamp,load_mw\n" + "".join(f"{day},1\n" for day in days[:2])
    with pytest.raises(CompEvoError, match="say which with --time-format"):
        look_at(text)


def test_a_comma_that_may_mark_either_is_asked_for():
    text = "stamp;load_mw\n" + "".join(f"2024-01-{day:02d};1,{day:03d}\n" for day in range(1, 29))
    with pytest.raises(CompEvoError, match=r"row 2.*'1,001' may be 1001 or 1\.001.*--decimal"):
        look_at(text)
