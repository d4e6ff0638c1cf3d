"""Demand and AEMO's day-ahead forecasts in one call."""

from datetime import timedelta

import polars as pl
import pytest

from compevo_core.data.schemas import PUBLISHED_SCHEMA
from compevo_core.errors import ConfigError, DataError
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode
from compevo_pipeline.storage.series_store import SeriesStore
from compevo_pipeline.work import nem_data
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.nem_data import DATASET, read_nem
from tests.support.window_samples import from_nem, make_series

MIDNIGHT = from_nem(2026, 3, 1)


@pytest.fixture
def deployment(tmp_path):
    """28 February and 1 March of one region, and two publications of each half-hour of March."""
    made = Deployment(settings=Settings(home=tmp_path, mode=Mode.SAMPLE))
    series_id = "AEMO/OPERATIONAL_DEMAND/NSW1"
    first = MIDNIGHT - timedelta(days=1)
    series = make_series([float(i) for i in range(96)], first=first, series_id=series_id)
    SeriesStore(made.layout.root).write(DATASET, series)
    rows = [
        ("NSW1", MIDNIGHT + step * timedelta(minutes=30), value + level, known, level, "sample:x")
        for step in range(48)
        for level in (0.1, 0.5, 0.9)
        for known, value in (
            (MIDNIGHT - timedelta(hours=7), 100.0),
            (MIDNIGHT - timedelta(minutes=30), 200.0),
            # Of the day itself: nobody had it the day before.
            (MIDNIGHT, 300.0),
        )
    ]
    published = pl.DataFrame(rows, schema=PUBLISHED_SCHEMA, orient="row")
    made.frame_store().write(DATASET, FrameKind.PUBLISHED, published)
    return made


def test_each_half_hour_has_its_demand_and_the_newest_forecast_of_the_day_before(deployment):
    frame = read_nem("2026-03", deployment=deployment)
    assert frame.height == 48 and frame["demand_mw"].to_list() == [float(i) for i in range(48, 96)]
    first = frame.row(0, named=True)
    assert (first["region"], str(first["start"])) == ("NSW1", "2026-03-01 00:00:00")
    # POE10 is exceeded in 10 of 100 cases: the quantile at 0.9.
    assert (first["poe10_mw"], first["poe50_mw"], first["poe90_mw"]) == (200.9, 200.5, 200.1)
    assert first["known_at_utc"] == MIDNIGHT - timedelta(minutes=30)

    both = read_nem("2026-02", "2026-03", deployment=deployment)
    assert both.height == 96 and both["poe50_mw"].null_count() == 48


def test_a_month_that_is_not_stored_is_read_and_else_named(deployment, monkeypatch):
    asked = []
    monkeypatch.setattr(nem_data, "ingest_dataset", lambda *args, **_: asked.append(args[1]))
    with pytest.raises(DataError, match=r"no demand of 2026-04, 2026-05: .*COMPEVO_MODE=live"):
        read_nem("2026-03", "2026-05", deployment=deployment)
    assert asked == [DATASET]
    with pytest.raises(ConfigError, match="not a month"):
        read_nem("March", deployment=deployment)
    with pytest.raises(ConfigError, match="lies before"):
        read_nem("2026-03", "2026-02", deployment=deployment)
