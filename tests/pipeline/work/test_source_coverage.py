"""Counts of what is stored of each source: slots by month, files by state."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from compevo_core.data.schemas import PUBLISHED_SCHEMA
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.work.source_coverage import (
    find_month,
    find_stored_months,
    measure_coverage,
    pivot_months,
)
from tests.support.deployment import open_home
from tests.support.window_samples import (
    DAY,
    from_nem,
    make_articles,
    make_daily_values,
    make_series,
)

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)
FIRST = from_nem(2026, 2, 27)


@pytest.fixture
def workspace(tmp_path):
    return open_home(tmp_path, "live", now=NOW)


def row(counts, source, month, counted):
    (found,) = counts.filter(source=source, month=month, counted=counted).rows(named=True)
    return found


def store_demand(workspace, source):
    names = {"series_id": "AEMO/OPERATIONAL_DEMAND/NSW1", "source": source}
    frame = make_series(make_daily_values(6, seed=1), first=FIRST, **names)
    second = frame.with_columns(series_id=pl.lit("AEMO/OPERATIONAL_DEMAND/VIC1"))
    # The first day of March has no value of Victoria.
    start, end = from_nem(2026, 3, 1), from_nem(2026, 3, 2)
    second = second.filter(~pl.col("start_utc").is_between(start, end, closed="left"))
    workspace.series_store().write("electricity-operational", pl.concat([frame, second]))


# A live source is expected until today.
@pytest.mark.parametrize(("mode", "days"), [("archive", 4), ("live", 10)])
def test_values_are_counted_by_the_markets_clock(workspace, mode, days):
    store_demand(workspace, f"{mode}:aemo/a.csv")
    counts = measure_coverage(workspace)
    source = "electricity-operational: AEMO/OPERATIONAL_DEMAND"
    february = row(counts, source, "2026-02", "values")
    assert (february["expected"], february["stored"]) == (2 * 2 * 48, 2 * 2 * 48)
    march = row(counts, source, "2026-03", "values")
    assert (march["expected"], march["stored"]) == (days * 96, 4 * 96 - 48)
    assert march["absent"] == march["expected"] - march["stored"]


@pytest.mark.parametrize(
    ("mode", "months"), [("archive", {}), ("live", {"2026-02": True, "2026-03": False})]
)
def test_a_month_is_whole_by_what_live_sources_bring(workspace, mode, months):
    # A day of March is missing in one of two series, and nothing has come since the fourth.
    store_demand(workspace, f"{mode}:aemo/a.csv")
    assert find_stored_months(workspace, "electricity-operational") == months
    assert find_stored_months(workspace, "news") == {}


@pytest.mark.parametrize(("holidays", "is_whole"), [(3, True), (4, False)])
def test_a_month_of_rates_may_have_holidays(workspace, holidays, is_whole):
    named = {"series_id": "ECB/AUD", "source": "live:ecb/a.csv"}
    frame = make_series([1.0] * 31, first=datetime(2026, 1, 1, tzinfo=UTC), step=DAY, **named)
    frame = frame.filter(pl.col("start_utc").dt.weekday() < 6)
    workspace.series_store().write("exchange", pl.concat([frame[:5], frame[5 + holidays :]]))
    assert find_stored_months(workspace, "exchange")["2026-01"] is is_whole


def test_forecasts_and_news_are_counted_by_day(workspace):
    rows = [
        ("NSW1", FIRST + i * DAY, 1.0, FIRST, 0.5, "archive:aemo_day/x.json") for i in (0, 1, 4)
    ]
    frame = pl.DataFrame(rows, schema=PUBLISHED_SCHEMA, orient="row")
    workspace.series_store().write_frame("electricity-operational", FrameKind.PUBLISHED, frame)
    articles = make_articles([NOW - 3 * DAY, NOW - 3 * DAY + timedelta(hours=1), NOW - 5 * DAY])
    workspace.news_store().upsert_articles(articles.with_columns(source=pl.lit("live:gdelt/x")))

    counts = measure_coverage(workspace)
    forecasts = row(counts, "electricity-operational: aemo_day (published)", "2026-03", "days")
    assert (forecasts["expected"], forecasts["stored"]) == (3, 1)
    news = row(counts, "news: gdelt", "2026-03", "days")
    assert (news["expected"], news["stored"]) == (6, 2)


def test_only_the_last_months_are_shown(workspace):
    assert measure_coverage(workspace).height == 0
    assert pivot_months(measure_coverage(workspace), 3).height == 0
    store_demand(workspace, "archive:aemo/a.csv")
    counts = measure_coverage(workspace)
    assert pivot_months(counts, 1).columns[2:] == ["2026-03"]
    assert pivot_months(counts, 9).columns[2:] == ["2026-03", "2026-02"]


@pytest.mark.parametrize(
    ("name", "month"),
    [
        ("PRICE_AND_DEMAND_202603_NSW1.csv", "2026-03"),
        ("PUBLIC_ACTUAL_OPERATIONAL_DEMAND_HH_202607190030_20260719000007.zip", "2026-07"),
        ("20260301001500.gkg.csv.zip", "2026-03"),
        ("eurofxref-hist.zip", ""),
        ("202613_1.csv", ""),
    ],
)
def test_a_files_name_has_its_month(name, month):
    assert find_month(name) == month
