"""A public site of what was issued: whole, continued, and never replaced."""

from dataclasses import replace
from datetime import date, timedelta

import pytest

from compevo_core.data.datasets import ELECTRICITY_OPERATIONAL
from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.forecast.issued import CHAIN_FILE, read_chain, write_issued
from compevo_pipeline.defs.metadata import render_day
from compevo_pipeline.paper.assets import write_research
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.storage.series_store import SeriesStore
from compevo_pipeline.work.next_day import find_next_day
from compevo_pipeline.work.results import publish_site, write_forecasts
from tests.support.commands import invoke
from tests.support.deployment import open_home
from tests.support.issued_samples import ORIGIN, make_issued
from tests.support.scored_samples import NOW
from tests.support.window_samples import from_nem, make_daily_values, make_published, make_series

DATASET = "electricity-operational"
ONE_DAY = timedelta(days=1)
FIRST = from_nem(2026, 3, 29)


def store(workspace, series_id, values, first=FIRST):
    series = make_series(values, first=first, series_id=series_id)
    SeriesStore(workspace.layout.root).write(DATASET, series)


@pytest.fixture
def deployment(tmp_path):
    made = open_home(tmp_path / "home", now=NOW)
    store(made, "AEMO/OPERATIONAL_DEMAND/NSW1", make_daily_values(5), ORIGIN - 4 * ONE_DAY)
    write_issued(made.layout.issued(DATASET), make_issued(origin=ORIGIN - ONE_DAY))
    return made


def test_a_site_is_whole_and_continued(deployment, tmp_path):
    site, root = tmp_path / "site", deployment.layout.issued(DATASET)
    first = publish_site(deployment, site)[DATASET]
    write_issued(root, make_issued())
    shown = invoke("publish", site, home=tmp_path / "home")
    chain = read_chain(site / "issued" / DATASET)
    assert list(chain.lines[:1]) == list(first.lines) and len(chain.lines) == 2
    assert chain.head in shown and chain.head == read_chain(root).head

    page = (site / "index.html").read_text(encoding="utf-8")
    assert chain.head in page
    assert "2026-03" in (site / "scores" / f"{DATASET}-by-step.csv").read_text()
    assert str(tmp_path) not in page

    # Anybody checks it without the deployment.
    words = ["verify", "--folder", str(site / "issued")]
    assert chain.head in invoke(*words, home=tmp_path / "none")
    record = next(site.glob("issued/*/*/known-*/forecast.json"))
    record.write_text(record.read_text().replace("+00:00", "+01:00"))
    with pytest.raises(CheckpointMismatch, match="altered"):
        invoke(*words, home=tmp_path / "none")


def test_a_published_past_is_not_replaced(deployment, tmp_path):
    site, root = tmp_path / "site", deployment.layout.issued(DATASET)
    publish_site(deployment, site)
    kept = (site / "issued" / DATASET / CHAIN_FILE).read_bytes()

    # The deployment lost its past and issued the day again.
    root.rename(tmp_path / "lost")
    write_issued(root, make_issued(origin=ORIGIN - ONE_DAY, level=7000.0))
    with pytest.raises(CheckpointMismatch, match="chain"):
        publish_site(deployment, site)
    assert (site / "issued" / DATASET / CHAIN_FILE).read_bytes() == kept


def test_removed_data_end_no_publication(deployment, tmp_path):
    root, site = deployment.layout.issued("removed"), tmp_path / "site"
    issued = make_issued()
    write_issued(root, replace(issued, facts={**issued.facts, "dataset": "removed"}))
    chains = publish_site(deployment, site)
    assert set(chains) == {DATASET, "removed"}
    assert read_chain(site / "issued" / "removed").head == read_chain(root).head
    assert not (site / "scores" / "removed-by-step.csv").exists()
    assert chains["removed"].head in (site / "index.html").read_text(encoding="utf-8")


def test_nothing_to_publish_names_the_command(tmp_path):
    with pytest.raises(DataError, match="compevo forecast"):
        publish_site(open_home(tmp_path), tmp_path / "site")


@pytest.fixture
def workspace(tmp_path):
    return open_home(tmp_path)


def test_the_next_day_follows_the_newest_value(workspace):
    # 29 March and the 30th up to 17:00; what is forecast for the 31st is not a measured value.
    store(workspace, "AEMO/OPERATIONAL_DEMAND/NSW1", make_daily_values(2)[:82])
    store(workspace, "AEMO/POE50/NSW1", make_daily_values(3))
    assert find_next_day(workspace, ELECTRICITY_OPERATIONAL) == date(2026, 3, 31)

    store(workspace, "AEMO/OPERATIONAL_DEMAND/NSW1", make_daily_values(2))
    assert find_next_day(workspace, ELECTRICITY_OPERATIONAL) == date(2026, 3, 31)


def test_the_next_day_has_a_published_forecast(workspace):
    store(workspace, "AEMO/OPERATIONAL_DEMAND/NSW1", make_daily_values(6))
    published = make_published(from_nem(2026, 4, 2), 1)
    workspace.series_store().write_frame(DATASET, FrameKind.PUBLISHED, published)

    # Values reach to the end of 3 April, publications to the end of the 2nd.
    assert find_next_day(workspace, ELECTRICITY_OPERATIONAL) == date(2026, 4, 2)


def test_the_report_shows_what_was_issued(workspace):
    write_issued(workspace.layout.issued(DATASET), make_issued())
    page = write_forecasts(workspace)
    assert page == workspace.layout.report / "forecast.html"
    shown = page.read_text(encoding="utf-8")
    assert "31 March 2026" in shown and DATASET in shown
    assert write_research(workspace)["result_rows"] == 0
    assert (page.parent / "research.html").exists()


def test_the_ui_charts_the_first_series():
    shown = str(render_day(make_issued()).value)
    assert shown.count("data:image/svg+xml;base64,") == 2
    assert shown.startswith("**NSW1**")
