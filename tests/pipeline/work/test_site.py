"""The report of a deployment, and which day is the next one to forecast."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from compevo_core.data.datasets import ELECTRICITY_OPERATIONAL
from compevo_core.data.schemas import PUBLISHED_SCHEMA
from compevo_core.forecast.issued import write_issued
from compevo_pipeline.cli.results import report
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs.metadata import render_day
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.storage.series_store import SeriesStore
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import find_next_day
from compevo_pipeline.work.results import write_site
from tests.support.issued_samples import make_issued
from tests.support.window_samples import from_nem, make_daily_values, make_series

DATASET = ELECTRICITY_OPERATIONAL.name
NOW = datetime(2026, 3, 30, 7, 45, tzinfo=UTC)


@pytest.fixture
def workspace(tmp_path: Path) -> Deployment:
    return Deployment(settings=Settings(home=tmp_path, mode=Mode.SAMPLE))


def store(workspace: Deployment, series_id: str, values: list[float | None]) -> None:
    first = from_nem(2026, 3, 29)
    SeriesStore(workspace.layout.root).write(
        DATASET, make_series(values, first=first, series_id=series_id)
    )


def test_the_next_day_begins_after_the_newest_value_on_the_markets_clock(
    workspace: Deployment,
) -> None:
    # 29 March and the 30th up to 17:00; what is forecast for the 31st is not a measured value.
    store(workspace, "AEMO/OPERATIONAL_DEMAND/NSW1", make_daily_values(2)[:82])
    store(workspace, "AEMO/POE50/NSW1", make_daily_values(3))
    assert find_next_day(workspace, ELECTRICITY_OPERATIONAL) == date(2026, 3, 31)

    store(workspace, "AEMO/OPERATIONAL_DEMAND/NSW1", make_daily_values(2))
    assert find_next_day(workspace, ELECTRICITY_OPERATIONAL) == date(2026, 3, 31)


def test_the_next_day_is_one_with_a_published_forecast_where_models_correct_it(
    workspace: Deployment,
) -> None:
    store(workspace, "AEMO/OPERATIONAL_DEMAND/NSW1", make_daily_values(6))
    published = pl.DataFrame(
        {
            "entity": "NSW1",
            "start_utc": [
                from_nem(2026, 4, 2) + step * timedelta(minutes=30) for step in range(48)
            ],
            "value": 7000.0,
            "available_at": from_nem(2026, 4, 1),
            "quantile": 0.5,
            "source": "sample:test",
        },
        schema=PUBLISHED_SCHEMA,
    )
    workspace.frame_store().write(DATASET, FrameKind.PUBLISHED, published)
    # Values reach to the end of 3 April, publications to the end of the 2nd.
    assert find_next_day(workspace, ELECTRICITY_OPERATIONAL) == date(2026, 4, 2)


def test_the_report_of_a_workspace_shows_what_it_issued(workspace: Deployment) -> None:
    write_issued(workspace.layout.issued(DATASET), make_issued())
    page, inputs = write_site(workspace, NOW)
    assert page == workspace.layout.report / "forecast.html"
    assert [day.issued.facts["dataset"] for day in inputs.days] == [DATASET]
    assert "Tuesday 31 March 2026" in page.read_text(encoding="utf-8")
    assert pl.DataFrame(inputs.rows).is_empty()


def test_the_ui_shows_a_chart_of_each_of_the_first_series() -> None:
    shown = str(render_day(make_issued()).value)
    assert shown.count("data:image/svg+xml;base64,") == 2
    assert shown.startswith("**NSW1**")


def test_the_page_is_written_from_named_folders(workspace: Deployment, tmp_path: Path) -> None:
    layout = workspace.layout
    write_issued(layout.issued(DATASET), make_issued())
    layout.results.mkdir()
    report(
        layout.results,
        out=tmp_path / "pages",
        forecasts=layout.forecasts / "issued",
        windows=layout.root / "windows",
    )
    page = tmp_path / "pages" / "forecast.html"
    assert "Tuesday 31 March 2026" in page.read_text(encoding="utf-8")
