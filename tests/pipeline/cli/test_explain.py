"""``compevo explain``: the parts of an issued forecast, from its record alone."""

from datetime import date, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compevo_core.errors import ConfigError, DataError
from compevo_core.forecast.issued import write_issued
from compevo_pipeline.cli.forecast import find_record
from compevo_pipeline.cli.main import app
from tests.support.issued_samples import ORIGIN, make_issued

DAY = date(2026, 3, 31)


@pytest.fixture
def issued_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path))
    monkeypatch.setenv("COMPEVO_MODE", "sample")
    root = tmp_path / "sample" / "forecasts" / "issued" / "electricity-operational"
    write_issued(root, make_issued())
    write_issued(root, make_issued(known_steps=48, level=8100.0))
    return root


def explain(*words: str) -> str:
    result = CliRunner().invoke(app, ["explain", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def read_numbers(shown: str, start: str) -> list[str]:
    return next(line for line in shown.splitlines() if line.startswith(start)).split()


def test_the_parts_of_the_day_stand_above_their_sum(issued_folder: Path) -> None:
    shown = explain("2026-03-31", "NSW1", "--known-to", "issue-time")
    assert read_numbers(shown, "agent 0") == [
        *("agent", "0", "25.0", "%", "7920", "+30", "+20", "1992")
    ]
    assert read_numbers(shown, "agent 1")[-1] == "6008"
    assert read_numbers(shown, "weighted")[-1] == "8000"
    assert read_numbers(shown, "forecast minus published")[-1] == "+100"
    assert all(len(line) <= 80 for line in shown.splitlines() if "The record" not in line)


def test_what_was_read_is_shown_as_text_and_not_as_a_cause(issued_folder: Path) -> None:
    shown = explain("2026-03-31", "NSW1")
    assert "30 Mar 08:10 example.org: <script>alert('storm')</script> Storm cuts power" in shown
    assert "read by" not in shown and "agent 0 reads by: read the <b>weather</b>" in shown
    assert "may have changed nothing" in shown
    assert "newest article that could be read: 30 Mar 2026 16:40" in shown


def test_one_step_is_explained_on_the_markets_clock(issued_folder: Path) -> None:
    shown = explain("2026-03-31", "NSW1", "--step", "18:30")
    assert "NSW1: 9600 MW, step that starts at 18:30" in shown
    with pytest.raises(ConfigError, match="no step starts at '18:15'; steps start at 00:00"):
        explain("2026-03-31", "NSW1", "--step", "18:15")


def test_the_forecast_that_knew_most_is_explained_unless_another_is_named(
    issued_folder: Path,
) -> None:
    for known_to, hours in ((None, 0), ("midnight", 0), ("issue-time", 7)):
        found = find_record(issued_folder, DAY, known_to)
        assert found is not None
        known = ORIGIN - timedelta(hours=hours)
        assert found[0].facts["information_until"] == known.isoformat()

    # The record of a day begins on the day before in UTC: its neighbours are not taken for it.
    assert find_record(issued_folder, date(2026, 3, 30), None) is None


def test_a_forecast_that_is_missing_is_issued_by_the_command_that_the_error_names(
    issued_folder: Path,
) -> None:
    asked = ("2026-04-01", "NSW1", "--known-to", "issue-time")
    with pytest.raises(DataError, match=r"--day 2026-04-01 --known-to issue-time$"):
        explain(*asked)
    with pytest.raises(DataError, match=r"--day 2026-04-01$"):
        explain(*asked[:2])
    with pytest.raises(DataError, match="compevo forecast electricity --day 2026-03-31"):
        explain("2026-03-31", "NSW1", "electricity")
