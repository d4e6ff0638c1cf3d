"""What ``compevo init`` guesses of a table, says, and warns of."""

import io
import zipfile
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from compevo_core.errors import CompEvoError
from compevo_pipeline.sources.own.draft import DraftedDeclaration, Request, draft_declaration
from compevo_pipeline.sources.own.table import read_text_table
from tests.support.own_tables import wrap

FIRST = datetime(2024, 1, 1)  # noqa: DTZ001 - stamps of the table have no zone


def look(text: str, **said: object) -> DraftedDeclaration:
    keys = {"name": "demand", "file": Path("demand.csv"), "unit": "MW"}
    return draft_declaration(Request(**(keys | said)), wrap(text), {})


def write_hours(days: int = 60, columns: str = "temperature,load", **odd: str) -> str:
    rows = [f"{FIRST + timedelta(hours=i)},{i % 24},{200 + i % 24}" for i in range(24 * days)]
    for row, line in odd.items():
        rows[int(row[1:])] = line
    return f"when,{columns}\n" + "\n".join(rows) + "\n"


def test_stamps_and_values_are_guessed_and_said() -> None:
    draft = look(write_hours())
    assert 'time = "when"' in draft.text and 'values = ["load"]' in draft.text
    assert "the stamps are in 'when'; if not, give --time" in draft.guesses
    assert any(
        "'load', not in 'temperature'; to change that, give --value" in line
        for line in draft.guesses
    )


def test_all_values_are_series_of_their_own() -> None:
    draft = look(write_hours(), values=("all",))
    assert 'values = ["temperature", "load"]' in draft.text


def test_a_column_that_tells_repeated_stamps_apart_names_the_series() -> None:
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
def test_clocks_that_change_in_a_file_are_asked_for(month: int, message: str) -> None:
    zone = ZoneInfo("Europe/Paris")
    first = datetime(2024, month, 1, tzinfo=ZoneInfo("UTC"))
    stamps = [(first + timedelta(hours=i)).astimezone(zone) for i in range(24 * 60)]
    text = "when,load\n" + "".join(f"{at:%Y-%m-%d %H:%M},{at.hour}\n" for at in stamps)
    with pytest.raises(CompEvoError, match=rf"{message}.*--zone Europe/Paris"):
        look(text)
    assert 'time_zone = "Europe/Paris"' in look(text, zone="Europe/Paris").text


def test_values_far_from_all_others_and_constants_are_warned_of() -> None:
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
def test_what_no_guess_helps_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(CompEvoError, match=message):
        look(text)


def test_months_and_short_files_are_guessed() -> None:
    months = [f"{2010 + i // 12}-{i % 12 + 1:02d}-01,{i % 12}" for i in range(120)]
    draft = look("when,load\n" + "\n".join(months) + "\n")
    assert 'step = "1mo"' in draft.text and "horizon = 12 " in draft.text
    assert "\nseason_steps" not in draft.text
    days = "when,load\n" + "".join(f"{FIRST + timedelta(days=i)},{i % 7}\n" for i in range(90))
    short = look(days)
    assert "horizon = 10 " in short.text
    assert any("forecasts have 10 steps in place of 48" in guess for guess in short.guesses)


def test_a_season_that_the_step_does_not_suggest_is_said() -> None:
    cycle = [5.0, 9, 2, 7, 1, 8, 3, 0, 4, 6]
    rows = [f"{FIRST + timedelta(hours=i)},{cycle[i % 10] + i % 3 / 9}" for i in range(2000)]
    draft = look("when,load\n" + "\n".join(rows) + "\n")
    assert "season_steps = 30 " in draft.text or "season_steps = 10 " in draft.text
    assert any("the values repeat after" in guess for guess in draft.guesses)


def write_sheet(rows: list[list[str | float]]) -> bytes:
    """Return the least that a workbook needs."""
    cells = "".join(
        "<row>"
        + "".join(
            f"<c><v>{cell}</v></c>"
            if isinstance(cell, float)
            else f'<c t="inlineStr"><is><t>{cell}</t></is></c>'
            for cell in row
        )
        + "</row>"
        for row in rows
    )
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    links = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    files = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"/>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{links}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{links}"><sheets><sheet name="a" '
        'sheetId="1" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="r1" Type="{links}/worksheet" Target="worksheets/sheet1.xml"/>'
        "</Relationships>",
        "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{cells}</sheetData>'
        "</worksheet>",
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as book:
        for name, text in files.items():
            book.writestr(name, text)
    return content.getvalue()


def test_a_sheet_of_excel_reads_as_the_same_table() -> None:
    pytest.importorskip("fastexcel")
    table = read_text_table(write_sheet([["when", "load"], ["2024-01-01 01:00", 1.5]]), "a.xlsx")
    assert table.row(0, named=True) == {"line": 1, "when": "2024-01-01 01:00", "load": "1.5"}


def test_a_broken_excel_file_is_named() -> None:
    pytest.importorskip("fastexcel")
    with pytest.raises(CompEvoError, match=r"demand\.xlsx is not an Excel file"):
        read_text_table(b"PK nothing", "demand.xlsx")
