"""The section "Tomorrow": what was issued, what it adds up from, how earlier forecasts did."""

import base64
import hashlib
import re
from datetime import timedelta
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import polars as pl
import pytest

from compevo_core.data.window import WindowSet
from compevo_core.forecast.issued import IssuedForecast, write_issued
from compevo_core.report.figures import DARK_COLOURS
from compevo_core.report.inputs import ForecastDay, read_days
from compevo_core.report.page import render_page
from compevo_core.report.rows import empty_rows
from compevo_core.report.tomorrow import before_table, chart_series, part_table, skill_table
from tests.core.report.test_page import ParsedPage
from tests.support.issued_samples import ORIGIN, TITLE, make_issued
from tests.support.report_samples import make_inputs
from tests.support.scored_samples import make_rows
from tests.support.window_samples import make_window

ONE_DAY = timedelta(days=1)
ATTACK = "</script><script>alert(1)</script>"


def make_day(**changes: object) -> ForecastDay:
    """Return tomorrow, yesterday's forecast, and what was measured yesterday: 100 MW less."""
    before = make_issued(origin=ORIGIN - ONE_DAY)
    truth = {
        (entity, ORIGIN - ONE_DAY): before.select_points(entity)["compevo"] - 100
        for entity in before.entities
    }
    day = {"issued": make_issued(), "before": before, "truth": truth}
    return ForecastDay(**(day | changes))  # type: ignore[arg-type]


def render(*days: ForecastDay) -> str:
    return render_page(make_inputs(runs=(), rows=empty_rows(), days=days))


PAGE = render(make_day())


def test_it_is_the_first_section_and_says_how_to_issue_a_forecast_before_there_is_one() -> None:
    empty = render()
    assert re.findall(r"<section id=\"([^\"]+)\"", empty)[0] == "tomorrow"
    assert "compevo forecast electricity-operational --day" in empty
    assert "compevo forecast --dataset" not in PAGE


def test_every_series_has_a_chart_that_plotly_accepts() -> None:
    figure = chart_series(make_day(), "NSW1")
    go.Figure(figure)  # refuses what plotly does not know
    names = [trace["name"] for trace in figure["data"]]
    assert names == [
        *("95 % band", "95 % band", "80 % band", "80 % band"),
        *("agent 1 (75 %)", "agent 0 (25 %)"),
        *("CompEvo, yesterday&#x27;s forecast", "measured", "published forecast", "CompEvo"),
    ]
    forecast = figure["data"][-1]
    assert (forecast["x"][0], forecast["x"][37]) == ("2026-03-31T00:00", "2026-03-31T18:30")
    assert forecast["y"][37] == 9500.0
    # The band is filled down from its upper bound to the trace before it, the lower one.
    lower, upper = figure["data"][2:4]
    assert (upper["fill"], upper["y"][0] - lower["y"][0]) == ("tonexty", 1000.0)


def test_yesterday_is_what_was_measured_since_or_else_what_was_known() -> None:
    assert make_day().find_yesterday("NSW1")[0] == 7400.0
    known = make_day(truth={}).find_yesterday("NSW1")
    assert known[33] == 6000.0 and np.isnan(known[34:]).all()

    (measured,) = (
        trace
        for trace in chart_series(make_day(truth={}), "NSW1")["data"]
        if trace["name"] == "measured"
    )
    assert measured["y"][33:35] == [6000.0, None]
    assert measured["x"][0] == "2026-03-30T00:00"


