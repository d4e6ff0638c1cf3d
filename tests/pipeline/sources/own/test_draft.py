"""A first look at a user's table: what is found, what is guessed, and what is then declared."""

from datetime import timedelta
from pathlib import Path

import pytest

from compevo_core.errors import CompEvoError
from compevo_pipeline.sources.own.draft import DraftedDeclaration, Request, draft_declaration
from compevo_pipeline.sources.registry import load_registry
from tests.support.own_tables import wrap, write_demand


def look(text: str | bytes, **said: object) -> DraftedDeclaration:
    keys = {"name": "demand", "file": Path("demand.csv"), "time": "stamp", "values": ("load_mw",)}
    return draft_declaration(Request(**(keys | said)), wrap(text), {})


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tables") / "demand.csv"
    write_demand(path, days=60)
    return path.read_text(encoding="utf-8")


def test_what_is_written_is_a_declaration_that_is_read(table: str, tmp_path: Path) -> None:
    draft = look(table, zone="Europe/Paris", country="FR")
    (tmp_path / "demand.toml").write_text(draft.text, encoding="utf-8")
    registry = load_registry(tmp_path)

    assert registry.broken == {}
    spec = registry["demand"].spec
    assert spec.step == timedelta(minutes=30)
    assert [span.split for span in spec.spans] == ["train", "val", "test"]
    assert any("2,880 steps of 30min" in line for line in draft.findings)
    assert any("'mw', from the column's name" in line for line in draft.guesses)


def test_finer_rows_and_business_days_are_seen_and_said() -> None:
    quarters = "stamp,load_mw\n" + "".join(
        f"2024-01-{day:02d} {hour:02d}:{minute:02d},{hour}\n"
        for day in range(1, 31)
        for hour in range(24)
        for minute in (0, 15, 30, 45)
    )
    draft = look(quarters, zone="UTC", unit="MW")
    assert 'step = "15min"' in draft.text
    assert "horizon = 96" in draft.text
    assert any("96 steps back" in line for line in draft.guesses)
    assert 'step = "1h"' in look(quarters, zone="UTC", unit="MW", step="1h", lookback=48).text

    minutes = "stamp,load_mw\n" + "".join(
        f"2024-01-{day:02d} {hour:02d}:{minute:02d},{hour}\n"
        for day in range(1, 31)
        for hour in range(24)
        for minute in range(60)
    )
    draft = look(minutes, zone="UTC", unit="MW")
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
def test_what_cannot_be_decided_is_refused_in_words(
    table: str, old: str, new: str, said: dict[str, object], message: str
) -> None:
    text = table.replace(old, new, 1) if old else table
    with pytest.raises(CompEvoError, match=message.replace("(", r"\(")):
        look(text, **said)


def test_days_and_months_are_told_apart_by_even_steps_or_asked_for() -> None:
    days = [f"{day:02d}/{month:02d}/2024" for month in range(1, 13) for day in range(1, 13)]
    text = "stamp,load_mw\n" + "".join(f"{day},1\n" for day in days[:2])
    with pytest.raises(CompEvoError, match="say which with --time-format"):
        look(text)


def test_a_comma_that_may_mark_either_is_asked_for() -> None:
    text = "stamp;load_mw\n" + "".join(f"2024-01-{day:02d};1,{day:03d}\n" for day in range(1, 29))
    with pytest.raises(CompEvoError, match=r"row 2.*'1,001' may be 1001 or 1\.001.*--decimal"):
        look(text)