def read_policy(page: str) -> str:
    policies = [
        attributes["content"]
        for attributes in ParsedPage(page).attributes_of("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    return policies[0]


def test_the_scripts_that_may_run_are_those_in_the_page_to_the_letter() -> None:
    bodies = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)
    assert len(bodies) == 2
    allowed = [
        f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
        for body in bodies
    ]
    assert read_policy(PAGE).rpartition("script-src ")[2].split() == allowed


def test_a_page_without_charts_holds_no_script_and_allows_none() -> None:
    assert "script-src" not in read_policy(render())
    assert not ParsedPage(render()).attributes_of("script")


def test_what_was_read_and_names_from_data_are_shown_as_text() -> None:
    assert "<script>alert('storm')" not in PAGE
    assert any(TITLE in text for text in ParsedPage(PAGE).texts)

    issued = make_issued(entities=(ATTACK,))
    page = render(ForecastDay(issued=issued))
    assert ATTACK not in page
    bold = chart_series(ForecastDay(issued=rename_unit(issued, "<b>MW")), ATTACK)
    assert "<b>" not in str(bold)


def rename_unit(issued: IssuedForecast, unit: str) -> IssuedForecast:
    return IssuedForecast(rows=issued.rows.with_columns(unit=pl.lit(unit)), facts=issued.facts)


def test_the_parts_stand_above_the_forecast_they_add_up_to() -> None:
    from compevo_core.forecast.explain import explain

    rows = part_table(explain(make_issued(), "NSW1")).rows
    assert [row[-1] for row in rows] == ["1,992", "6,008", "8,000"]


def test_yesterdays_forecast_is_held_against_what_happened() -> None:
    table = before_table(make_day())
    assert table is not None
    # 100 MW too high everywhere, as high as the published one was right; all inside the band.
    assert table.rows[0] == ["NSW1", "+100.0", "100.0", "0.0", "100 %"]
    assert before_table(make_day(truth={})) is None
    assert before_table(make_day(before=None)) is None


def test_skill_is_that_of_the_scored_forecasts_over_the_last_28_days() -> None:
    days = 40
    own = [400.0] * (days - 28) + [100.0] * 28
    scores = make_rows(
        {"compevo": own, "published": [200.0] * days, "compevo-agent-0": [80.0] * days},
        coverage=[0.0] * (days - 28) + [0.75] * 28,
    )
    table = skill_table(make_day(scores=scores))
    assert table is not None
    by_reference = {row[0]: tuple(row[2:]) for row in table.rows}
    assert {row[1] for row in table.rows} == {"on time"}
    assert by_reference["Published forecast (AEMO POE50)"] == ("200.0", "100.0", "+50.0 %", "28")
    assert by_reference["best member"] == ("80.0", "100.0", "-25.0 %", "28")
    assert "75 % of the measured values" in table.notes[0]
    assert table.caption.endswith("28 days to 30 Mar 2026")
    assert skill_table(make_day()) is None


def test_every_colour_of_a_chart_has_a_dark_counterpart() -> None:
    found = set(re.findall(r"#[0-9a-f]{6}|rgba\([^)]*\)", str(chart_series(make_day(), "NSW1"))))
    assert found - {"rgba(0,0,0,0)"} <= set(DARK_COLOURS)


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    root = tmp_path / "issued" / "electricity-operational"
    for number in (0, 1, 2, 40):
        write_issued(root, make_issued(origin=ORIGIN - number * ONE_DAY))
    # Knows more than the others: of another kind, so no match for the newest forecast.
    write_issued(root, make_issued(origin=ORIGIN - 3 * ONE_DAY, known_steps=48))
    windows = [
        make_window(
            number,
            origin=ORIGIN - number * ONE_DAY,
            dataset="electricity-operational",
            y=[5.0] * 48,
        )
        for number in (1, 60)
    ]
    WindowSet(windows, dataset="electricity-operational").write(
        tmp_path / "windows" / "electricity-operational"
    )
    return tmp_path


def test_the_newest_forecast_is_read_with_what_is_known_of_those_that_knew_as_much(
    deployment: Path,
) -> None:
    scored = deployment / "scored"
    scored.mkdir()
    rows = [make_rows({"compevo": [100.0]}, known_to=known) for known in ("midnight", "issue-time")]
    pl.concat(rows).write_parquet(scored / "electricity-operational.parquet")

    (day,) = read_days(deployment / "issued", deployment / "windows", scored)
    assert day.issued.origin == ORIGIN
    assert day.before is not None and day.before.origin == ORIGIN - ONE_DAY
    assert list(day.truth) == [("NSW1", ORIGIN - ONE_DAY)]
    assert day.scores["known_to"].to_list() == ["issue-time"]

    (without,) = read_days(deployment / "issued", deployment / "windows")
    assert without.scores.is_empty()


def test_the_day_before_counts_where_it_knew_as_much(deployment: Path) -> None:
    root = deployment / "issued" / "electricity-operational"
    later = make_issued(origin=ORIGIN + 4 * ONE_DAY)
    write_issued(root, later)
    write_issued(root, make_issued(origin=ORIGIN + 3 * ONE_DAY, known_steps=48))
    (day,) = read_days(deployment / "issued", deployment / "windows")
    assert day.issued.hash == later.hash and day.before is None
